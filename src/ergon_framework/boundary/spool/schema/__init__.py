"""The tables of the spool."""
