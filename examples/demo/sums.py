"""What became of every shipment, computed from the stores alone, when everything has stopped.

    python -m examples.demo.sums FOLDER

The exit code is 1 when the sums do not add up; each line that is wrong is named.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from ergon_framework.boundary.backup import open_read_only
from ergon_framework.jobs import Job, JobStatus, Search, open_store

from .books import Books
from .floor import FILE
from .gauges import events
from .shipments import HOPELESS

PAGE, BYTES = 1000, 1 << 24


@dataclass(frozen=True)
class Ledger:
    """What each store says, by id."""

    packed: list[str]
    plant: list[str]
    enterprise: list[str]
    jobs: list[Job]
    effects: set[str]

    def ended(self, status: JobStatus) -> list[Job]:
        """Jobs that ended like this."""
        return [job for job in self.jobs if job.status is status]


@dataclass(frozen=True)
class SumRow:
    """One row of the table: what should be, beside what is."""

    what: str
    expected: int
    found: int

    @property
    def is_right(self) -> bool:
        """Whether it adds up."""
        return self.expected == self.found


# ---- reading the stores ----


def read(folder: Path) -> Ledger:
    """Everything that is on disk."""
    lines = (folder / "floor" / FILE).read_text(encoding="utf-8").splitlines()
    with closing(open_store(f"sqlite:///{folder / 'work.db'}")) as store:
        jobs = list(store.search(Search()))
    return Ledger(
        packed=[json.loads(line)["transaction_id"] for line in lines],
        plant=_facts(folder / "plant", "outbound"),
        enterprise=_facts(folder / "enterprise", "inbound:plant"),
        jobs=jobs,
        effects={*Books(folder / "books.db").effects(), *_labels(folder / "labels.jsonl")},
    )


def _facts(folder: Path, log: str) -> list[str]:
    """The ids of all facts of a log, in order."""
    with open_read_only(folder) as zone:
        found, after = [], 0
        while True:
            page = zone.store.page(log, after, PAGE, BYTES)
            found += [fact.message_id for fact in page.facts]
            if page.through <= after:
                return found
            after = page.through


def _labels(file: Path) -> list[str]:
    """The jobs whose effect is a line of the Node executor's file."""
    if not file.exists():
        return []
    return [json.loads(line)["job_id"] for line in file.read_text(encoding="utf-8").splitlines()]


# ---- adding up ----


def lines(ledger: Ledger) -> list[SumRow]:
    """The table: appended = delivered = finished + dead-lettered, nothing lost, nothing doubled."""
    appended = len(ledger.packed)
    finished, dead = ledger.ended(JobStatus.COMPLETED), ledger.ended(JobStatus.FAILED)
    with_reason = [job for job in dead if job.last_error is not None and job.last_error.code]
    return [
        SumRow("packed, and appended to the plant's log", appended, len(ledger.plant)),
        SumRow("delivered to the enterprise's log", appended, len(ledger.enterprise)),
        SumRow("made a job", appended, len(ledger.jobs)),
        SumRow("finished + dead-lettered with reason", appended, len(finished) + len(with_reason)),
        SumRow("dead-lettered: the two that cannot be sent", len(HOPELESS), len(with_reason)),
        SumRow("effects of the finished jobs", len(finished), _with_effect(ledger, finished)),
        SumRow("effects of any other job", 0, len(ledger.effects) - _with_effect(ledger, finished)),
        SumRow("lost", 0, len(lost(ledger))),
        SumRow("doubled", 0, doubled(ledger)),
    ]


def lost(ledger: Ledger) -> set[str]:
    """What was packed, and has not come to an end that is known."""
    ends = {job.id for job in ledger.jobs if _is_ended(job)}
    everywhere = ends & set(ledger.plant) & set(ledger.enterprise)
    return set(ledger.packed) - everywhere


def doubled(ledger: Ledger) -> int:
    """Facts that are in a log twice, second jobs for a shipment, jobs that were completed twice."""
    shipments = [json.loads(job.kwargs).get("shipment") for job in ledger.jobs]
    completions = [max(0, events(job).count("completed") - 1) for job in ledger.jobs]
    logs = (ledger.plant, ledger.enterprise, shipments)
    return sum(map(_repeated, logs)) + sum(completions)


def equation(ledger: Ledger) -> str:
    """The whole table in a sentence."""
    finished, dead = (len(ledger.ended(each)) for each in (JobStatus.COMPLETED, JobStatus.FAILED))
    return (
        f"{len(ledger.plant)} appended = {len(ledger.enterprise)} delivered"
        f" = {finished} finished + {dead} dead-lettered;"
        f" lost {len(lost(ledger))}; doubled {doubled(ledger)}"
    )


def problems(table: Iterable[SumRow]) -> list[str]:
    """Every line that is not as it should be, in words."""
    return [
        f"{each.what}: {each.found}, and should be {each.expected}"
        for each in table
        if not each.is_right
    ]


def _with_effect(ledger: Ledger, jobs: list[Job]) -> int:
    return sum(job.id in ledger.effects for job in jobs)


def _is_ended(job: Job) -> bool:
    if job.status is JobStatus.FAILED:
        return job.last_error is not None
    return job.status is JobStatus.COMPLETED


def _repeated(ids: Iterable[str | None]) -> int:
    return sum(count - 1 for count in Counter(ids).values())


# ---- showing ----


def show(console: Console, ledger: Ledger) -> bool:
    """Print the table and whether it adds up."""
    found = lines(ledger)
    table = Table(box=None, pad_edge=False, header_style="", title_justify="left")
    table.add_column("")
    for name in ("expected", "found"):
        table.add_column(name, justify="right")
    for each in found:
        table.add_row(each.what, str(each.expected), str(each.found))
    console.print(table)
    console.print()
    for job in sorted(ledger.ended(JobStatus.FAILED), key=lambda job: job.id):
        error = job.last_error
        reason = "no reason is known" if error is None else f"{error.code}: {error.message}"
        console.print(f"dead letter {job.id}: {reason}")
    console.print()
    console.print(equation(ledger))
    wrong = problems(found)
    for problem in wrong:
        console.print(f"does NOT add up: {problem}")
    return not wrong


if __name__ == "__main__":
    console = Console(highlight=False, markup=False, soft_wrap=True)
    sys.exit(0 if show(console, read(Path(sys.argv[1]))) else 1)
