"""Requests and outcomes for tests: with a runtime in this process, or with a real child."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import ergon_framework
from ergon_framework.core.rfc3339 import format_rfc3339
from ergon_framework.executor.registry import Registry
from ergon_framework.executor.runtime import CANCEL_GRACE, Runtime
from ergon_framework.executor.stdio import Pipes

SAMPLES = Path(__file__).parent / "samples"
SOURCE = Path(ergon_framework.__file__).parents[1]
REPOSITORY = Path(__file__).parents[2]
PATIENCE = 30.0
SOON = 0.1
"""Seconds to a deadline that a test lets pass."""

Json = dict[str, Any]


def request(name: str, *args: Any, job_id: str = "job-1", **kwargs: Any) -> bytes:
    """A request; keywords that begin with an underscore are fields of its context."""
    context: Json = {
        "job_id": job_id,
        "attempt": 1,
        "enqueue_time": "2025-01-01T12:00:00Z",
        "queue_name": "default",
    }
    context |= {key[1:]: kwargs.pop(key) for key in list(kwargs) if key.startswith("_")}
    whole = {"protocol_version": "1", "job_id": job_id, "function_name": name, "context": context}
    return json.dumps({**whole, "args": args, "kwargs": kwargs}).encode() + b"\n"


def in_seconds(seconds: float) -> str:
    """A deadline that far from now."""
    return format_rfc3339(time.time() + seconds)


class Lines:
    """The lines that come out of a descriptor."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._buffer = b""

    def next(self) -> bytes:
        """The next line without its newline; empty at the end."""
        while b"\n" not in self._buffer:
            ready, _, _ = select.select([self._descriptor], [], [], PATIENCE)
            assert ready, "nothing came in time"
            if not self._more():
                break
        return self._line()

    def read(self) -> bytes:
        """The next line, without waiting; a BlockingIOError when there is none yet."""
        while b"\n" not in self._buffer and self._more():
            pass
        return self._line()

    def _more(self) -> bool:
        more = os.read(self._descriptor, 1 << 16)
        self._buffer += more
        return bool(more)

    def _line(self) -> bytes:
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def rest(self) -> list[bytes]:
        """Everything until the end."""
        lines = []
        while line := self.next():
            lines.append(line)
        return lines


class Link:
    """A runtime in threads of this process, at the other end of two pipes."""

    def __init__(
        self, registry: Registry, limit: int = 1, *, cancel_grace: float = CANCEL_GRACE
    ) -> None:
        source, self.input_fd = os.pipe()
        self.output_fd, target = os.pipe()
        self.runtime_fds = [source, target]
        self.lines = Lines(self.output_fd)
        self.runtime = Runtime(
            registry, Pipes(source, target), limit=limit, cancel_grace=cancel_grace
        )
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.end_input()
        self.wait()
        self.runtime.close()
        os.close(self.output_fd)
        for each in self.runtime_fds:
            os.close(each)

    def send(self, *requests: bytes) -> None:
        """Write some requests in one piece."""
        os.write(self.input_fd, b"".join(requests))

    def outcome(self) -> Json:
        """The next outcome."""
        found: Json = json.loads(self.lines.next())
        return found

    def ask(self, name: str, *args: Any, **kwargs: Any) -> Json:
        """Send one request and wait for the next outcome."""
        self.send(request(name, *args, **kwargs))
        return self.outcome()

    def waiting(self) -> list[str]:
        """The job ids of the outcomes that can be read now."""
        os.set_blocking(self.output_fd, False)
        found = []
        with suppress(BlockingIOError):
            while line := self.lines.read():
                found.append(json.loads(line)["job_id"])
        return found

    def end_input(self) -> None:
        """Close the pipe of requests."""
        if self.input_fd >= 0:
            os.close(self.input_fd)
            self.input_fd = -1

    def wait(self) -> None:
        """Wait until the runtime has ended."""
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive(), "the runtime did not end"

    def _run(self) -> None:
        try:
            self.runtime.run()
        except BaseException as error:
            self.failure = error


def runtime_command(app: str) -> list[str]:
    """How the Python runtime is started."""
    return [sys.executable, "-m", "ergon_framework.executor", "--app", app]


class Child:
    """An executor as a real process, in the directory of the samples."""

    def __init__(
        self, command: Sequence[str], env: Mapping[str, str] | None = None, **options: Any
    ) -> None:
        self.process = subprocess.Popen(  # noqa: S603 - our own program
            command,
            cwd=SAMPLES,
            env=_environment(env or {}),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            **{"stdin": subprocess.PIPE, **options},
        )
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self.out = Lines(self.process.stdout.fileno())
        self.err = Lines(self.process.stderr.fileno())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.process.kill()
        self.process.wait(PATIENCE)
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()

    def send(self, *requests: bytes) -> None:
        """Write some requests in one piece."""
        assert self.process.stdin is not None
        self.process.stdin.write(b"".join(requests))
        self.process.stdin.flush()

    def outcome(self) -> Json:
        """The next line of its standard output."""
        line = self.out.next()
        assert line, b"\n".join(self.err.rest()).decode()
        found: Json = json.loads(line)
        return found

    def ask(self, name: str, *args: Any, **kwargs: Any) -> Json:
        """Send one request and wait for the next outcome."""
        self.send(request(name, *args, **kwargs))
        return self.outcome()

    def end_input(self) -> None:
        """Close its standard input."""
        assert self.process.stdin is not None
        self.process.stdin.close()

    def signal(self, number: signal.Signals) -> None:
        """Give it a signal."""
        self.process.send_signal(number)

    def until(self, text: str) -> None:
        """Read its standard error until a line holds this text."""
        seen = []
        while line := self.err.next().decode():
            if text in line:
                return
            seen.append(line)
        raise AssertionError(f"{text!r} was not written, but {seen}")

    def errors(self) -> str:
        """The rest of its standard error."""
        return b"\n".join(self.err.rest()).decode()

    def code(self) -> int:
        """Its exit code."""
        return self.process.wait(PATIENCE)


def _environment(more: Mapping[str, str]) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ERGON_")}
    path = os.pathsep.join(filter(None, [str(SOURCE), os.environ.get("PYTHONPATH", "")]))
    return {**kept, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", **more}
