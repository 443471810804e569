"""Ergon inside other frameworks: one module for each, imported only by those who use it."""
