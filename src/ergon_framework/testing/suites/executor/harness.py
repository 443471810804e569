"""A process of the command under test: its pipes, its lines, and a conversation with it.

One thread moves all bytes. Every pipe is non-blocking, so an executor that reads slowly, floods its
standard error or never answers cannot block the check. On purpose the lines share nothing with the
framework's own codec: a mistake there would be a mistake of the judge as well.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import itertools
import json
import os
import selectors
import shutil
import signal
import subprocess
import termios
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import IO, Any, Self

from ergon_framework.errors import WiringError
from ergon_framework.testing.suites.framework import fail

CHUNK = 65536
MOST_OUTPUT = 64 * 1024 * 1024  # bytes of standard output one process may write
KEPT_LOG = 2000  # of standard error, for the reasons
BEAT = 0.02  # seconds between two looks at whether the process still lives
LAST_WORDS = 0.2  # seconds to read on when it is gone; a grandchild may hold the pipe open


@dataclass(frozen=True, slots=True)
class Program:
    """What to start, and how."""

    command: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: Path | None = None

    def check(self) -> None:
        """Raise unless there is such a command."""
        if not self.command or not self.command[0]:
            raise WiringError("there is no command to start", remedy="name it after --")
        if self.cwd is not None and not self.cwd.is_dir():
            raise WiringError(
                f"there is no directory {str(self.cwd)!r}", remedy="correct the working directory"
            )
        name = self.command[0]
        path = {**os.environ, **self.env}.get("PATH")
        here = str((self.cwd or Path()) / name) if os.sep in name else name
        if shutil.which(here, path=path) is None:
            raise WiringError(
                f"there is no command {name!r} that can be started",
                remedy="give its path, and make the file executable",
            )


class Process:
    """One running executor; close it, and it is gone with everything it started."""

    def __init__(
        self,
        program: Program,
        *,
        env: Mapping[str, str] | None = None,
        pass_fds: Iterable[int] = (),
    ) -> None:
        try:
            self._child = subprocess.Popen(  # noqa: S603 - running it is the point
                list(program.command),
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=program.cwd,
                env=_environment(program.env, env or {}),
                pass_fds=tuple(pass_fds),
                start_new_session=True,  # its grandchildren can be ended with it
            )
        except (OSError, ValueError) as error:
            raise WiringError(
                f"the command {program.command[0]!r} could not be started: {error}",
                remedy="give a program, or a script with its interpreter in the first line",
            ) from error
        self.output = bytearray()
        self.log = bytearray()
        self.is_refusing = False  # it closed its standard input
        self.is_flooding = False  # it wrote more than anybody should read
        self._waiting = bytearray()
        self._is_closing = False
        self._selector = selectors.DefaultSelector()
        self._watch(self._child.stdout, self._read_output)
        self._watch(self._child.stderr, self._read_log)
        os.set_blocking(_fileno(self._child.stdin), False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- what goes in ---------------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        """Hand bytes over; they are written while somebody pumps."""
        if self.is_refusing or self._is_closing:
            return
        self._waiting += data
        self._offer()

    def end_input(self) -> None:
        """Close its standard input, once everything sent has been written."""
        self._is_closing = True
        self._offer()

    def is_read(self) -> bool:
        """Whether it has taken everything out of the pipe, as far as one can see."""
        stdin = self._child.stdin
        if self._waiting or stdin is None or stdin.closed:
            return not self._waiting
        unread = array.array("i", [0])
        try:
            fcntl.ioctl(stdin.fileno(), termios.FIONREAD, unread)
        except OSError:  # pragma: no cover - a system that does not tell
            return True
        return unread[0] == 0

    def _offer(self) -> None:
        stdin = self._child.stdin
        if stdin is None or stdin.closed:
            return
        if self._waiting:
            with contextlib.suppress(KeyError):
                self._selector.register(stdin, selectors.EVENT_WRITE, self._write)
            return
        with contextlib.suppress(KeyError):
            self._selector.unregister(stdin)
        if self._is_closing:
            stdin.close()

    def _write(self) -> None:
        try:
            written = os.write(_fileno(self._child.stdin), self._waiting[:CHUNK])
        except BlockingIOError:  # pragma: no cover - the selector said otherwise
            return
        except OSError:
            self.is_refusing, self._is_closing, written = True, True, len(self._waiting)
        del self._waiting[:written]
        self._offer()

    # ---- what comes out -------------------------------------------------------------------------

    def wait(self, condition: Callable[[], object], seconds: float) -> bool:
        """Pump until the condition holds; False when time is up or the process is gone."""
        end = time.monotonic() + seconds
        while not condition():
            left = end - time.monotonic()
            if left <= 0 or self.is_over():
                return bool(condition())
            self.pump(min(left, BEAT))
        return True

    def pump(self, seconds: float) -> None:
        """Move what can be moved; returns when something was, or after ``seconds``."""
        for key, _ in self._selector.select(seconds):
            key.data()

    def rest(self, seconds: float) -> None:
        """Pump for so long, whatever happens."""
        self.wait(lambda: False, seconds)

    def stop_flood(self) -> None:
        """Read no more: this is too much."""
        self.is_flooding = True
        self.close_output()

    def close_output(self) -> None:
        """Read its standard output no more, as an orchestrator that has died."""
        self._drop(self._child.stdout)

    def _watch(self, stream: IO[bytes] | None, read: Callable[[], None]) -> None:
        os.set_blocking(_fileno(stream), False)
        self._selector.register(stream or 0, selectors.EVENT_READ, read)

    def _read_output(self) -> None:
        self.output += self._read(self._child.stdout)
        if len(self.output) > MOST_OUTPUT:
            self.stop_flood()

    def _read_log(self) -> None:
        self.log += self._read(self._child.stderr)
        del self.log[:-KEPT_LOG]

    def _read(self, stream: IO[bytes] | None) -> bytes:
        try:
            data = os.read(_fileno(stream), CHUNK)
        except BlockingIOError:  # pragma: no cover - the selector said otherwise
            return b""
        if not data:
            self._drop(stream)
        return data

    def _drop(self, stream: IO[bytes] | None) -> None:
        if stream is not None and not stream.closed:
            self._selector.unregister(stream)
            stream.close()

    # ---- how it is ------------------------------------------------------------------------------

    def has_closed_output(self) -> bool:
        """Whether its standard output has ended."""
        return self._child.stdout is None or self._child.stdout.closed

    def is_over(self) -> bool:
        """Whether it is gone and everything it said was read."""
        if self._child.poll() is None:
            return False
        end = time.monotonic() + LAST_WORDS
        while not self.has_closed_output() and time.monotonic() < end:
            self.pump(BEAT)
        self.close_output()
        return True

    def exit_code(self, seconds: float) -> int | None:
        """Its exit code; None when it still runs after so many seconds."""
        self.wait(lambda: False, seconds)
        return self._child.poll()

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self._child.send_signal(number)

    def close(self) -> None:
        """End it and all of its process group."""
        # The group outlives its leader, and macOS answers EPERM for one that is all zombies.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._child.pid, signal.SIGKILL)
        self._child.kill()
        self._child.wait()
        self._selector.close()
        for stream in (self._child.stdin, self._child.stdout, self._child.stderr):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()


def _environment(*more: Mapping[str, str]) -> dict[str, str]:
    """Ours without what an orchestrator tells its executors, unless it is given."""
    told = ("ERGON_MAX_IN_FLIGHT", "ERGON_READY_FD")
    merged = {name: value for name, value in os.environ.items() if name not in told}
    for each in more:
        merged.update(each)
    return merged


def _fileno(stream: IO[bytes] | None) -> int:
    assert stream is not None  # noqa: S101 - all three are pipes
    return stream.fileno()


STATUSES = ("success", "retry", "timeout", "error")
NO_SUCH_HANDLER = "ergon_conform_no_such_handler"
HANDLER_NOT_FOUND = "handler_not_found"
ABSENT: Any = object()  # the value of a field that is left out
LONGEST_SHOWN = 120
NO_JSON, NO_OBJECT = "is not JSON", "is JSON but no object"

_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class OutputLine:
    """One line of standard output: an object with its fields, or none and what is wrong with it."""

    line: bytes
    fields: Mapping[str, Any] | None
    problem: str = ""

    def __getattr__(self, name: str) -> Any:
        """A field of the outcome; None when it is null or absent."""
        if name.startswith("__"):
            raise AttributeError(name)
        return (self.fields or {}).get(name)

    def __str__(self) -> str:
        return shown(self.line)


def reply_of(line: bytes) -> OutputLine:
    """Understand a line, or say why it is no outcome."""
    try:
        value = json.loads(line.decode("utf-8"), parse_constant=_refuse_constant)
    except UnicodeDecodeError:
        return OutputLine(line, None, "is not UTF-8")
    except (ValueError, RecursionError) as error:
        why = getattr(error, "msg", error)
        return OutputLine(line, None, f"{NO_JSON} ({why})" if line.strip() else "is blank")
    if not isinstance(value, dict):
        return OutputLine(line, None, NO_OBJECT)
    return OutputLine(line, value, _problem(value))


def _problem(fields: Mapping[str, Any]) -> str:
    if not isinstance(fields.get("job_id"), str):
        return f"has the job_id {shown(fields.get('job_id'))} where a string belongs"
    if fields.get("status") not in STATUSES:
        return f"has the status {shown(fields.get('status'))}"
    return ""


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"there is no {name}")


def request(
    function_name: str,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    job_id: str | None = None,
    context: Mapping[str, Any] | None = None,
    **changes: Any,
) -> dict[str, Any]:
    """A whole request; ``context`` and ``changes`` replace fields, or remove them with ABSENT."""
    job_id = new_job_id() if job_id is None else job_id
    around = {
        "job_id": job_id,
        "attempt": 1,
        "enqueue_time": moment(-1),
        "queue_name": "default",
        "deadline": moment(3600),
        "trace_context": {"traceparent": f"00-{7:032x}-{9:016x}-01"},
        "worker_id": "conform_1",
    }
    whole = {
        "protocol_version": "1",
        "job_id": job_id,
        "function_name": function_name,
        "args": args if args is ABSENT else list(args),
        "kwargs": kwargs if kwargs is ABSENT else dict(kwargs or {}),
        "context": present({**around, **(context or {})}),
    }
    return present({**whole, **changes})


def new_job_id() -> str:
    """An id no other request has."""
    return f"conform-{next(_numbers)}"


def moment(seconds: float) -> str:
    """So many seconds from now, as the specification writes times."""
    at = datetime.now(UTC) + timedelta(seconds=seconds)
    return at.isoformat(timespec="microseconds").replace("+00:00", "Z")


def line_of(fields: Mapping[str, Any]) -> bytes:
    """A request as its line."""
    text = json.dumps(fields, ensure_ascii=False, separators=(",", ":"))
    return text.encode() + b"\n"


def present(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that are not ABSENT."""
    return {name: value for name, value in fields.items() if value is not ABSENT}


def shown(value: object) -> str:
    """A value for a reason: short, and without characters that could steer a terminal."""
    if isinstance(value, bytes | bytearray):
        value = bytes(value[: LONGEST_SHOWN * 4]).decode("utf-8", "backslashreplace")
    text = repr(value)
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}…"


def same(one: object, other: object) -> bool:
    """Whether two JSON values are equal: 1 and 1.0 are, 1 and true are not."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return one == other


Request = Mapping[str, Any]
GRACE = 3  # a process that is just starting may take so many times longer
MOST_LOSSES = 3
HURRY = 2.0
MOST_LINES = 2_000  # from one process; no check asks for so many


class AnswerTimeout:
    """How long to wait for an answer; less when waiting was in vain again and again."""

    def __init__(self, seconds: float) -> None:
        self.longest = seconds
        self.losses = 0

    @property
    def seconds(self) -> float:
        """The longest wait for one answer."""
        return self.longest if self.losses < MOST_LOSSES else min(self.longest, HURRY)


class Conversation:
    """What was said to a process, and everything it said."""

    def __init__(self, process: Process, patience: AnswerTimeout) -> None:
        self.process = process
        self.patience = patience
        self.replies: list[OutputLine] = []
        self.has_junk = False
        self._sent: set[str] = set()
        self._open: list[OutputLine] = []  # nobody has asked for them yet
        self._read = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.close()

    # ---- saying ---------------------------------------------------------------------------------

    def send(self, request: Request, *, line: bytes | None = None) -> str:
        """Send a request, in its usual form or as this line; its job_id."""
        self.say(line_of(request) if line is None else line)
        job_id = str(request["job_id"])
        self._sent.add(job_id)
        return job_id

    def say(self, data: bytes) -> None:
        """Send bytes that belong to a request, or to nothing."""
        self.process.send(data)

    def junk(self, data: bytes) -> None:
        """Send what is no request; from now on an outcome may belong to that."""
        self.has_junk = True
        self.process.send(data)

    # ---- hearing --------------------------------------------------------------------------------

    def ask(self, request: Request, *, line: bytes | None = None) -> OutputLine:
        """Send a request and wait for its answer."""
        return self.answer(self.send(request, line=line))

    def answer(self, job_id: str, *, after: float = 0.0) -> OutputLine:
        """The answer to a request that takes so long; fails the check when none comes in time."""
        found: list[OutputLine] = []

        def is_there() -> bool:
            reply = self._take(job_id)
            if reply is not None:
                found.append(reply)
            return reply is not None or self.process.is_flooding

        seconds = self._longest() + after
        self.process.wait(is_there, seconds)
        if not found:
            if not self.process.is_over():
                self.patience.losses += 1
            fail(f"no outcome came for job_id {shown(job_id)}: {self.why_not(seconds)}")
        return found[0]

    def answers(self, job_ids: Iterable[str], *, after: float = 0.0) -> list[OutputLine]:
        """One answer to each of these requests."""
        return [self.answer(job_id, after=after) for job_id in job_ids]

    def known(self) -> list[OutputLine]:
        """Every whole line so far."""
        output = self.process.output
        while (end := output.find(b"\n", self._read)) >= 0 and len(self.replies) < MOST_LINES:
            reply = reply_of(bytes(output[self._read : end]))
            self._read = end + 1
            self.replies.append(reply)
            if reply.fields is not None:
                self._open.append(reply)
        if len(self.replies) >= MOST_LINES:
            self.process.stop_flood()
        return self.replies

    def strays(self) -> list[OutputLine]:
        """The lines that are no outcome of a request that was sent."""
        return [one for one in self.known() if one.problem or not self._is_expected(one)]

    def count(self, job_id: str) -> int:
        """How many outcomes a request has had."""
        return sum(one.job_id == job_id for one in self.known())

    def unfinished(self) -> bytes:
        """What stands after the last newline."""
        self.known()
        return bytes(self.process.output[self._read :])

    def _take(self, job_id: str) -> OutputLine | None:
        """The next outcome for a request.

        An outcome with an id nobody asked about must be meant for it too, unless there was junk:
        that the id is wrong has checks of its own, and the others should not wait in vain for it.
        """
        self.known()
        for reply in self._open:
            if reply.job_id == job_id or not (self.has_junk or self._is_expected(reply)):
                self._open.remove(reply)
                return reply
        return None

    def _is_expected(self, reply: OutputLine) -> bool:
        return isinstance(reply.job_id, str) and reply.job_id in self._sent

    def _longest(self) -> float:
        return self.patience.seconds * (1 if self.replies else GRACE)

    # ---- the end --------------------------------------------------------------------------------

    def end(self) -> int | None:
        """End its input and give its exit code; None when it goes on."""
        self.process.end_input()
        return self.process.exit_code(self.patience.seconds)

    def why_not(self, seconds: float) -> str:
        """Why there is no answer, as far as one can see from outside."""
        process = self.process
        code = process.exit_code(0)
        reasons = [f"the process ended with {told(code)}"] if code is not None else []
        if process.is_flooding:
            reasons.append("it floods its standard output")
        wrong = [one for one in self.known() if one.problem]
        if wrong:
            reasons.append(f"a line it wrote {wrong[0].problem}: {wrong[0]}")
        elif self.unfinished():
            reasons.append(f"it wrote a line without its end: {shown(self.unfinished())}")
        elif code is None and not process.is_flooding:
            reasons.append(f"it was silent for {seconds:.1f} s")
        if process.log.strip():
            last = process.log.strip().splitlines()[-1]
            reasons.append(f"last on its standard error: {shown(last)}")
        return "; ".join(reasons)


def told(code: int | None) -> str:
    """An exit code in words."""
    if code is None:
        return "no exit code, it still runs"
    return f"exit code {code}" if code >= 0 else f"signal {-code}"
