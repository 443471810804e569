"""What the parts of a store on tables share: sessions, transactions, subscribers, its identity."""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, TypeVar

from ergon_framework.errors import ConfigurationError, StoreSchemaError
from ergon_framework.ports.factstore import NEW_EPOCH, StoreInfo
from ergon_framework.storage.failpoints import declare
from ergon_framework.storage.write_guard import WriteGuard

T = TypeVar("T")
Row: TypeAlias = tuple[Any, ...]

logger = logging.getLogger("ergon_framework.boundary")

_CALLS = ("append", "receive", "confirm", "truncate", "bind", "quarantine", "desk", "move")
BEFORE = {call: f"boundary.{call}.before" for call in _CALLS}
AFTER = {call: f"boundary.{call}.after" for call in _CALLS}
declare(*BEFORE.values(), *AFTER.values())


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """How much one transaction or one call does; the rest is left to the next one."""

    dropped_facts: int = 2000
    """Facts whose payloads one commit drops. Appends pass between two commits."""
    aged_facts: int = 10_000
    """Facts whose age one read compares."""
    serve_attempts: int = 100
    """How often one call to serve a consumer reads the page anew, after each corrupted fact that
    was set aside and after each move of the consumer by another process."""


class SqlSession(Protocol):
    """The tables of one zone within one transaction. Statements go by ``file.name``."""

    def one(self, statement: str, *values: Any) -> Row | None:
        """The first row, or None."""

    def only(self, statement: str, *values: Any) -> Row:
        """The row of a statement that always finds one."""

    def all(self, statement: str, *values: Any) -> list[Row]:
        """Every row."""

    def each(self, statement: str, *values: Any) -> Iterator[Row]:
        """Rows with an envelope and a fact, as they are asked for; other statements may be run in
        between.
        """

    def run(self, statement: str, *values: Any) -> int:
        """Change something; how many rows it was."""

    def run_all(self, statement: str, rows: Iterable[Row]) -> None:
        """Run one statement for many rows of values."""

    def add(self, statement: str, *values: Any) -> int:
        """Insert one row that gets a number; the number."""


class SqlDatabase(Protocol):
    """The tables of one zone, wherever they are: transactions, and the clock they go by."""

    @property
    def guard(self) -> WriteGuard[Any]:
        """What is looked at first in each transaction that may change something."""

    @property
    def clock(self) -> Callable[[], float]:
        """What time it is where the facts are."""

    @property
    def place(self) -> str:
        """Where the store is, for a reader of errors."""

    def asked_now(self) -> float:
        """What time it is where the facts are, asked there and not reckoned here."""

    def write(self, work: Callable[[Any], T], call: str, *, is_synced: bool = True) -> T:
        """Run one transaction that may change something."""

    def read(self, work: Callable[[Any], T]) -> T:
        """Run something on what was committed last."""


class Subscribers:
    """Callbacks that are called after each commit that added facts."""

    def __init__(self) -> None:
        self._wakes: list[Callable[[], None]] = []
        self._lock = threading.Lock()

    def add(self, wake: Callable[[], None]) -> None:
        """Call ``wake()`` from now on, from any thread."""
        # A new list each time: wake() goes through the old one without the lock.
        with self._lock:
            self._wakes = [*self._wakes, wake]

    def remove(self, wake: Callable[[], None]) -> None:
        """Call it no longer. Does nothing if it was never added."""
        with self._lock:
            left = list(self._wakes)
            if wake in left:
                left.remove(wake)
            self._wakes = left

    def wake(self) -> None:
        """Call each of them; what one raises is logged."""
        for wake in self._wakes:
            try:
                wake()
            except Exception:
                logger.exception("a callback that waits for facts failed")


class StoreIdentity:
    """Which store this is: the zone that it belongs to, and its epoch."""

    info: StoreInfo

    def __init__(self, database: SqlDatabase) -> None:
        self._database = database

    def open(self, zone: str, *, read_only: bool) -> None:
        """Check that the store is this zone's. A store opened for writing is created if it is
        missing.
        """
        self.info = self._meet(zone) if read_only else self._move_in(zone)

    def _meet(self, zone: str) -> StoreInfo:
        """Check that the store is this zone's, without writing."""
        found = self._database.read(lambda session: session.one("store.store"))
        if found is None:
            raise StoreSchemaError(
                f"{self._database.place} has no zone yet", remedy="open it once for writing"
            )
        return self._check(found, zone)

    def _move_in(self, zone: str) -> StoreInfo:
        """Found the store, or look whose it is and write down that it was opened."""

        def work(session: SqlSession) -> StoreInfo:
            now, found = self._database.clock(), session.one("store.store")
            if found is None:
                info = StoreInfo(zone, secrets.token_hex(8), now)
                session.run("store.found", zone, info.epoch, now)
                return info
            info = self._check(found, zone)
            if found[3]:
                # It may have gone back in time: processes that read from it before must notice.
                return self._renewed(session, info, "a copy was opened")
            session.run("store.opened", info.epoch, now)
            return info

        return self._database.write(work, "desk")

    def renew_epoch(self, epoch: str, why: str) -> StoreInfo:
        """Begin a new epoch, if ``epoch`` is still the current one."""

        def work(session: SqlSession) -> StoreInfo:
            info = StoreInfo(*session.only("store.store")[:3])
            return info if info.epoch != epoch else self._renewed(session, info, why)

        self.info = self._database.write(work, "desk")
        return self.info

    def _renewed(self, session: SqlSession, info: StoreInfo, why: str) -> StoreInfo:
        now = self._database.clock()
        note(session, now, "new_epoch", f"{why}; its epoch was {info.epoch}")
        session.run("store.set_attribute", NEW_EPOCH, f"{now} {why}")
        renewed = StoreInfo(info.zone, secrets.token_hex(8), info.created_at)
        session.run("store.opened", renewed.epoch, now)
        return renewed

    def _check(self, found: Row, zone: str) -> StoreInfo:
        if found[0] != zone:
            raise ConfigurationError(
                f"{self._database.place} belongs to the zone {found[0]!r}, not to {zone!r}",
                remedy="name that zone, or another place",
            )
        return StoreInfo(found[0], found[1], found[2])


def note(session: SqlSession, now: float, action: str, details: str) -> None:
    """Write down what an operator did."""
    session.run("store.note", now, action, details)
