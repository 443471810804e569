"""``ergon run NAME`` and ``ergon run --all``: real parts in real processes."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.app.processes import SAMPLES, Ergon
from tests.jobs.real_worker import is_alive, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.req("ONE:run")]

STREAM = '[tasks.stream]\ntask = "parts:Stream"\nconsumer.loop.streaming = true\n'
BATCH = '[tasks.batch]\ntask = "parts:Batch"\n'
ZONE = '[zones.plant]\ndata = "plant"\nlisten = "127.0.0.1:0"\ninsecure = true\n'
WORKER = f"""
[store]
url = "sqlite:///work.db"
[executors.python]
command = ["{sys.executable}", "-m", "ergon_framework.executor", "--app", "parts:registry"]
cwd = "{SAMPLES}"
pool_size = 1
"""
SERVER = "[server]\nport = 0\n"


class Run(Ergon):
    """One ``ergon run`` with a settings file of its own."""

    def __init__(self, place: Path, text: str, *arguments: str, **environ: str) -> None:
        file = place / "ergon.toml"
        file.write_text(text)
        super().__init__("run", *arguments, "--config", str(file), **environ)
        self.pids: dict[str, int] = {}

    def __exit__(self, *exc: object) -> None:
        for pid in self.pids.values():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        super().__exit__(*exc)

    def ready(self, *names: str, told: str = "") -> None:
        """Wait until each of these is said to be ready, and a line was told, in any order."""
        missing = {*names, *([told] if told else [])}
        while missing:
            line = self.out.line()
            assert line, f"{missing} did not happen"
            found = re.match(r"ready (\S+) pid=(\d+)", line)
            if found is not None:
                self.pids[found[1]] = int(found[2])
            missing -= {line, found[1] if found else ""}


def children_of(pid: int) -> list[int]:
    """The processes that one has started."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            name, _, rest = stat.read_text().rpartition(")")
            if int(rest.split()[1]) == pid:
                found.append(int(name.split()[0]))
    return found


def test_all_parts_start_and_stop_in_order(tmp_path: Path) -> None:
    """Tasks go first and the server last; the exit code is that of the signal."""
    with Run(tmp_path, STREAM + BATCH + ZONE + WORKER + SERVER, "--all") as run:
        done = "ended tasks.batch with code 0"
        run.ready("server", "zones.plant", "worker", "tasks.stream", "tasks.batch", told=done)
        run.signal(signal.SIGTERM)
        assert run.out.rest() == [
            "ended tasks.stream with code 143",
            "ended worker with code 0",
            "ended zones.plant with code 0",
            "ended server with code 0",
        ]
        assert run.code() == 143
        assert not any(is_alive(pid) for pid in run.pids.values())


def test_a_part_that_is_killed_is_started_again(tmp_path: Path) -> None:
    """The others go on meanwhile; each part has the settings and the variables of all."""
    environ = {"ERGON_ZONES__PLANT__LISTEN": "127.0.0.1:0"}
    text = STREAM + ZONE.replace('listen = "127.0.0.1:0"', 'listen = "192.0.2.1:1"')
    with Run(tmp_path, text, "--all", "--json", **environ) as run:
        run.out, run.err = run.err, run.out  # one document on the standard output, lines beside it
        run.ready("zones.plant", "tasks.stream")
        first = dict(run.pids)
        os.kill(first["zones.plant"], signal.SIGKILL)
        assert run.out.until("ended") == ("ended zones.plant by signal 9; started again in 0.5 s")
        run.ready("zones.plant")
        assert run.pids["zones.plant"] != first["zones.plant"]
        assert is_alive(first["tasks.stream"])
        run.signal(signal.SIGINT)
        outcome = json.loads(run.err.line())
        assert run.code() == 130
    assert (outcome["exit_code"], outcome["restarts"], outcome["errors"]) == (130, 1, [])
    assert [(each["part"], each["exit_code"]) for each in outcome["parts"]] == [
        ("zones.plant", 0),
        ("tasks.stream", 130),
    ]


def test_nobody_outlives_a_parent_that_was_killed(tmp_path: Path) -> None:
    """Every part notices, and ends by itself; so do the executors of the worker."""
    with Run(tmp_path, STREAM + ZONE + WORKER, "--all") as run:
        run.ready("zones.plant", "worker", "tasks.stream")
        wait_until(lambda: children_of(run.pids["worker"]), "the start of an executor")
        everybody = [*run.pids.values(), *children_of(run.pids["worker"])]
        run.process.kill()
        run.process.wait()
        wait_until(lambda: not any(map(is_alive, everybody)), "their end")


def test_a_log_of_objects_has_no_line_of_text(tmp_path: Path) -> None:
    """What is ready, what stops and what has ended are records as all others are."""
    with Run(tmp_path, STREAM + WORKER, "--all", "--log-format", "json") as run:
        told: list[str] = []
        while not any(line.startswith("ready tasks.stream ") for line in told):
            told.append(json.loads(run.err.line())["message"])
        run.signal(signal.SIGTERM)
        records = [json.loads(line) for line in run.err.rest()]
        assert run.code() == 143
        assert run.out.rest() == []
    assert {record["level"] for record in records} == {"INFO"}
    told += [record["message"] for record in records]
    stopping = "stopping; what runs may finish (a second signal ends it at once)"
    ended = "ended worker with code 0"
    assert {"ended tasks.stream with code 143", stopping, ended} <= {*told}


def test_the_second_signal_ends_everything_at_once(tmp_path: Path) -> None:
    """A task that does not end holds up nobody who is impatient."""
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    text = '[tasks.gated]\ntask = "stream:Gated"\n' + ZONE
    with Run(tmp_path, text, "--all", GATE=str(gate)) as run:
        run.ready("zones.plant", "tasks.gated", told="began t0")
        run.signal(signal.SIGTERM)
        run.out.until("stop asked")
        run.signal(signal.SIGTERM)
        assert {*run.out.rest()} == {
            "ended tasks.gated by signal 9",
            "ended zones.plant by signal 9",
        }
        assert run.code() == 143


def test_a_part_that_dies_too_often_ends_all(tmp_path: Path) -> None:
    """Exit code 1, and the reason names the part."""
    text = '[tasks.broken]\ntask = "parts:Broken"\n' + ZONE
    with Run(tmp_path, text, "--all", "--restarts", "1") as run:
        assert run.code() == 1
        lines, errors = run.out.rest(), run.errors()
    assert any(line.endswith("; started again in 0.5 s") for line in lines)
    assert lines[-1] == "ended zones.plant with code 0"
    assert "tasks.broken died more than 1 times within 60 s, at last with code 1" in errors


def test_a_part_that_cannot_start_ends_all(tmp_path: Path) -> None:
    """Exit code 2: what is configured wrongly is not tried again."""
    text = STREAM + '[tasks.wrong]\ntask = "parts:Wrong"\n' + ZONE
    with Run(tmp_path, text, "--all") as run:
        assert run.code() == 2
        errors = run.errors()
    assert "'parts:Wrong': there is no 'Wrong' in parts" in errors


def test_all_ends_when_all_is_done(tmp_path: Path) -> None:
    """Exit code 0, with every worker of a task in a process of its own."""
    with Run(tmp_path, BATCH + "workers = 2\n", "--all") as run:
        assert run.code() == 0
        lines = run.out.rest()
    assert sorted(line for line in lines if line.startswith("ended")) == [
        "ended tasks.batch#0 with code 0",
        "ended tasks.batch#1 with code 0",
    ]


@pytest.mark.parametrize(
    ("name", "line"),
    [("plant", "ready zone=plant listen="), ("zones.plant", "ready"), ("server", "listening on ")],
)
def test_one_part_by_its_name(tmp_path: Path, name: str, line: str) -> None:
    """As its own command runs it: exit code 0 after a stop that was asked for."""
    with Run(tmp_path, ZONE + SERVER + STREAM, name) as run:
        assert run.out.line().startswith(line)
        run.signal(signal.SIGTERM)
        assert run.code() == 0


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            (),
            "error: what is to run? (give a name, or --all; this lists what there is:  ergon check",
        ),
        (("plant", "--all"), "error: both 'plant' and --all were asked for"),
        (("--all", "--limit", "3"), "error: --limit is for a task, and --all is none"),
        (("plant", "--workers", "3"), "error: --workers is for a task, and the zone 'plant' is"),
        (("ordres",), "error: there is no task 'ordres' in the settings, and no other part; "),
    ],
)
def test_what_cannot_be_run(tmp_path: Path, arguments: tuple[str, ...], told: str) -> None:
    """Refused with what to do instead, and exit code 2."""
    with Run(tmp_path, ZONE, *arguments) as run:
        assert run.code() == 2
        assert run.errors().startswith(told)


def test_a_file_with_nothing_to_run(tmp_path: Path) -> None:
    """It is told, and not waited for."""
    with Run(tmp_path, "[telemetry]\nspans = false\n", "--all") as run:
        assert run.code() == 2
        assert "nothing to run: " in run.errors()
