"""The tables in which pollers keep how far they are."""
