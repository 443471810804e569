"""Provider calls as the tasks of a queue: keys, dead letters, and what becomes of a delivery."""
