"""Programs that are forked behave as those that an interpreter of their own runs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import fork_server

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="elsewhere subprocess starts all programs"),
]

SURROUNDINGS = """
import json, os, sys
print(json.dumps({
    "words": sys.argv[1:],
    "folder": os.getcwd(),
    "parent": os.getppid(),
    "session": os.getsid(0) == os.getpid(),
    "variable": os.environ.get("ANYTHING"),
    "others": len(os.environ),
    "first": sys.path[:3],
    "file": globals().get("__file__"),
    "name": __name__,
    "main": sys.modules["__main__"].__dict__ is globals(),
    "package": globals().get("__package__"),
    "streams": [
        [each.encoding, each.errors, each.line_buffering, each.write_through, each.newlines]
        for each in (sys.stdin, sys.stdout, sys.stderr)
    ],
    "writes": sys.dont_write_bytecode,
    "descriptors": sorted(os.listdir("/proc/self/fd"))[:-1],
}))
"""
FENCE = """
import sys
from ergon_framework.core.claim import ClaimRequest
from ergon_framework.jobs.store_urls import open_store
from ergon_framework.ports.jobstore import NewJob
store = open_store(f"sqlite:///{sys.argv[1]}/work.db")
store.add([NewJob(id=sys.argv[2], handler="h")])
ask = ClaimRequest(worker="w", slots={"python": 1}, lease=30.0, default="python")
print([job.fence for job in store.settle_and_claim([], ask)[1].jobs])
"""
Outcome = tuple[int, str, str]


def both(words: list[str], **options: Any) -> tuple[Outcome, Outcome]:
    """What a program does when it is forked, and when it is not."""
    options = {"capture_output": True, "text": True, "timeout": 30} | options
    forked = fork_server.run([sys.executable, *words], **options)
    plain = subprocess.run([sys.executable, *words], check=False, **options)  # noqa: S603 - ours
    return (
        (forked.returncode, forked.stdout, forked.stderr),
        (plain.returncode, plain.stdout, plain.stderr),
    )


def loaded(*words: str, **options: Any) -> set[str]:
    """The modules that a program finds loaded at its start."""
    code = "import sys; print(*sys.modules)"
    command = [sys.executable, *words, "-c", code]
    done = fork_server.run(command, stdout=subprocess.PIPE, text=True, check=True, **options)
    return set(done.stdout.split())


@pytest.mark.parametrize("way", ["file", "module", "package", "code"])
def test_a_program_finds_what_it_would_find(way: str, tmp_path: Path) -> None:
    """Arguments, folder, variables, paths, streams, its parent, and no descriptor too many."""
    package = tmp_path / "shop"
    package.mkdir()
    for path in (tmp_path / "program.py", package / "__main__.py"):
        path.write_text(SURROUNDINGS, encoding="utf-8")
    (package / "__init__.py").touch()
    words = {
        "file": ["program.py", "-m", "x"],
        "module": ["-m", "program", "--help"],
        "package": ["-m", "shop", "a b"],
        "code": ["-c", SURROUNDINGS, "-c", "ü"],
    }[way]
    environ = {**os.environ, "ANYTHING": "1", "PYTHONPATH": f"/nowhere{os.pathsep}/else"}
    environ.pop("PYTHONUNBUFFERED", None)
    forked, plain = both(words, cwd=tmp_path, env=environ, start_new_session=True)
    assert forked == plain
    assert json.loads(forked[1])["parent"] == os.getpid()


def test_output_is_not_held_back_where_the_variable_says_so() -> None:
    """PYTHONUNBUFFERED counts, and PYTHONDONTWRITEBYTECODE."""
    environ = {**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    forked, plain = both(["-c", SURROUNDINGS], env=environ)
    assert forked == plain


@pytest.mark.parametrize(
    "code",
    [
        "import sys; sys.exit(7)",
        "import sys; sys.exit('a reason')",
        "import os; os._exit(3)",
        "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
        "import atexit; atexit.register(print, 'at the end'); print('first')",
        "import threading as t; t.Timer(0.1, print, ['late']).start()",
        "def f():\n    raise ValueError('no good')\nf()",
        "import sys; sys.stdout.write('without an end')",
        "import sys; print(sys.stdin.read().upper())",
        "raise",
        "import no_such_module",
    ],
)
def test_a_program_ends_as_it_would(code: str) -> None:
    """Exit code and output, whatever ends it."""
    forked, plain = both(["-c", code], input="typed")
    assert forked == plain


def test_signals_reach_it() -> None:
    """It can be ended, and is reaped by the caller."""
    code = "import signal; print('ready', flush=True); signal.pause()"
    command = [sys.executable, "-c", code]
    for number in (signal.SIGTERM, signal.SIGKILL):
        with fork_server.start(command, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            assert process.poll() is None
            process.send_signal(number)
            assert process.wait(30) == -number


def test_nothing_of_the_tests_is_in_a_program() -> None:
    """Ergon and its libraries are there before it starts, and neither tests nor servers."""
    found = loaded()
    assert {"msgspec", "ergon_framework.cli.worker"} <= found
    strangers = {"tests", "pytest", "hypothesis", "celery", "nats", "uvicorn", "fastapi"}
    assert not {name for name in found if name.partition(".")[0] in strangers}


@pytest.mark.parametrize(
    "code",
    [
        "import random; print(random.random())",
        "from ergon_framework.ports.dice import roll; print(roll())",
        "from ergon_framework.jobs.newjob import new_id; print(new_id()[-12:])",
        FENCE,
    ],
)
def test_two_programs_roll_their_own_dice(code: str, tmp_path: Path) -> None:
    """What must differ between processes does, though both have the same ancestor."""
    words = [sys.executable, "-c", code, str(tmp_path)]
    told = {fork_server.run([*words, each], capture_output=True).stdout for each in "ab"}
    assert len(told) == 2, told


def test_failpoints_are_those_of_the_program() -> None:
    """Each process has its own, or none."""
    code = "from ergon_framework.storage.failpoints import failpoint; failpoint('a.b.c')"
    forked, plain = both(["-c", code], env={**os.environ, "ERGON_FAILPOINTS": "a.b.c=kill"})
    assert forked == plain == (-signal.SIGKILL, "", "")
    assert both(["-c", code])[0] == (0, "", "")


def test_what_the_interpreter_must_see_starts_one() -> None:
    """Its options, and variables that it reads while it starts."""
    assert "msgspec" not in loaded("-I")
    assert "msgspec" not in loaded(env={**os.environ, "PYTHONHASHSEED": "7"})
    assert "msgspec" not in loaded(preexec_fn=os.getpid)


def test_what_cannot_be_started_is_told_as_ever(tmp_path: Path) -> None:
    """By the same exceptions."""
    with pytest.raises(FileNotFoundError):
        fork_server.start([sys.executable, "-c", "0"], cwd=tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError):
        fork_server.start([str(tmp_path / "nothing")])
    with pytest.raises(subprocess.CalledProcessError):
        fork_server.run([sys.executable, "-c", "raise SystemExit(1)"], check=True)
    with pytest.raises(subprocess.TimeoutExpired):
        fork_server.run([sys.executable, "-c", "import signal; signal.pause()"], timeout=0.1)
