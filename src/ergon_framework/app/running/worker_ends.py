"""How a worker process ended, and why its supervisor gave up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ergon_framework.app.console import ExitCode
from ergon_framework.app.running.posts import Slot
from ergon_framework.core.restart import RestartRule
from ergon_framework.errors import ErgonError

MOST_ENDS = 5
"""How many ends of a worker are told when it is given up."""


class WorkerDeathsError(ErgonError):
    """The supervisor gave up, because a worker died too often or refused to start."""

    code = "worker_deaths"


@dataclass(frozen=True, slots=True)
class Ended:
    """A worker is gone, with its exit code and what it said last."""

    worker: int
    code: int
    outcome: Mapping[str, Any] | None = None

    @property
    def error(self) -> Mapping[str, Any] | None:
        """The error it ended with, if it told one."""
        return (self.outcome or {}).get("error")

    @property
    def cause(self) -> str:
        """The signal or the code."""
        return f"by signal {-self.code}" if self.code < 0 else f"with code {self.code}"

    @property
    def how(self) -> str:
        """The same with the error it told."""
        return f"{self.cause} ({self.error['message']})" if self.error else self.cause


def reason_for(
    end: Ended, slot: Slot, rule: RestartRule, everyone: str
) -> WorkerDeathsError | None:
    """Why this end was the last one; None when the worker itself has told what it refuses."""
    details = {"worker": end.worker, "ends": list(slot.ends)}
    if slot.post.target:
        details["part"] = slot.post.name
    if end.code != ExitCode.REFUSED:
        return WorkerDeathsError(
            f"{slot.post.name} died more than {rule.limit} times within {rule.window:g} s, "
            f"at last {end.cause}; {everyone} were stopped",
            remedy="the log tells how each of them ended",
            details=details,
        )
    if end.error:
        return None
    return WorkerDeathsError(
        f"{slot.post.name} ended with code 2, as if its configuration were wrong; "
        f"{everyone} were stopped",
        remedy="let the task end with another code when it may be started again",
        details=details,
    )
