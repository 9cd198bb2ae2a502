"""Results drawn for people (terminal tables and maps, PNG) and for programs (JSON)."""
