"""Where provider calls keep what their processes share: one opener, all stores give one answer."""

from __future__ import annotations

from ergon_framework.providers.stores.opening import open_store

__all__ = ["open_store"]
