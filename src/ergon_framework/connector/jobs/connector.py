"""The connector itself: both colours, settlement by object."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar, Self

from ergon_framework.connector.base import ThreadedTwins, settling
from ergon_framework.connector.jobs.desk import Desk
from ergon_framework.connector.jobs.envelope import (
    Delivery,
    add_once,
    delivery_of,
    job_of,
    transaction_of,
)
from ergon_framework.connector.jobs.faults import JobsConnectorError
from ergon_framework.connector.jobs.options import check_batch, checked, refuse_extra, seconds_of
from ergon_framework.connector.jobs.outcomes import held_for, seen_of
from ergon_framework.core.job import JobStatus, Released, Seen, Succeeded
from ergon_framework.engine.clocks import SYSTEM_CLOCK
from ergon_framework.errors import StoreError
from ergon_framework.jobs.client import MOST_AT_ONCE
from ergon_framework.jobs.settings import JobsSettings
from ergon_framework.ports.jobstore import DEFAULT_QUEUE, FullJobStore, Search
from ergon_framework.ports.transaction import Transaction
from ergon_framework.telemetry.tracing import dispatching

DEFAULT_EXECUTOR = "connector"
"""As whom a connector claims that was given no name of an executor."""
_WAITING = (JobStatus.PENDING, JobStatus.RETRYING)


class JobsConnector(ThreadedTwins):
    """Consumes the jobs of one queue, and produces jobs into it.

    ``store`` is the URL of a job store, or an open one, which stays the caller's to close.
    ``handler`` is that of dispatched transactions whose metadata names none. Jobs are consumed that
    name no executor, or ``executor``; with it, dispatched jobs name it too. Several processes may
    share a queue. ``lease`` is how long a job stays with a process that has died, ``wait`` how many
    seconds a fetch waits for work. ``options`` are those of every dispatched job, as of
    ``JobClient.enqueue``. ``name`` becomes the source of what is delivered.
    """

    redelivers: ClassVar[bool] = True
    """What failed comes again by the job's own rule, so the task must not repeat it as well."""
    joins_trace: ClassVar[bool] = True
    """What is delivered goes on with the trace that its job was enqueued in."""

    def __init__(
        self,
        store: str | FullJobStore,
        *,
        queue: str = DEFAULT_QUEUE,
        handler: str | None = None,
        executor: str | None = None,
        name: str | None = None,
        lease: float | None = None,
        wait: float = 0.0,
        options: Mapping[str, Any] | None = None,
        settings: JobsSettings | Mapping[str, Any] | None = None,
    ) -> None:
        given = checked(store, queue, handler, executor, lease, wait, options, settings)
        self.name = name
        self.queue = queue
        self._handler = handler
        self._executor = executor or ""
        self._wait = wait
        self._options = {**given.options, "queue": queue}
        self._desk = Desk(store, given.settings, queue, self._executor or DEFAULT_EXECUTOR)
        self._undoing: set[asyncio.Future[None]] = set()

    # ---- both ends of its life ----

    def open(self) -> None:
        """Open the store; otherwise the first use does."""
        self._desk.client()

    def health(self) -> bool:
        """Whether it can be used: not closed, and its store answers."""
        try:
            self._desk.client().store.find("")
        except (StoreError, JobsConnectorError):
            return False
        return True

    def close(self) -> None:
        """Give back what is in hand and let go. Closing twice is fine."""
        self._desk.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # ---- producing ----

    def dispatch_transactions(self, transactions: Iterable[Transaction], **extra: Any) -> None:
        """Enqueue one job for each, all in one commit. Those that are there already are left."""
        refuse_extra(extra)
        client, given = self._desk.client(), list(transactions)
        routed = (self._handler, self._executor)
        with dispatching("job.enqueue", "rrq.job_id", given):
            jobs = [job_of(each, client, routed, self._options) for each in given]
            if len(jobs) > MOST_AT_ONCE:
                text = f"more than {MOST_AT_ONCE:,} jobs in one commit"
                raise JobsConnectorError(text, remedy="dispatch fewer at once")
            add_once(client.store, jobs)

    # ---- consuming ----

    def fetch_transactions(
        self, batch_size: int, *, wait: float | None = None, **extra: Any
    ) -> list[Transaction]:
        """Claim up to ``batch_size`` jobs; empty at once, or after ``wait`` seconds without any."""
        return self._fetch(batch_size, wait, extra, threading.Event())

    def stop_waiting(self) -> None:
        """The fetch under way, or the next one, waits no longer. Any thread may call."""
        self._desk.stop_waiting()

    def ack(self, transaction: Transaction) -> None:
        """It succeeded: the job is completed."""
        self._settle(transaction, "ack", Succeeded())

    def nack(self, transaction: Transaction, exc: Exception) -> None:
        """It failed: the job's own rule decides between another attempt and the dead letters."""
        with self._claimed(transaction, "nack") as delivery:
            if delivery is not None:
                final = self._desk.judgement.final_codes(delivery.claim.job)
                self._record(delivery, seen_of(exc, transaction.transaction_id, final))

    def release(self, transaction: Transaction) -> None:
        """It was not worked to an end: back to its queue, without a charge."""
        self._settle(transaction, "release", Released())

    def release_after(self, transaction: Transaction, seconds: float) -> None:
        """A gate is closed: the job is parked for so long, without a charge."""
        seen = held_for(seconds_of("release_after's seconds", seconds))
        self._settle(transaction, "release_after", seen)

    def get_transactions_count(self) -> int:
        """How many jobs of the queue wait, due or not."""
        return self._desk.client().store.count(Search(statuses=_WAITING, queue=self.queue))

    def fetch_transaction_by_id(self, transaction_id: str) -> Transaction | None:
        """The job with this id, if it is one of the queue. It claims nothing."""
        job = self._desk.client().store.find(transaction_id)
        if job is None or job.queue != self.queue:
            return None
        return transaction_of(job, self.name)

    # ---- the same for event loops; what blocks is done by other threads ----

    async def fetch_transactions_async(
        self, batch_size: int, *, wait: float | None = None, **extra: Any
    ) -> list[Transaction]:
        """The asyncio twin of :meth:`fetch_transactions`; cancelled, it gives the jobs back."""
        gave_up = threading.Event()
        fetching = asyncio.ensure_future(
            self._threads.run(self._fetch, batch_size, wait, extra, gave_up)
        )
        try:
            return await asyncio.shield(fetching)
        except asyncio.CancelledError:
            gave_up.set()
            undoing = asyncio.ensure_future(self._undone(fetching))
            self._undoing.add(undoing)  # the loop itself keeps no hold of it
            undoing.add_done_callback(self._undoing.discard)
            await asyncio.shield(undoing)
            raise

    async def release_after_async(self, transaction: Transaction, seconds: float) -> None:
        """The asyncio twin of :meth:`release_after`."""
        await self._threads.run(self.release_after, transaction, seconds)

    async def aopen(self) -> None:
        """The asyncio twin of :meth:`open`."""
        await self._threads.run(self.open)

    async def _undone(self, fetching: asyncio.Future[list[Transaction]]) -> None:
        """Wait for a fetch nobody waits for any more, and give back what it brought."""
        self._desk.wake()
        await asyncio.wait([fetching])
        if fetching.exception() is None:
            for transaction in fetching.result():
                await self.release_async(transaction)

    # ---- inside ----

    def _fetch(
        self,
        batch_size: int,
        wait: float | None,
        extra: Mapping[str, Any],
        gave_up: threading.Event,
    ) -> list[Transaction]:
        refuse_extra(extra)
        check_batch(batch_size)
        seconds = self._wait if wait is None else seconds_of("wait", wait)
        claims = self._desk.claim(batch_size, seconds, gave_up)
        at = SYSTEM_CLOCK.now()
        return list(
            self._desk.hand_out(claims, lambda claim: delivery_of(claim, self, self.name, at))
        )

    def _settle(self, transaction: Transaction, verb: str, seen: Seen) -> None:
        with self._claimed(transaction, verb) as delivery:
            if delivery is not None:
                self._record(delivery, seen)

    def _record(self, delivery: Delivery, seen: Seen) -> None:
        self._desk.settle(delivery.claim, seen, SYSTEM_CLOCK.now() - delivery.claimed_at)

    @contextmanager
    def _claimed(self, transaction: Transaction, verb: str) -> Iterator[Delivery | None]:
        """What is to be settled, or None when it was settled in this way before.

        What fails may be tried again, while the lease lasts.
        """
        with settling(Delivery, transaction, self, verb, JobsConnectorError) as delivery:
            self._desk.client()  # raises when it is closed
            yield delivery
