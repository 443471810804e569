"""From a task's name to all it needs, checked before anything connects."""
