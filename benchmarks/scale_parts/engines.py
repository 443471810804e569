"""The queue systems of each engine: ourselves, and the peers that live there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from comparison import Target
from jobs_parts import client
from jobs_parts.queue_systems import QueueSystem


@dataclass(frozen=True)
class Engine:
    """An engine and the queue systems on it; what each of them acknowledges is on disk."""

    key: str
    name: str
    ours: QueueSystem
    peers: tuple[QueueSystem, ...] = ()

    def participants(self, keys: frozenset[str] | None) -> list[QueueSystem]:
        """The queue systems that take part, ours first."""
        return [self.ours, *(system for system in self.peers if keys is None or system.key in keys)]


BULK = "bulk"
"""The case of those whose users can add many jobs at once."""
POSTGRES, REDIS = "postgres", "redis-always"


def _system(key: str, name: str, module: str, server: str, pace: int, *cases: str) -> QueueSystem:
    return QueueSystem(key, name, module, server, enqueue_pace=pace, cases=cases)


def _with_two_workers(system: QueueSystem) -> QueueSystem:
    """With two workers, as the peers have: one waits for a server while the other works."""
    return replace(system, settings={client.WORKERS: "2"})


ENGINES: Sequence[Engine] = (
    Engine("sqlite", "SQLite", _system("ours-sqlite", "Ergon (SQLite)", "ours", "", 1_000, BULK)),
    Engine(
        "postgres",
        "PostgreSQL",
        _with_two_workers(
            _system("ours-postgres", "Ergon (PostgreSQL)", "ours", POSTGRES, 1_000, BULK)
        ),
        (
            _system("pgqueuer", "pgqueuer", "pgqueuer_peer", POSTGRES, 1_000, BULK),
            _system("procrastinate", "procrastinate", "procrastinate_peer", POSTGRES, 200, BULK),
        ),
    ),
    Engine(
        "redis",
        "Redis",
        _with_two_workers(_system("ours-redis", "Ergon (Redis)", "ours", REDIS, 1_000, BULK)),
        (
            _system("dramatiq", "Dramatiq", "dramatiq_peer", REDIS, 500),
            _system("taskiq", "taskiq, stream", "taskiq_stream", REDIS, 500),
            _system("streaq", "streaQ", "streaq_peer", REDIS, 200, BULK),
            _system("celery", "Celery", "celery_peer", REDIS, 300),
        ),
    ),
)
KEYS = tuple(system.key for engine in ENGINES for system in engine.peers)
DRAIN_TARGETS = {
    "pgqueuer": Target(ratio=1.0),
    "procrastinate": Target(ratio=20.0),
    "dramatiq": Target(ratio=4.0),
}
