"""Where facts are kept: in memory, in an SQLite file, on PostgreSQL, or on NATS."""
