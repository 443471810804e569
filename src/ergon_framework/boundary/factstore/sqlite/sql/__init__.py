"""The SQL of the SQLite fact store: named statements, and the numbered schema."""
