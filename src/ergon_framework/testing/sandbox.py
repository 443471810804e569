"""A whole program in memory and in virtual time: what the pytest fixture ``ergon`` gives.

::

    def test_a_thumbnail_is_tried_again_for_an_hour(ergon):
        ergon.use(app)
        job = shrink.enqueue("a.png")
        ergon.advance(3600)
        assert job.status() == "completed"

Inside a sandbox every job store that is opened by a URL is one in memory, which follows the
sandbox's clock; clients with the same URL share it. Jobs run in the test's own thread, without
processes. Engines, provider calls and asyncio code follow the same clock.

A program talks to fakes. The function of a provider follows a script, and everything around it
stays as it is: retries, circuits, quotas and records. A zone is a real one, in memory.
"""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

import msgspec
from pydantic import SecretStr

from ergon_framework.app.inline_worker import MAX_JOBS, HasJobs, InlineWorker, inline_worker
from ergon_framework.connector.memory import MemoryConnector
from ergon_framework.core.option_values import is_number, shown
from ergon_framework.engine.clocks import SYSTEM_CLOCK, use_clock
from ergon_framework.errors import WiringError
from ergon_framework.jobs.stores.memory import MemoryJobStore
from ergon_framework.jobs.worker import WorkerReport
from ergon_framework.ports.jobstore import EnqueueResult, NewJob
from ergon_framework.ports.transaction import Transaction
from ergon_framework.providers.stores.memory import MemoryProviderStore
from ergon_framework.storage.substitutes import substituted
from ergon_framework.testing.clock import VirtualClock
from ergon_framework.testing.scripted import act, act_async

if TYPE_CHECKING:
    from ergon_framework.boundary.client.transport import Transport
    from ergon_framework.boundary.node.local_node import LocalTransport
    from ergon_framework.boundary.settings import ZoneSettings
    from ergon_framework.engine.report import Report
    from ergon_framework.providers.calls import FunctionCall
    from ergon_framework.task.functions import FunctionConsumer


class FakeCall:
    """Replaces a function of a provider while it is entered.

    Each attempt takes the next answer, and the last one repeats: a value to return, an exception to
    raise, ``Takes(seconds, then)``, or a function that is called without arguments.
    """

    def __init__(self, call: FunctionCall, *answers: Any) -> None:
        if not answers:
            raise WiringError(
                f"the fake of {call.operation!r} has no answer", remedy="give one, None for None"
            )
        self._call = call
        self._answers = answers
        self._lock = threading.Lock()
        self._original = call.signature.function
        self.calls: list[dict[str, Any]] = []
        """The arguments of each attempt, including injected ones."""

    def __enter__(self) -> Self:
        self._call.provider.close()  # its circuit and its quota begin anew
        self._call.signature.function = self._scripted()
        return self

    def __exit__(self, *_error: object) -> None:
        self._call.signature.function = self._original
        self._call.provider.close()

    def _scripted(self) -> Callable[..., Any]:
        if self._call.is_async:

            @functools.wraps(self._original)
            async def scripted(**given: Any) -> Any:
                return await act_async(self._next(given))
        else:

            @functools.wraps(self._original)
            def scripted(**given: Any) -> Any:
                return act(self._next(given))

        return scripted

    def _next(self, given: dict[str, Any]) -> Any:
        with self._lock:
            self.calls.append(given)
            return self._answers[min(len(self.calls), len(self._answers)) - 1]


_readers = itertools.count()


class FakeZone:
    """The facts of a zone, for a test to inspect."""

    def __init__(self, name: str, transport: Transport) -> None:
        self.name = name
        self._transport = transport

    def facts(self, to: str | None = None) -> list[dict[str, Any]]:
        """All facts that were published so far, in order; with ``to`` those for one zone."""
        # In real time: a reader keeps its lease in a thread, for which virtual time would rush on.
        return copy_context().run(self._read, to)

    def _read(self, to: str | None) -> list[dict[str, Any]]:
        from ergon_framework.connector.boundary.connector import BoundaryConnector

        use_clock(SYSTEM_CLOCK)
        consumer = f"test-{next(_readers)}"  # a new one begins with the first fact
        source = BoundaryConnector(self._transport, consumer=consumer, log="outbound", view=to)
        found: list[dict[str, Any]] = []
        try:
            while page := source.fetch_transactions(100):
                for each in page:
                    found.append(each.payload)
                    source.ack(each)
        finally:
            source.close()
        return found


class Sandboxed(HasJobs, Protocol):
    """An App."""

    def close(self) -> None:
        """Release the store. The next use opens it again."""


A = TypeVar("A", bound=Sandboxed)
T = TypeVar("T")


class Sandbox:
    """Keeps jobs in memory and makes time virtual while it is entered."""

    def __init__(self, clock: VirtualClock | None = None) -> None:
        """``clock``: one that is entered already; without it the sandbox has its own, from 0 on."""
        self._given_clock = clock
        self.clock = clock or VirtualClock()
        self._stack = ExitStack()
        self._job_stores: dict[str, KeptJobStore] = {}
        self._call_stores: dict[str, KeptProviderStore] = {}
        self._zones: dict[str, LocalTransport] = {}
        self._lock = threading.Lock()
        self._apps: list[Sandboxed] = []
        self._fed: dict[str, tuple[FunctionConsumer[..., Any], MemoryConnector]] = {}
        self._fed_so_far = 0
        self._workers: list[InlineWorker] = []

    def use(self, app: A) -> A:
        """Put an App into the sandbox: its jobs are in memory, and :meth:`drain` runs them."""
        _check_app("use", app)
        if not any(each is app for each in self._apps):
            app.close()  # what it has opened outside stays outside
            self._stack.callback(app.close)
            self._apps.append(app)
        return app

    def feed(self, consumer: FunctionConsumer[..., Any], *payloads: Any) -> MemoryConnector:
        """Deliver payloads to a consumer at the next drain, instead of what its source has.

        Payloads may be transactions. What the consumer refuses for good is in ``dead`` of the
        returned connector, which is the same for each call.
        """
        from ergon_framework.task.functions import FunctionConsumer

        given: object = consumer
        if not isinstance(given, FunctionConsumer):
            raise WiringError(
                f"ergon.feed was given {shown(given)}, which is no consumer",
                remedy="give it a function under @app.consumer; a job is enqueued:"
                " handler.enqueue(...)",
            )
        known = self._fed.get(consumer.name)
        if known is None:
            known = self._fed[consumer.name] = (consumer, MemoryConnector(name=consumer.name))
        number = itertools.count(self._fed_so_far + 1)
        self._fed_so_far += len(payloads)
        known[1].dispatch_transactions(
            each if isinstance(each, Transaction) else Transaction(f"t{next(number)}", each)
            for each in payloads
        )
        return known[1]

    def override(self, app: Sandboxed, kind: type[T], value: T | Any) -> None:
        """Inject a value instead of what the App's lifespans yield for that type.

        A lifespan that is no longer needed is not opened. Call this before the first drain.
        """
        _check_app("override", app)
        overrides = app.registry.dependencies.overrides
        missing = object()
        before = overrides.get(kind, missing)
        overrides[kind] = value

        def restore() -> None:
            if before is missing:
                del overrides[kind]
            else:
                overrides[kind] = before

        self._stack.callback(restore)

    def fake(self, call: FunctionCall, *answers: Any) -> FakeCall:
        """Make a function of a provider follow a script until the sandbox ends; see `FakeCall`."""
        from ergon_framework.providers.calls import FunctionCall

        given: object = call
        if not isinstance(given, FunctionCall):
            raise WiringError(
                f"ergon.fake was given {shown(given)}, which is no function of a provider",
                remedy="give it one under @provider.call or @provider.stream",
            )
        return self._stack.enter_context(FakeCall(call, *answers))

    def zone(self, name: str) -> FakeZone:
        """The facts that the program has published in the zone of that name, which is in memory
        here.
        """
        return FakeZone(name, self._zone(name))

    def drain(self, *, max_jobs: int = MAX_JOBS, raises: bool = False) -> WorkerReport:
        """Run the jobs of all Apps until none is due now; see :meth:`InlineWorker.drain`.

        Consumers that were fed consume before, and their transactions count in the report.
        """
        if not self._apps and not self._fed:
            raise WiringError(
                "there is no App in this sandbox", remedy="call ergon.use(app) in the test"
            )
        total = WorkerReport(stop_reason="drained")
        while True:  # the handlers of one App may enqueue jobs of another
            reports = [self._consume(*each) for each in self._fed.values()]
            reports += [each.drain(max_jobs=max_jobs, raises=raises) for each in self._all()]
            for each in reports:
                total = _sum(total, each)
            if not any(_settled(each) for each in reports):
                return total

    def advance(
        self, seconds: float, *, max_jobs: int = MAX_JOBS, raises: bool = False
    ) -> WorkerReport:
        """Let time pass, and run every job and schedule at the instant at which it is due."""
        if not is_number(seconds) or seconds < 0:
            raise WiringError(
                f"ergon.advance was given {shown(seconds)}",
                remedy="give seconds, a number that is not negative: ergon.advance(3600)",
            )
        until = self.clock.now() + seconds
        total = self.drain(max_jobs=max_jobs, raises=raises)
        # Instant by instant: with one leap, a job would see the time of the end, and what it
        # enqueues for a minute later would never be due within the leap.
        while (at := self._next_at()) is not None and at <= until:
            self.clock.advance(at - self.clock.now())
            total = _sum(total, self.drain(max_jobs=max_jobs, raises=raises))
        self.clock.advance(max(0.0, until - self.clock.now()))
        return _sum(total, self.drain(max_jobs=max_jobs, raises=raises))

    # ---- inside ----

    def _all(self) -> list[InlineWorker]:
        # Not before the first drain: a test may declare handlers and schedules of its own.
        for app in self._apps[len(self._workers) :]:
            self._workers.append(self._stack.enter_context(inline_worker(app)))
        return self._workers

    def _consume(
        self, consumer: FunctionConsumer[..., Any], source: MemoryConnector
    ) -> WorkerReport:
        """Run a consumer on what waits for it.

        Its retries wait within this call and advance the clock. A transaction that its handler
        snoozes comes again when :meth:`advance` has reached its time.
        """
        if not source.get_transactions_count():
            return WorkerReport()
        update = {"streaming": False, "max_hold": 0.0}
        loop = consumer.policy.loop.model_copy(update=update)
        policy = consumer.policy.model_copy(update={"loop": loop})
        done: Any = consumer.task(source).execute(policy)
        report: Report = self.clock.run(done) if consumer.is_async else done
        failed = report.failed + report.timed_out
        return WorkerReport(completed=report.succeeded, failed=failed, held=report.parked)

    def _next_at(self) -> float | None:
        """The next instant at which something is due. What is due already and was left waits for
        something else.
        """
        now = self.clock.now()
        times = [each.next_at for each in self._all()]
        times += [source.due_at for _, source in self._fed.values()]
        return min((at for at in times if at is not None and at > now), default=None)

    def _substitute(self, kind: str, name: str) -> Any:
        if kind == "jobs":
            return self._job_stores.setdefault(name, KeptJobStore(self.clock.now))
        if kind == "providers":
            return self._call_stores.setdefault(name, KeptProviderStore(self.clock.now))
        if kind == "clock":
            return self.clock.now
        return self._zone(name) if kind == "zone" else None

    def _zone(self, name: str) -> LocalTransport:
        with self._lock:
            if name not in self._zones:
                from ergon_framework.boundary.node.local_node import LocalTransport

                made = LocalTransport(name, zone_in_memory())
                self._zones[name] = made
                self._stack.callback(made.close)
            return self._zones[name]

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            if self._given_clock is None:
                stack.enter_context(self.clock)
            stack.enter_context(substituted(self._substitute))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()
        self._apps.clear()
        self._fed.clear()
        self._workers.clear()


class KeptJobStore(MemoryJobStore):
    """A store in memory that stays when a client closes it."""

    is_drained_by_hand = True
    """Jobs run only in ``drain`` and ``advance``, so waiting for a result raises at once."""

    def add_in(self, _connection: Any, jobs: Sequence[NewJob]) -> list[EnqueueResult]:
        """Store jobs at once, although the caller has a transaction: this store takes
        part in none.
        """
        return self.add(jobs)

    def close(self) -> None:
        """Keep everything for the next client of this URL."""


class KeptProviderStore(MemoryProviderStore):
    """A provider store that stays open until the sandbox ends."""

    def close(self) -> None:
        """Keep everything."""


def zone_in_memory() -> ZoneSettings:
    """The settings of a zone that is kept in memory and served to this process."""
    from ergon_framework.boundary.settings import ZoneSettings

    memory = SecretStr("memory://")
    return ZoneSettings(store=memory, objects=memory, listen="127.0.0.1:0", insecure=True)


def _check_app(method: str, app: object) -> None:
    # By its class: to ask the App itself for its client would open the store.
    if not (hasattr(type(app), "client") and hasattr(app, "registry")):
        raise WiringError(
            f"ergon.{method} was given {shown(app)}, which is no App",
            remedy="give it the App of the program: from shop import app",
        )


def _settled(report: WorkerReport) -> int:
    return report.completed + report.retried + report.failed + report.held


def _sum(one: WorkerReport, other: WorkerReport) -> WorkerReport:
    names = ("completed", "retried", "failed", "held", "rescued", "late")
    return msgspec.structs.replace(
        one, **{name: getattr(one, name) + getattr(other, name) for name in names}
    )
