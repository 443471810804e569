"""Appends per second on each engine beside the bare thing, into logs of given lengths."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from boundary_parts.group_commit import SqliteGroupCommit
from boundary_parts.messages import messages, shares
from boundary_parts.servers import NatsServer, Servers
from jobs_parts.queue_systems import FailedError
from jobs_parts.session import Ground
from comparison import Entry, Goal, Record, Turn, records

from scale_parts.bare_inserts import ArrayInsert, KeyedInsert, ManyInsert
from scale_parts.options import Effort
from scale_parts.logs import GroupLog, Log, NatsLog, ZoneLog, new_database

PRODUCERS = 64
BATCH = 500
PACE = 4_000
"""Rough facts per second, only to give turns a fitting length."""
PATIENCE = 300.0
"""Seconds in which a log must have come to its length."""
GOALS = {"postgres-append": Goal(ratio=0.6)}
ENGINES = ("sqlite", "postgres", "nats")


def appending(ground: Ground, effort: Effort) -> Iterator[Record]:
    """Producers that append one by one and share commits, and one that appends many at once."""
    for engine in effort.logs:
        for length in effort.lengths:
            servers = Servers()  # of NATS; what a long log takes shall be free again
            openers = _openers(engine, length, ground, servers)
            sides = [Side(*each, length) for each in openers]
            try:
                yield from _at(ground, effort, engine, sides)
            finally:
                for side in sides:
                    side.close()
                servers.stop()


class Side:
    """A log that is filled to its length before the first turn."""

    def __init__(self, who: str, opener: Callable[[], Log], length: int) -> None:
        self.who = who
        self.length = length
        self._open = opener
        self._log: Log | None = None

    def each(self, count: int) -> Turn:
        """Producers that append one by one."""
        log = self._filled()
        return self._checked(log, count, lambda: log.append_each(shares(count, PRODUCERS)))

    def many(self, count: int) -> Turn:
        """One that appends many at once."""
        log, made = self._filled(), messages(count)

        def run() -> Turn:
            began, burnt = time.perf_counter(), time.process_time()
            for start in range(0, count, BATCH):
                log.append_all(made[start : start + BATCH])
            return Turn(count, time.perf_counter() - began, (), time.process_time() - burnt)

        return self._checked(log, count, run)

    def close(self) -> None:
        """Let go of the log."""
        if self._log is not None:
            self._log.close()

    def _filled(self) -> Log:
        if self._log is None:
            self._log = self._open()
            until = time.monotonic() + PATIENCE
            for start in range(0, self.length, BATCH):
                if time.monotonic() > until:
                    raise FailedError(f"{start} of {self.length} facts after {PATIENCE:g} s")
                self._log.append_all(messages(min(BATCH, self.length - start)))
        return self._log

    @staticmethod
    def _checked(log: Log, count: int, run: Callable[[], Turn]) -> Turn:
        before = log.head()
        turn = run()
        stored = log.head() - before
        if stored != count:
            raise FailedError(f"{stored} of {count} facts are there")
        return turn


def _at(ground: Ground, effort: Effort, engine: str, sides: Sequence[Side]) -> Iterator[Record]:
    count = max(PRODUCERS * 10, int(PACE * effort.seconds) // PRODUCERS * PRODUCERS)
    for name, way in {"append": Side.each, "append-batch": Side.many}.items():
        entries = [Entry(side.who, partial(way, side, count)) for side in sides]
        ground.race(entries)
        goal = GOALS.get(f"{engine}-{name}")
        ours, *bare = entries
        case = f"{engine}-{name}-{sides[0].length}"
        yield from records(case, ours, [(each, goal) for each in bare])


def _openers(
    engine: str, length: int, ground: Ground, servers: Servers
) -> list[tuple[str, Callable[[], Log]]]:
    """Ours, and each bare one on an engine."""
    folder = ground.folder / f"{engine}-{length}"
    folder.mkdir()

    def postgres() -> str:
        return ground.servers.url("postgres")

    def nats() -> NatsServer:
        server: NatsServer = servers.get("NATS", partial(NatsServer, folder / "nats"))
        return server

    stores: dict[str, Callable[[], str | None]] = {
        "sqlite": lambda: None,
        "postgres": lambda: new_database(postgres(), f"{engine}_{length}"),
        "nats": lambda: f"nats://127.0.0.1:{nats().port}?monitor=http://127.0.0.1:{nats().monitor}",
    }
    bare: dict[str, dict[str, Callable[[], Log]]] = {
        "sqlite": {
            "bare SQLite group commit": lambda: GroupLog(SqliteGroupCommit(folder / "bare.db"))
        },
        "postgres": {
            "bare insert of an array": lambda: GroupLog(ArrayInsert(postgres())),
            "bare executemany": lambda: GroupLog(ManyInsert(postgres())),
            "bare insert with unique ids": lambda: GroupLog(KeyedInsert(postgres())),
        },
        "nats": {"bare JetStream publish": lambda: NatsLog(nats())},
    }
    ours = ("Ergon", lambda: ZoneLog(folder / "zone", stores[engine]()))
    return [ours, *bare[engine].items()]
