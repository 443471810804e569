"""``ergon run --reload``: start a program again when its files change, while it is developed.

The program runs in a process of its own, which is asked to stop as an operator would ask it, so
work in flight may finish. A program that does not start, for a syntax error say, is not the end:
the next change starts it again. Changes are found by asking for the time and size of every file.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue

from ergon_framework.app.console import say
from ergon_framework.app.processes import SupervisorLink
from ergon_framework.app.signals import SignalListener
from ergon_framework.engine.clocks import SYSTEM_CLOCK
from ergon_framework.errors import ConfigurationError

SUFFIXES = (".py", ".toml")
MAX_FILES = 20_000
"""Files that are watched at most: more than that is not one project."""
_NOT_OURS = frozenset({"__pycache__", "node_modules", "site-packages"})
_ENVIRONMENT = "pyvenv.cfg"

FileStates = Mapping[Path, tuple[int, int]]
"""The time of the last change and the size of each file."""


@dataclass(frozen=True, slots=True)
class ReloadTiming:
    """How long things take, in seconds."""

    poll: float = 0.5
    """Between two looks at the files."""
    settle: float = 0.2
    """Without a change, after one: an editor, or git, writes several files."""
    settle_at_most: float = 3.0
    grace: float = 10.0
    """Seconds for work in flight, before the program is asked to stop at once."""
    kill_after: float = 6.0
    """Seconds from then until the program is killed."""


@dataclass(frozen=True, slots=True)
class _Ended:
    process: subprocess.Popen[bytes]


@dataclass(frozen=True, slots=True)
class _Signalled:
    number: int


def file_states(roots: Sequence[Path]) -> FileStates:
    """Every source and settings file below these folders.

    Hidden folders, caches and virtual environments are left out.
    """
    found: dict[Path, tuple[int, int]] = {}
    for entry in (each for root in roots for each in _files(root)):
        with suppress(OSError):  # it was removed in this moment
            state = entry.stat()
            found[Path(entry.path)] = (state.st_mtime_ns, state.st_size)
        if len(found) > MAX_FILES:
            raise ConfigurationError(
                f"there are more than {MAX_FILES:,} files to watch below {roots[0]}",
                remedy="run it in the folder of the project",
            )
    return found


def changed_files(before: FileStates, now: FileStates) -> list[Path]:
    """The names of files that were changed, added or removed."""
    both = {**before, **now}
    return sorted(path for path in both if before.get(path) != now.get(path))


def _files(root: Path) -> Iterator[os.DirEntry[str]]:
    waiting = [str(root)]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                here = sorted(entries, key=lambda each: each.name)
        except OSError:  # gone, or not for us
            continue
        if any(each.name == _ENVIRONMENT for each in here):
            continue
        for each in here:
            # Links are not followed: they may lead out of the project, or in a circle.
            if each.is_dir(follow_symlinks=False):
                if not each.name.startswith(".") and each.name not in _NOT_OURS:
                    waiting.append(each.path)
            elif each.name.endswith(SUFFIXES):
                yield each


class Reloader:
    """Runs a command, and runs it again whenever a file has changed, until a signal comes."""

    def __init__(
        self,
        command: Callable[[int], Sequence[str]],
        roots: Sequence[Path],
        timing: ReloadTiming | None = None,
    ) -> None:
        self._command = command  # called with the descriptor by which the program notices our end
        self._roots = list(roots)
        self._timing = timing or ReloadTiming()
        self._events: SimpleQueue[_Ended | _Signalled] = SimpleQueue()
        self._process: subprocess.Popen[bytes] | None = None
        self._signals: list[int] = []
        self._is_stopping = False

    def run(self) -> int:
        """Watch until SIGTERM or SIGINT; the exit code of that signal."""
        # Only this process holds the other end: when it dies, however that happens, the program
        # sees the pipe close.
        lifeline, held = os.pipe()
        try:
            with SignalListener(lambda number: self._events.put(_Signalled(number))):
                self._watch(lifeline)
        finally:
            self._kill()
            os.close(lifeline)
            os.close(held)
        return 128 + self._signals[0]

    def _watch(self, lifeline: int) -> None:
        # Before the program starts: a file that changes while it loads is a change.
        states = file_states(self._roots)
        self._start(lifeline)
        while not self._signals:
            self._take(self._timing.poll)
            if self._signals:
                break
            now = file_states(self._roots)
            if now != states:
                states = self._settled(states, now)
                self._stop(signal.SIGTERM)
                if not self._signals:
                    self._start(lifeline)
        self._stop(self._signals[0])

    def _settled(self, before: FileStates, now: FileStates) -> FileStates:
        """Wait until nothing changes any more, and tell what did."""
        until = SYSTEM_CLOCK.now() + self._timing.settle_at_most
        while SYSTEM_CLOCK.now() < until and not self._signals:
            self._take(self._timing.settle)
            latest = file_states(self._roots)
            if latest == now:
                break
            now = latest
        changed = changed_files(before, now)
        more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
        if changed:
            say(f"{_shown(changed[0], self._roots)}{more} changed; starting again")
        return now

    def _start(self, lifeline: int) -> None:
        # Python compares seconds to see whether compiled code is old: too coarse for an editor.
        environ = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
        process = subprocess.Popen(  # noqa: S603 - our own program, started again
            self._command(lifeline),
            stdin=subprocess.DEVNULL,
            env=environ,
            pass_fds=(lifeline,),
            process_group=0,  # Ctrl-C is ours to pass on
        )
        self._process, self._is_stopping = process, False

        def wait() -> None:
            process.wait()
            self._events.put(_Ended(process))

        SYSTEM_CLOCK.spawn("ergon-reload-waits", wait)

    def _stop(self, number: int) -> None:
        """Ask the program to stop: gracefully, then at once, then by force."""
        self._is_stopping = True
        process, sent = self._process, len(self._signals)
        deadlines = [self._timing.grace, self._timing.kill_after]
        self._send(number)
        until = SYSTEM_CLOCK.now() + deadlines.pop(0)
        while process is not None and self._process is process:
            self._take(max(until - SYSTEM_CLOCK.now(), 0.0))
            if len(self._signals) > max(sent, 1):  # somebody cannot wait
                sent = len(self._signals)
                self._send(self._signals[-1])
            elif SYSTEM_CLOCK.now() >= until:
                if not deadlines:
                    self._kill()
                    return
                self._send(number)
                until = SYSTEM_CLOCK.now() + deadlines.pop(0)

    def _take(self, timeout: float) -> None:
        """Note what has happened, or that nothing has for a while."""
        try:
            event = self._events.get(timeout=timeout)
        except Empty:
            return
        if isinstance(event, _Signalled):
            self._signals.append(event.number)
        elif event.process is self._process:
            self._process = None
            if not self._is_stopping and not self._signals:
                code = event.process.returncode
                say(f"the program ended with code {code}; a change of a file starts it again")

    def _send(self, number: int) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)

    def _kill(self) -> None:
        """Kill the program and everything it started."""
        process, self._process = self._process, None
        if process is None:
            return
        say("the program did not stop in time; it is ended by force")
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)


def end_with(lifeline: int) -> None:
    """Stop this process when the one that started it is gone."""
    SupervisorLink(f"{lifeline}:{lifeline}").watch()


def _shown(file: Path, roots: Sequence[Path]) -> str:
    for root in roots:
        if file.is_relative_to(root):
            return str(file.relative_to(root))
    return str(file)
