"""Running one task, or all the parts of a settings file, in several processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

from ergon_framework.app.console import ExitCode
from ergon_framework.app.running.children import Nursery
from ergon_framework.app.running.posts import Post, Slot, crew
from ergon_framework.app.running.publication import Publication
from ergon_framework.app.running.signals import SignalEar
from ergon_framework.app.running.supervisor import Event, Signalled, Supervisor, Tell
from ergon_framework.core.restart import RestartRule
from ergon_framework.errors import ErgonError


@dataclass(frozen=True, slots=True)
class WorkforceOutcome:
    """How a run in several processes ended."""

    task: str
    exit_code: ExitCode
    restarts: int
    workers: Sequence[Slot]
    reason: ErgonError | None = None
    """Why the supervisor gave up, if it did."""

    @property
    def errors(self) -> list[Mapping[str, Any]]:
        """Why the supervisor gave up, then what each worker ended with, each message once."""
        told: list[Mapping[str, Any]] = [self.reason.to_dict()] if self.reason else []
        told += [slot.error for slot in self.workers if slot.error]
        return list({error["message"]: error for error in told}.values())

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as the command line prints them."""
        return {
            "task": self.task,
            "exit_code": int(self.exit_code),
            "restarts": self.restarts,
            "report": total([_reports(slot) for slot in self.workers]),
            "workers": [
                {
                    "worker": slot.worker,
                    "exit_code": slot.code,
                    "restarts": len(slot.deaths),
                    "report": total([_reports(slot)]),
                }
                for slot in self.workers
            ],
            "errors": self.errors,
        }


class EnsembleOutcome(WorkforceOutcome):
    """How a run of all the parts of a settings file ended."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as the command line prints them."""
        return {
            "exit_code": int(self.exit_code),
            "restarts": self.restarts,
            "parts": [
                {
                    "part": slot.post.name,
                    "exit_code": slot.code,
                    "restarts": len(slot.deaths),
                    "report": total([_reports(slot)]),
                }
                for slot in self.workers
            ],
            "errors": self.errors,
        }


def run_workers(
    task: str,
    workers: int,
    command: Callable[[str], Sequence[str]],
    publication: Publication,
    *,
    rule: RestartRule,
    keeps_stdout: bool = False,
) -> WorkforceOutcome:
    """Supervise so many processes of ``command`` until all of them are over.

    With ``keeps_stdout`` what workers print goes to the standard error stream.
    """
    events: SimpleQueue[Event] = SimpleQueue()
    posts = crew(workers)
    nursery = Nursery(lambda _, told: command(told), posts, events, keeps_stdout=keeps_stdout)
    supervisor = Supervisor(
        nursery.start, posts, events, rule=rule, has_beats=publication.is_wanted
    )
    ear = SignalEar(lambda number: events.put(Signalled(number)))
    with ear, publication.of(task, supervisor.snapshot):
        code = supervisor.run()
    nursery.close()
    return WorkforceOutcome(task, code, supervisor.restarts, supervisor.slots, supervisor.reason)


def run_parts(
    posts: Sequence[Post],
    command: Callable[[Post, str], Sequence[str]],
    tell: Tell,
    *,
    rule: RestartRule,
    keeps_stdout: bool = False,
) -> EnsembleOutcome:
    """Supervise a process for each post until all are over; ``tell`` gets a line for each event."""
    events: SimpleQueue[Event] = SimpleQueue()
    nursery = Nursery(command, posts, events, keeps_stdout=keeps_stdout)
    supervisor = Supervisor(nursery.start, posts, events, rule=rule, tell=tell)
    with SignalEar(lambda number: events.put(Signalled(number))):
        code = supervisor.run()
    nursery.close()
    return EnsembleOutcome("", code, supervisor.restarts, supervisor.slots, supervisor.reason)


def total(groups: Sequence[Sequence[Mapping[str, Any]]]) -> dict[str, Any] | None:
    """Several reports as one: counts are added, ids joined, the longest time is taken."""
    reports = [report for group in groups for report in group]
    if not reports:
        return None
    shape: dict[str, Any] = {}
    for name, value in reports[0].items():
        values = [report[name] for report in reports]
        if name == "elapsed":
            shape[name] = max(values)
        elif isinstance(value, list):
            shape[name] = [each for some in values for each in some]
        elif isinstance(value, int):
            shape[name] = sum(values)
        else:
            shape[name] = value if len(set(values)) == 1 else "several"
    return shape


def _reports(slot: Slot) -> list[Mapping[str, Any]]:
    return [each["report"] for each in slot.outcomes if each["report"] is not None]
