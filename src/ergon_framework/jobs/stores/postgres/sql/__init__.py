"""The statements of the PostgreSQL job store, and its schema."""
