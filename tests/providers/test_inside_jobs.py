"""A provider called by a job's handler, in a real executor process of a real worker."""

from __future__ import annotations

import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ergon_framework.core.failure import Kind
from ergon_framework.core.job import JobStatus
from ergon_framework.jobs.settings import ExecutorSettings
from ergon_framework.jobs.stores.memory import MemoryJobStore
from ergon_framework.jobs.why import explain_job
from ergon_framework.ports.jobstore import Job, NewJob
from tests.jobs.real_worker import at_work, get, history, job, quick, wait_until, worker

pytestmark = pytest.mark.slow

COMMAND = (sys.executable, "-m", "ergon_framework.executor", "--app")
PROGRAM = Path(__file__).parent / "programs" / "inside.py"
TRACE = {"traceparent": f"00-{7:032x}-{9:016x}-01"}


class Place:
    """A job store, a worker, and the provider's store that its executor uses."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.file = folder / "calls.db"
        self.store = MemoryJobStore()
        self.settings = quick(**{"max_attempts": 4, **settings})
        self.executor = ExecutorSettings(
            command=(*COMMAND, f"{PROGRAM}:registry"),
            env={"INSIDE_STORE": f"sqlite:///{self.file}"},
            pool_size=1,
        )

    def run(self, jobs: list[NewJob], condition: Any = None) -> dict[str, Job]:
        """Add jobs and work until each has ended, or until something is so."""
        self.store.add(jobs)
        ids = [each.id for each in jobs]

        def all_ended() -> bool:
            return all(get(self.store, each).status.is_final for each in ids)

        with at_work(worker(self.store, executor=self.executor, settings=self.settings)):
            wait_until(condition or all_ended)
        return {each: get(self.store, each) for each in ids}

    def calls(self, outcome: str = "%") -> list[tuple[Any, ...]]:
        """Attempts that reached the provider, as its store has them."""
        query = (
            "SELECT task_execution_id, correlation_id, idempotency_key, attempt_number,"
            " max_attempts FROM provider_execution_metrics"
            " WHERE attempt_number > 0 AND outcome LIKE ? ORDER BY created_at, rowid"
        )
        with closing(sqlite3.connect(self.file)) as connection:
            return connection.execute(query, (outcome,)).fetchall()


@pytest.mark.req("ONE:provider-inside")
def test_what_the_job_knows_reaches_the_provider(tmp_path: Path) -> None:
    """Correlation id, key, name, trace and deadline, without a line of code in the handler."""
    place = Place(tmp_path)
    new = job("ask", id="job-1", correlation_id="order-7", trace_context=TRACE, timeout=5.0)
    done = place.run([new])["job-1"]
    told = msgspec.json.decode(done.result or b"")
    assert told["correlation_id"] == "order-7"
    assert told["task_name"] == "ask"
    assert told["traceparent"].split("-")[1] == TRACE["traceparent"].split("-")[1]
    assert told["has_deadline"]
    assert told["seconds"] < 30.0  # the first request has the start-up grace on top
    assert told["idempotency_key"].startswith("job-1/")
    assert place.calls("success") == [
        ("job-1", "order-7", told["idempotency_key"], 1, 1),
    ]


@pytest.mark.req("ONE:provider-inside")
def test_a_key_belongs_to_one_request_of_one_job(tmp_path: Path) -> None:
    """Two requests have two keys, the same request the same one, another job another."""
    jobs = Place(tmp_path).run([job("ask_twice", id="a"), job("ask_twice", id="b")])
    first, second = (msgspec.json.decode(jobs[each].result or b"") for each in "ab")
    assert first[0] == first[2] != first[1]
    assert not set(first) & set(second)


@pytest.mark.req("ONE:patience")
def test_attempts_never_multiply(tmp_path: Path) -> None:
    """Three attempts of the job and three of the provider's policy are three calls, not nine."""
    place = Place(tmp_path, max_attempts=3)
    dead = place.run([job("ask_in_vain", id="v")])["v"]
    assert (dead.status, dead.attempts) == (JobStatus.FAILED, 3)
    calls = place.calls()
    assert [each[3:] for each in calls] == [(1, 1)] * 3
    assert len({each[2] for each in calls}) == 1, "each attempt of a job has the same key"


@pytest.mark.req("ONE:patience")
def test_a_job_with_one_attempt_leaves_patience_to_the_provider(tmp_path: Path) -> None:
    """Somebody has to be patient: where the job is not, the provider's policy counts."""
    place = Place(tmp_path)
    dead = place.run([job("ask_in_vain", id="v", max_attempts=1)])["v"]
    assert (dead.status, dead.attempts) == (JobStatus.FAILED, 1)
    assert [each[3:] for each in place.calls()] == [(1, 3), (2, 3), (3, 3)]


@pytest.mark.req("ONE:parked", "ONE:why")
def test_an_open_circuit_parks_the_job_while_others_flow(tmp_path: Path) -> None:
    """No attempt is charged, the next look is when the circuit may close, and why says so."""
    place = Place(tmp_path, max_attempts=3)
    vain = [job("ask_in_vain", id="v")]  # three failures in a row open the circuit
    place.run(vain)
    jobs = [job("ask", id="held"), job("answer", id="free")]

    def is_so() -> bool:
        is_parked = get(place.store, "held").why == "held"
        return is_parked and get(place.store, "free").status.is_final

    place.run(jobs, is_so)
    held, free = get(place.store, "held"), get(place.store, "free")
    assert (free.status, held.status) == (JobStatus.COMPLETED, JobStatus.PENDING)
    assert (held.attempts, held.excused) == (0, held.deliveries)
    assert held.last_error is not None
    assert held.last_error.kind is Kind.HELD
    assert held.run_at - place.store.now() > 3000
    why = " ".join(explain_job(held, None, (), place.store.now(), place.settings))
    assert "weather/current: the circuit is open" in why
    assert "No attempt was charged" in why
    assert len(place.calls()) == 3, "the provider was not called again"


@pytest.mark.req("ONE:parked")
def test_an_empty_quota_parks_the_job(tmp_path: Path) -> None:
    """The second job of the window waits for the next one."""
    place = Place(tmp_path)
    place.run([job("ask_limited", id="first")])
    place.run([job("ask_limited", id="second")], lambda: get(place.store, "second").why == "held")
    second = get(place.store, "second")
    assert (second.attempts, second.status) == (0, JobStatus.PENDING)
    assert second.last_error is not None
    assert "weather/limited: the quota of this window is used up" in second.last_error.message
    assert history(second)[-1]["event"] == "held"


@pytest.mark.req("ONE:patience")
def test_a_wrong_request_is_given_up_at_once(tmp_path: Path) -> None:
    """What the provider's table calls final, the job does not repeat."""
    dead = Place(tmp_path).run([job("ask_wrongly", id="w")])["w"]
    assert (dead.status, dead.attempts) == (JobStatus.FAILED, 1)
    assert dead.last_error is not None
    assert dead.last_error.code == "ProviderBadRequestError"


@pytest.mark.req("ONE:patience")
def test_a_class_of_ones_own_is_no_less_final(tmp_path: Path) -> None:
    """It is told under the name that the settings know."""
    dead = Place(tmp_path).run([job("be_denied", id="d")])["d"]
    assert (dead.status, dead.attempts) == (JobStatus.FAILED, 1)
    assert dead.last_error is not None
    assert dead.last_error.code == "ProviderAuthError"


@pytest.mark.req("ONE:patience")
def test_patience_is_not_inherited(tmp_path: Path) -> None:
    """A job that was given the carrier of another one is told its own number of attempts."""
    given = {"ergon_attempts": "1", "x": "y"}
    jobs = [
        job("carrier", id="several", trace_context=given),
        job("carrier", id="one", trace_context={"x": "y"}, max_attempts=1),
    ]
    done = Place(tmp_path).run(jobs)
    several, one = (msgspec.json.decode(done[each].result or b"") for each in ("several", "one"))
    assert (several, one) == ({"x": "y"}, given)
