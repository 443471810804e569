"""How far a running job is, as its handler tells, and handlers that must report."""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from ergon_framework.cli.job_client import job_rows
from ergon_framework.core.claim import ClaimRequest
from ergon_framework.core.executor_protocol import encode_progress, reported_progress
from ergon_framework.core.job import JobStatus
from ergon_framework.engine.clocks import SYSTEM_CLOCK
from ergon_framework.errors import WiringError
from ergon_framework.executor import JobContext, Registry
from ergon_framework.jobs.client import JobClient
from ergon_framework.jobs.settings import ExecutorSettings
from ergon_framework.jobs.stores.memory import MemoryJobStore
from ergon_framework.jobs.stores.sqlite import SqliteJobStore
from ergon_framework.jobs.why import explain_job
from ergon_framework.ports.jobstore import Search, WorkerRecord
from tests.jobs.real_worker import at_work, get, history, job, quick, wait_until, worker

pytestmark = [pytest.mark.slow, pytest.mark.req("JOBS:orchestrator")]

APP = """
import asyncio, os, time
from pathlib import Path
from ergon_framework.executor import JobContext, Registry

registry = Registry()

@registry.handler
def counts(until, job: JobContext):
    for number in range(10_001):
        job.progress(number / 20_000, f"page {number} of 20000")
    while not Path(until).exists():
        time.sleep(0.01)

@registry.handler
async def counts_async(until, job: JobContext):
    job.progress(message="token=hunter2hunter2hunter2")
    while not Path(until).exists():
        await asyncio.sleep(0.01)

@registry.handler(heartbeat=1.0)
async def falls_silent(seen, job: JobContext):
    job.progress(0.1)
    with open(seen, "a") as file:
        file.write(f"{os.getpid()}\\n")
    await asyncio.sleep(600)

@registry.handler(heartbeat=1.0)
def hangs():
    while True:
        time.sleep(0.05)

@registry.handler(heartbeat=2.0)
def reports(rounds, job: JobContext):
    for number in range(rounds):
        job.progress()
        time.sleep(0.05)
    return os.getpid()

@registry.handler
def stays(until):
    while not Path(until).exists():
        time.sleep(0.01)
    return os.getpid()
"""


def python(folder: Path, **options: object) -> ExecutorSettings:
    """Ergon's own executor with the handlers above."""
    (folder / "app.py").write_text(APP)
    command = sys.executable, "-m", "ergon_framework.executor", "--app", f"{folder}/app.py:registry"
    values = {"command": command, "pool_size": 1, "startup_grace": 60.0, "kill_grace": 0.3}
    return ExecutorSettings.model_validate({**values, **options})


def test_others_see_how_far_a_running_job_is(tmp_path: Path) -> None:
    """The last of many reports arrives, without secrets, and is gone when the job has ended."""
    until = tmp_path / "until"
    url = f"sqlite:///{tmp_path}/work.db"
    executor = python(tmp_path, max_in_flight=2)
    with (
        closing(SqliteJobStore(tmp_path / "work.db")) as store,
        JobClient(url) as client,
        at_work(worker(store, executor=executor)),
    ):
        store.add([job("counts", str(until)), job("counts_async", str(until))])

        def told(name: str) -> dict[str, object]:
            return dict(client.show(name).get("progress") or {})

        wait_until(lambda: told("counts").get("fraction") == 0.5, "the last report")
        wait_until(lambda: told("counts_async"), "the report of an async handler")
        assert told("counts")["message"] == "page 10000 of 20000"
        assert told("counts").keys() == {"fraction", "message", "at"}
        assert told("counts_async")["fraction"] is None
        assert "hunter2" not in str(told("counts_async"))
        until.touch()
        wait_until(lambda: client.status("counts") == "completed")
        assert "progress" not in client.show("counts")


def test_a_handler_that_must_report_and_does_not_is_timed_out(tmp_path: Path) -> None:
    """A timeout of its own kind, tried again; an async handler is cancelled, its process lives."""
    store = MemoryJobStore()
    seen = tmp_path / "seen"
    settings = quick(max_attempts=2)
    with at_work(worker(store, executor=python(tmp_path), settings=settings)):
        store.add([job("falls_silent", str(seen))])
        wait_until(lambda: get(store, "falls_silent").status.is_final, "its end")
        store.add([job("reports", 60)])  # three seconds, with a report every 0.05
        wait_until(lambda: get(store, "reports").status.is_final, "one that reports")
    silent, reports = get(store, "falls_silent"), get(store, "reports")
    assert (silent.status, silent.attempts, silent.deliveries) == (JobStatus.FAILED, 2, 2)
    assert {(each["kind"], each["code"]) for each in history(silent)} == {
        ("timeout", "heartbeat_timeout")
    }
    assert silent.last_error is not None
    assert silent.last_error.message == "reported nothing for 1 s and was ended"
    assert (reports.status, reports.attempts) == (JobStatus.COMPLETED, 1)
    pids = {*map(int, seen.read_text().split()), int(msgspec.json.decode(reports.result or b"0"))}
    assert len(pids) == 1  # all of it in one process


def test_neighbours_of_a_silent_handler_finish_first(tmp_path: Path) -> None:
    """A plain handler cannot be cancelled: its process is ended when its other jobs are done."""
    store = MemoryJobStore()
    until = tmp_path / "until"
    executor = python(tmp_path, max_in_flight=2)
    with at_work(worker(store, executor=executor, settings=quick(max_attempts=1, timeout=600.0))):
        store.add([job("hangs"), job("stays", str(until))])
        wait_until(lambda: get(store, "stays").is_charged and get(store, "hangs").is_charged)
        store.add([job("reports", 1)])  # waits: the process gets no more once it has to end
        over = SYSTEM_CLOCK.now() + 2.0  # longer than the heartbeat and the grace
        wait_until(lambda: SYSTEM_CLOCK.now() >= over)
        assert get(store, "hangs").status is JobStatus.ACTIVE  # its neighbour is spared
        until.touch()
        for name in ("hangs", "stays", "reports"):
            wait_until(lambda name=name: get(store, name).status.is_final, name)  # type: ignore[misc]
    hung, stays = get(store, "hangs"), get(store, "stays")
    assert hung.last_error is not None
    assert (hung.last_error.code, hung.attempts) == ("heartbeat_timeout", 1)
    assert (stays.status, stays.attempts, stays.deliveries) == (JobStatus.COMPLETED, 1, 1)
    assert get(store, "reports").status is JobStatus.COMPLETED


def test_what_an_earlier_attempt_told_says_nothing_of_the_next(tmp_path: Path) -> None:
    """A record of a worker may be older than the claim that is shown."""
    with JobClient("memory://") as client:
        client.enqueue("h", id="a")
        request = ClaimRequest(worker="w", lease=60.0, slots={"x": 1}, default="x")
        client.store.settle_and_claim([], request)
        fence = client.find("a").fence

        def shown(worker_id: str, number: int) -> object:
            told = {"fence": number, "fraction": 0.4, "message": "page 4", "at": "then"}
            record = WorkerRecord(
                id=worker_id, host="h", pid=1, version="1", started_at=1.0, progress={"a": told}
            )
            client.store.heartbeat(record)
            return client.show("a").get("progress")

        assert shown("w", fence - 1) is None
        assert shown("other", fence) is None
        assert shown("w", fence) == {"fraction": 0.4, "message": "page 4", "at": "then"}
        (row,) = job_rows(client, Search(), 10, as_json=False)
        assert row["why"] == "40 %, page 4"
        workers, now = client.store.workers(), client.store.now()
        told = explain_job(client.find("a"), None, workers, now, client.settings)
        assert told[1] == "Its handler reported 40 %, page 4 at then."


def test_what_is_no_progress_is_refused() -> None:
    """By the handler's call, with what to write; and by the worker, which ignores the line."""
    with pytest.raises(ValueError, match=r"a part from 0 to 1, such as 0.4, not 40"):
        JobContext(job_id="1").progress(40)
    for part in ("words", True, float("nan")):
        with pytest.raises(ValueError, match="a part from 0 to 1"):
            JobContext(job_id="1").progress(part)  # type: ignore[arg-type]
    for message in (7, b"x", None):
        with pytest.raises(TypeError, match="the message of a progress is text, not"):
            JobContext(job_id="1").progress(0.5, message)  # type: ignore[arg-type]
    JobContext(job_id="1").progress(0.4, "in a test it does nothing")
    unreadable = reported_progress(encode_progress("1", 0.5, "importing caf\udce9.csv"))
    assert unreadable is not None
    assert unreadable.message == "importing caf\\udce9.csv"
    good = encode_progress("1", 0.5, "x" * 10_000 + "\x00")
    assert len(good) < 4096
    found = reported_progress(good)
    assert found is not None
    assert (found.job_id, found.fraction, len(found.message)) == ("1", 0.5, 400)
    for line in (b"", b"{}", b"[]", b'{"progress": {"job_id": "1", "fraction": 2}}', b"\xff"):
        assert reported_progress(line) is None
    registry = Registry()
    for wrong in (0, -1, "30", True, float("nan")):
        with pytest.raises(WiringError, match=r"heartbeat of the handler 'h' is"):
            registry.add(len, "h", heartbeat=wrong)  # type: ignore[arg-type]
    with pytest.raises(WiringError, match="takes many jobs in one call"):
        registry.add(list, "h", heartbeat=30, batch=10)
