"""What becomes of a job after each thing an executor may do."""

from __future__ import annotations

import time
from datetime import datetime
from pathlib import Path

import msgspec
import pytest

from ergon_framework.core.failure import Kind
from ergon_framework.core.job import JobStatus
from ergon_framework.jobs.settings import ExecutorSettings
from ergon_framework.jobs.stores.memory import MemoryJobStore
from tests.jobs.real_worker import (
    at_work,
    burst,
    executor_status,
    finish,
    get,
    history,
    is_alive,
    job,
    quick,
    unruly,
    wait_until,
    worker,
)

pytestmark = [pytest.mark.slow, pytest.mark.req("JOBS:orchestrator")]


@pytest.mark.req("EXEC:Request", "EXEC:Transport", "EXEC:status")
def test_a_job_is_run_and_its_result_kept() -> None:
    """The request carries arguments and context; the result is stored as it came."""
    _, store = burst([job("echo", 1, "two", kwargs=b'{"flag":true}', correlation_id="c")])
    done = get(store, "echo")
    assert (done.status, done.attempts, done.deliveries) == (JobStatus.COMPLETED, 1, 1)
    result = msgspec.json.decode(done.result or b"")
    assert result["args"] == [1, "two"]
    assert result["kwargs"] == {"flag": True}
    context = result["context"]
    assert context["job_id"] == "echo"
    assert context["attempt"] == 1
    assert context["queue_name"] == "default"
    assert context["deadline"] > context["enqueue_time"]
    assert context["worker_id"]


@pytest.mark.req("EXEC:Request", "SCALE:fleet-clocks")
@pytest.mark.parametrize("seconds", [-400.0, 400.0])
def test_the_deadline_is_told_by_the_clock_that_the_executor_reads(seconds: float) -> None:
    """A store whose clock differs from this machine's takes no time away, and gives none."""
    store = MemoryJobStore(lambda: time.time() + seconds)
    store.add([job("echo", timeout=60.0)])
    began = time.time()
    worker(store, burst=True).run()
    context = msgspec.json.decode(get(store, "echo").result or b"")["context"]
    deadline = datetime.fromisoformat(context["deadline"]).timestamp()
    grace = unruly().startup_grace
    assert began + 60.0 <= deadline <= time.time() + 60.0 + grace


@pytest.mark.req("EXEC:Request")
def test_a_process_that_waited_for_its_first_request_is_told_an_exact_deadline() -> None:
    """It never says that it is ready, but its time to start is over long since."""
    store = MemoryJobStore()
    subject = worker(store, executor=unruly(startup_grace=1.0))
    with at_work(subject):
        wait_until(store.workers)
        wait_until(lambda: executor_status(subject)["processes"], "its start")
        grace_ends_at = time.monotonic() + 1.0
        wait_until(lambda: time.monotonic() > grace_ends_at)
        store.add([job("echo", timeout=60.0)])
        wait_until(lambda: get(store, "echo").status.is_final)
    context = msgspec.json.decode(get(store, "echo").result or b"")["context"]
    deadline = datetime.fromisoformat(context["deadline"]).timestamp()
    assert deadline <= time.time() + 60.0


@pytest.mark.req("EXEC:Selection")
def test_the_prefix_chooses_the_executor_and_is_stripped() -> None:
    """``b#echo`` runs in executor b, which is asked for ``echo``; the first # counts."""
    executors = {"a": unruly(), "b": unruly()}
    settings = quick(default_executor="a", max_attempts=1)
    jobs = [job("b#echo"), job("#echo"), job("b#x#y")]
    _, store = burst(jobs, executors=executors, settings=settings)
    assert get(store, "b#echo").status is JobStatus.COMPLETED
    assert get(store, "#echo").status is JobStatus.COMPLETED
    not_there = get(store, "b#x#y")
    assert not_there.last_error is not None
    assert not_there.last_error.code == "handler_not_found"


def test_an_executor_that_fails_to_start_while_the_worker_leaves_is_no_bad_end() -> None:
    """It held nothing, and nobody was waiting for it: the work of the burst is done."""
    late = ExecutorSettings(command=("sh", "-c", "sleep 0.7; exit 7"), pool_size=1)
    executors = {"a": unruly(), "late": late}
    settings = quick(default_executor="a")
    _, store = burst([job("echo")], executors=executors, settings=settings)
    assert get(store, "echo").status is JobStatus.COMPLETED


def test_a_route_chooses_the_executor_of_a_queue() -> None:
    """Jobs that name no executor go where the route of their queue says."""
    executors = {"a": unruly(), "broken": unruly("no-such-file")}
    settings = quick(default_executor="broken", routes={"images": "a"})
    _, store = burst([job("echo", queue="images")], executors=executors, settings=settings)
    assert get(store, "echo").status is JobStatus.COMPLETED


@pytest.mark.req("EXEC:error_type", "EXEC:Selection", "X11")
@pytest.mark.parametrize(
    ("handler", "code", "attempts"),
    [
        ("nope", "handler_not_found", 1),
        ("python#", "empty_handler", 0),
    ],
)
def test_what_nobody_can_run_goes_straight_to_the_dead_letters(
    handler: str, code: str, attempts: int
) -> None:
    """No handler, no name: one delivery, and an attempt only if one was made."""
    _, store = burst([job(handler)])
    dead = get(store, handler)
    assert (dead.status, dead.why) == (JobStatus.FAILED, "not_retryable")
    assert dead.last_error is not None
    assert (dead.last_error.kind, dead.last_error.code) == (Kind.REJECTED, code)
    assert (dead.attempts, dead.deliveries) == (attempts, 1)


@pytest.mark.req("EXEC:status", "EXEC:Scheduling")
@pytest.mark.parametrize(
    ("handler", "kind", "code", "message"),
    [
        ("fail", Kind.DEFECT, "Boom", "boom"),
        ("fail_silently", Kind.DEFECT, "error", "Job failed"),
        ("retry", Kind.TRANSIENT, "retry_requested", "Job requested retry"),
        ("timeout", Kind.TIMEOUT, "timeout", "Job timed out after 20 s"),
        ("crash", Kind.LOST, "executor_died", "the executor's process exited with status 3"),
        ("partial", Kind.LOST, "executor_died", "the executor's process exited with status 0"),
        ("bad_status", Kind.DEFECT, "protocol_violation", None),
        ("raw_control", Kind.DEFECT, "protocol_violation", None),
        ("raw_newline", Kind.DEFECT, "protocol_violation", None),
        ("huge", Kind.DEFECT, "response_too_large", None),
        ("endless_line", Kind.DEFECT, "response_too_large", None),
    ],
)
def test_failures_are_tried_again_until_the_attempts_are_spent(
    handler: str, kind: Kind, code: str, message: str | None
) -> None:
    """Each way to fail spends an attempt, leaves its reason, and ends in the dead letters."""
    dead = finish([job(handler)], executor=unruly(response_limit=100_000))[handler]
    assert (dead.status, dead.why, dead.attempts) == (JobStatus.FAILED, "attempts_spent", 2)
    assert dead.last_error is not None
    assert (dead.last_error.kind, dead.last_error.code) == (kind, code)
    assert message is None or dead.last_error.message == message
    assert [each["status"] for each in history(dead)] == ["retrying", "failed"]


@pytest.mark.req("X2", "X9")
@pytest.mark.parametrize("handler", ["bad_status", "raw_control", "huge", "endless_line"])
def test_a_process_whose_answer_broke_the_protocol_gets_no_other_job(handler: str) -> None:
    """It is ended and replaced; the job after it runs in a new process, at the first delivery."""
    jobs = [job("pid", id="before"), job(handler, max_attempts=1), job("pid", id="after")]
    done = finish(jobs, executor=unruly(response_limit=100_000))
    assert (done[handler].status, done[handler].attempts) == (JobStatus.FAILED, 1)
    after = done["after"]
    assert (after.status, after.attempts, after.deliveries) == (JobStatus.COMPLETED, 1, 1)
    assert done["before"].result != after.result


@pytest.mark.req("X7", "X9")
def test_a_request_that_was_never_read_in_its_time_costs_its_job_nothing() -> None:
    """An executor that is busy after its answer is replaced, and the next job runs after all."""
    jobs = [job("busy_afterwards"), job("echo", timeout=1.0, max_attempts=1)]
    done = finish(jobs)
    assert done["busy_afterwards"].status is JobStatus.COMPLETED
    echo = done["echo"]
    assert (echo.status, echo.attempts, echo.deliveries) == (JobStatus.COMPLETED, 1, 2)
    first, last = history(echo)
    assert (first["event"], first["attempt"], first["code"]) == ("released", 0, "request_unread")
    assert "had not read the request" in first["message"]
    assert last["event"] == "completed"


@pytest.mark.req("X1", "X2", "EXEC:job_id")
@pytest.mark.parametrize("handler", ["stray", "twice", "no_newline", "stderr_flood"])
def test_noise_does_not_harm_a_job_that_succeeded(handler: str) -> None:
    """Stray lines, a second outcome, a missing newline, floods: the outcome counts, once."""
    _, store = burst([job(handler), job("echo")])
    assert (get(store, handler).status, get(store, handler).attempts) == (JobStatus.COMPLETED, 1)
    assert (get(store, "echo").status, get(store, "echo").attempts) == (JobStatus.COMPLETED, 1)


@pytest.mark.req("EXEC:job_id", "EXEC:Scheduling")
@pytest.mark.parametrize("handler", ["wrong_id", "no_id", "hang", "babble", "close_stdout"])
def test_an_answer_that_never_comes_is_bounded(handler: str) -> None:
    """Without an outcome of its own the attempt ends at its deadline, or earlier."""
    jobs = [job(handler, timeout=0.3, max_attempts=1), job("echo")]
    done = finish(jobs)
    dead = done[handler]
    assert (dead.status, dead.attempts) == (JobStatus.FAILED, 1)
    assert dead.last_error is not None
    assert dead.last_error.code in ("timeout", "protocol_violation")
    assert done["echo"].status is JobStatus.COMPLETED


@pytest.mark.req("X10")
@pytest.mark.parametrize("handler", ["stubborn", "grandchild"])
def test_a_timeout_ends_the_whole_group(handler: str, tmp_path: Path) -> None:
    """Processes that ignore SIGTERM, and children of children, are gone afterwards."""
    trace = tmp_path / "pid"
    # Long enough for the handler to leave its trace, whatever else the machine has to do.
    dead = finish([job(handler, str(trace), timeout=2.0, max_attempts=1)])[handler]
    assert dead.last_error is not None
    assert dead.last_error.kind is Kind.TIMEOUT
    pid = int(trace.read_text(encoding="utf-8"))
    wait_until(lambda: not is_alive(pid), "the end of the process")


def test_a_crash_leaves_no_grandchild_behind(tmp_path: Path) -> None:
    """When an executor dies, whatever it had started dies too."""
    trace = tmp_path / "pid"
    finish([job("orphan", str(trace), max_attempts=1)])
    pid = int(trace.read_text(encoding="utf-8"))
    wait_until(lambda: not is_alive(pid), "the end of the grandchild")


@pytest.mark.req("EXEC:Scheduling", "X14")
def test_a_timeout_can_be_final() -> None:
    """With ``on_timeout = "dead-letter"`` a timeout is not tried again."""
    settings = quick(on_timeout="dead-letter", max_attempts=5)
    _, store = burst([job("timeout")], settings=settings)
    dead = get(store, "timeout")
    assert (dead.status, dead.why, dead.attempts) == (JobStatus.FAILED, "not_retryable", 1)


@pytest.mark.req("X14")
def test_error_types_can_be_final() -> None:
    """An error type in ``give_up_on`` is not tried again."""
    _, store = burst([job("fail")], settings=quick(give_up_on=("Boom",)))
    assert (get(store, "fail").why, get(store, "fail").attempts) == ("not_retryable", 1)


@pytest.mark.req("EXEC:retry_after", "X14")
def test_an_asked_delay_replaces_the_backoff_and_is_capped() -> None:
    """``retry_after_seconds`` is taken as it is, up to the limit of the settings."""
    settings = quick(max_retry_after=100.0)
    jobs = [job("retry", 7, id="short"), job("retry", 1e9, id="long"), job("retry", -5, id="now")]
    _, store = burst(jobs, settings=settings)
    delays = {
        each: history(get(store, each))[0].get("delay", 0) for each in ("short", "long", "now")
    }
    assert delays == {"short": 7.0, "long": 100.0, "now": 0}
    assert get(store, "now").status is JobStatus.FAILED


def test_a_held_job_is_parked_without_a_charge(tmp_path: Path) -> None:
    """``retry`` with error type ``held`` spends no attempt, however often it comes."""
    gate = tmp_path / "open"
    _, store = burst([job("held", str(gate), 3600)])
    parked = get(store, "held")
    assert (parked.status, parked.why, parked.attempts) == (JobStatus.PENDING, "held", 0)
    assert (parked.deliveries, parked.excused) == (1, 1)
    assert parked.run_at > store.now() + 3000
    assert parked.last_error is not None
    assert parked.last_error.kind is Kind.HELD


def test_a_job_may_be_held_more_often_than_it_may_be_delivered(tmp_path: Path) -> None:
    """Being held is nobody's fault: it never counts towards the limit of deliveries."""
    gate = tmp_path / "open"
    store = MemoryJobStore()
    store.add([job("held", str(gate), 0.001, max_attempts=1, max_deliveries=2)])
    with at_work(worker(store)):
        wait_until(lambda: get(store, "held").deliveries > 6)
        gate.touch()
        wait_until(lambda: get(store, "held").status.is_final)
    done = get(store, "held")
    assert (done.status, done.attempts) == (JobStatus.COMPLETED, 1)


def test_a_success_after_a_failure_keeps_the_reason() -> None:
    """The last error of an earlier attempt stays to explain why there was a second."""
    done = finish([job("fail_once")])["fail_once"]
    assert (done.status, done.attempts) == (JobStatus.COMPLETED, 2)
    assert done.last_error is not None
    assert done.last_error.message == "once"
    assert [each["event"] for each in history(done)] == ["failed", "completed"]
