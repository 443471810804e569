"""The connector under test, with the same methods whether it is sync or async."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from ergon_framework.ports.transaction import FIELDS, Transaction, new_id
from ergon_framework.testing.suites.drivers import CheckCaller, outcome
from ergon_framework.testing.suites.framework import CheckFailed, expect, fail

POLLS = 3  # so many empty fetches in a row mean that there is nothing
MOST_BATCHES = 50  # a connector that never runs dry is stopped here
_PAUSE = 0.02

SYNC = {
    "fetch": "fetch_transactions",
    "dispatch": "dispatch_transactions",
    "ack": "ack",
    "nack": "nack",
    "release": "release",
    "release_after": "release_after",
    "count": "get_transactions_count",
    "by_id": "fetch_transaction_by_id",
    "health": "health",
    "close": "close",
}
ASYNC = {verb: f"{name}_async" for verb, name in SYNC.items()} | {"close": "aclose"}
EITHER = ("health", "close")  # an async connector may offer these as plain methods too

Seed = Callable[[Any, list[Transaction]], Any]
DeadLetters = Callable[[Any], Iterable[tuple[str, str]]]
Shape = tuple[Callable[[Any], Any], Callable[[Any], Any]]


class ConnectorSubject:
    """One fresh connector and its methods, with a time limit on every call."""

    def __init__(
        self,
        connector: Any,
        colour: str,
        caller: CheckCaller,
        *,
        seed: Seed | None,
        dead_letters: DeadLetters | None,
        patience: float,
        promised: frozenset[str] = frozenset(),
        shape: Shape | None = None,
        faults: Mapping[str, Callable[..., Any]] | None = None,
    ) -> None:
        self.connector = connector
        self.colour = colour
        self.caller = caller
        self.patience = patience
        self.promised = promised
        self._shape = shape
        self._seed = seed
        self._dead_letters = dead_letters
        self._faults = faults or {}
        self.methods = methods_of(connector, colour)

    @property
    def capabilities(self) -> frozenset[str]:
        """The methods that the checks may use."""
        found = set(self.methods)
        if self._seed is not None or "dispatch" in found:
            found.add("put")
        if self._dead_letters is not None or hasattr(self.connector, "dead"):
            found.add("dead")
        return frozenset(found | self._faults.keys())

    def fault(self, name: str, *args: Any) -> Any:
        """Cause a fault of the connector."""
        given = self._faults[name]
        return self.run(lambda: given(self.connector, *args), name)

    @contextmanager
    def replaced(self, connector: Any) -> Iterator[None]:
        """Continue with another connector to the same place, and close it at the end."""
        before = self.connector, self.methods
        self.connector, self.methods = connector, methods_of(connector, self.colour)
        try:
            yield
        finally:
            if "close" in self.methods:
                with suppress(Exception):  # closing has checks of its own
                    self.call("close")
            self.connector, self.methods = before

    def call(self, verb: str, *args: Any, **extra: Any) -> Any:
        """Make a call and wait for it, up to the time limit."""
        method = self.methods[verb]
        if verb == "dispatch":
            args = (self._shaped(args[0]), *args[1:])
        return self.run(lambda: method(*args, **extra), self._name(verb))

    def run(self, call: Callable[[], Any], what: str) -> Any:
        """Run any code where the connector's calls run, and wait for it."""
        return outcome(self.caller.start(call), self.patience, what)

    def together(self, calls: list[tuple[Any, ...]]) -> None:
        """Make several calls at the same time; each is a method name with its arguments."""
        thunks = [
            _bound(self.methods[verb], [self._shaped(*args)] if verb == "dispatch" else args)
            for verb, *args in calls
        ]
        for future, (verb, *_) in zip(self.caller.together(thunks), calls, strict=True):
            outcome(future, self.patience, self._name(verb))

    def refusal(self, call: Callable[[], Any]) -> Exception | None:
        """The exception that ``call`` raises, or None when it returns."""
        try:
            call()
        except CheckFailed:
            raise  # it hung: that is the check's failure, not the connector's answer
        except Exception as error:
            return error
        return None

    def put(self, transactions: Iterable[Transaction]) -> None:
        """Put transactions into the connector."""
        given = list(transactions)
        if self._seed is None:
            self.call("dispatch", given)
            return
        seed, given = self._seed, list(self._shaped(given))
        self.run(lambda: seed(self.connector, given), "seed")

    def fetch(self, batch_size: int, **extra: Any) -> list[Any]:
        """One fetch, as a list, whatever iterable it was."""
        return self.batch(batch_size, **extra)[1]

    def batch(self, batch_size: int, **extra: Any) -> tuple[Any, list[Any]]:
        """One fetch: what it returned, and the same as a list, made where the call ran."""

        def materialised() -> tuple[Any, list[Any]]:
            batch = self.methods["fetch"](batch_size, **extra)
            return batch, listed(batch)

        async def materialised_async() -> tuple[Any, list[Any]]:
            batch = await self.methods["fetch"](batch_size, **extra)
            return batch, listed(batch)

        call = materialised if self.colour == "sync" else materialised_async
        batch, items = self.run(call, self._name("fetch"))
        return batch, items

    def take(self, count: int) -> list[Transaction]:
        """Exactly ``count`` transactions, in as many fetches as it needs; none is settled."""
        taken: list[Transaction] = []
        while len(taken) < count:
            batch = self._fetch_waiting(count - len(taken), self.patience)
            if not batch:
                break
            taken += batch
        expect(
            len(taken) == count,
            f"{count} were waiting, but {len(taken)} came: {ids_of(taken)}",
        )
        return taken

    def drain(self, batch_size: int = 10, *, expected: int = 0) -> list[Transaction]:
        """Everything that waits, acknowledged where the connector settles.

        ``expected`` is how many must come; a slow broker is given time for these. What comes
        beyond them is drained too.
        """
        drained: list[Transaction] = []
        for _ in range(MOST_BATCHES):
            patience = self.patience if len(drained) < expected else 0.0
            batch = self._fetch_waiting(batch_size, patience)
            if not batch:
                return drained
            drained += batch
            for transaction in batch if "ack" in self.methods else []:
                self.call("ack", transaction)
        return fail(
            f"the connector still delivers after {MOST_BATCHES} fetches: {ids_of(drained[-3:])}"
        )

    def _fetch_waiting(self, batch_size: int, patience: float) -> list[Transaction]:
        """The next batch that is not empty; an empty one when nothing comes for so long."""
        empties, until = 0, time.monotonic() + patience
        while empties < POLLS or time.monotonic() < until:
            if batch := self.fetch(batch_size):
                return batch
            empties += 1
            if empties >= POLLS:
                time.sleep(_PAUSE)
        return []

    def payload_of(self, transaction: Transaction) -> Any:
        """The payload before it was converted for the connector."""
        if self._shape is None:
            return transaction.payload
        return self._shape[1](transaction.payload)

    def _shaped(self, transactions: Iterable[Any]) -> Iterable[Any]:
        """The transactions with payloads as the connector takes them. A generator stays a
        generator.
        """
        if self._shape is None:
            return transactions
        return (_with_payload(each, self._shape[0]) for each in transactions)

    def dead(self) -> list[tuple[str, str]]:
        """The ids and reasons of what was set aside."""
        if self._dead_letters is not None:
            return list(self._dead_letters(self.connector))
        try:
            # A plain queue keeps the exception itself: its text is the reason.
            return [(each.transaction_id, str(reason)) for each, reason in self.connector.dead]
        except (AttributeError, TypeError, ValueError):
            fail(
                "its attribute dead holds no (transaction, reason) pairs: "
                "give exercise_connector a dead_letters(connector)"
            )

    def _name(self, verb: str) -> str:
        return getattr(self.methods[verb], "__name__", verb)


def methods_of(connector: Any, colour: str) -> dict[str, Callable[..., Any]]:
    """The connector's sync or async methods, found by name."""
    names = SYNC if colour == "sync" else ASYNC
    found = {}
    for verb, name in names.items():
        method = getattr(connector, name, None)
        if method is None and verb in EITHER:
            method = getattr(connector, SYNC[verb], None)
        if callable(method):
            found[verb] = method
    return found


def listed(batch: Any) -> list[Any]:
    """A batch as a list; None is an empty one."""
    if inspect.isawaitable(batch):
        if inspect.iscoroutine(batch):
            batch.close()
        fail("the fetch returned an awaitable where a batch was expected: wrong colour")
    return [] if batch is None else list(batch)


def some(count: int, prefix: str = "t") -> list[Transaction]:
    """So many transactions with readable ids and distinct payloads."""
    return [Transaction(f"{prefix}{n}", {"n": n, "tags": [prefix, n]}) for n in range(count)]


def one(payload: Any = None, **fields: Any) -> Transaction:
    """A single transaction."""
    return Transaction(f"one-{new_id()}", payload, **fields)


def ids_of(transactions: Iterable[Any]) -> list[Any]:
    """Their ids, in order."""
    return [getattr(each, "transaction_id", each) for each in transactions]


def _bound(method: Callable[..., Any], args: list[Any]) -> Callable[[], Any]:
    return lambda: method(*args)


def _with_payload(transaction: Any, change: Callable[[Any], Any]) -> Any:
    if not isinstance(transaction, Transaction):
        return transaction
    fields = {name: getattr(transaction, name) for name in FIELDS}
    return Transaction(**{**fields, "payload": change(transaction.payload)})
