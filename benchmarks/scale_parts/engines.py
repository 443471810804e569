"""Who keeps jobs on which engine: ourselves, and the peers that live there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from jobs_parts import client
from jobs_parts.queue_systems import Who
from comparison import Goal


@dataclass(frozen=True)
class Engine:
    """An engine with who races on it; everybody's acknowledgement means: on disk."""

    key: str
    name: str
    ours: Who
    peers: tuple[Who, ...] = ()

    def field(self, keys: frozenset[str] | None) -> list[Who]:
        """Who takes part, ourselves first."""
        return [self.ours, *(who for who in self.peers if keys is None or who.key in keys)]


BULK = "bulk"
"""The case of those whose users can add many jobs at once."""
POSTGRES, REDIS = "postgres", "redis-always"


def _who(key: str, name: str, module: str, server: str, pace: int, *cases: str) -> Who:
    return Who(key, name, module, server, enqueue_pace=pace, cases=cases)


def _two(who: Who) -> Who:
    """With two workers, as the peers have: one waits for a server while the other works."""
    return replace(who, settings={client.WORKERS: "2"})


ENGINES: Sequence[Engine] = (
    Engine("sqlite", "SQLite", _who("ours-sqlite", "Ergon (SQLite)", "ours", "", 1_000, BULK)),
    Engine(
        "postgres",
        "PostgreSQL",
        _two(_who("ours-postgres", "Ergon (PostgreSQL)", "ours", POSTGRES, 1_000, BULK)),
        (
            _who("pgqueuer", "pgqueuer", "pgqueuer_peer", POSTGRES, 1_000, BULK),
            _who("procrastinate", "procrastinate", "procrastinate_peer", POSTGRES, 200, BULK),
        ),
    ),
    Engine(
        "redis",
        "Redis",
        _two(_who("ours-redis", "Ergon (Redis)", "ours", REDIS, 1_000, BULK)),
        (
            _who("dramatiq", "Dramatiq", "dramatiq_peer", REDIS, 500),
            _who("taskiq", "taskiq, stream", "taskiq_stream", REDIS, 500),
            _who("streaq", "streaQ", "streaq_peer", REDIS, 200, BULK),
            _who("celery", "Celery", "celery_peer", REDIS, 300),
        ),
    ),
)
KEYS = tuple(who.key for engine in ENGINES for who in engine.peers)
DRAIN_GOALS = {
    "pgqueuer": Goal(ratio=1.0),
    "procrastinate": Goal(ratio=20.0),
    "dramatiq": Goal(ratio=4.0),
}
