"""The schema of the PostgreSQL job store, one file per version."""
