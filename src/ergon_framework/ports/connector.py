"""What the engines ask of a connector. No base class is needed: methods are found by name.

Required of a source is one method: ``fetch_transactions`` or ``fetch_transactions_async``. All
others are offers. The engine never runs two fetches of one call at the same time, but fetches may
come from different threads. Each delivered transaction is settled in exactly one way: ``ack``,
``nack`` and ``release_after`` by the thread or task that ran its lifecycle, ``release`` when the
call ends. One that raises may be called again, unless it raises ``ChannelLostError``,
``ConnectionError`` or ``EOFError``: then deliveries of that channel are not settled any more. A
source that redelivers what failed declares ``redelivers = True``, and one whose content is lost
with the process ``volatile = True``. A source whose fetch waits for work may offer
``stop_waiting()``, which never blocks: it makes the fetch under way return when a stop was
requested. One that does wait declares ``waits_for_work = True``: after an empty fetch it is asked
again at once, where others are left alone for ever longer. One whose ``ack`` only takes a note in
memory declares ``ack_never_waits = True``: then ``ack`` is called without a deadline, by asyncio
tasks as well. A source that sets aside malformed
messages may count them in ``malformed`` and name the file that keeps them in ``dead_letter_file``:
both are in the report.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol, runtime_checkable

from ergon_framework.ports.transaction import Transaction


@runtime_checkable
class Source(Protocol):
    """A source to consume from, for threads."""

    def fetch_transactions(self, batch_size: int, **extra: Any) -> Iterable[Transaction] | None:
        """Fetch up to ``batch_size`` transactions; empty or None when there are none now."""


@runtime_checkable
class AsyncSource(Protocol):
    """A source to consume from, for asyncio."""

    async def fetch_transactions_async(
        self, batch_size: int, **extra: Any
    ) -> Iterable[Transaction] | None:
        """Fetch up to ``batch_size`` transactions; empty or None when there are none now."""


@runtime_checkable
class Target(Protocol):
    """A target to produce to, for threads."""

    def dispatch_transactions(self, transactions: Iterable[Transaction], **extra: Any) -> None:
        """Deliver them all; an exception means that the outcome is unknown for each."""


@runtime_checkable
class AsyncTarget(Protocol):
    """A target to produce to, for asyncio."""

    async def dispatch_transactions_async(
        self, transactions: Iterable[Transaction], **extra: Any
    ) -> None:
        """Deliver them all; an exception means that the outcome is unknown for each."""


@runtime_checkable
class Settling(Protocol):
    """A source that keeps a delivered transaction until it is settled."""

    def ack(self, transaction: Transaction) -> None:
        """The transaction succeeded: remove it from the source."""

    def nack(self, transaction: Transaction, exc: Exception) -> None:
        """The transaction failed for good: set it aside with its reason."""

    def release(self, transaction: Transaction) -> None:
        """The transaction was not finished: deliver it again."""


@runtime_checkable
class Parking(Protocol):
    """A source that can keep a transaction for a while, until a gate may have opened."""

    def release_after(self, transaction: Transaction, seconds: float) -> None:
        """The transaction was not attempted: deliver it again after ``seconds``, and count no
        attempt.
        """


@runtime_checkable
class AsyncSettling(Protocol):
    """The async version of :class:`Settling`."""

    async def ack_async(self, transaction: Transaction) -> None:
        """The transaction succeeded: remove it from the source."""

    async def nack_async(self, transaction: Transaction, exc: Exception) -> None:
        """The transaction failed for good: set it aside with its reason."""

    async def release_async(self, transaction: Transaction) -> None:
        """The transaction was not finished: deliver it again."""
