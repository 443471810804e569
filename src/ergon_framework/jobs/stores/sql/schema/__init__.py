"""The tables of the SQLite job store, one numbered file per version."""
