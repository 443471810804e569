"""Servers that the tests of this folder share."""

from __future__ import annotations

from tests.providers.servers import postgres_server, postgres_url

__all__ = ["postgres_server", "postgres_url"]
