"""A run as it was asked for, and the four things that can be done with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ergon_framework.app.assembly.run_policies import Overrides
from ergon_framework.app.assembly.wiring import Target, Wiring, target_of, wire
from ergon_framework.app.console import ExitCode
from ergon_framework.app.exporting import check_page, observed
from ergon_framework.app.running.children import Parent
from ergon_framework.app.running.ensemble import nothing_to_run, posts_of, startable
from ergon_framework.app.running.outcome import Outcome, exit_code_of
from ergon_framework.app.running.publication import Publication
from ergon_framework.app.running.runner import run_for, run_here
from ergon_framework.app.running.shutdown import Shutdown
from ergon_framework.app.running.workforce import (
    EnsembleOutcome,
    WorkforceOutcome,
    run_parts,
    run_workers,
)
from ergon_framework.app.settings import Settings, load_settings
from ergon_framework.core.restart import RestartRule
from ergon_framework.telemetry import TelemetrySettings, configure

SERVICE_PATIENCE = 60.0
"""Seconds that a zone, a worker or a server has to stop when its parent is gone."""


@dataclass(frozen=True, slots=True)
class Run:
    """Everything somebody said about a run."""

    target: str
    config: Path | None = None
    overrides: Overrides = field(default_factory=Overrides)
    publication: Publication = field(default_factory=Publication)
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

    def here(self) -> Outcome:
        """Run in this process, which takes the signals from now on."""
        with Shutdown() as shutdown, self._journalled():
            return run_here(self.wired(), shutdown, self.publication)

    def as_worker(self, supervised: str) -> Outcome:
        """Run as a worker; the parent is told the outcome, also when nothing could be started."""
        parent = parent_of(supervised)
        with Shutdown() as shutdown:  # a late signal must not cut off what is told
            try:
                with self._journalled():
                    outcome = run_for(parent, self._shared(), shutdown, self.publication)
            except Exception as error:
                outcome = Outcome(self.target, exit_code_of(error), error=error, is_complete=False)
            parent.tell_outcome(outcome)
        return outcome

    def in_processes(
        self, command: Callable[[str], Sequence[str]], *, keeps_stdout: bool = False
    ) -> WorkforceOutcome:
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
        """The same, if so many processes may share its parts.

        The parent of several workers imports nothing of the user's: each worker checks this.
        """
        wiring = self.wired()
        wiring.check_workers(self.worker_count())
        return wiring

    def _journalled(self) -> AbstractContextManager[object]:
        target, settings = self._found()
        return observed(settings, f"task {target.name}")

    def _found(self) -> tuple[Target, Settings]:
        settings = load_settings(self.config)
        return target_of(self.target, settings), settings


def parent_of(supervised: str) -> Parent:
    """The process that started this one, which ends when that is gone."""
    parent = Parent(supervised)
    parent.watch()
    return parent


def serve_under(parent: Parent, name: str, serve: Callable[[], object]) -> Outcome:
    """Do what has no end of its own; the parent is told how it ended all the same."""
    parent.patience = SERVICE_PATIENCE
    try:
        serve()
        outcome = Outcome(name, ExitCode.DONE)
    except Exception as error:
        outcome = Outcome(name, exit_code_of(error), error=error, is_complete=False)
    parent.tell_outcome(outcome)
    return outcome


def run_all(
    settings: Settings,
    command: Callable[[str, str], Sequence[str]],
    tell: Callable[[str], object],
    rule: RestartRule,
    *,
    keeps_stdout: bool = False,
) -> EnsembleOutcome:
    """Start everything the settings describe, each part in processes of its own."""
    posts = posts_of(startable(settings))
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


def _without_extra(shape: dict[str, Any]) -> dict[str, Any]:
    """Of the arguments of each fetch only the names: they are options, too."""
    fetch = shape.get("steps", {}).get("fetch", {})
    if "extra" in fetch:
        fetch["extra"] = sorted(fetch["extra"])
    return shape


def _flat(shape: dict[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in shape.items():
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
