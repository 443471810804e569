"""A source that is slower than the call: what is read of it, and what is named or handed back."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import Any

import pytest

from ergon_framework.connector.transaction import Transaction
from tests.engine.bodies import by_hand, consumer, final_report, nap, producer, rules
from tests.engine.colours import Colour, consume, produce


class Rows:
    """Gives all but one at once, and remembers what was taken."""

    def __init__(
        self,
        ids: Iterable[str],
        slow: int,
        *,
        is_stubborn: bool = False,
        before: Callable[[], None] = lambda: None,
    ) -> None:
        self.ids = list(ids)
        self.slow = slow  # the position of the one that takes long
        self.is_stubborn = is_stubborn  # does not mind that it is cancelled
        self.before = before  # called before the wait
        self.taken: list[str] = []

    def _take(self, key: str) -> Transaction:
        self.taken.append(key)
        return Transaction(key)

    def rows(self) -> Iterator[Transaction]:
        for position, key in enumerate(self.ids):
            if position == self.slow:
                self.before()
                by_hand(nap(1000.0))
            yield self._take(key)

    async def async_rows(self) -> AsyncIterator[Transaction]:
        for position, key in enumerate(self.ids):
            if position == self.slow:
                await self._wait()
            yield self._take(key)

    async def _wait(self) -> None:
        try:
            await nap(1000.0)
        except asyncio.CancelledError:
            if not self.is_stubborn:
                raise
            await nap(1000.0)

    def read_by(self, colour: Colour) -> Any:
        """The input of a call."""
        return self.rows() if colour == "sync" else self.async_rows()


class Listener(logging.Handler):
    """Hears what the engine says, also after the call."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[str] = []
        self.changed = threading.Condition()

    def emit(self, record: logging.LogRecord) -> None:
        with self.changed:
            self.told.append(record.getMessage())
            self.changed.notify_all()

    def hears(self, words: str) -> bool:
        """Wait until these words were said."""
        with self.changed:
            return self.changed.wait_for(lambda: words in self.told, timeout=20.0)


async def _nothing(_transaction: Any) -> None:
    """A hook that does nothing."""


@pytest.fixture
def log() -> Iterator[Listener]:
    """What the engine's log says."""
    listener, logger = Listener(), logging.getLogger("ergon.engine")
    logger.addHandler(listener)
    yield listener
    logger.removeHandler(listener)


@pytest.mark.req("T3.17", "T3.27")
@pytest.mark.parametrize("is_stubborn", [False, True])
def test_what_was_read_before_the_end_is_named(colour: Colour, is_stubborn: bool) -> None:
    """In both colours alike: it left the input, and the call did not begin it."""
    rows = Rows(["t1", "t2", "t3", "t4", "t5", "t6"], 3, is_stubborn=is_stubborn)
    outcome = produce(colour, rows.read_by(colour), rules(size=2, timeout=5.0))
    assert outcome.calls("produce") == ["t1", "t2"]
    assert final_report(outcome).stranded == ("t3",)


@pytest.mark.req("T3.17", "T3.27", "T3.30")
@pytest.mark.parametrize("how", ["timeout", "stop"])
def test_a_reader_takes_one_item_at_most_after_the_end(how: str, log: Listener) -> None:
    """The one it waited for, and that is named; the rest is still in the generator."""

    def before() -> None:
        if how == "stop":
            task.request_stop()

    task = producer("sync", produce=_nothing)
    rows = Rows(["t1", "t2", "t3", "t4", "t5", "t6"], 3, before=before)
    given = rows.rows()
    bounds: dict[str, Any] = {"timeout": 5.0} if how == "timeout" else {"stop_grace": 5.0}
    outcome = produce("sync", given, rules(size=3, **bounds), task=task)
    assert final_report(outcome).stranded == ()
    assert log.hears("Scene leaves 1 of its input without an outcome: t4")
    assert rows.taken == ["t1", "t2", "t3", "t4"]
    assert next(given).transaction_id == "t5"


@pytest.mark.req("T3.17", "T3.27")
def test_an_id_given_twice_is_an_item_too(log: Listener) -> None:
    """It is skipped, and after the end no other is taken in its place."""
    rows = Rows(["t1", "t1", "t2", "t3"], 1)
    given = rows.rows()
    produce("sync", given, rules(timeout=5.0), task=producer("sync", produce=_nothing))
    assert log.hears("fetch of Scene came back too late")
    assert rows.taken == ["t1", "t1"]
    assert next(given).transaction_id == "t2"


@pytest.mark.req("T3.17", "T3.19")
def test_what_a_connector_gave_before_it_hung_is_handed_back(colour: Colour) -> None:
    """A generator of transactions that stops half-way: what it gave is in our hands."""
    released: list[str] = []
    rows = Rows(["t1", "t2"], 1, is_stubborn=True)

    class Source:
        def fetch_transactions(self, batch_size: int) -> Any:
            return rows.rows()

        def fetch_transactions_async(self, batch_size: int) -> Any:
            return rows.async_rows()

        def release(self, transaction: Transaction) -> None:
            released.append(transaction.transaction_id)

        async def release_async(self, transaction: Transaction) -> None:
            released.append(transaction.transaction_id)

    task = consumer(colour, Source(), process=_nothing)
    outcome = consume(colour, None, rules(size=2, timeout=5.0), task=task)
    report = final_report(outcome)
    assert (report.released, report.stranded, released[:1]) == (1, (), ["t1"])
