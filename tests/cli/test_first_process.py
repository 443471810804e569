"""Process 1 of a container: signals that come early, orphans, exit codes, a terminal."""

from __future__ import annotations

import os
import pty
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

LONG = 30.0
"""Seconds after which a test gives up."""

BEFORE = """
    import os, signal, subprocess, sys, threading, time

    def say(text):
        os.write(1, f"{text}\\n".encode())

    class Loading:
        def find_spec(self, name, path=None, target=None):
            if name == "ergon_framework.cli.commands":
                self.load()

    def main(load, *arguments):
        Loading.load = staticmethod(load)
        sys.meta_path.insert(0, Loading())
        sys.argv = ["ergon", *arguments]
        from ergon_framework.cli import main
        main()
"""

NAMESPACE = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child"]


def _can_be_first() -> bool:
    if shutil.which("unshare") is None:
        return False
    tried = subprocess.run([*NAMESPACE, "true"], capture_output=True, check=False)  # noqa: S603 - ours
    return tried.returncode == 0


pytestmark = pytest.mark.skipif(not _can_be_first(), reason="no process may be the first here")


@contextmanager
def as_process_1(
    folder: Path, program: str, terminal: int | None = None
) -> Iterator[subprocess.Popen[str]]:
    """A program that is process 1 in a namespace of its own; gone at the end."""
    path = folder / "program.py"
    path.write_text(textwrap.dedent(BEFORE) + textwrap.dedent(program))
    command = [*NAMESPACE, sys.executable, str(path)]
    if terminal is not None:
        command = ["setsid", "--ctty", *command]
    with subprocess.Popen(  # noqa: S603 - ours
        command, stdin=terminal, stdout=subprocess.PIPE, text=True
    ) as outer:
        try:
            yield outer
        finally:
            outer.kill()


def first_of(outer: subprocess.Popen[str]) -> int:
    """What is process 1 inside, as it is called here."""
    return child_of(outer.pid)


def child_of(pid: int) -> int:
    """The first child of a process."""
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


def wait_stopped(pid: int) -> None:
    """Until a process is stopped."""
    until = time.monotonic() + LONG
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        assert time.monotonic() < until
        os.sched_yield()


def line_of(outer: subprocess.Popen[str]) -> str:
    """What the program says next."""
    assert outer.stdout is not None
    return outer.stdout.readline().strip()


@pytest.mark.parametrize(
    "words", ["worker", "run --all", "serve", "boundary serve"], ids=lambda words: words.split()[0]
)
def test_a_signal_ends_what_is_still_loading(tmp_path: Path, words: str) -> None:
    """No handler is there yet, and the kernel would drop it for process 1."""
    program = f"""
        def load():
            say("loading")
            threading.Event().wait()

        main(load, *{words.split()!r})
    """
    with as_process_1(tmp_path, program) as outer:
        assert line_of(outer) == "loading"
        os.kill(first_of(outer), signal.SIGTERM)
        assert outer.wait(LONG) == 128 + signal.SIGTERM


def test_what_others_leave_behind_is_reaped(tmp_path: Path) -> None:
    """An orphan does not stay as a zombie, and the program gets the exit codes of its own."""
    program = """
        def load():
            orphan = int(subprocess.check_output(["sh", "-c", "sleep 0.1 >&2 & echo $!"]))
            mine = subprocess.run(["sh", "-c", "exit 7"]).returncode
            until = time.monotonic() + 20
            while time.monotonic() < until:
                try:
                    os.kill(orphan, 0)  # a zombie is still there
                except ProcessLookupError:
                    say("reaped")
                    break
                os.sched_yield()
            os._exit(mine)

        main(load, "worker")
    """
    with as_process_1(tmp_path, program) as outer:
        assert line_of(outer) == "reaped"
        assert outer.wait(LONG) == 7


def test_signals_are_passed_on(tmp_path: Path) -> None:
    """To whoever handles them: the program decides how it ends."""
    program = """
        def load():
            def heard(number, frame):
                say(signal.Signals(number).name)
                if number == signal.SIGTERM:
                    os._exit(5)

            for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
                signal.signal(number, heard)
            say("ready")
            while True:
                signal.pause()

        main(load, "worker")
    """
    with as_process_1(tmp_path, program) as outer:
        assert line_of(outer) == "ready"
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
            os.kill(first_of(outer), number)
            assert line_of(outer) == number.name
        assert outer.wait(LONG) == 5


def test_ctrl_z_stops_nobody(tmp_path: Path) -> None:
    """There is no shell that could continue the program, or what its handlers have started."""
    program = """
        def load():
            os._exit(subprocess.run(["sh", "-c", "echo ready; read line; exit 7"]).returncode)

        main(load, "worker")
    """
    ours, theirs = pty.openpty()
    try:
        with as_process_1(tmp_path, program, theirs) as outer:
            assert line_of(outer) == "ready"
            os.write(ours, b"\x1a")
            os.write(ours, b"go on\n")
            assert outer.wait(LONG) == 7
    finally:
        os.close(ours)
        os.close(theirs)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_stopped_program_hears_that_it_should_end(tmp_path: Path, number: signal.Signals) -> None:
    """Somebody stopped it on purpose, and nobody is there any more who continues it."""
    program = f"""
        def load():
            signal.signal({int(number)}, lambda number, frame: os._exit(5))
            say("ready")
            while True:
                signal.pause()

        main(load, "worker")
    """
    with as_process_1(tmp_path, program) as outer:
        assert line_of(outer) == "ready"
        inner = child_of(first_of(outer))
        os.kill(inner, signal.SIGSTOP)
        wait_stopped(inner)
        os.kill(first_of(outer), number)
        assert outer.wait(LONG) == 5
