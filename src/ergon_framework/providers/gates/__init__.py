"""What stands before a call: the lanes, their circuits, and how many may retry at once."""
