"""The SQL of the SQLite job store: named statements, and the numbered schema."""
