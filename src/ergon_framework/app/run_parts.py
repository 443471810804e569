"""``ergon run``: one task or all parts, in this process or under a supervisor."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ergon_framework.app.console import ExitCode
from ergon_framework.app.lifespan import open_task, open_task_async
from ergon_framework.app.liveness import Liveness
from ergon_framework.app.liveness_outputs import LivenessOutputs, Periodic
from ergon_framework.app.observability import check_page, observed
from ergon_framework.app.outcome import RunOutcome, exit_code_of, outcome_of
from ergon_framework.app.parts import nothing_to_run, process_specs, startable
from ergon_framework.app.processes import (
    PartsOutcome,
    SupervisorLink,
    WorkersOutcome,
    run_parts,
    run_workers,
)
from ergon_framework.app.settings import Settings, load_settings
from ergon_framework.app.signals import Shutdown, end_stuck_process
from ergon_framework.app.wiring import Overrides, RunTarget, Wiring, execution_of, target_of, wire
from ergon_framework.core.process_restart import RestartRule
from ergon_framework.engine.clocks import AsyncSignal
from ergon_framework.engine.time_limit import giving_up_by
from ergon_framework.task.base import BaseTask
from ergon_framework.task.mixins.utils import run_with_timeout
from ergon_framework.telemetry import TelemetrySettings, add_listener, configure, remove_listener

logger = logging.getLogger("ergon.app")

POLL_INTERVAL = 1.0
"""Seconds between two notes that the event loop turns."""
HEARTBEAT_INTERVAL = 2.0
"""Seconds between two words of a worker to its parent."""
ORPHAN_MARGIN = 10.0
"""Seconds an orphan has beyond its own grace."""

Work = Any
"""What is done with an open task: called with it, it gives a result or an awaitable of one."""


def run_here(wiring: Wiring, shutdown: Shutdown, publication: LivenessOutputs) -> RunOutcome:
    """Run in this process, which publishes its liveness where that was asked for."""
    if not publication.is_wanted:
        return run_task(wiring, shutdown)
    liveness = _liveness(publication, shutdown)
    with publication.of(wiring.name, liveness.snapshot):
        return run_task(wiring, shutdown, liveness)


def run_for(
    parent: SupervisorLink, wiring: Wiring, shutdown: Shutdown, publication: LivenessOutputs
) -> RunOutcome:
    """Run as a worker that reports its state to ``parent``."""
    # Longer than the grace of the task itself, which has to have its turn before the process is cut
    # off.
    parent.orphan_grace = wiring.policies.main(wiring.kind).loop.stop_grace + ORPHAN_MARGIN
    if not publication.is_wanted:
        return run_task(wiring, shutdown, ready=parent.tell_ready)
    liveness = _liveness(publication, shutdown)
    with Periodic(
        "the heartbeat", HEARTBEAT_INTERVAL, lambda: parent.tell_beat(liveness.snapshot())
    ):
        return run_task(wiring, shutdown, liveness, parent.tell_ready)


def run_task(
    wiring: Wiring,
    shutdown: Shutdown,
    liveness: Liveness | None = None,
    ready: Callable[[], object] = lambda: None,
) -> RunOutcome:
    """Build, open, execute, close. Whatever happens, the answer is an outcome.

    ``ready`` is called when all parts are open and the work begins.
    """

    def execute(task: BaseTask) -> Any:
        ready()
        return wiring.execute(task)

    result, error = None, None
    try:
        with _listening(liveness):
            result = work_on(wiring, shutdown, execute, liveness)
    except (Exception, KeyboardInterrupt, SystemExit) as problem:
        # User code may raise any of them. An outcome with an error is told to the supervisor and
        # printed; an exception would not be.
        error = problem
    return outcome_of(wiring.name, wiring.kind, result, error, shutdown.exit_code)


def work_on(
    wiring: Wiring, shutdown: Shutdown, work: Work, liveness: Liveness | None = None
) -> Any:
    """The result of ``work`` on the task with its parts open; None when a stop came first."""
    if not _is_async(wiring):
        with open_task(wiring) as task:
            # A signal may have come while the parts were opened: it is kept and given to the task
            # now.
            shutdown.watch(task)
            return None if shutdown.is_asked else work(task)
    main = _work_async(wiring, shutdown, work, liveness)
    return _run_loop(main, shutdown.timeouts.loop_close)


async def _work_async(
    wiring: Wiring, shutdown: Shutdown, work: Work, liveness: Liveness | None
) -> Any:
    # Started before the task is opened: a connector that blocks the loop in ``open`` is seen, too.
    turning = asyncio.create_task(_turn(liveness)) if liveness is not None else None
    try:
        async with open_task_async(wiring) as task:
            shutdown.watch(task)
            if shutdown.is_asked:
                return None
            result = work(task)
            return await result if inspect.isawaitable(result) else result
    finally:
        if turning is not None:
            turning.cancel()


async def _turn(liveness: Liveness) -> None:
    """Show that the event loop turns."""
    nap = AsyncSignal()
    loop = asyncio.get_running_loop()
    while True:
        liveness.loop_turned()
        await nap.wait(loop.time() + POLL_INTERVAL)


def _run_loop(main: Coroutine[Any, Any, Any], close_timeout: float) -> Any:
    # Not ``asyncio.run``, which closes the loop and waits for its threads without a limit of ours.
    runner = asyncio.Runner()
    try:
        return runner.run(main)
    finally:
        # A coroutine that swallows its cancellation, or a thread that hangs, must not keep us.
        try:
            run_with_timeout(runner.close, close_timeout)
        except TimeoutError:
            logger.warning("the event loop could not be closed in time; something in it hangs")


def _is_async(wiring: Wiring) -> bool:
    specimen: BaseTask | None = wiring.specimen()
    is_coroutine = specimen is not None and inspect.iscoroutinefunction(
        execution_of(specimen, wiring.kind)
    )
    return wiring.kind.is_async or is_coroutine


def _liveness(publication: LivenessOutputs, shutdown: Shutdown) -> Liveness:
    return Liveness(stall_after=publication.stall_after, is_stopping=lambda: shutdown.is_asked)


@contextmanager
def _listening(liveness: Liveness | None) -> Iterator[None]:
    if liveness is None:
        yield
        return
    add_listener(liveness)
    try:
        yield
    finally:
        remove_listener(liveness)
        liveness.ended()


ORPHANED_SERVICE_GRACE = 60.0
"""Seconds that a zone, a worker or a server has to stop when its parent is gone."""


@dataclass(frozen=True, slots=True)
class Run:
    """What a run was asked to do: its target, and the options of the command line."""

    target: str
    config: Path | None = None
    overrides: Overrides = field(default_factory=Overrides)
    publication: LivenessOutputs = field(default_factory=LivenessOutputs)
    restarts: RestartRule = field(default_factory=RestartRule)
    workers: int | None = None

    def worker_count(self) -> int:
        """How many processes: as asked for, else as in the settings."""
        settings = self._found()[0].settings
        return self.workers or (1 if settings is None else settings.workers)

    def plan(self) -> dict[str, Any]:
        """What would run, after every check that does not build anything."""
        wiring = self._shared()
        return {**describe_wiring(wiring), "workers": self.worker_count()}

    def here(self) -> RunOutcome:
        """Run in this process, which takes the signals from now on."""
        with Shutdown() as shutdown, self._journalled(), giving_up_by(end_stuck_process):
            return run_here(self.wired(), shutdown, self.publication)

    def as_worker(self, supervised: str) -> RunOutcome:
        """Run as a worker; the parent is told the outcome, also when nothing could be started."""
        parent = supervisor_link(supervised)
        with Shutdown() as shutdown:  # a late signal must not cut off what is told
            try:
                with self._journalled(), giving_up_by(end_stuck_process):
                    outcome = run_for(parent, self._shared(), shutdown, self.publication)
            except Exception as error:
                outcome = RunOutcome(
                    self.target, exit_code_of(error), error=error, is_complete=False
                )
            parent.tell_outcome(outcome)
        return outcome

    def in_processes(
        self, command: Callable[[str], Sequence[str]], *, keeps_stdout: bool = False
    ) -> WorkersOutcome:
        """Supervise as many processes as are wanted."""
        target, settings = self._found()
        check_page(settings, self.worker_count())
        return run_workers(
            target.name,
            self.worker_count(),
            command,
            self.publication,
            rule=self.restarts,
            keeps_stdout=keeps_stdout,
        )

    def wired(self) -> Wiring:
        """The task with all it needs, checked; what is recorded is set for this process."""
        target, settings = self._found()
        configure(TelemetrySettings(**settings.telemetry.recorded()))
        return wire(target, settings, self.overrides)

    def _shared(self) -> Wiring:
        """The wired task, refused if as many processes cannot share its parts.

        The parent of several workers imports nothing of the user's: each worker checks this.
        """
        wiring = self.wired()
        wiring.check_workers(self.worker_count())
        return wiring

    def _journalled(self) -> AbstractContextManager[object]:
        target, settings = self._found()
        return observed(settings, f"task {target.name}")

    def _found(self) -> tuple[RunTarget, Settings]:
        settings = load_settings(self.config)
        return target_of(self.target, settings), settings


def supervisor_link(supervised: str) -> SupervisorLink:
    """The process that started this one, which ends when that is gone."""
    parent = SupervisorLink(supervised)
    parent.watch()
    return parent


def serve_under(parent: SupervisorLink, name: str, serve: Callable[[], object]) -> RunOutcome:
    """Run a service until it is stopped, and report its outcome to the parent."""
    parent.orphan_grace = ORPHANED_SERVICE_GRACE
    try:
        serve()
        outcome = RunOutcome(name, ExitCode.DONE)
    except Exception as error:
        outcome = RunOutcome(name, exit_code_of(error), error=error, is_complete=False)
    parent.tell_outcome(outcome)
    return outcome


def run_all(
    settings: Settings,
    command: Callable[[str, str], Sequence[str]],
    tell: Callable[[str], object],
    rule: RestartRule,
    *,
    keeps_stdout: bool = False,
) -> PartsOutcome:
    """Start everything the settings describe, each part in processes of its own."""
    posts = process_specs(startable(settings))
    if not posts:
        raise nothing_to_run(settings)
    check_page(settings, len(posts))
    return run_parts(
        posts,
        lambda post, supervised: command(supervised, post.target),
        tell,
        rule=rule,
        keeps_stdout=keeps_stdout,
    )


def describe_wiring(wiring: Wiring) -> dict[str, Any]:
    """A wiring in plain words. Options stay out: they may be secrets."""
    task = wiring.task if isinstance(wiring.task, type) else type(wiring.task)
    policy = wiring.policies.main(wiring.kind)
    return {
        "task": wiring.name,
        "class": f"{task.__module__}:{task.__qualname__}",
        "role": wiring.kind.role.value,
        "colour": "async" if wiring.kind.is_async else "sync",
        "connectors": _labels(wiring, "connectors"),
        "services": _labels(wiring, "services"),
        "policy": _without_extra(policy.model_dump(mode="json")),
        "policy_changes": dict(_flat(_without_extra(policy.model_dump(exclude_defaults=True)))),
    }


def _without_extra(table: dict[str, Any]) -> dict[str, Any]:
    """Replace the arguments of each fetch by their names only, as the values may be secrets."""
    fetch = table.get("steps", {}).get("fetch", {})
    if "extra" in fetch:
        fetch["extra"] = sorted(fetch["extra"])
    return table


def _flat(table: dict[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{above}{name}.")
        else:
            yield above + name, value


def _labels(wiring: Wiring, what: str) -> list[str]:
    if not isinstance(wiring.task, type):
        return sorted(getattr(wiring.task, what))
    group = getattr(wiring, what)
    if callable(group):
        return [f"{wiring.task_name}.build_{what}()"]
    return [maker.label for maker in group.values()]
