"""The tables in which pollers record their progress."""
