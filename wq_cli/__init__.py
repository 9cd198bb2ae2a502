"""wq: ask questions about videos through a visual KV cache quantized window by window."""

__version__ = "0.1.0"
