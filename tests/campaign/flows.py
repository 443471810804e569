"""The campaign on flows: producers, operators, workers and their executors die.

Every flow has one of the forms of ``flow_forms``, which tell how each of its steps has to end.
"""

from __future__ import annotations

import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import msgspec

from ergon_framework.app.move.transfer import all_records
from ergon_framework.core.flow import FlowStatus
from ergon_framework.core.job import JobStatus
from ergon_framework.jobs.flow_client import purge_flow
from ergon_framework.ports.jobstore import FlowStore, Job, Search
from ergon_framework.ports.transfer import FlowRecord
from tests.campaign.actors import Actor
from tests.campaign.event_file import Book
from tests.campaign.flow_forms import COMPLETED, FORMS, STEPS, Ends, Expected, form_of
from tests.campaign.jobs import WAITING, JobCampaign, more_than_once
from tests.campaign.outage_retry import patiently, pause
from tests.campaign.programs.flow_operator import number_of
from tests.campaign.programs.flow_producer import flow_book
from tests.differential.places import Place

STEPS_PER_KILL = 100
LEAST = 4 * STEPS
MOST = 40 * STEPS
"""Steps that wait at any time: few enough for the kills to be spread over all of them."""
OPEN = tuple(each for each in FlowStatus if not each.is_final)
RUN_AGAIN = ("fails",)
"""Handlers whose deliveries are counted anew when their flow is retried."""
SHOWN = 10


class FlowCampaign(JobCampaign):
    """Every flow ends as its form says, and every step has one outcome."""

    what = "flows"
    ranks = ("flow_producer", "flow_operator", "worker", "worker", "worker", "worker")
    patience = 600.0

    def __init__(self, engine_name: str, folder: Path, seed: int) -> None:
        super().__init__(engine_name, folder, seed)
        self.flow_book: Book = flow_book(str(self.book.path))
        self._read = 0
        self._verbs: Counter[str] = Counter()

    def open(self, place: Place) -> None:
        """A store that counts, and that knows flows."""
        super().open(place)
        self.flows = cast("FlowStore", getattr(self.store, "flows"))  # noqa: B009 - some have none

    def close(self) -> None:
        """Close both."""
        super().close()
        self.flow_book.close()

    def more(self, program: str) -> Sequence[str]:
        """Workers run steps."""
        return ("flow_executor",) if program == "worker" else ()

    def points(self, program: str) -> list[str]:
        """Those of a client, of an operator, or of a worker."""
        if program == "flow_operator":
            return self.known(("jobs.desk.",))
        return super().points("producer" if program == "flow_producer" else program)

    # ---- enough to do ---------------------------------------------------------------------------

    @property
    def _missing(self) -> int:
        """How many flows are yet to be added for the kills so far."""
        return self.kills * STEPS_PER_KILL * len(FORMS) // STEPS - self._said("added")

    def feed(self) -> None:
        """Let flows be added as the kills go on; wait where the workers are far behind."""
        while (waiting := patiently(lambda: self.store.count(WAITING))) > MOST:
            self.look_after()
            pause(0.1)
        is_behind = self.allowed - self._said("began") > len(FORMS)
        if not is_behind and (self._missing > 0 or waiting < LEAST):
            self._allow_flows(max(len(FORMS), min(self._missing, 10 * len(FORMS))))

    def top_up(self) -> None:
        """Let as many be added as there have to be; a few may be lost that nobody acknowledged."""
        if self._missing > 0:
            self._allow_flows(self._missing + len(FORMS))

    def _allow_flows(self, number: int) -> None:
        self.allowed += number
        for actor in self.actors:
            if actor.program == "flow_producer":
                actor.allow(number)

    def start(self, program: str, arm: str) -> Actor:
        """A producer is told what was allowed and not yet begun."""
        actor = super().start(program, arm)
        if program == "flow_producer":
            actor.allow(self.allowed - self._said("began"))
        return actor

    def struck(self, actor: Actor) -> None:
        """A producer dies while it adds."""
        if actor.program == "flow_producer":
            self._allow_flows(2)
            pause(self.dice.uniform(0.0, 0.01))

    def _said(self, *verbs: str) -> int:
        """How often these were written down, of which there may be very many."""
        with self.flow_book.path.open("rb") as file:
            file.seek(self._read)
            new = file.read()
        self._read += len(new)
        self._verbs.update(line.split(b" ")[0].decode() for line in new.splitlines())
        return sum(self._verbs[verb] for verb in verbs)

    def is_done(self) -> bool:
        """Whether every flow was added or given up, and all of them have ended."""
        began = self._said("began")
        if began < self.allowed or self._said("added", "unsure") < began:
            return False
        is_open = patiently(lambda: self.flows.search(OPEN, 1))
        return not is_open and not patiently(lambda: self.store.count(WAITING))

    # ---- what came of it ------------------------------------------------------------------------

    def judged(self) -> dict[str, Any]:
        """Flows that are lost, there twice or by half; steps that ended wrongly; what is left."""
        verdict = Verdict(self)
        verdict.judge()
        found = {name: verdict.counts[name] for name in FLOW_FAULTS}
        told = {"units": len(verdict.jobs), "flows": verdict.seen, **found}
        told |= {"ran_again": verdict.runs.total() - len(verdict.runs)}
        if is_over := self.is_done():
            told["orphans"] += self._left_behind([each.flow.id for each in verdict.records])
        return told | {"rescued": verdict.rescued, "ended": is_over, "examples": verdict.examples}

    def _left_behind(self, ids: Sequence[str]) -> int:
        """Purge all flows; how many rows of flows and of their steps are there after that."""
        for each in ids:
            patiently(lambda flow_id=each: purge_flow(self.store, flow_id))  # type: ignore[misc]
        steps = sum(job.step is not None for job in self.store.search(Search()))
        return steps + sum(_rows_of_flows(self.place.url).values())


FLOW_FAULTS = (
    *("lost", "twice", "half", "unended", "wrong", "early", "miscounted", "orphans"),
    *("completed_twice", "claimed_twice", "ran_undelivered", "never_ran"),
)
"""What must be zero."""


class Verdict:
    """What the store and the books say of all flows, compared with their forms."""

    def __init__(self, campaign: FlowCampaign) -> None:
        self.counts: Counter[str] = Counter()
        self.examples: list[str] = []
        store: Any = campaign.store
        self.records = patiently(lambda: list(all_records(store.records, FlowRecord)))
        self.jobs = {job.id: job for job in patiently(lambda: list(store.search(Search())))}
        self.added: dict[int, bool] = {}
        """Whether the flow of that number was acknowledged."""
        for verb, number, *_ in campaign.flow_book.lines():
            if verb in {"added", "unsure"}:
                self.added[int(number)] = verb == "added"
        self.runs: Counter[str] = Counter()
        self.first_run: dict[str, int] = {}
        claims: Counter[str] = Counter()
        for at, (verb, *rest) in enumerate(campaign.book.lines()):
            if verb == "ran":
                self.runs[rest[0]] += 1
                self.first_run.setdefault(rest[0], at)
            elif verb == "claimed":
                claims[" ".join(rest)] += 1
        self.counts["claimed_twice"] = more_than_once(claims)
        self.steps: dict[str, list[Job]] = defaultdict(list)
        self.rescued = 0
        for job in self.jobs.values():
            if job.step is not None:
                self.steps[job.step.flow_id].append(job)
            self.rescued += any(b'"lost"' in entry for entry in job.history)
        self.seen = 0

    def judge(self) -> None:
        """Look at every number that was tried, and at every row."""
        found: dict[int, list[FlowRecord]] = defaultdict(list)
        for record in self.records:
            number = number_of(record.flow)
            found[self._number_by_after(record) if number is None else number].append(record)
        for number, is_acknowledged in self.added.items():
            records = found.pop(number, [])
            self.seen += bool(records)
            if len(records) > 1:
                self._tell("twice", number, "the flow is there twice")
            elif not records and is_acknowledged:
                self._tell("lost", number, "the flow was acknowledged")
            for record in records:
                self._judge_flow(number, record, form_of(number).expected(number))
        for number in found:
            self._tell("twice", number, "nobody added this flow")
        for job in self.jobs.values():
            self._judge_job(job)

    def _number_by_after(self, record: FlowRecord) -> int:
        """That of a flow without a name: the jobs that it was made for have the number."""
        numbers = (int(job.id.split("-")[1]) for job in self.steps[record.flow.id])
        return min(numbers, default=-1)

    def _judge_flow(self, number: int, record: FlowRecord, expected: Expected) -> None:
        flow = record.flow
        if flow.status != expected.status:
            self._tell("wrong", number, f"the flow is {flow.status}, not {expected.status}")
        if record.work or (flow.status == COMPLETED and any(j.remaining for j in record.joins)):
            self._tell("orphans", number, f"left: {record.work} {record.joins}")
        jobs: dict[str, list[Job]] = defaultdict(list)
        for job in self.steps[flow.id]:
            jobs[_name_of(job)].append(job)
        for name in expected.steps.keys() | jobs.keys():
            if len(jobs[name]) != 1 or name not in expected.steps:
                fault = "half" if not jobs[name] else "twice"
                self._tell(fault, number, f"{len(jobs[name])} steps {name}")
                return
        self._judge_counts(number, record)
        single = {name: each for name, [each] in jobs.items()}
        for name, ends in expected.steps.items():
            self._judge_step(number, name, ends, single)

    def _judge_counts(self, number: int, record: FlowRecord) -> None:
        state = record.flow.state
        found = Counter(job.status for job in self.steps[record.flow.id])
        told = {
            JobStatus.COMPLETED: state.completed,
            JobStatus.FAILED: state.failed,
            JobStatus.CANCELLED: state.cancelled,
        }
        if state.unfinished or any(found[status] != n for status, n in told.items()):
            self._tell("miscounted", number, f"{state}, but {dict(found)}")

    def _judge_step(self, number: int, name: str, ends: Ends, jobs: dict[str, Job]) -> None:
        job = jobs[name]
        result = None if job.result is None else msgspec.json.decode(job.result)
        if job.status not in ends.statuses:
            self._tell("wrong", number, f"{name} is {job.status}")
        elif job.status is JobStatus.COMPLETED and result != ends.result:
            self._tell("wrong", number, f"{name} returned {result}, not {ends.result}")
        elif ends.statuses == ("cancelled",) and job.id in self.first_run:
            self._tell("early", number, f"{name} ran, and was to be cancelled")
        for other in (jobs[each] for each in ends.after):
            began, before = self.first_run.get(job.id), self.first_run.get(other.id)
            if began is not None and before is not None and began < before:
                self._tell("early", number, f"{name} ran before {other.id}")
            if (job.finished_at or 0.0) < (other.finished_at or 0.0):
                self._tell("early", number, f"{name} ended before {other.id}")

    def _judge_job(self, job: Job) -> None:
        """What holds for every job, whether it is a step or waits to become one."""
        if not job.status.is_final:
            self._tell("unended", job.id, f"it is {job.status}")
        if job.status is JobStatus.COMPLETED:
            if _completions(job) != 1:
                self._tell("completed_twice", job.id, str(job.history))
            is_signal = job.step is not None and job.step.signal is not None
            if job.id not in self.first_run and not is_signal:
                self._tell("never_ran", job.id, "it completed")
        if self.runs[job.id] > job.deliveries and job.handler not in RUN_AGAIN:
            self._tell("ran_undelivered", job.id, f"{self.runs[job.id]} runs, {job.deliveries}")

    def _tell(self, fault: str, who: int | str, what: str) -> None:
        self.counts[fault] += 1
        if len(self.examples) < SHOWN:
            self.examples.append(f"{fault}: {who}: {what}")


def _completions(job: Job) -> int:
    """How often it has completed, or a signal has completed it."""
    events = (msgspec.json.decode(entry)["event"] for entry in job.history)
    return sum(event in {"completed", "signalled"} for event in events)


def _name_of(job: Job) -> str:
    if job.step is not None and job.step.signal is not None:
        return job.step.signal
    return str(msgspec.json.decode(job.args)[-1]).partition(".")[2]


def _rows_of_flows(url: str) -> dict[str, int]:
    """Rows of the tables of flows, or keys of them."""
    return {name: number for name, number in _counted(url) if number}


TABLES = ("ergon_flows", "ergon_flow_joins", "ergon_flow_work")


def _counted(url: str) -> Iterator[tuple[str, int]]:
    if url.startswith("sqlite"):
        with sqlite3.connect(url.removeprefix("sqlite:///")) as connection:
            for table in TABLES:
                yield table, connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]  # noqa: S608
        connection.close()
    elif url.startswith("postgres"):
        import psycopg

        with psycopg.connect(url) as database:
            for table in TABLES:
                row = database.execute(f"SELECT count(*) FROM {table}").fetchone()  # noqa: S608
                yield table, 0 if row is None else row[0]
    else:
        import redis

        with redis.Redis.from_url(url) as client:
            for key in client.scan_iter("*flow:*", count=1_000):
                yield key.decode(), 1
