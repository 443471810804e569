"""What a worker asks for."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker can take right now."""

    worker: str
    lease: float
    slots: Mapping[str, int]  # executor to free slots; only executors that can run something
    default: str = ""  # the executor of jobs that name none …
    routes: Mapping[str, str] = {}  # … unless their queue has one of its own
    own: frozenset[str] = frozenset()  # the executors this worker has, busy or not; empty: any
    queues: tuple[str, ...] | None = None  # None: all
    asks_more: bool = True  # whether ``Claimed.more`` matters
