"""History: moves, waits and usage in an SQLite database."""
