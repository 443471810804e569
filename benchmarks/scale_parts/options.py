"""How much to do."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from scale_parts.engines import Engine


@dataclass(frozen=True)
class ScaleOptions:
    """What was asked for."""

    folder: Path
    rounds: int
    seconds: float  # the length of a turn, roughly
    lengths: tuple[int, ...]  # of queues and of logs
    drained: tuple[int, ...]  # jobs queued when workers start
    window: float  # seconds a drain is watched at most
    workers: tuple[int, ...]
    engines: tuple[Engine, ...]  # of jobs
    logs: tuple[str, ...]  # engines of facts
    peers: frozenset[str] | None  # None: all
