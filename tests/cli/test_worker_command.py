"""``ergon worker`` as a user runs it: a settings file, a database beside it, real processes."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ergon_framework.jobs.client import JobClient
from tests import fork_server
from tests.jobs.real_worker import is_alive, wait_until
from tests.servers.postgres import PostgresServer
from tests.servers.server import free_port

pytestmark = [pytest.mark.slow, pytest.mark.req("JOBS:orchestrator")]

SETTINGS = """
[store]
url = "sqlite:///work.db"

[executors.python]
command = ["ergon", "executor", "--app", "handlers:registry"]
pool_size = 2
max_in_flight = 1

[jobs]
default_executor = "python"
max_attempts = 2
timeout = 30.0
lease = 2.0
backoff = { base = 0.01, multiplier = 2.0, cap = 3600.0, jitter = 0.1 }
"""

HANDLERS = """
import os, signal, subprocess, sys
from ergon_framework.executor import JobContext, Registry, RetryLater
registry = Registry()

@registry.handler("resize")
def resize(path: str, *, width: int = 100):
    print("a line that must not reach the protocol")
    return {"path": path, "width": width}

@registry.handler("wait")
async def wait(path: str, context: JobContext):
    import asyncio
    open(path, "w").write(str(os.getpid()))
    await asyncio.Event().wait()

@registry.handler("stuck")
def stuck(path: str):
    open(path, "w").write(str(os.getpid()))
    while True:
        signal.pause()

@registry.handler("stuck_once")
def stuck_once(path: str):
    if not os.path.exists(path):
        stuck(path)

@registry.handler("later")
def later():
    raise RetryLater("not now", delay=3600)

@registry.handler("fail")
def fail():
    raise ValueError("no good")
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with settings and handlers."""
    (tmp_path / "ergon.toml").write_text(SETTINGS, encoding="utf-8")
    (tmp_path / "handlers.py").write_text(HANDLERS, encoding="utf-8")
    return tmp_path


def ergon(
    place: Path, *arguments: str, code: int = 0, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    done = fork_server.run(
        [sys.executable, "-m", "ergon_framework.cli", *arguments],
        cwd=cwd or place,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == code, done.stderr
    return done


def show(place: Path, job_id: str) -> dict[str, Any]:
    """``ergon jobs show``."""
    shape: dict[str, Any] = json.loads(ergon(place, "jobs", "show", job_id, "--json").stdout)
    return shape


def start(place: Path, *arguments: str, **env: str) -> subprocess.Popen[str]:
    """A worker that stays."""
    return fork_server.start(
        [sys.executable, "-m", "ergon_framework.cli", "worker", *arguments],
        cwd=place,
        env={**os.environ, **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_what_the_setup_prints_is_kept_out_of_json(place: Path) -> None:
    """A program reads one document, and people read the rest."""
    with (place / "ergon.toml").open("a", encoding="utf-8") as file:
        file.write('\n[telemetry]\nsetup = "talkative:set_up"\n')
    text = 'print("imported")\n\ndef set_up():\n    print("set up")\n'
    (place / "talkative.py").write_text(text, encoding="utf-8")
    done = ergon(place, "worker", "--burst", "--json")
    assert json.loads(done.stdout)["completed"] == 0
    assert "imported\nset up\n" in done.stderr


@pytest.mark.req("JOBS:operator", "X22")
def test_from_enqueue_to_result(place: Path) -> None:
    """The pinned commands, in order, with what they print."""
    options = ["--args", '["a.png"]', "--kwargs", '{"width": 3}', "--id", "one"]
    assert ergon(place, "enqueue", "resize", *options).stdout == "one\n"
    before = show(place, "one")
    assert (before["status"], before["attempts"], before["result"]) == ("pending", 0, None)
    report = json.loads(ergon(place, "worker", "--burst", "--json").stdout)
    assert report["completed"] == 1
    after = show(place, "one")
    assert (after["status"], after["handler"], after["queue"]) == ("completed", "resize", "default")
    assert after["result"] == {"path": "a.png", "width": 3}
    assert (after["attempts"], after["max_attempts"], after["deliveries"]) == (1, 2, 1)
    assert after["last_error"] is None
    assert [entry["event"] for entry in after["history"]] == ["completed"]


def test_settings_of_another_folder(place: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Store and handlers are found beside the settings file, wherever the command runs."""
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    config = ["--config", str(place / "ergon.toml")]
    ergon(place, "enqueue", "resize", "--args", '["x"]', "--id", "far", *config, cwd=elsewhere)
    ergon(place, "worker", "--burst", *config, cwd=elsewhere)
    assert show(place, "far")["status"] == "completed"


def test_failures_end_in_the_dead_letters(place: Path) -> None:
    """All attempts and the reason; a handler that another version may have is waited for."""
    ergon(place, "enqueue", "fail", "--id", "bad", "--max-attempts", "1")
    ergon(place, "enqueue", "nobody", "--id", "none")
    ergon(place, "enqueue", "later", "--id", "later")
    alone = ("--max-jobs-per-process", "1", "--log-level", "info")
    told = ergon(place, "worker", "--burst", *alone).stderr
    assert "has reached its max_jobs and is replaced, after 1 jobs" in told
    dead = {each["id"]: each for each in json.loads(ergon(place, "dlq", "list", "--json").stdout)}
    assert set(dead) == {"bad"}
    assert dead["bad"]["last_error"] == {
        "kind": "defect",
        "code": "ValueError",
        "message": "no good",
    }
    assert "has no handler 'nobody': its jobs wait for a worker that has it" in told
    assert show(place, "none")["status"] == "pending"
    assert show(place, "later")["status"] == "retrying"


@pytest.mark.req("X20", "X25")
@pytest.mark.parametrize("handler", ["wait", "stuck"])
def test_sigterm_gives_back_what_outlasts_the_grace(place: Path, handler: str) -> None:
    """Exit code 0; the job is pending and uncharged; no process is left."""
    trace = place / "pid"
    ergon(place, "enqueue", handler, "--args", json.dumps([str(trace)]), "--id", "long")
    worker = start(place, ERGON_JOBS__GRACE="0.1", ERGON_EXECUTORS__PYTHON__KILL_GRACE="0.2")
    try:
        wait_until(lambda: trace.exists() and trace.read_text(encoding="utf-8"))
        worker.send_signal(signal.SIGTERM)
        _, errors = worker.communicate(timeout=30)
    finally:
        worker.kill()
    assert worker.returncode == 0, errors
    back = show(place, "long")
    assert (back["status"], back["attempts"], back["deliveries"]) == ("pending", 0, 1)
    assert not is_alive(int(trace.read_text(encoding="utf-8")))


@pytest.mark.parametrize("prefix", [[], ["nohup"]])
def test_a_terminal_that_is_closed_stops_the_worker_as_sigterm_does(
    place: Path, prefix: list[str]
) -> None:
    """What runs is given back at once, not when a lease expires; under nohup the work goes on."""
    trace = place / "pid"
    ergon(place, "enqueue", "wait", "--args", json.dumps([str(trace)]), "--id", "long")
    grace = {"ERGON_JOBS__GRACE": "0.1", "ERGON_EXECUTORS__PYTHON__KILL_GRACE": "0.2"}
    worker = subprocess.Popen(  # noqa: S603 - our own command
        [*prefix, sys.executable, "-m", "ergon_framework.cli", "worker"],
        cwd=place,
        env={**os.environ, **grace},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        wait_until(lambda: trace.exists() and trace.read_text(encoding="utf-8"))
        worker.send_signal(signal.SIGHUP)
        if prefix:
            with pytest.raises(subprocess.TimeoutExpired):
                worker.wait(timeout=1)
            worker.send_signal(signal.SIGTERM)
        _, errors = worker.communicate(timeout=30)
    finally:
        worker.kill()
    assert worker.returncode == 0, errors
    assert (show(place, "long")["status"], show(place, "long")["attempts"]) == ("pending", 0)


@pytest.mark.req("X13", "X11")
def test_a_killed_worker_is_survived(place: Path) -> None:
    """SIGKILL, then another worker: the job is rescued, charged and finished once."""
    trace = place / "pid"
    options = ["--args", json.dumps([str(trace)]), "--id", "long", "--timeout", "3"]
    ergon(place, "enqueue", "stuck_once", *options)
    worker = start(place)
    wait_until(lambda: trace.exists() and trace.read_text(encoding="utf-8"))
    with JobClient(f"sqlite:///{place}/work.db") as client:  # a command may outlast the attempt
        wait_until(lambda: client.find("long").attempts == 1)
    worker.kill()
    worker.communicate()
    pid = int(trace.read_text(encoding="utf-8"))
    wait_until(lambda: not is_alive(pid), "the end of the orphaned executor")
    ergon(place, "worker", "--burst", "--json")
    left = show(place, "long")
    assert (left["status"], left["deliveries"]) == ("completed", 2)
    assert any(entry.get("code") == "lease_expired" for entry in left["history"])


@pytest.mark.req("JOBS:badinput")
def test_a_command_that_does_not_exist(place: Path) -> None:
    """Refused with exit code 2 before anything is claimed; the job is as it was."""
    ergon(place, "enqueue", "resize", "--args", '["x"]', "--id", "safe")
    text = SETTINGS.replace('"ergon", "executor"', '"no-such-program"')
    (place / "ergon.toml").write_text(text, encoding="utf-8")
    done = ergon(place, "worker", "--burst", code=2)
    assert "executors.python.command: there is no program 'no-such-program'" in done.stderr
    assert show(place, "safe")["deliveries"] == 0


@pytest.mark.req("JOBS:badinput")
def test_a_store_of_a_newer_version(place: Path) -> None:
    """The error names both versions; nothing is touched."""
    ergon(place, "enqueue", "resize", "--args", '["x"]')
    connection = sqlite3.connect(place / "work.db")
    connection.execute("UPDATE ergon_schema SET version = 999")
    connection.commit()
    connection.close()
    done = ergon(place, "worker", "--burst", code=1)
    assert "999" in done.stderr


def test_a_burst_with_nothing_to_do_ends_at_once(place: Path) -> None:
    """Exit code 0 and an empty report."""
    report = json.loads(ergon(place, "worker", "--burst", "--json").stdout)
    assert (report["completed"], report["stop_reason"]) == (0, "burst")


def test_only_the_named_queues_are_served(place: Path) -> None:
    """--queue may be repeated."""
    for queue in ("a", "b", "c"):
        ergon(place, "enqueue", "resize", "--args", '["x"]', "--id", queue, "--queue", queue)
    ergon(place, "worker", "--burst", "--queue", "a", "--queue", "c")
    assert [show(place, each)["status"] for each in "abc"] == ["completed", "pending", "completed"]


@pytest.mark.req("JOBS:badinput")
@pytest.mark.parametrize("queue", ["", "a\nb"])
def test_a_queue_that_cannot_exist_is_refused(place: Path, queue: str) -> None:
    """Serving it would silently do nothing."""
    assert "queue" in ergon(place, "worker", "--burst", "--queue", queue, code=2).stderr


@pytest.mark.req("JOBS:operator")
def test_looking_needs_no_lock(place: Path) -> None:
    """While somebody holds the file for writing, every listing works."""
    ergon(place, "enqueue", "resize", "--args", '["x"]', "--id", "one")
    connection = sqlite3.connect(place / "work.db", isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    try:
        assert show(place, "one")["status"] == "pending"
        for command in (["jobs", "list"], ["dlq", "list"], ["queues", "list"], ["workers"]):
            ergon(place, *command)
        ergon(place, "why", "one")
    finally:
        connection.execute("ROLLBACK")
        connection.close()


def test_a_worker_waits_for_a_server_that_is_away(tmp_path: Path) -> None:
    """It says so and asks again; a signal ends it soon, and --no-wait at once."""
    port = free_port()
    text = f'[store]\nurl = "redis://127.0.0.1:{port}/0"\n[executors.a]\ncommand = ["cat"]\n'
    (tmp_path / "ergon.toml").write_text(text, encoding="utf-8")
    command = [sys.executable, "-m", "ergon_framework.cli", "worker"]
    with fork_server.start(
        command, cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stderr is not None
        assert "the worker waits and asks again" in process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    for word in ("--no-wait", "--burst"):
        done = fork_server.run(
            [*command, word], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
        )
        assert (done.returncode, "waits" in done.stderr) == (1, False)


@pytest.mark.req("SCALE:fleet-outage")
def test_a_worker_that_was_started_without_its_postgresql_goes_to_work_when_it_is_there(
    place: Path, own_postgres: PostgresServer
) -> None:
    """``ergon run worker`` waits for the server, then runs what was enqueued before. A role that
    the server does not know is no outage: it ends at once and says so.
    """
    url = own_postgres.new_database()
    settings = SETTINGS.replace("sqlite:///work.db", url)
    (place / "ergon.toml").write_text(settings, encoding="utf-8")
    with JobClient(url) as client:
        client.enqueue("resize", ["a.png"], id="first")
    own_postgres.stop()
    command = [sys.executable, "-m", "ergon_framework.cli", "run", "worker"]
    with fork_server.start(
        command, cwd=place, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    ) as process:
        try:
            assert process.stderr is not None
            assert "the worker waits and asks again" in process.stderr.readline()
            own_postgres.start()
            with JobClient(url) as client:
                assert client.result("first", timeout=60) == {"path": "a.png", "width": 100}
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
        finally:
            process.kill()
    wrong = settings.replace("//ergon@", "//nosuchrole@")
    (place / "ergon.toml").write_text(wrong, encoding="utf-8")
    done = fork_server.run(
        command, cwd=place, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 2, done.stderr
    assert "does not let this user in" in done.stderr
    assert "nosuchrole" in done.stderr
    assert "asks again" not in done.stderr
