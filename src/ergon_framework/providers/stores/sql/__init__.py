"""Named statements, in the SQL that SQLite and PostgreSQL share."""
