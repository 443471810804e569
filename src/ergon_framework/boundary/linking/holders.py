"""Under which name a node holds its zone's place at a peer."""

from __future__ import annotations

import os
import secrets
import socket
from functools import lru_cache

from ergon_framework.boundary.logs.sqlite import SqliteFactStore
from ergon_framework.ports.factstore import FactStore


def is_alone(store: FactStore) -> bool:
    """Whether a zone has one node at most: its folder is locked, a server is shared."""
    return isinstance(store, SqliteFactStore)


def holder_of(store: FactStore) -> str:
    """Who pulls for a zone.

    Where there is one node, the zone itself: a node that was killed and started again goes on at
    once. Nodes that share a server have a name each, so that one pulls and the others wait.
    """
    return f"{store.info().epoch}" if is_alone(store) else _process(os.getpid())


@lru_cache(maxsize=1)
def _process(pid: int) -> str:
    """A name for this process, the same as long as it lives; a forked one has its own."""
    host = "".join(c for c in socket.gethostname() if (c.isascii() and c.isalnum()) or c in "-.")
    return f"{host[:64] or 'host'}:{pid}:{secrets.token_hex(6)}"
