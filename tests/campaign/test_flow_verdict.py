"""What the campaign on flows notices: a run without a fault has none, and each fault is told."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ergon_framework.app.inline_worker import InlineWorker
from ergon_framework.app.jobs import JobSetup
from ergon_framework.core.flow import FlowStatus
from ergon_framework.executor import JobContext, Registry
from ergon_framework.jobs.client import JobClient
from ergon_framework.jobs.settings import BackoffSettings, JobsSettings
from ergon_framework.jobs.stores.memory import MemoryJobStore
from ergon_framework.ports.jobstore import Search
from ergon_framework.ports.transfer import JobRecord
from tests.campaign.event_file import Book
from tests.campaign.flow_forms import DECISIONS, FORMS, SIGNAL, form_of, signal_value
from tests.campaign.flows import Verdict
from tests.campaign.programs.flow_operator import number_of

FLOWS = len(FORMS) * len(DECISIONS)


class Rehearsal:
    """Flows of every form, run in one process, with the books that a campaign has."""

    def __init__(self, folder: Path, *, lies: bool = False) -> None:
        self.at = 1_000.0
        self.store = MemoryJobStore(lambda: self.at)
        self.client = JobClient(store=self.store)
        self.book, self.flow_book = Book(folder / "book"), Book(folder / "book.flows")
        self._lies = lies
        self._is_repaired = False
        registry = Registry()
        for handler in (self.note, self.flaky, self.fails):
            registry.add(handler, handler.__name__)
        jobs = JobsSettings(max_attempts=2, backoff=BackoffSettings(base=0.01, cap=0.02))
        setup = JobSetup("memory://", jobs=jobs)
        for number in range(FLOWS):
            form_of(number).add(self.client, number)
            self.flow_book.write(f"began {number}", f"added {number}")
        with InlineWorker(self.store, registry, setup=setup) as worker:
            for _ in range(8):
                worker.drain()
                self._decide()
                self.at += 10.0

    def note(self, *given: Any, job: JobContext) -> Any:
        """Run a step, as the executor of the campaign does."""
        self.book.write(f"claimed {job.job_id} {job.attempt}", f"ran {job.job_id} 1 {job.attempt}")
        return [given[-1], *([] if self._lies else given[:-1])]

    def flaky(self, *given: Any, job: JobContext) -> Any:
        """Fails once."""
        if job.attempt == 1:
            raise ValueError("at its first attempt")
        return self.note(*given, job=job)

    def fails(self, *given: Any, job: JobContext) -> Any:
        """Fails until somebody has repaired what it needs."""
        if not self._is_repaired:
            raise ValueError("for good")
        return self.note(*given, job=job)

    def _decide(self) -> None:
        flows = self.store.flows.search((FlowStatus.RUNNING, FlowStatus.HELD), 1_000)
        self._is_repaired = any(flow.status is FlowStatus.HELD for flow in flows)
        for flow in flows:
            number = number_of(flow)
            decision = "" if number is None else form_of(number).expected(number).decision
            if decision == "signal" and number is not None:
                self.client.flow(flow.id).signal(SIGNAL, signal_value(number))
            elif flow.status is FlowStatus.HELD:
                getattr(self.client.flow(flow.id), decision)()

    def faults(self) -> dict[str, int]:
        """What the judge of the campaign says."""
        verdict = Verdict(cast("Any", SimpleNamespace(**vars(self))))
        verdict.judge()
        return {name: number for name, number in verdict.counts.items() if number}

    def first(self, handler: str) -> Any:
        """The first job of a handler."""
        return next(
            job for job in reversed([*self.store.search(Search())]) if job.handler == handler
        )


def reverse(told: Rehearsal) -> None:
    """Let every step have begun before its predecessors."""
    lines = told.book.path.read_text().splitlines(keepends=True)
    told.book.path.write_text("".join(reversed(lines)))


def lose(told: Rehearsal) -> None:
    """Acknowledge a flow that is not there."""
    told.flow_book.write(f"added {FLOWS}")


def deny(told: Rehearsal) -> None:
    """Know nothing of a flow that is there."""
    lines = told.flow_book.path.read_text().splitlines(keepends=True)
    told.flow_book.path.write_text("".join(lines[2:]))


def double(told: Rehearsal) -> None:
    """Add a flow a second time."""
    form_of(0).add(told.client, 0)


def take_out(told: Rehearsal) -> None:
    """Take one step out of a flow."""
    told.store.records.discard(told.store.records.dump(JobRecord, None, 1))


@pytest.mark.parametrize(
    ("spoil", "fault"),
    [
        (reverse, "early"),
        (lose, "lost"),
        (deny, "twice"),
        (double, "twice"),
        (double, "unended"),
        (take_out, "half"),
        (lambda told: told.book.write(f"claimed {told.first('note').id} 1"), "claimed_twice"),
        (lambda told: told.book.write(f"ran {told.first('note').id} 1 2"), "ran_undelivered"),
        (lambda told: told.book.path.write_text(""), "never_ran"),
    ],
)
def test_each_fault_is_told(
    spoil: Callable[[Rehearsal], object], fault: str, tmp_path: Path
) -> None:
    """And none where nothing was spoilt."""
    told = Rehearsal(tmp_path)
    assert told.faults() == {}
    spoil(told)
    assert told.faults()[fault]


def test_results_that_were_not_handed_over_are_told(tmp_path: Path) -> None:
    """A step says what it was given: one that was given nothing is not what its form says."""
    assert Rehearsal(tmp_path, lies=True).faults().keys() == {"wrong"}
