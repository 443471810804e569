"""Several worker processes: real parents, real children."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.app.processes import SOURCE, Ergon

pytestmark = pytest.mark.slow


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """A named pipe that nobody ever opens."""
    path = tmp_path / "gate"
    os.mkfifo(path)
    return path


def workers(ergon: Ergon, count: int) -> list[str]:
    """The numbers of so many workers that have started."""
    return [ergon.out.until("worker ").split()[1] for _ in range(count)]


@pytest.mark.req("R0-G6", "R0-R")
def test_finite_work_is_done_by_every_worker() -> None:
    """Each runs to its end; one object on the standard output tells of all."""
    with Ergon("run", "shop:Orders", "--workers", "2", "--json") as ergon:
        outcome = json.loads(ergon.out.line())
        assert ergon.code() == 0
    assert [each["worker"] for each in outcome["workers"]] == [0, 1]
    assert [each["report"]["processed"] for each in outcome["workers"]] == [3, 3]
    assert outcome["report"]["succeeded"] == 4
    assert outcome["report"]["stop_reason"] == "empty"
    assert outcome["restarts"] == 0


@pytest.mark.req("R0-R")
def test_a_worker_that_dies_is_started_again(tmp_path: Path) -> None:
    """A killed process comes back after the backoff and finishes the work."""
    arguments = ("run", "failing_tasks:CrashesOnce", "--workers", "2", "--json")
    with Ergon(*arguments, LIVES=str(tmp_path)) as ergon:
        outcome = json.loads(ergon.out.line())
        assert ergon.code() == 0
        errors = ergon.errors()
    assert outcome["restarts"] == 2
    assert outcome["report"]["succeeded"] == 2
    assert "worker 0 ended by signal 9; started again in 0.5 s" in errors


def test_too_many_deaths_end_the_run() -> None:
    """Beyond the limit the parent gives up with code 1 and says why."""
    arguments = ("run", "failing_tasks:Unreachable", "--workers", "2", "--restarts", "0")
    with Ergon(*arguments) as ergon:
        columns = ergon.out.line().lower().replace(" ", "_")
        assert ergon.code() == 1
        errors = ergon.errors()
    assert {"failed", "malformed", "parked"} <= set(re.split("__+", columns.strip()))
    assert "died more than 0 times within 60 s, at last with code 1" in errors
    assert "could not be read" in errors


def test_deaths_without_a_word_are_in_the_document(tmp_path: Path) -> None:
    """A worker that is killed tells nothing, so the supervisor does."""
    arguments = ("run", "failing_tasks:CrashesOnce", "--workers", "2", "--restarts", "0", "--json")
    with Ergon(*arguments, LIVES=str(tmp_path)) as ergon:
        outcome = json.loads(ergon.out.line())
        assert ergon.code() == 1
    (error,) = outcome["errors"]
    assert (outcome["exit_code"], error["code"]) == (1, "worker_deaths")
    assert "at last by signal 9; all workers were stopped" in error["message"]
    assert error["details"]["ends"] == ["by signal 9"]


@pytest.mark.req("R0-R")
def test_an_inbox_is_not_shared(tmp_path: Path) -> None:
    """Workers that would shut each other out refuse to start, and none of them is tried again."""
    (tmp_path / "in").mkdir()
    config = tmp_path / "ergon.toml"
    config.write_text(
        f'[connectors.source]\ntype = "jsonl"\ninbox = "{tmp_path / "in"}"\n'
        '[tasks.orders]\ntask = "shop:Orders"\nconnectors = ["source"]\n'
    )
    with Ergon("run", "orders", "--config", str(config), "--workers", "2", "--json") as ergon:
        outcome = json.loads(ergon.out.line())
        assert ergon.code() == 2
    (error,) = outcome["errors"]
    assert "only one process at a time may have it" in error["message"]
    assert (outcome["restarts"], list((tmp_path / "in").iterdir())) == (0, [])


def test_a_wrong_configuration_is_told_once_and_not_retried() -> None:
    """Workers that refuse to start end the run with code 2."""
    with Ergon("run", "shop:Missing", "--workers", "2") as ergon:
        assert ergon.code() == 2
        assert ergon.errors().count("error:") == 1


@pytest.mark.req("R0-R", "T3.30")
def test_the_parent_forwards_signals() -> None:
    """Every worker drains and ends by that signal, and so does the parent."""
    with Ergon("run", "stream:Idle", "--workers", "2") as ergon:
        assert set(workers(ergon, 2)) == {"0", "1"}
        ergon.signal(signal.SIGINT)
        ergon.out.until("worker  exit code")
        rows = [line.split()[:2] for line in ergon.out.rest()]
        assert ergon.code() == 130
    assert rows == [["0", "130"], ["1", "130"], ["all", "130"]]


@pytest.mark.req("T3.30")
def test_a_second_signal_cuts_the_workers_off(gate: Path) -> None:
    """Workers whose hooks hang hand back what they can and report, as a single process does."""
    with Ergon("run", "stream:Gated", "--workers", "2", "--json", GATE=str(gate)) as ergon:
        for _ in range(2):
            ergon.err.until("began t0")
        ergon.signal(signal.SIGTERM)
        for _ in range(2):
            ergon.err.until("stop asked")
        ergon.signal(signal.SIGTERM)
        outcome = json.loads(ergon.out.line())
        assert ergon.code() == 143
    assert [each["exit_code"] for each in outcome["workers"]] == [143, 143]
    assert [each["report"]["aborted"] for each in outcome["workers"]] == [1, 1]


@pytest.mark.req("T3.30")
def test_a_third_signal_kills_the_workers(gate: Path) -> None:
    """Nobody is kept waiting, also not by a worker that is stopped in its tracks."""
    with Ergon("run", "stream:Gated", "--workers", "2", GATE=str(gate)) as ergon:
        lines = sorted(ergon.out.line() for _ in range(4))
        assert lines[:2] == ["began t0", "began t0"]
        ergon.signal(signal.SIGTERM)
        for _ in range(2):
            ergon.out.until("stop asked")
        for line in lines[2:]:
            os.kill(int(line.split()[2]), signal.SIGSTOP)
        ergon.signal(signal.SIGINT)  # another one: the system may join two that are alike
        ergon.signal(signal.SIGTERM)
        rows = [line.split()[:2] for line in ergon.out.rest() if line[:2] in ("0 ", "1 ")]
        assert ergon.code() == 143
    assert rows == [["0", "-9"], ["1", "-9"]]


@pytest.mark.req("R0-G6", "R0-R")
def test_no_worker_survives_its_parent(gate: Path, tmp_path: Path) -> None:
    """After a SIGKILL of the parent each worker ends, also one whose hook hangs."""
    short = tmp_path / "short.toml"
    short.write_text("[loop]\nstop_grace = 0.1\nstreaming = true\n")
    arguments = ("run", "stream:Gated", "--workers", "2", "--policy", str(short))
    with Ergon(*arguments, GATE=str(gate)) as ergon:
        for _ in range(2):
            ergon.out.until("began t0")
        ergon.process.kill()
        # The pipe ends when the last process that could write to it is gone.
        assert ergon.out.rest() == ["stop asked", "stop asked"]
        assert ergon.code() == -signal.SIGKILL


def test_liveness_of_all_workers(tmp_path: Path) -> None:
    """The parent answers for its workers, in the file and over HTTP."""
    file = tmp_path / "live.json"
    arguments = ("run", "stream:Idle", "--workers", "2", "--probe-port", "0")
    with Ergon(*arguments, "--liveness-file", str(file)) as ergon:
        workers(ergon, 2)
        url = ergon.err.until("ergon: probes on").split()[3]
        with urlopen(url) as answer:  # noqa: S310 - our own process
            told = json.load(answer)
        assert told["status"] in ("starting", "healthy")
        ergon.signal(signal.SIGTERM)
        assert ergon.code() == 143
    assert json.loads(file.read_text())["state"] == "stopped"


def test_the_version_costs_no_imports() -> None:
    """``ergon --version`` answers before anything large is loaded."""
    code = (
        "import sys; from ergon_framework.cli import invoke; invoke(['--version']); "
        "sys.exit(bool({'typer', 'rich', 'pydantic', 'opentelemetry'} & set(sys.modules)))"
    )
    environ = {**os.environ, "PYTHONPATH": str(SOURCE)}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environ, check=False)  # noqa: S603 - our own program
    assert done.returncode == 0
