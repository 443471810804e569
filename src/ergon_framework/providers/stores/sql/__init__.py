"""Named SQL statements, in words that SQLite and PostgreSQL share."""
