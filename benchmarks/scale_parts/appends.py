"""Appends per second on each engine beside the bare thing, into logs of given lengths."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from boundary_parts.group_commit import SqliteGroupCommit
from boundary_parts.messages import messages, split_messages
from boundary_parts.servers import NatsServer, Servers
from comparison import Contestant, Record, Target, Turn, records
from jobs_parts.queue_systems import ContestantError
from jobs_parts.session import Session

from scale_parts.bare_inserts import ArrayInsert, KeyedInsert, ManyInsert
from scale_parts.logs import GroupLog, Log, NatsLog, ZoneLog, new_database
from scale_parts.options import ScaleOptions

PRODUCERS = 64
BATCH = 500
PACE = 4_000
"""Rough facts per second, only to give turns a fitting length."""
TIMEOUT = 300.0
"""Seconds in which a log must have come to its length."""
TARGETS = {"postgres-append": Target(ratio=0.6)}
ENGINES = ("sqlite", "postgres", "nats")


def appends(session: Session, options: ScaleOptions) -> Iterator[Record]:
    """Producers that append one by one and share commits, and one that appends many at once."""
    for engine in options.logs:
        for length in options.lengths:
            servers = Servers()  # of NATS; what a long log takes shall be free again
            openers = _openers(engine, length, session, servers)
            logs = [FilledLog(*each, length) for each in openers]
            try:
                yield from _at(session, options, engine, logs)
            finally:
                for log in logs:
                    log.close()
                servers.stop()


class FilledLog:
    """A log that is filled to its length before the first turn."""

    def __init__(self, name: str, opener: Callable[[], Log], length: int) -> None:
        self.name = name
        self.length = length
        self._open = opener
        self._log: Log | None = None

    def each(self, count: int) -> Turn:
        """Producers that append one by one."""
        log = self._filled()
        return self._checked(log, count, lambda: log.append_each(split_messages(count, PRODUCERS)))

    def many(self, count: int) -> Turn:
        """One that appends many at once."""
        log, made = self._filled(), messages(count)

        def run() -> Turn:
            began, cpu_time = time.perf_counter(), time.process_time()
            for start in range(0, count, BATCH):
                log.append_all(made[start : start + BATCH])
            return Turn(count, time.perf_counter() - began, (), time.process_time() - cpu_time)

        return self._checked(log, count, run)

    def close(self) -> None:
        """Let go of the log."""
        if self._log is not None:
            self._log.close()

    def _filled(self) -> Log:
        if self._log is None:
            self._log = self._open()
            until = time.monotonic() + TIMEOUT
            for start in range(0, self.length, BATCH):
                if time.monotonic() > until:
                    raise ContestantError(f"{start} of {self.length} facts after {TIMEOUT:g} s")
                self._log.append_all(messages(min(BATCH, self.length - start)))
        return self._log

    @staticmethod
    def _checked(log: Log, count: int, run: Callable[[], Turn]) -> Turn:
        before = log.head()
        turn = run()
        stored = log.head() - before
        if stored != count:
            raise ContestantError(f"{stored} of {count} facts are there")
        return turn


def _at(
    session: Session, options: ScaleOptions, engine: str, logs: Sequence[FilledLog]
) -> Iterator[Record]:
    count = max(PRODUCERS * 10, int(PACE * options.seconds) // PRODUCERS * PRODUCERS)
    for name, way in {"append": FilledLog.each, "append-batch": FilledLog.many}.items():
        contestants = [Contestant(log.name, partial(way, log, count)) for log in logs]
        session.race(contestants)
        target = TARGETS.get(f"{engine}-{name}")
        ours, *bare = contestants
        case = f"{engine}-{name}-{logs[0].length}"
        yield from records(case, ours, [(each, target) for each in bare])


def _openers(
    engine: str, length: int, session: Session, servers: Servers
) -> list[tuple[str, Callable[[], Log]]]:
    """Ours, and each bare one on an engine."""
    folder = session.folder / f"{engine}-{length}"
    folder.mkdir()

    def postgres() -> str:
        return session.servers.url("postgres")

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
