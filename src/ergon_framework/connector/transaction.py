"""The transaction, at the path RFC-001 gives it."""

from __future__ import annotations

from ergon_framework.ports.transaction import Transaction

__all__ = ["Transaction"]
