"""The moving parts of a call: a run (one transaction's lifecycle) and a worker that drives runs."""

from __future__ import annotations

from typing import Any

from ergon_framework.core.lifecycle import Cursor, End, Ending
from ergon_framework.errors import TransactionException
from ergon_framework.ports.context import Attempt
from ergon_framework.ports.transaction import Transaction


class Run(Cursor):
    """One lifecycle: the core's cursor, plus what only a driver can hold."""

    __slots__ = ("exception", "handler_exception", "note", "result", "transaction")

    def __init__(self, transaction: Transaction, began_at: float) -> None:
        Cursor.__init__(self, began_at)
        self.transaction = transaction
        self.result: Any = None
        self.exception: TransactionException | None = None  # what the exception handler is given
        self.handler_exception: TransactionException | None = None
        self.note: Any = None  # belongs to the sink


class Tally:
    """Counts with a single writer, so that no lock is needed to count."""

    __slots__ = ("aborted", "failed", "handler_failures", "succeeded", "timed_out")

    def __init__(self) -> None:
        self.succeeded = 0
        self.failed = 0
        self.timed_out = 0
        self.aborted = 0
        self.handler_failures = 0

    def count(self, end: End) -> None:
        """Count one ending."""
        if end.how is Ending.SUCCEEDED:
            self.succeeded += 1
        elif end.how is Ending.FAILED:
            self.failed += 1
        elif end.how is Ending.TIMED_OUT:
            self.timed_out += 1
        else:
            self.aborted += 1
        if end.handler_failure is not None:
            self.handler_failures += 1

    def add(self, other: Tally) -> None:
        """Take over what another one counted."""
        for name in Tally.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    @property
    def ended(self) -> int:
        """All endings, whatever they were."""
        return self.succeeded + self.failed + self.timed_out + self.aborted


class Worker(Tally):
    """A long-lived thread or task that pulls transactions and drives their lifecycles."""

    __slots__ = ("attempt", "handle")

    def __init__(self) -> None:
        super().__init__()
        self.attempt: Attempt | None = None  # what it does right now; the watchdog looks here
        self.handle: Any = None  # asyncio: the task, to cancel it
