"""Ergon: a framework and runtime for work that must not get lost."""
