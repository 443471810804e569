"""Runs everything that an App declares, in this process, until a signal or the end of a burst.

Each part has a thread of its own; handlers of jobs run in executor processes. A consumer or worker
that fails is started again after a wait: see ``core.process_restart``. One that fails too often,
or whose configuration is refused, stops the others, and its error is raised.
"""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from ergon_framework.app.lifespan import offered
from ergon_framework.app.signals import Shutdown, SignalListener, StopSignals, end_stuck_process
from ergon_framework.app.source_watch import SourceWatch
from ergon_framework.core.loop import StopReason
from ergon_framework.core.process_restart import Finished, Restart, RestartRule, after_exit
from ergon_framework.engine.clocks import SYSTEM_CLOCK
from ergon_framework.engine.time_limit import close_lifespan, giving_up_by, open_lifespan
from ergon_framework.errors import (
    ConfigurationError,
    ExecutorError,
    LifespanTimeoutError,
    WiringError,
    describe,
)
from ergon_framework.jobs.worker import WorkerReport

if TYPE_CHECKING:
    from ergon_framework.app.settings import Settings
    from ergon_framework.app.wiring import Wiring
    from ergon_framework.boundary.node.local_node import LocalNode
    from ergon_framework.connector.boundary import Zone
    from ergon_framework.engine.report import Report
    from ergon_framework.jobs.worker import Worker
    from ergon_framework.ports.lifespan import Dependencies, DependencyScope
    from ergon_framework.task.functions import FunctionConsumer
    from ergon_framework.task.mixins.policies import ConsumerPolicy

logger = logging.getLogger("ergon.app")

MAX_BURST_HOLD = 10.0
"""Seconds that a burst waits for a unit that is held, where its source cannot keep it."""
MAX_FETCHES = 1_000_000
"""Attempts in a row to read a source that fails; at half a minute each, a year."""


class AppPart(Protocol):
    """A part of an App that runs until it is done or asked to stop."""

    @property
    def name(self) -> str:
        """What messages call it."""

    def run(self) -> None:
        """Run to the end; raises what makes it fail. May be called again after that."""

    def stop(self, count: int) -> None:
        """Ask it to stop: gracefully at first, at once when ``count`` is above 1. From any thread,
        also before :meth:`run`, which ends at once then.
        """

    def close(self) -> None:
        """Release what the part keeps between runs. It is not run again."""


@dataclass(frozen=True, slots=True)
class AppReport:
    """What a run of an App did: its worker, and each of its consumers by name."""

    jobs: WorkerReport = field(default_factory=WorkerReport)
    consumers: Mapping[str, Report] = field(default_factory=dict)

    @property
    def completed(self) -> int:
        """Jobs and transactions that ended well."""
        return self.jobs.completed + sum(each.succeeded for each in self.consumers.values())

    @property
    def failed(self) -> int:
        """Jobs and transactions that ended in failure."""
        of_consumers = sum(each.failed + each.timed_out for each in self.consumers.values())
        return self.jobs.failed + of_consumers


class WorkerPart:
    """The worker of an App's jobs."""

    name = "jobs"

    def __init__(self, make: Callable[[], Worker]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._worker: Worker | None = None
        self._stops = 0
        self.report = WorkerReport()

    def run(self) -> None:
        """Work until it is stopped, or in a burst until nothing is due."""
        worker = self._make()
        with self._lock:
            self._worker = worker
            # Read together with the assignment: a stop that came before there was a worker to ask
            # must not be lost.
            stops = self._stops
        if stops:
            worker.stop(now=stops > 1)
        self.report = worker.run()

    def stop(self, count: int) -> None:
        """Ask the worker to stop."""
        with self._lock:
            self._stops = count
            worker = self._worker
        if worker is not None:
            worker.stop(now=count > 1)

    def close(self) -> None:
        """Nothing to close."""


class ConsumerPart:
    """One consumer of an App, as a part that ``run`` starts and stops."""

    def __init__(
        self, name: str, wire: Callable[[], Wiring], *, max_outage: float | None = None
    ) -> None:
        """``max_outage``: seconds that it waits for a source that is away; None: for ever."""
        self.name = name
        self.report: Report | None = None
        self._max_outage = max_outage
        self._wire = wire
        self._opened: Any = None  # a connector of the user that is open from one run to the next
        self._lock = threading.Lock()
        self._shutdown: Shutdown | None = None
        self._stops = 0

    def run(self) -> None:
        """Consume until the policy says stop, or it is asked to."""
        from ergon_framework.app.run_parts import run_task

        with Shutdown() as shutdown:  # hears no signal itself, for this is not the main thread
            with self._lock:
                self._shutdown = shutdown
                stops = self._stops
            # One for each stop that was asked for: the second one means "at once".
            for _ in range(stops):
                shutdown.take(signal.SIGTERM)
            wiring = self._wire()
            self._open_kept(wiring)
            sources = wiring.task.connectors.values()
            stop = partial(shutdown.take, signal.SIGTERM)
            with SourceWatch(self.name, sources, stop, self._max_outage):
                outcome = run_task(wiring, shutdown)
        self.report = outcome.report
        _tell_of_waiting(self.name, outcome.report)
        error = outcome.error
        # What a consumer raises while it is being stopped is a consequence of the stop. A lifespan
        # that hangs is not.
        if error is not None and (not self._stops or isinstance(error, LifespanTimeoutError)):
            raise error

    def _open_kept(self, wiring: Wiring) -> None:
        """Open the connector that a plain consumer was given, once for all of its runs."""
        if not wiring.keeps_connectors or self._opened is not None:
            return
        (source,) = wiring.task.connectors.values()
        method = offered(source, ("open",))
        if method is not None:
            method()
        self._opened = source

    def stop(self, count: int) -> None:
        """Ask the consumer to stop."""
        with self._lock:
            is_news = count > self._stops
            self._stops = max(count, self._stops)
            shutdown = self._shutdown
        if shutdown is not None and is_news:
            shutdown.take(signal.SIGTERM)

    def close(self) -> None:
        """Close the connector that it was given, which no run has closed: it may not open again."""
        source, self._opened = self._opened, None
        method = None if source is None else offered(source, ("close",))
        if method is not None:
            try:
                method()
            except Exception as error:
                logger.warning(
                    "the connector of %s could not be closed: %s", self.name, describe(error)
                )


def _tell_of_waiting(name: str, report: Report | None) -> None:
    """Log how many units a burst has left to their source, which they wait in."""
    waiting = 0 if report is None else report.parked + report.aborted
    if report is not None and waiting and report.stop_reason is StopReason.EMPTY:
        text = "%s: %d left to wait at their source, as their handler or a closed gate asked for"
        logger.warning(text, name, waiting)


class ZonePart:
    """The node of a zone, which serves it to other processes and pulls from its peers."""

    def __init__(self, zone: Zone) -> None:
        self.name = f"zone {zone.name}"
        self._zone = zone
        self._lock = threading.Lock()
        self._node: LocalNode | None = None
        self._stopped = threading.Event()

    def run(self) -> None:
        """Serve until it is stopped; a zone that is known by its address is served elsewhere."""
        node = self._zone.node()
        if node is None:
            self._stopped.wait()
            return
        with self._lock:
            if self._stopped.is_set():
                return
            self._node = node
        node.start()
        # Once more after the start: a stop in between found a node that could not be stopped yet.
        if self._stopped.is_set():
            node.stop()
        node.wait()

    def stop(self, count: int) -> None:
        """Stop, and let what runs finish."""
        with self._lock:
            self._stopped.set()
            node = self._node
        if node is not None:
            node.stop(0)

    def close(self) -> None:
        """Nothing to close."""


def consumer_wiring(
    consumer: FunctionConsumer[..., Any],
    settings: Settings,
    *,
    burst: bool,
    scope: DependencyScope | None = None,
) -> Wiring:
    """A declared consumer with its connector, ready to be run.

    Unless it says so itself, it waits for more when its source is empty; in a burst it does not.
    ``scope`` has lifespans that are open already; without it the consumer opens its own.
    """
    from ergon_framework.app.wiring import Policies, Wiring, kind_of

    source = consumer.source
    connector = _connector_of(consumer, settings) if isinstance(source, str) else source
    task = consumer.task(connector, scope)
    policy = _policy_of(consumer, burst=burst)
    # An object of the user's may not open again once it is closed, so it outlives a failed run. An
    # async one belongs to the event loop of one run.
    is_kept = not isinstance(source, str) and not consumer.is_async
    kind = kind_of(type(task))
    return Wiring(consumer.name, task, kind, Policies(policy), {}, {}, keeps_connectors=is_kept)


def _policy_of(consumer: FunctionConsumer[..., Any], *, burst: bool) -> ConsumerPolicy:
    """The policy of a consumer in a run of its App, where it says nothing else.

    Outside of a burst a source that cannot be read is asked again for as long as the App runs: a
    broker that restarts, or the reader of a process that was killed and still holds its place.
    """
    from ergon_framework.task.mixins.policies import RetryPolicy

    policy = consumer.policy
    loop, steps = policy.loop, policy.steps
    if burst or "streaming" not in loop.model_fields_set:
        loop = loop.model_copy(update={"streaming": not burst})
    if burst and "max_hold" not in loop.model_fields_set:
        loop = loop.model_copy(update={"max_hold": MAX_BURST_HOLD})
    if not burst and "retry" not in steps.fetch.model_fields_set:
        retry = RetryPolicy(max_attempts=MAX_FETCHES, backoff=0.5, backoff_cap=30.0, jitter=0.2)
        fetch = steps.fetch.model_copy(update={"retry": retry})
        steps = steps.model_copy(update={"fetch": fetch})
    return policy.model_copy(update={"loop": loop, "steps": steps})


def named_policy(consumer: str, name: str, settings: Settings) -> ConsumerPolicy:
    """The policy ``[policies.NAME]`` of the settings, for a consumer that names it."""
    from ergon_framework.app.settings.source import did_you_mean
    from ergon_framework.core.text import toml_table

    known, table = settings.policies, toml_table("policies", name)
    if name not in known:
        hint = did_you_mean(name, list(known)) if known else "the settings have none"
        raise WiringError(
            f"the consumer {consumer!r} names the policy {name!r}, and there is no such one;"
            f" {hint}",
            remedy=f"write a table {table} in ergon.toml, or pass ConsumerPolicy(...)",
        )
    policy = known[name].consumer
    if policy is None:
        raise WiringError(
            f"the consumer {consumer!r} names the policy {name!r}, which is one for producers",
            remedy=f"let {table} have the keys of a ConsumerPolicy, or name another",
        )
    return policy


def _connector_of(consumer: FunctionConsumer[..., Any], settings: Settings) -> Any:
    from ergon_framework.app.factories import connector_factory, url_factory
    from ergon_framework.app.settings.source import did_you_mean
    from ergon_framework.connector.broker.registry import is_url
    from ergon_framework.core.text import toml_table

    name, known = consumer.source, settings.connectors
    if is_url(name):
        factory = url_factory(consumer.name, name, settings)
        factory.check()
        return factory.make()
    if name not in known:
        hint = did_you_mean(name, list(known)) if known else "the settings have none"
        raise WiringError(
            f"the consumer {consumer.name!r} reads from the connector {name!r}, and there is no"
            f" such one; {hint}",
            remedy=f"write a table {toml_table('connectors', name)} in ergon.toml, or pass a"
            " connector instead of its name",
        )
    factory = connector_factory(name, known[name], settings)
    factory.check()
    return factory.make()


@contextmanager
def shared_lifespans(dependencies: Dependencies) -> Iterator[DependencyScope | None]:
    """The lifespans of a process, opened once for all of its consumers.

    None where one of them is async: it belongs to the event loop of a consumer, and each consumer
    opens all of them then. One that takes too long and cannot be interrupted ends a process
    whose main thread runs the App.
    """
    from ergon_framework.ports.lifespan import DependencyScope

    if any(each.is_async for each in dependencies.lifespans):
        yield None
        return
    scope = DependencyScope(dependencies)
    with ExitStack() as closing:
        if threading.current_thread() is threading.main_thread():
            closing.enter_context(giving_up_by(end_stuck_process))
        for each in scope.hooks():
            open_lifespan(each)
            closing.callback(close_lifespan, each)
        yield scope


@dataclass
class _Running:
    """A part in its thread."""

    part: AppPart
    deaths: list[float] = field(default_factory=list)
    is_over: bool = False
    is_given_up: bool = False  # its thread is stuck, and left behind


class AppRun:
    """Runs parts beside each other.

    ``services`` run from before the first part of the first stage to after the last part of the
    last one. The parts of a stage run at the same time; the next stage begins when all are done.
    """

    def __init__(
        self,
        stages: Sequence[Sequence[AppPart]],
        services: Sequence[AppPart] = (),
        *,
        rule: RestartRule | None = None,
    ) -> None:
        """``rule``: how often a part may fail and is started again; None: never, as in a burst."""
        self._stages = stages
        self._services = services
        self._rule = rule
        self._changed = threading.Condition()
        self._stops = 0
        self._stopped = threading.Event()
        self._error: BaseException | None = None
        self._started: list[_Running] = []
        self._serving: list[_Running] = []

    def run(self) -> None:
        """Run all stages; raises what made a part fail for good."""
        # By force at the third signal: the first lets work finish, and the second cuts it off.
        stops = StopSignals(
            self.stop,
            force_at=3,
            last_words="stopped by force; leases of what was running will expire",
        )
        with SignalListener(stops.take):
            self._serving = [_Running(part) for part in self._services]
            for each in self._serving:
                self._begin(each)
            # One after the other: in a burst the jobs follow the consumers, which may enqueue some.
            for stage in self._stages:
                self._wait_for([self._start(part) for part in stage if not self._stops])
            if self._rule is not None and not any(self._stages):
                self._stopped.wait()  # there is nothing but services
            # Services after the last stage: the parts may have published to a zone until their very
            # end.
            for each in self._serving:
                each.part.stop(max(1, self._stops))
            self._wait_for(self._serving)
        if self._error is not None:
            raise self._error

    def stop(self, count: int) -> None:
        """Ask all parts to stop; a count above 1 asks for it at once.

        Services go on until the parts have ended, which may need them for their last work.
        """
        with self._changed:
            self._stops = max(count, self._stops)
            # A first stop leaves the services alone, see ``run``; a second one means everything.
            asked = [*self._started, *(self._serving if count > 1 else ())]
            asked = [each for each in asked if not each.is_over]
        self._stopped.set()
        for each in asked:
            each.part.stop(count)

    def _start(self, part: AppPart) -> _Running:
        running = _Running(part)
        with self._changed:
            self._started.append(running)
        self._begin(running)
        return running

    def _begin(self, running: _Running) -> None:
        SYSTEM_CLOCK.spawn(f"ergon-app-{running.part.name}", lambda: self._serve(running))

    def _wait_for(self, started: Sequence[_Running]) -> None:
        with self._changed:
            # Not for ever at once: a signal has to interrupt the main thread on every platform.
            while not all(each.is_over for each in started):
                self._changed.wait(1.0)

    def _serve(self, running: _Running) -> None:
        """The thread of a part: run it, again where the rule allows it."""
        try:
            while self._runs_again(running):
                pass
        finally:
            # Before is_over: whoever waits for the part may end the process then.
            running.part.close()
            with self._changed:
                running.is_over = True
                self._changed.notify_all()

    def _runs_again(self, running: _Running) -> bool:
        try:
            with giving_up_by(lambda error: self._give_up(running, error)):
                running.part.run()
        except BaseException as error:
            return not running.is_given_up and self._is_restarted(running, error)
        return False

    def _give_up(self, running: _Running, error: BaseException) -> None:
        """Go on without a part whose thread is stuck, and end the others: it is not restarted."""
        with self._changed:
            if running.is_over:
                return
            running.is_given_up = True
        self._fail(running.part.name, error)
        with self._changed:
            running.is_over = True
            self._changed.notify_all()

    def _is_restarted(self, running: _Running, error: BaseException) -> bool:
        """Decide what follows a failure, and wait for as long as that takes."""
        name, now = running.part.name, time.monotonic()
        # Its worker has tried to start an executor as often as the rule allows.
        is_refused = isinstance(error, ConfigurationError | ExecutorError)
        decision = None
        if self._rule is not None and not self._stopped.is_set():
            decision = after_exit(
                self._rule, deaths=running.deaths, now=now, is_refused=is_refused, is_done=False
            )
        if isinstance(decision, Restart):
            running.deaths.append(now)
            logger.error(
                "%s failed and is started again in %.1f s: %s",
                name,
                decision.delay,
                describe(error),
            )
            return not self._stopped.wait(decision.delay)
        if isinstance(decision, Finished):
            return False
        self._fail(name, error)
        return False

    def _fail(self, name: str, error: BaseException) -> None:
        with self._changed:
            self._error = self._error or error
        logger.error("%s failed; the others are stopped: %s", name, describe(error))
        self.stop(max(1, self._stops))
