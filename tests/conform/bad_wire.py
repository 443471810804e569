"""Executors that write, name or read lines wrongly, each in one way.

Started as ``python -m tests.conform.bad_wire NameOfTheClass``.
"""

from __future__ import annotations

import json
import os
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.conform.good import Good, Refused


class Deaf(Good):
    """Takes every line and says nothing."""

    def serve(self, line: bytes) -> None:
        pass


class DiesAtStart(Good):
    def begin(self) -> None:
        sys.stderr.write("no such module: settings\n")
        sys.stderr.flush()
        os._exit(3)


class AnswersOnStderr(Good):
    def write(self, data: bytes) -> None:
        os.write(2, data)


class NeverFlushes(Good):
    held = b""

    def write(self, data: bytes) -> None:
        self.held += data

    def exit_code(self) -> int:
        Good.write(self, self.held)
        return 0


class PrettyPrints(Good):
    def encode(self, outcome: dict[str, Any]) -> bytes:
        return json.dumps(outcome, indent=2).encode() + b"\n"


class ForgetsTheNewline(Good):
    def encode(self, outcome: dict[str, Any]) -> bytes:
        return json.dumps(outcome).encode()


class WritesLatin1(Good):
    def encode(self, outcome: dict[str, Any]) -> bytes:
        outcome["error_message"] = "größe"
        return json.dumps(outcome, ensure_ascii=False).encode("latin-1", "replace") + b"\n"


class BeginsWithAMark(Good):
    def begin(self) -> None:
        self.write(b"\xef\xbb\xbf")


class WritesNaN(Good):
    def shape(self, job_id: Any, status: str, **fields: Any) -> dict[str, Any]:
        return super().shape(job_id, status, **fields) | {"retry_after_seconds": float("nan")}


class WritesPython(Good):
    def encode(self, outcome: dict[str, Any]) -> bytes:
        return repr(outcome).encode() + b"\n"


class AnswersWithAList(Good):
    def encode(self, outcome: dict[str, Any]) -> bytes:
        return json.dumps(list(outcome.values())).encode() + b"\n"


class Greets(Good):
    def begin(self) -> None:
        self.write(b"executor ready\n")


class LogsOnStdout(Good):
    def answer(self, outcome: dict[str, Any]) -> None:
        super().answer(outcome)
        self.write(b"INFO done\n")


class FloodsStdout(Good):
    def serve(self, line: bytes) -> None:
        while True:
            self.write(b"working\n" * 1000)


class AnswersTwice(Good):
    def answer(self, outcome: dict[str, Any]) -> None:
        super().answer(outcome)
        super().answer(outcome)


class AnswersAgainAtTheEnd(Good):
    last: dict[str, Any] | None = None

    def answer(self, outcome: dict[str, Any]) -> None:
        self.last = outcome
        super().answer(outcome)

    def exit_code(self) -> int:
        if self.last is not None:
            super().answer(self.last)
        return 0


class EndsWithCarriageReturns(Good):
    def encode(self, outcome: dict[str, Any]) -> bytes:
        return json.dumps(outcome).encode() + b"\r\n"


# ---- the job_id ---------------------------------------------------------------------------------


class ForgetsTheJobId(Good):
    def shape(self, job_id: Any, status: str, **fields: Any) -> dict[str, Any]:
        shape = super().shape(job_id, status, **fields)
        del shape["job_id"]
        return shape


class ChangedJobIds(Good):
    """Answers with whatever ``change`` makes of a job_id."""

    def shape(self, job_id: Any, status: str, **fields: Any) -> dict[str, Any]:
        return super().shape(self.change(job_id), status, **fields)

    def change(self, job_id: str) -> Any:
        raise NotImplementedError


class AsciiJobIds(ChangedJobIds):
    def change(self, job_id: str) -> Any:
        return job_id.encode("ascii", "replace").decode()


class CutJobIds(ChangedJobIds):
    def change(self, job_id: str) -> Any:
        return job_id[:255]


class StrippedJobIds(ChangedJobIds):
    def change(self, job_id: str) -> Any:
        return job_id.strip()


class NumericJobIds(ChangedJobIds):
    def change(self, job_id: str) -> Any:
        return int(job_id) if job_id.isdigit() else job_id


class UnescapedJobIds(Good):
    """Puts the outcome together from text."""

    def encode(self, outcome: dict[str, Any]) -> bytes:
        job_id = outcome.pop("job_id")
        return f'{{"job_id": "{job_id}", {json.dumps(outcome)[1:]}\n'.encode()


class LastJobIdInSight(Good):
    def parse(self, line: bytes) -> dict[str, Any]:
        found = re.findall(rb'"job_id": ?"((?:[^"\\]|\\.)*)"', line)
        return super().parse(line) | {"job_id": json.loads(b'"' + found[-1] + b'"')}


class RemembersJobs(Good):
    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()

    def answer(self, outcome: dict[str, Any]) -> None:
        if outcome["job_id"] not in self.seen:
            super().answer(outcome)
        self.seen.add(outcome["job_id"])


# ---- reading ------------------------------------------------------------------------------------


class SplitsOnUnicodeLines(Good):
    def split(self, data: bytes) -> list[bytes]:
        whole, newline, rest = data.rpartition(b"\n")
        lines = whole.decode("utf-8", "replace").splitlines() if newline else []
        return [*(line.encode() for line in lines), rest]


class EveryReadIsARequest(Good):
    def split(self, data: bytes) -> list[bytes]:
        return [*data.removesuffix(b"\n").split(b"\n"), b""]


class OneLinePerRead(Good):
    def split(self, data: bytes) -> list[bytes]:
        line, newline, _ = data.partition(b"\n")
        return [line, b""] if newline else [data]


class SmallBuffer(Good):
    def split(self, data: bytes) -> list[bytes]:
        if len(data) > 150_000:
            raise MemoryError("line too long")
        return super().split(data)


class StrictFields(Good):
    def parse(self, line: bytes) -> dict[str, Any]:
        request = super().parse(line)
        known = {"protocol_version", "job_id", "function_name", "args", "kwargs", "context"}
        if request.keys() - known - {"deadline"}:
            raise Refused("unknown field")
        return request


class NeedsADeadline(Good):
    def deadline(self, context: dict[str, Any]) -> float:
        if not isinstance(context.get("deadline"), str):
            raise Refused("deadline is missing")
        return super().deadline(context)


class UtcOnly(Good):
    def deadline(self, context: dict[str, Any]) -> float:
        if not context["enqueue_time"].endswith(("Z", "z")):
            raise Refused("time is not UTC")
        return super().deadline(context)


class SixDigits(Good):
    def deadline(self, context: dict[str, Any]) -> float:
        if len(context["enqueue_time"]) > len("2025-01-01T12:00:00.123456Z"):
            raise Refused("too many digits")
        return super().deadline(context)


class ChokesOnBlankLines(Good):
    def serve(self, line: bytes) -> None:
        if not line.strip():
            raise ValueError("blank")
        super().serve(line)


class ChokesOnCarriageReturns(Good):
    def serve(self, line: bytes) -> None:
        if line.endswith(b"\r"):
            self.refuse(line, Refused("carriage return"))
            return
        super().serve(line)


class AnswersBlankLines(Good):
    def serve(self, line: bytes) -> None:
        if not line.strip():
            self.refuse(line, Refused("blank"))
            return
        super().serve(line)

    def at_end(self, rest: bytes, pool: ThreadPoolExecutor) -> None:
        pass


if __name__ == "__main__":
    sys.exit(globals()[sys.argv[1]]().run())
