"""Where an attempt failed: kept with the attempt, told to whoever asks, and private in between."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ergon_framework.core.executor_protocol import OrchestratorSession, Reply, Status
from ergon_framework.core.job import JobStatus
from ergon_framework.errors import JobFailedError
from ergon_framework.executor import outcomes
from ergon_framework.executor.outcomes import MAX_TRACEBACK, traceback_of
from ergon_framework.jobs.results import result_of
from ergon_framework.jobs.settings import ExecutorSettings, JobsSettings
from ergon_framework.jobs.settlement import MAX_MESSAGE
from ergon_framework.jobs.stores.memory import MemoryJobStore
from ergon_framework.jobs.why import explain_job
from ergon_framework.ports.jobstore import Job
from tests.jobs.real_worker import burst, get, job, quick, unruly

APP = """
import sys
from ergon_framework.executor import Registry

registry = Registry()

@registry.handler
def charge(card):
    pin = card + "-pin"
    return look_up(pin)

def look_up(number):
    print("looking for it", file=sys.stderr, flush=True)
    raise ValueError("no such card")
"""


def fail(secret: str) -> None:
    """Raise with something private in the message and in a local."""
    raise ValueError(secret)


def test_frames_and_source_lines_are_told_and_nothing_else() -> None:
    """Neither the message nor a local nor an argument, in the error or in what it came from."""

    def fail_again() -> None:
        try:
            fail("s3" + "cret")
        except ValueError as error:
            raise RuntimeError("s3" + "cret") from error

    with pytest.raises(RuntimeError) as caught:
        fail_again()
    told = traceback_of(caught.value)
    assert told is not None
    assert "s3cret" not in told
    assert "    raise ValueError(secret)" in told
    assert "in test_frames_and_source_lines" in told
    assert "which led to:\n" in told
    assert told.endswith("\nRuntimeError")


def test_a_traceback_is_bounded() -> None:
    """However deep."""

    def fall(depth: int) -> None:
        if not depth:
            raise LookupError
        fall(depth - 1)

    with pytest.raises(LookupError) as caught:
        fall(500)
    told = traceback_of(caught.value)
    assert told is not None
    assert len(told) <= MAX_TRACEBACK + 1
    assert "more frames" in told


def test_an_executor_that_sends_none_is_fine() -> None:
    """Nor is one refused that sends something else under that name."""
    for told in (b"", b',"error_traceback":null', b',"error_traceback":{"a":1}'):
        line = b'{"job_id":"a","status":"error"' + told + b"}\n"
        (reply,) = OrchestratorSession().feed(line)
        assert isinstance(reply, Reply)
        assert reply.error_traceback is None
    line = outcomes.written(outcomes.succeeded("a", 1))[1]
    assert b"traceback" not in line


def failed_job(tmp_path: Path, **options: Any) -> Job:
    """One that failed for good in a real executor."""
    (tmp_path / "app.py").write_text(APP)
    words = (
        sys.executable,
        "-m",
        "ergon_framework.executor",
        "--app",
        f"{tmp_path}/app.py:registry",
    )
    executor = ExecutorSettings(command=words, pool_size=1, startup_grace=60.0, **options)
    _, store = burst([job("charge", "4711-081")], executor=executor, settings=quick(max_attempts=1))
    return get(store, "charge")


@pytest.mark.slow
def test_where_it_failed_is_told_everywhere(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """In the history, by ``why``, by the error of ``result``, and in the worker's log.

    What the job was given, and what its handler made of it, is told nowhere.
    """
    with caplog.at_level(logging.DEBUG):
        found = failed_job(tmp_path)
    assert found.status is JobStatus.FAILED
    told = msgspec.json.decode(found.history[-1])["traceback"]
    assert "app.py:10 in charge\n    return look_up(pin)" in told
    assert "4711-081" not in told
    assert "ergon_framework" not in told
    why = explain_job(found, None, [], found.created_at, JobsSettings())
    assert "Attempt 1 failed here:" in why
    assert "  |     return look_up(pin)" in why
    with pytest.raises(JobFailedError, match="no such card") as caught:
        result_of(found, MemoryJobStore())
    assert "return look_up(pin)" in caught.value.__notes__[0]
    assert "return look_up(pin)" in caplog.text
    assert "looking for it" not in "".join(why)
    for text in (caplog.text, why, str(caught.value), *caught.value.__notes__):
        assert "4711-081" not in text


@pytest.mark.slow
def test_the_last_output_is_kept_only_where_a_setting_says_so(tmp_path: Path) -> None:
    """And only of a process that ran this one job."""
    kept = msgspec.json.decode(failed_job(tmp_path, keep_output=3).history[-1])
    assert kept["output"] == "looking for it"
    jobs = [job("echo"), job("crash", delay=0.0)]
    _, store = burst(jobs, executor=unruly(keep_output=3), settings=quick(max_attempts=1))
    assert "output" not in msgspec.json.decode(get(store, "crash").history[-1])


def test_what_an_executor_sends_cannot_steer_a_terminal() -> None:
    """Nor forge a line, nor be longer than a history has room for."""
    from ergon_framework.jobs.settlement import Settler
    from ergon_framework.jobs.stores.memory import MemoryJobStore
    from tests.jobs.manual_worker import Hand

    store = MemoryJobStore()
    store.add([job("h", executor="")])
    leased = Hand(store).claim()
    text = "a\x1b[2J\r\nb" + "x" * 100_000
    reply = Reply("h", Status.ERROR, error_type="E", error_traceback=text)
    seen = Settler(JobsSettings(), "w").event_of(reply, leased)
    told = getattr(seen, "traceback", "")
    assert len(told) <= 4 * MAX_MESSAGE
    reply = Reply("h", Status.ERROR, error_type="E", error_traceback="a\x1b[2J\rb\nc")
    seen = Settler(JobsSettings(), "w").event_of(reply, leased)
    assert getattr(seen, "traceback", "") == "a\\x1b[2J\\rb\nc"
