"""A small, correct executor on the standard library; the bugs beside it replace its methods."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

REQUIRED = {"job_id": str, "function_name": str, "context": dict}
IN_CONTEXT = {"job_id": str, "attempt": int, "enqueue_time": str, "queue_name": str}


class Refused(Exception):
    """A line that is no request."""


class RetryLater(Exception):
    """The handler asks to be tried again."""


class Good:
    """Reads requests, runs handlers, writes outcomes; every step is a method of its own."""

    def __init__(self) -> None:
        self.in_flight = int(os.environ.get("ERGON_MAX_IN_FLIGHT") or 1)
        self.lock = threading.Lock()
        self.out = os.dup(1)
        os.dup2(2, 1)  # whatever prints now prints on standard error
        self.handlers: dict[str, Any] = {
            "echo": self.echo,
            "fail": self.fail,
            "retry": self.retry,
            "sleep": self.sleep,
            "print": self.print,
            "unserialisable": self.unserialisable,
        }

    # ---- the process ----------------------------------------------------------------------------

    def run(self) -> int:
        """Serve until the end of input or SIGTERM."""
        wake, waker = os.pipe()
        self.on_signals(waker)
        self.report_ready()
        self.begin()
        rest = b""
        with ThreadPoolExecutor(self.in_flight) as pool:
            while wake not in select.select([0, wake], [], [])[0]:
                data = os.read(0, 65536)
                if not data:
                    self.at_end(rest, pool)
                    break
                *lines, rest = self.split(rest + data)
                for line in lines:
                    pool.submit(self.guarded, line)
        return self.exit_code()

    def on_signals(self, waker: int) -> None:
        # Written where the signal arrives: a handler in Python may wait until select returns.
        os.set_blocking(waker, False)
        signal.set_wakeup_fd(waker)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: None)

    def report_ready(self) -> None:
        with contextlib.suppress(KeyError, ValueError, OSError, OverflowError):
            ready = int(os.environ["ERGON_READY_FD"])
            os.write(ready, b"ready\n")
            os.close(ready)

    def begin(self) -> None:
        """Nothing is said before a request."""

    def split(self, data: bytes) -> list[bytes]:
        return data.split(b"\n")

    def at_end(self, rest: bytes, pool: ThreadPoolExecutor) -> None:
        pool.submit(self.guarded, rest)

    def exit_code(self) -> int:
        return 0

    # ---- a line ---------------------------------------------------------------------------------

    def guarded(self, line: bytes) -> None:
        try:
            self.serve(line)
        except BaseException:  # a bug of a bad executor ends it, as it would without a pool
            os._exit(9)

    def serve(self, line: bytes) -> None:
        if not line.strip():
            return
        try:
            request = self.parse(line)
        except (Refused, ValueError, RecursionError) as error:
            self.refuse(line, error)
            return
        self.answer(self.outcome(request))

    def parse(self, line: bytes) -> dict[str, Any]:
        request = json.loads(line)
        if not isinstance(request, dict):
            raise Refused("no object")
        self.check(request, REQUIRED)
        self.check(request["context"], IN_CONTEXT)
        if request.setdefault("protocol_version", "1") != "1":
            raise Refused("Unsupported protocol version")
        for name, kind in (("args", list), ("kwargs", dict)):
            if not isinstance(request.setdefault(name, kind()), kind):
                raise Refused(f"{name} of the wrong type")
        request["deadline"] = self.deadline(request["context"])
        return request

    def check(self, value: Any, fields: Mapping[str, type]) -> None:
        for name, kind in fields.items():
            if not isinstance(value, dict) or not isinstance(value.get(name), kind):
                raise Refused(f"{name} is missing or of the wrong type")

    def deadline(self, context: dict[str, Any]) -> float:
        """Seconds until the deadline."""
        text = context.get("deadline")
        if text is None:
            return threading.TIMEOUT_MAX
        text = str(text).upper().replace("Z", "+00:00")
        head, dot, tail = text.partition(".")
        if dot:  # fromisoformat wants three or six digits
            digits = len(tail) - len(tail.lstrip("0123456789"))
            text = f"{head}.{tail[:digits][:6]:0<6}{tail[digits:]}"
        at = datetime.fromisoformat(text)
        if at.tzinfo is None:
            raise Refused("the deadline has no offset")
        return (at - datetime.now(UTC)).total_seconds()

    def refuse(self, line: bytes, error: Exception) -> None:
        job_id: Any = None
        with contextlib.suppress(ValueError, RecursionError, AttributeError):
            job_id = json.loads(line).get("job_id")
        self.answer(
            self.shape(
                job_id if isinstance(job_id, str) else "unknown",
                "error",
                error_message=f"Invalid request: {error}",
            )
        )

    def outcome(self, request: dict[str, Any]) -> dict[str, Any]:
        job_id, name = request["job_id"], request["function_name"]
        handler = self.find(name)
        if handler is None:
            return self.not_found(job_id, name)
        if request["deadline"] <= 0:
            return self.shape(job_id, "timeout", error_message="Job deadline exceeded")
        try:
            result = self.call(handler, request)
            json.dumps(result)
        except RetryLater as error:
            return self.shape(job_id, "retry", error_message=str(error), retry_after_seconds=2.5)
        except TimeoutError:
            return self.shape(job_id, "timeout", error_message="Job deadline exceeded")
        except Exception as error:
            return self.failed(job_id, error)
        return self.shape(job_id, "success", result=result)

    def find(self, name: str) -> Any:
        return self.handlers.get(name)

    def not_found(self, job_id: str, name: str) -> dict[str, Any]:
        message = f"No handler registered for function '{name}'"
        return self.shape(job_id, "error", error_message=message, error_type="handler_not_found")

    def failed(self, job_id: str, error: Exception) -> dict[str, Any]:
        message = str(error) or "Unhandled handler error"
        return self.shape(job_id, "error", error_message=message, error_type=type(error).__name__)

    def shape(self, job_id: Any, status: str, **fields: Any) -> dict[str, Any]:
        names = ("result", "error_message", "error_type", "retry_after_seconds")
        return {"job_id": job_id, "status": status} | dict.fromkeys(names) | fields

    def answer(self, outcome: dict[str, Any]) -> None:
        self.write(self.encode(outcome))

    def encode(self, outcome: dict[str, Any]) -> bytes:
        return json.dumps(outcome).encode() + b"\n"

    def write(self, data: bytes) -> None:
        with self.lock:
            while data:
                data = data[os.write(self.out, data) :]

    # ---- the handlers ---------------------------------------------------------------------------

    def call(self, handler: Any, request: dict[str, Any]) -> Any:
        return handler(request["args"], request["kwargs"], request["deadline"])

    def echo(self, args: list[Any], kwargs: dict[str, Any], left: float) -> Any:
        return {"args": args, "kwargs": kwargs}

    def fail(self, args: list[Any], kwargs: dict[str, Any], left: float) -> Any:
        raise RuntimeError("it failed, as asked")

    def retry(self, args: list[Any], kwargs: dict[str, Any], left: float) -> Any:
        raise RetryLater("not yet")

    def sleep(self, args: list[Any], kwargs: dict[str, Any], left: float) -> Any:
        (seconds,) = args
        threading.Event().wait(min(float(seconds), left))
        if seconds > left:
            raise TimeoutError
        return time.time()

    def print(self, args: list[Any], kwargs: dict[str, Any], left: float) -> Any:
        print(*args, flush=True)  # noqa: T201 - that is what it is for

    def unserialisable(self, args: list[Any], kwargs: dict[str, Any], left: float) -> Any:
        return object()


if __name__ == "__main__":
    sys.exit(Good().run())
