"""Ergon inside other frameworks: one module for each, imported only by those who use it.

- ``fastapi``, ``django``, ``flask``: frameworks; ``commands``: ``ergon`` inside their command lines
- ``sentry``, ``structlog``: where failures and log records go
"""
