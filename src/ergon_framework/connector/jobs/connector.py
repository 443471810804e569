"""``JobsConnector``: fetch, dispatch and settlement, sync and async, and checks of arguments."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar, NamedTuple, Self

from pydantic import ValidationError

from ergon_framework.connector.base import (
    ThreadedProducing,
    check_batch_size,
    refuse_extra,
    settling,
)
from ergon_framework.connector.broker.options import SOME_SECONDS, seconds_of, takes_options
from ergon_framework.connector.jobs.claims import QueueConsumer
from ergon_framework.connector.jobs.codec import (
    JobDelivery,
    JobsConnectorError,
    add_once,
    delivery_of,
    event_of,
    held_for,
    job_of,
    transaction_of,
)
from ergon_framework.core.executor_protocol import check_progress
from ergon_framework.core.job import JobEvent, JobStatus, Released, Succeeded
from ergon_framework.engine.clocks import SYSTEM_CLOCK
from ergon_framework.errors import ConfigurationError, JobError, StoreError
from ergon_framework.jobs.client import MAX_BATCH
from ergon_framework.jobs.newjob import check_options
from ergon_framework.jobs.settings import JobsSettings
from ergon_framework.ports.job_fields import name
from ergon_framework.ports.jobstore import DEFAULT_QUEUE, FullJobStore, Search
from ergon_framework.ports.settings_model import explain
from ergon_framework.ports.transaction import Transaction
from ergon_framework.telemetry.tracing import dispatching

_OURS = {"id": "the transaction's id", "correlation_id": "the transaction's"}
_OURS |= {"trace_context": "the current trace", "queue": "the connector's queue"}


class Given(NamedTuple):
    """The arguments, checked."""

    settings: JobsSettings
    options: dict[str, Any]


def checked(
    store: object,
    queue: object,
    handler: object,
    executor: object,
    lease: float | None,
    options: object,
    settings: object,
) -> Given:
    """Check the arguments. Refuses what could not work later."""
    if not store:
        raise ConfigurationError(
            "a JobsConnector needs a store",
            remedy='JobsConnector("sqlite:///work.db"), or url under [store] in the settings',
        )
    if not isinstance(store, str) and not callable(getattr(store, "settle_and_claim", None)):
        raise ConfigurationError(
            f"{type(store).__name__} is no store", remedy="give its URL or an open one"
        )
    try:
        name("queue", queue)
        if handler is not None:
            name("handler", handler)
        if executor is not None and "#" in name("executor", executor):
            raise ConfigurationError("executor has a '#' in it", remedy="write it in the handler")
    except JobError as error:
        raise ConfigurationError(error.message, remedy=error.remedy) from error
    changes = {} if lease is None else {"lease": lease}
    return Given(_settings(settings, changes), _options({} if options is None else options))


def _settings(given: object, changes: dict[str, Any]) -> JobsSettings:
    if not isinstance(given, JobsSettings | Mapping | None):
        raise ConfigurationError(
            f"settings is {type(given).__name__}", remedy="give JobsSettings or a mapping"
        )
    try:
        if not isinstance(given, JobsSettings):
            return JobsSettings.model_validate({**(given or {}), **changes})
        return given.model_copy(
            update={"lease": JobsSettings(**changes).lease} if changes else None
        )
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, found["loc"]))
        inside = f"{where}: " if "." in where else ""  # the name itself is told already
        raise ConfigurationError(f"{inside}{explain(found)}", remedy="see [jobs]") from error


def _options(options: object) -> dict[str, Any]:
    if not isinstance(options, Mapping):
        raise ConfigurationError(
            f"options is {type(options).__name__}", remedy="give a mapping of a job's options"
        )
    for field, whose in _OURS.items():
        if field in options:
            raise ConfigurationError(
                f"options must not hold {field}: a job has {whose}", remedy=f"leave {field} out"
            )
    try:
        check_options(options)
    except JobError as error:
        raise ConfigurationError(f"options: {error.message}", remedy=error.remedy) from error
    return dict(options)


_SETTINGS = "a fetch takes wait, and a dispatch takes none"
DEFAULT_EXECUTOR = "connector"
"""The executor name under which a connector claims that was given none."""
_WAITING = (JobStatus.PENDING, JobStatus.RETRYING)


class JobsConnector(ThreadedProducing):
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

    @takes_options(lease=SOME_SECONDS)
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
        given = checked(store, queue, handler, executor, lease, options, settings)
        self.name = name
        self.queue = queue
        self._handler = handler
        self._executor = executor or ""
        self._wait = wait
        self.waits_for_work = self._wait > 0
        self._options = {**given.options, "queue": queue}
        self._consumer = QueueConsumer(
            store, given.settings, queue, self._executor or DEFAULT_EXECUTOR
        )

    # ---- opening and closing ----

    def open(self) -> None:
        """Open the store; otherwise the first use does."""
        self._consumer.client()

    def health(self) -> bool:
        """Whether it can be used: not closed, and its store answers."""
        try:
            self._consumer.client().store.find("")
        except (StoreError, JobsConnectorError):
            return False
        return True

    def close(self) -> None:
        """Give back what is in hand, and close the connection. Closing twice is fine."""
        self._consumer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # ---- producing ----

    def dispatch_transactions(self, transactions: Iterable[Transaction], **extra: Any) -> None:
        """Enqueue one job for each transaction, all in one commit. Existing jobs are left as they
        are.
        """
        refuse_extra(self, extra, _SETTINGS)
        client, given = self._consumer.client(), list(transactions)
        routed = (self._handler, self._executor)
        with dispatching("job.enqueue", "rrq.job_id", given):
            jobs = [job_of(each, client, routed, self._options) for each in given]
            if len(jobs) > MAX_BATCH:
                text = f"more than {MAX_BATCH:,} jobs in one commit"
                raise JobsConnectorError(text, remedy="dispatch fewer at once")
            add_once(client.store, jobs)

    # ---- consuming ----

    def fetch_transactions(
        self, batch_size: int, *, wait: float | None = None, **extra: Any
    ) -> list[Transaction]:
        """Claim up to ``batch_size`` jobs; empty at once, or after ``wait`` seconds without any."""
        return self._fetch(batch_size, wait, extra, threading.Event())

    def stop_waiting(self) -> None:
        """Make the fetch under way, or the next one, stop waiting. Any thread may call it."""
        self._consumer.stop_waiting()

    def ack(self, transaction: Transaction) -> None:
        """The transaction succeeded: complete its job."""
        self._settle(transaction, "ack", Succeeded())

    def nack(self, transaction: Transaction, exc: Exception) -> None:
        """The transaction failed: its job's rule decides between a retry and the dead letters."""
        with self._claimed(transaction, "nack") as delivery:
            if delivery is not None:
                final = self._consumer.settler.final_codes(delivery.claim.job)
                self._record(delivery, event_of(exc, transaction.transaction_id, final))

    def release(self, transaction: Transaction) -> None:
        """The transaction was not finished: release its job without a charge."""
        self._settle(transaction, "release", Released())

    def release_after(self, transaction: Transaction, seconds: float) -> None:
        """A gate is closed: the job is parked for so many seconds, without a charge."""
        event = held_for(seconds_of("release_after's seconds", seconds))
        self._settle(transaction, "release_after", event)

    def progress(
        self, transaction: Transaction, fraction: float | None = None, message: str = ""
    ) -> None:
        """Tell how far the work on a transaction is: a part from 0 to 1, a few words, or both.

        As ``job.progress()`` of a handler: it never waits, about one report in a second is written,
        the last one always, and it is shown until the transaction is settled.
        """
        check_progress(fraction, message)
        if not isinstance(transaction, JobDelivery) or transaction.owner is not self:
            raise JobsConnectorError(
                f"transaction {transaction.transaction_id!r} was not delivered by this connector",
                remedy="report on what fetch_transactions returned, with the same connector",
            )
        self._consumer.tell_progress(transaction.claim, fraction, message)

    def get_transactions_count(self) -> int:
        """How many jobs of the queue wait, due or not."""
        return self._consumer.client().store.count(Search(statuses=_WAITING, queue=self.queue))

    def fetch_transaction_by_id(self, transaction_id: str) -> Transaction | None:
        """The job with this id, if it is one of the queue. It claims nothing."""
        job = self._consumer.client().store.find(transaction_id)
        if job is None or job.queue != self.queue:
            return None
        return transaction_of(job, self.name)

    # ---- the same for event loops; what blocks is done by other threads ----

    async def fetch_transactions_async(
        self, batch_size: int, *, wait: float | None = None, **extra: Any
    ) -> list[Transaction]:
        """The async version of :meth:`fetch_transactions`; cancelled, it gives the jobs back."""
        gave_up = threading.Event()

        def end() -> None:
            gave_up.set()
            self._consumer.wake()

        return await self._fetch_in_thread(self._fetch, end, batch_size, wait, extra, gave_up)

    async def release_after_async(self, transaction: Transaction, seconds: float) -> None:
        """The async version of :meth:`release_after`."""
        await self._threads.run(self.release_after, transaction, seconds)

    async def aopen(self) -> None:
        """The async version of :meth:`open`."""
        await self._threads.run(self.open)

    # ---- inside ----

    def _fetch(
        self,
        batch_size: int,
        wait: float | None,
        extra: Mapping[str, Any],
        gave_up: threading.Event,
    ) -> list[Transaction]:
        refuse_extra(self, extra, _SETTINGS)
        check_batch_size(batch_size)
        seconds = self._wait if wait is None else seconds_of("wait", wait)
        claims = self._consumer.claim(batch_size, seconds, gave_up)
        at = SYSTEM_CLOCK.now()
        return list(
            self._consumer.hand_out(claims, lambda claim: delivery_of(claim, self, self.name, at))
        )

    def _settle(self, transaction: Transaction, verb: str, event: JobEvent) -> None:
        with self._claimed(transaction, verb) as delivery:
            if delivery is not None:
                self._record(delivery, event)

    def _record(self, delivery: JobDelivery, event: JobEvent) -> None:
        self._consumer.settle(delivery.claim, event, SYSTEM_CLOCK.now() - delivery.claimed_at)

    @contextmanager
    def _claimed(self, transaction: Transaction, verb: str) -> Iterator[JobDelivery | None]:
        """The delivery to settle, or None when it was already settled with this verb.

        A settlement that fails may be tried again while the lease lasts.
        """
        with settling(JobDelivery, transaction, self, verb, JobsConnectorError) as delivery:
            self._consumer.client()  # raises when it is closed
            yield delivery
