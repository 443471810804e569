"""Facts in the memory of one process."""

from __future__ import annotations

from ergon_framework.boundary.factstore.memory.store import MemoryFactStore

__all__ = ["MemoryFactStore"]
