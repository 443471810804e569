"""Stores for the bytes of artifacts."""
