"""The lines on the wire, as the checks write and read them.

On purpose this shares nothing with the framework's own codec: a mistake there would be a mistake of
the judge as well.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

STATUSES = ("success", "retry", "timeout", "error")
NO_SUCH_HANDLER = "ergon_conform_no_such_handler"
HANDLER_NOT_FOUND = "handler_not_found"
ABSENT: Any = object()  # the value of a field that is left out
LONGEST_SHOWN = 120
NO_JSON, NO_OBJECT = "is not JSON", "is JSON but no object"

_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Reply:
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


def reply_of(line: bytes) -> Reply:
    """Understand a line, or say why it is no outcome."""
    try:
        value = json.loads(line.decode("utf-8"), parse_constant=_refuse_constant)
    except UnicodeDecodeError:
        return Reply(line, None, "is not UTF-8")
    except (ValueError, RecursionError) as error:
        why = getattr(error, "msg", error)
        return Reply(line, None, f"{NO_JSON} ({why})" if line.strip() else "is blank")
    if not isinstance(value, dict):
        return Reply(line, None, NO_OBJECT)
    return Reply(line, value, _problem(value))


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


def is_number(value: object) -> bool:
    """Whether it is a number with a value."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
