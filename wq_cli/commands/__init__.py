"""One file a command: arguments to settings, one call, one rendering. No tensor code."""
