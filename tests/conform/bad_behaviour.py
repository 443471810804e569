"""Executors that run, refuse, remember or end wrongly, each in one way.

Started as ``python -m tests.conform.bad_behaviour NameOfTheClass``.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.conform.good import Good, RetryLater

# ---- outcomes -----------------------------------------------------------------------------------


class SaysOk(Good):
    def shape(self, job_id: Any, status: str, **fields: Any) -> dict[str, Any]:
        return super().shape(job_id, {"success": "ok", "error": "failed"}.get(status, status))


class ErrorsAreObjects(Good):
    def not_found(self, job_id: str, name: str) -> dict[str, Any]:
        return super().not_found(job_id, name) | {"error_message": {"text": "not found"}}


class LeavesFieldsOut(Good):
    def encode(self, outcome: dict[str, Any]) -> bytes:
        return super().encode({name: value for name, value in outcome.items() if value})


class UnknownSucceeds(Good):
    def not_found(self, job_id: str, name: str) -> dict[str, Any]:
        return self.shape(job_id, "success")


class UnknownIsAnyError(Good):
    def not_found(self, job_id: str, name: str) -> dict[str, Any]:
        return super().not_found(job_id, name) | {"error_type": "LookupError"}


class UnknownKills(Good):
    def not_found(self, job_id: str, name: str) -> dict[str, Any]:
        raise KeyError(name)


class FindsAttributes(Good):
    def find(self, name: str) -> Any:
        return getattr(self, name, None)


class IgnoresCase(Good):
    def find(self, name: str) -> Any:
        return super().find(name.lower().strip())


# ---- arguments ----------------------------------------------------------------------------------


class DropsKwargs(Good):
    def echo(self, args: list[Any], kwargs: dict[str, Any], left: float) -> Any:
        return {"args": args, "kwargs": {}}


class SortsArguments(Good):
    def echo(self, args: list[Any], kwargs: dict[str, Any], left: float) -> Any:
        return {"args": sorted(args, key=str), "kwargs": kwargs}


class ThirtyTwoBits(Good):
    def echo(self, args: list[Any], kwargs: dict[str, Any], left: float) -> Any:
        small = [each % 2**31 if type(each) is int else each for each in args]
        return {"args": small, "kwargs": kwargs}


class TrueIsOne(Good):
    def echo(self, args: list[Any], kwargs: dict[str, Any], left: float) -> Any:
        return {"args": [int(x) if isinstance(x, bool) else x for x in args], "kwargs": kwargs}


class ArgumentsLinger(Good):
    def __init__(self) -> None:
        super().__init__()
        self.last: dict[str, Any] = {}

    def echo(self, args: list[Any], kwargs: dict[str, Any], left: float) -> Any:
        self.last.update(kwargs)
        return {"args": args, "kwargs": dict(self.last)}


class FormatsArguments(Good):
    def echo(self, args: list[Any], kwargs: dict[str, Any], left: float) -> Any:
        texts = [each.replace("%%", "%") if isinstance(each, str) else each for each in args]
        return {"args": texts, "kwargs": kwargs}


# ---- bad lines ----------------------------------------------------------------------------------


class DiesOfBadJson(Good):
    def serve(self, line: bytes) -> None:
        if line.strip():
            json.loads(line)
        super().serve(line)


class DiesOfLists(Good):
    def serve(self, line: bytes) -> None:
        if line.strip().startswith((b"[", b"4", b"n")) and line.strip().endswith((b"]", b"2")):
            raise AttributeError("'list' object has no attribute 'get'")
        super().serve(line)


class DiesOfMissingFields(Good):
    def check(self, value: Any, fields: Any) -> None:
        for name in fields:
            value[name]


class DiesOfNesting(Good):
    def refuse(self, line: bytes, error: Exception) -> None:
        if isinstance(error, RecursionError):
            raise error
        super().refuse(line, error)


class AlwaysUnknown(Good):
    def refuse(self, line: bytes, error: Exception) -> None:
        super().refuse(b"", error)


class SilentAboutBadLines(Good):
    def refuse(self, line: bytes, error: Exception) -> None:
        pass


class ServesEveryVersion(Good):
    def parse(self, line: bytes) -> dict[str, Any]:
        request = json.loads(line)
        if isinstance(request, dict):
            request["protocol_version"] = "1"
        return super().parse(json.dumps(request).encode())


# ---- handlers -----------------------------------------------------------------------------------


class FailureKills(Good):
    def failed(self, job_id: str, error: Exception) -> dict[str, Any]:
        raise error


class BadArgumentsAreNotFound(Good):
    def call(self, handler: Any, request: dict[str, Any]) -> Any:
        try:
            return super().call(handler, request)
        except (TypeError, ValueError):
            raise LookupError from None

    def failed(self, job_id: str, error: Exception) -> dict[str, Any]:
        if isinstance(error, LookupError):
            return self.not_found(job_id, "")
        return super().failed(job_id, error)


class SilentFailure(Good):
    def failed(self, job_id: str, error: Exception) -> dict[str, Any]:
        return super().failed(job_id, error) | {"error_message": ""}


class RetryWithoutDelay(Good):
    def shape(self, job_id: Any, status: str, **fields: Any) -> dict[str, Any]:
        return super().shape(job_id, status, **fields) | {"retry_after_seconds": None}


class PrintsOnStdout(Good):
    def print(self, args: list[Any], kwargs: dict[str, Any], left: float) -> Any:
        self.write(f"{args[0]}\n".encode())


class ResultsKill(Good):
    def outcome(self, request: dict[str, Any]) -> dict[str, Any]:
        if request["function_name"] == "unserialisable":
            raise TypeError("Object of type object is not JSON serializable")
        return super().outcome(request)


class IgnoresDeadlines(Good):
    def deadline(self, context: dict[str, Any]) -> float:
        super().deadline(context)
        return threading.TIMEOUT_MAX


# ---- many, and the end --------------------------------------------------------------------------


class Overlaps(Good):
    def __init__(self) -> None:
        super().__init__()
        self.in_flight = 4


class OneAtATime(Good):
    def __init__(self) -> None:
        super().__init__()
        self.in_flight = 1


class Heartbeats(Good):
    def begin(self) -> None:
        threading.Thread(target=self.beat, daemon=True).start()

    def beat(self) -> None:
        while not threading.Event().wait(0.05):
            self.answer(self.shape("heartbeat", "success"))


class IgnoresTheEnd(Good):
    def exit_code(self) -> int:
        threading.Event().wait()
        return 0


class DropsAtTheEnd(Good):
    def serve(self, line: bytes) -> None:
        threading.Event().wait(0.1)  # so that there is always something left to drop
        super().serve(line)

    def at_end(self, rest: bytes, pool: ThreadPoolExecutor) -> None:
        os._exit(0)


class NeedsTheLastNewline(Good):
    def at_end(self, rest: bytes, pool: ThreadPoolExecutor) -> None:
        pass


class ExitsWithOne(Good):
    def exit_code(self) -> int:
        return 1


class DiesOfSigterm(Good):
    def on_signals(self, waker: int) -> None:
        pass


class DropsWorkOnSigterm(Good):
    def on_signals(self, waker: int) -> None:
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))


class DropsWorkOnSigint(Good):
    def on_signals(self, waker: int) -> None:
        signal.signal(signal.SIGINT, lambda *_: os._exit(130))


class NeverReady(Good):
    def report_ready(self) -> None:
        pass


class TrustsTheReadyDescriptor(Good):
    def report_ready(self) -> None:
        if "ERGON_READY_FD" in os.environ:
            os.write(int(os.environ["ERGON_READY_FD"]), b"ready\n")


class DropsTheRunningJobAtTheEnd(Good):
    def at_end(self, rest: bytes, pool: ThreadPoolExecutor) -> None:
        with self.lock:
            os._exit(0)


class HangsOnHalfALine(Good):
    def at_end(self, rest: bytes, pool: ThreadPoolExecutor) -> None:
        if rest:
            threading.Event().wait()


class CutsTheLastLine(Good):
    """Exits before a long line is written, as programs do that write in the background."""

    def write(self, data: bytes) -> None:
        if len(data) < 100_000:
            super().write(data)
            return
        super().write(data[:65536])
        os._exit(0)


class EndsOnlyAfterWork(Good):
    has_worked = False

    def answer(self, outcome: dict[str, Any]) -> None:
        self.has_worked = True
        super().answer(outcome)

    def exit_code(self) -> int:
        if not self.has_worked:
            threading.Event().wait()
        return 0


class BadLinesCostTheExitCode(Good):
    code = 0

    def refuse(self, line: bytes, error: Exception) -> None:
        self.code = 1
        super().refuse(line, error)

    def exit_code(self) -> int:
        return self.code


class TiresAfterFifty(Good):
    served = 0

    def serve(self, line: bytes) -> None:
        self.served += 1
        if self.served <= 50:
            super().serve(line)


class AnswersBackwards(Good):
    """Collects answers for a while and gives the last one first."""

    def __init__(self) -> None:
        super().__init__()
        self.held: list[bytes] = []
        self.timer = threading.Timer(0, self.flush)

    def write(self, data: bytes) -> None:
        self.timer.cancel()
        self.held.insert(0, data)
        self.timer = threading.Timer(0.1, self.flush)
        self.timer.start()

    def flush(self) -> None:
        super().write(b"".join(self.held))
        self.held.clear()


class SpinsWithoutAReader(Good):
    def write(self, data: bytes) -> None:
        with contextlib.suppress(BrokenPipeError):
            super().write(data)
            return
        threading.Event().wait()


class RefusesToBeTold(Good):
    def run(self) -> int:
        return 5 if "ERGON_MAX_IN_FLIGHT" in os.environ else super().run()


class TellsNothing(Good):
    def not_found(self, job_id: str, name: str) -> dict[str, Any]:
        return super().not_found(job_id, name) | {"error_message": " "}


class SuccessHasMessages(Good):
    def shape(self, job_id: Any, status: str, **fields: Any) -> dict[str, Any]:
        return super().shape(job_id, status, **({"error_message": "OK"} | fields))


class FailureHasAResult(Good):
    def failed(self, job_id: str, error: Exception) -> dict[str, Any]:
        return super().failed(job_id, error) | {"result": "partial"}


class CollidingNames(Good):
    def call(self, handler: Any, request: dict[str, Any]) -> Any:
        if "self" in request["kwargs"]:
            raise TypeError("got multiple values for argument 'self'")
        return super().call(handler, request)


class AnyDeadline(Good):
    def deadline(self, context: dict[str, Any]) -> float:
        try:
            return super().deadline(context)
        except ValueError:
            return threading.TIMEOUT_MAX


# ---- no bugs, but unusual -----------------------------------------------------------------------


class FloodsStderr(Good):
    def serve(self, line: bytes) -> None:
        os.write(2, b"debug " * 50_000 + b"\n")
        super().serve(line)


class HasNoHandlers(Good):
    def find(self, name: str) -> Any:
        return None


class HasOneHandler(Good):
    def find(self, name: str) -> Any:
        return self.multiply if name == "multiply" else None

    def multiply(self, args: list[Any], kwargs: dict[str, Any], left: float) -> Any:
        return args[0] * args[1]


class EchoOfAnotherKind(Good):
    def echo(self, args: list[Any], kwargs: dict[str, Any], left: float) -> Any:
        return args[0]


class BusyEcho(Good):
    def echo(self, args: list[Any], kwargs: dict[str, Any], left: float) -> Any:
        raise RetryLater("busy")


if __name__ == "__main__":
    sys.exit(globals()[sys.argv[1]]().run())
