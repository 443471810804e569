"""What ``examples/demo.py`` is made of: the troubles, the tally, the display and the table."""
