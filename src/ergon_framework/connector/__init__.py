"""One module per system that transactions come from or go to. Importing this loads none of them."""

from __future__ import annotations

from ergon_framework.ports.transaction import Transaction

__all__ = ["Transaction"]
