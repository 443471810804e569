"""The tables of the SQLite fact store, one numbered file per version."""
