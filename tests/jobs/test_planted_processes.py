"""Processes and reports of handlers with one bug each: the test of the rule must notice it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from ergon_framework.core.executor_protocol import ProgressReport
from ergon_framework.core.failure import Failure, Kind
from ergon_framework.core.job import Failed
from ergon_framework.jobs.claims import Claim
from ergon_framework.jobs.executor_process import (
    ExecutorProcess,
    PendingRequest,
    ProcessLimits,
    RecycleReason,
)
from ergon_framework.jobs.settings import ExecutorSettings
from ergon_framework.ports.jobstore import Job, WorkerRecord
from tests.jobs import test_progress, test_recycling

pytestmark = [pytest.mark.slow, pytest.mark.req("JOBS:orchestrator")]

# ---- how far jobs are, and handlers that must report --------------------------------------------


def tells_secrets(claim: Claim, report: ProgressReport, now: float) -> dict[str, Any]:
    """Shows a message as the handler wrote it."""
    told = {"fraction": report.fraction, "message": report.message, "at": str(now)}
    return told | {"fence": claim.job.fence}


def shows_any_attempt(job: Job, workers: Iterable[WorkerRecord]) -> dict[str, Any] | None:
    """Looks for the job, and not for the claim that was reported on."""
    told = (worker.progress.get(job.id) for worker in workers)
    return next((dict(each) for each in told if each), None)


class HeardOnce(PendingRequest):
    """Counts from the beginning of the request."""

    def heard(self, now: float) -> None:
        if self.silent_at == float("inf"):
            super().heard(now)


class JustATimeout(ExecutorProcess):
    """Has one word for all that takes too long."""

    @staticmethod
    def silence(request: PendingRequest) -> Failed:
        return Failed(Failure(Kind.TIMEOUT, "timeout", "reported nothing for 1 s and was ended"))


class EndsNeighbours(ExecutorProcess):
    """Ends a process with all that it has in hand."""

    def has_only_cancelled(self, now: float) -> bool:
        super().has_only_cancelled(now)
        return any(each.is_silent for each in self.in_flight.values())


# ---- recycling ----------------------------------------------------------------------------------


class OneMore(ProcessLimits):
    """Lets a process have one job more than it may."""

    def __init__(self, settings: ExecutorSettings, started_at: float) -> None:
        super().__init__(settings, started_at)
        self.max_jobs += 1


class OneMoreBeforeItIsNoticed(ProcessLimits):
    """Looks too late."""

    def look(self, jobs: int, now: float) -> None:
        super().look(jobs - 1, now)


class AllAtOnce(ProcessLimits):
    """Replaces processes that were started together at the same moment."""

    def __init__(self, settings: ExecutorSettings, started_at: float) -> None:
        super().__init__(settings, started_at)
        if settings.max_age:
            self.retires_at = started_at + settings.max_age


class NeverOld(ProcessLimits):
    """Counts jobs only."""

    def look(self, jobs: int, now: float) -> None:
        super().look(jobs, 0.0)


class ReplacesTheNew(ProcessLimits):
    """Replaces a process that is as large as every new one."""

    def look_at_memory(self, jobs: int, used: int) -> None:
        super().look_at_memory(jobs + 1, used)


class LastReasonCounts(ProcessLimits):
    """Tells of the limit that was reached last."""

    def look(self, jobs: int, now: float) -> None:
        before = vars(self).pop("reason")
        vars(self)["reason"] = None
        super().look(jobs, now)
        if vars(self)["reason"] is None:
            self.reason = before


PROCESS, POOL = "ergon_framework.jobs.executor_process", "ergon_framework.jobs.pool"
PLANTED: list[tuple[str, Any, Callable[..., None]]] = [
    (
        f"{POOL}.progress_record",
        tells_secrets,
        test_progress.test_others_see_how_far_a_running_job_is,
    ),
    (
        "ergon_framework.jobs.views.progress_of",
        shows_any_attempt,
        test_progress.test_what_an_earlier_attempt_told_says_nothing_of_the_next,
    ),
    (
        f"{PROCESS}.PendingRequest",
        HeardOnce,
        test_progress.test_a_handler_that_must_report_and_does_not_is_timed_out,
    ),
    (
        f"{POOL}.ExecutorProcess",
        JustATimeout,
        test_progress.test_a_handler_that_must_report_and_does_not_is_timed_out,
    ),
    (
        f"{POOL}.ExecutorProcess",
        EndsNeighbours,
        test_progress.test_neighbours_of_a_silent_handler_finish_first,
    ),
]
"""Where the bug is put, the bug, and the test that must notice it."""


@pytest.mark.parametrize(("place", "bug", "noticed_by"), PLANTED, ids=lambda each: str(each)[-40:])
def test_a_planted_bug_is_noticed(
    place: str,
    bug: Any,
    noticed_by: Callable[..., None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The test of the rule fails, by an assertion about what came of the jobs."""
    monkeypatch.setattr(place, bug)
    with pytest.raises(AssertionError) as caught:
        noticed_by(tmp_path)
    assert "in time" not in str(caught.value)  # nothing was waited for in vain


@pytest.mark.parametrize(
    "bug",
    [OneMore, OneMoreBeforeItIsNoticed, AllAtOnce, NeverOld, ReplacesTheNew, LastReasonCounts],
)
def test_a_planted_limit_is_noticed(bug: type[ProcessLimits]) -> None:
    """The rules of recycling tell each wrong limit from the right ones."""
    with pytest.raises(AssertionError):
        test_recycling.check_limits(bug)


def test_reasons_are_named_as_settings() -> None:
    """What a notice says can be looked up among the settings."""
    assert {each.value for each in RecycleReason} <= set(ExecutorSettings.model_fields)
