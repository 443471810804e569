"""Numbered schema files of an outbox."""
