from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from types import ModuleType

import pytest

from ergon_framework.executor import process
from tests.executor.link import Child, Lines, in_seconds, request, runtime_command

pytestmark = [pytest.mark.slow, pytest.mark.req("JOBS:executor")]

APP = "handlers:registry"


def child(app: str = APP, **env: str) -> Child:
    """The Python runtime with an app of the samples."""
    return Child(runtime_command(app), env)


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """A named pipe at which a handler waits."""
    path = tmp_path / "gate"
    os.mkfifo(path)
    return path


def open_gate(gate: Path) -> None:
    """Let whoever waits there pass."""
    with gate.open("w"):
        return


@pytest.mark.req("X1", "EXEC:Transport")
def test_nothing_that_is_printed_reaches_the_protocol() -> None:
    """Not by Python, not past it, not by a child process, not while the module is imported."""
    with child() as executor:
        assert executor.ask("print", "word")["status"] == "success"
        assert executor.ask("echo", 1)["result"] == {"args": [1], "kwargs": {}}
        executor.end_input()
        assert executor.code() == 0
        assert executor.out.rest() == []
        errors = executor.errors()
    for text in ("printed while", "written while", "connected", "disconnected"):
        assert text in errors
    for way in ("print", "write", "descriptor", "child", "log"):
        assert f"word {way}" in errors


@pytest.mark.parametrize("closed", ["2>&-", "<&- >&- 2>&-"])
def test_streams_that_are_closed_are_replaced(closed: str) -> None:
    """No descriptor of ours may take the place of one that a print goes to."""
    command = ["sh", "-c", f'exec "$@" {closed}', "sh", *runtime_command(APP)]
    with Child(command) as executor:
        if closed == "2>&-":
            assert executor.ask("print", "word")["status"] == "success"
            assert executor.ask("echo")["status"] == "success"
            executor.end_input()
        assert executor.code() == 0
        assert executor.out.rest() == []


def test_a_handler_that_reads_finds_the_end_of_input() -> None:
    """The requests are out of its reach."""
    with child() as executor:
        executor.send(request("read"), request("echo", job_id="next"))
        assert executor.outcome()["result"] == ""
        assert executor.outcome()["job_id"] == "next"


def test_forked_children_do_not_have_the_pipes() -> None:
    """One that comes back into our code answers nobody."""
    with child() as executor:
        assert executor.ask("fork")["status"] == "success"
        assert executor.ask("multiprocess")["result"] == [1, 2]
        assert executor.ask("echo", job_id="next")["job_id"] == "next"
        executor.end_input()
        assert executor.out.rest() == []


def test_a_forked_child_that_comes_back_ends_although_a_lock_is_held() -> None:
    """Another thread may hold any of our locks at the fork; in the child it is never free."""
    with child() as executor:
        answer = executor.ask("fork_under_lock")
        assert (answer["status"], answer["result"]) == ("success", 0)


def test_how_a_forked_child_ended_is_known_to_who_waits_for_it() -> None:
    """What it raised is told, and the threads that it started come to their end."""
    with child() as executor:
        assert executor.ask("fork_and_fail")["result"] == [0, 1]
        executor.end_input()
        said = executor.errors()
        assert "a forked child failed: ValueError: not in the child" in said
        assert "said by its thread" in said


def test_forked_children_end_when_they_are_told_to() -> None:
    """Our way to take signals is not theirs, and theirs do not write to our wake pipe."""
    with child() as executor:
        assert executor.ask("stop_child")["result"] == -signal.SIGTERM
        assert executor.ask("echo")["status"] == "success"


def test_a_forked_child_hears_a_signal_that_comes_at_once(tmp_path: Path) -> None:
    """A pool may end a child that has not yet taken our handlers off: it must not swallow that."""
    early = "import os\nos.register_at_fork(after_in_child=lambda: os.kill(os.getpid(), 15))\n"
    (tmp_path / "sitecustomize.py").write_text(early)
    with child(PYTHONPATH=f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}") as executor:
        assert executor.ask("fork_and_pause")["result"] == -signal.SIGTERM
        assert executor.ask("echo")["status"] == "success"


@pytest.mark.req("X4")
def test_readiness_is_reported_where_the_parent_waits() -> None:
    """One line after the start-up hooks, then the descriptor is closed, for grandchildren too."""
    reader, writer = os.pipe()
    command, env = runtime_command(APP), {"ERGON_READY_FD": str(writer), "ERGON_MAX_IN_FLIGHT": "3"}
    with Child(command, env, pass_fds=[writer]) as executor:
        os.close(writer)
        lines = Lines(reader)
        report = json.loads(lines.next())
        assert lines.next() == b""
        assert report["ready"] is True
        assert "echo" in report["handlers"]
        assert (report["protocol_version"], report["max_in_flight"]) == ("1", 3)
        assert report["pid"] == executor.process.pid
        executor.until("connected")
    os.close(reader)


@pytest.mark.parametrize("value", ["", "none", "1", "-1", "987", "9" * 30])
def test_a_ready_descriptor_that_is_none_is_no_harm(value: str) -> None:
    """It is told, and the executor serves."""
    with child(ERGON_READY_FD=value) as executor:
        assert executor.ask("echo")["status"] == "success"
        executor.end_input()
        assert ("ERGON_READY_FD" in executor.errors()) is bool(value)


@pytest.mark.parametrize("value", ["0", "-1", "many", "1.5", "1025", "²"])
def test_a_wrong_number_in_flight_is_refused(value: str) -> None:
    """With the exit code of wrong configuration."""
    with child(ERGON_MAX_IN_FLIGHT=value) as executor:
        assert executor.code() == 2
        assert "ERGON_MAX_IN_FLIGHT" in executor.errors()


@pytest.mark.parametrize(
    ("app", "code", "told"),
    [
        ("handlers", 2, "write it as module:registry"),
        ("nowhere:registry", 2, "there is no module 'nowhere'"),
        ("nowhere.py:registry", 2, "there is no file 'nowhere.py'"),
        ("handlers:registri", 2, "did you mean 'registry'?"),
        ("starts_badly:number", 2, "is a int"),
        ("broken:registry", 1, "broken.py, line 3: RuntimeError: no such luck"),
        ("starts_badly:registry", 1, "the start-up hook 'connect' failed: ConnectionError"),
    ],
)
def test_a_start_that_fails_says_why(app: str, code: int, told: str) -> None:
    """On the standard error, with 2 for a wrong --app and 1 for everything else."""
    with child(app) as executor:
        assert executor.code() == code
        assert executor.out.rest() == []
        assert told in executor.errors()


@pytest.mark.parametrize(
    "arguments", [[], ["--app"], ["--application", "x:y"], ["--app", "a:b", "c"]]
)
def test_wrong_use_shows_how_it_is_used(arguments: list[str]) -> None:
    """Exit code 2."""
    with Child([*runtime_command("x")[:3], *arguments]) as executor:
        assert executor.code() == 2
        assert "usage:" in executor.errors()


def test_help_is_given() -> None:
    """On the standard output, for this once."""
    with Child([*runtime_command("x")[:3], "--help"]) as executor:
        assert executor.code() == 0
        assert b"usage" in executor.out.next()


@pytest.mark.parametrize("app", ["handlers.py:registry", "starts_badly:app"])
def test_an_app_may_be_a_file_or_something_with_a_registry(app: str) -> None:
    """Whoever carries a registry need not be one."""
    with child(app) as executor:
        assert executor.ask("echo")["job_id"] == "job-1"


def test_debug_shows_the_traceback() -> None:
    """All of it, on the standard error."""
    with Child([*runtime_command("broken:registry"), "--debug"]) as executor:
        assert executor.code() == 1
        assert "Traceback (most recent call last)" in executor.errors()


def test_the_operator_may_ask_for_a_log() -> None:
    """At the level he names, on the standard error; a level that is none is refused."""
    with child(ERGON_LOG_LEVEL="info") as executor:
        assert executor.ask("log", "word")["status"] == "success"
        executor.until("INFO    sample: word")
    with child(ERGON_LOG_LEVEL="loud") as executor:
        assert executor.code() == 2
        assert "ERGON_LOG_LEVEL is 'LOUD'" in executor.errors()


def test_it_serves_behind_the_command_line() -> None:
    """``ergon executor`` is the same, found by another way."""
    code = "import typer; from ergon_framework.cli.worker import executor; typer.run(executor)"
    with Child([sys.executable, "-c", code, "--app", APP]) as executor:
        assert executor.ask("echo", 1)["result"] == {"args": [1], "kwargs": {}}


def test_it_starts_without_what_takes_long_to_load() -> None:
    """Neither the command line's libraries nor an event loop are imported for plain handlers."""
    with child() as executor:
        assert executor.ask("modules")["result"] == []


@pytest.mark.req("X20", "X10")
def test_sigterm_finishes_what_was_taken(gate: Path) -> None:
    """The answer comes, the hooks run, the exit code is 0."""
    with child(GATE=str(gate)) as executor:
        executor.send(request("hang", "waiting"))
        executor.until("waiting")
        executor.signal(signal.SIGTERM)
        open_gate(gate)
        assert executor.outcome()["result"] == "through"
        assert executor.code() == 0
        assert "disconnected" in executor.errors()


def test_an_end_while_modules_are_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread of an executor may be about to import what would be told to finish."""
    monkeypatch.setenv(process.OTLP, "http://127.0.0.1:1")
    for name in ("ergon_framework.executor.tracing", "ergon_framework.telemetry.exporters"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    process.finish_telemetry()


@pytest.mark.req("X20")
def test_sigterm_ends_an_idle_executor() -> None:
    """With its hooks, and exit code 0, although its input is still open."""
    with child() as executor:
        assert executor.ask("echo")["status"] == "success"
        executor.signal(signal.SIGTERM)
        assert executor.code() == 0
        assert "disconnected" in executor.errors()


def test_a_second_sigterm_ends_it_at_once(gate: Path) -> None:
    """A handler that hangs cannot keep it."""
    with child(GATE=str(gate)) as executor:
        executor.send(request("hang", "waiting"))
        executor.until("waiting")
        executor.signal(signal.SIGTERM)
        executor.signal(signal.SIGTERM)
        while executor.process.poll() is None:  # two signals in one moment count once
            executor.signal(signal.SIGTERM)
        assert executor.code() == 143


def test_sigint_is_left_to_the_parent(gate: Path) -> None:
    """Ctrl-C reaches the whole group; the parent decides what it means."""
    with child(GATE=str(gate)) as executor:
        executor.send(request("hang", "waiting"))
        executor.until("waiting")
        executor.signal(signal.SIGINT)
        open_gate(gate)
        assert executor.outcome()["result"] == "through"
        assert executor.ask("echo")["status"] == "success"


def test_the_end_of_input_finishes_what_was_sent(gate: Path) -> None:
    """All of it is answered before the exit with 0."""
    with child(GATE=str(gate)) as executor:
        executor.send(request("hang", "waiting"), request("echo", job_id="second"))
        executor.end_input()
        executor.until("waiting")
        open_gate(gate)
        assert [executor.outcome()["job_id"] for _ in range(2)] == ["job-1", "second"]
        assert executor.code() == 0


def test_a_parent_that_is_gone_is_no_error() -> None:
    """Nobody reads the outcome: the executor ends, without a word about it."""
    with child() as executor:
        executor.until("connected")
        assert executor.process.stdout is not None
        executor.process.stdout.close()
        executor.send(request("echo"))
        assert executor.code() == 0
        assert "Error" not in executor.errors()


@pytest.mark.req("X5")
def test_a_handler_that_does_not_stop_costs_the_process(gate: Path) -> None:
    """It is answered for, what was taken is served, and a fresh process can be started."""
    with child(GATE=str(gate)) as executor:
        assert executor.ask("echo")["status"] == "success"  # its start is not the handler's time
        deadline = in_seconds(2)  # the word must come before
        executor.send(request("hang", "waiting", _deadline=deadline), request("echo", job_id="2"))
        executor.until("waiting")
        assert executor.outcome()["status"] == "timeout"
        assert executor.outcome()["job_id"] == "2"
        assert executor.code() == 0
        errors = executor.errors()
    assert "does not stop at its deadline" in errors
    assert "disconnected" in errors


def test_a_handler_cannot_end_the_process() -> None:
    """sys.exit is an error of the job."""
    with child() as executor:
        assert executor.ask("leave")["error_type"] == "SystemExit"
        assert executor.ask("echo")["status"] == "success"


def test_threads_left_behind_do_not_keep_it() -> None:
    """The interpreter would wait for them for ever."""
    program = "from ergon_framework.executor.process import serve"
    program += f"\nserve({APP!r}, exit_timeout=0.1)"
    with Child([sys.executable, "-c", program]) as executor:
        assert executor.ask("linger")["status"] == "success"
        executor.end_input()
        assert executor.code() == 0
        assert "threads are still busy" in executor.errors()


def test_requests_may_come_from_a_file(tmp_path: Path) -> None:
    """Useful by hand, for plain and for async handlers."""
    lines = tmp_path / "requests"
    lines.write_bytes(request("fail", "x") + request("nobody"))
    for app in ("handlers:registry", "traced:registry"):
        with lines.open("rb") as source, Child(runtime_command(app), stdin=source) as executor:
            assert executor.code() == 0
            assert len(executor.out.rest()) == 2
