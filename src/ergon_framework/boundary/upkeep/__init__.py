"""Looking after a zone: what it lets go of, whether all is sound, and copies of it."""
