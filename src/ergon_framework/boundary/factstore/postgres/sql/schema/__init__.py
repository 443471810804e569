"""The tables of the PostgreSQL fact store, version by version."""
