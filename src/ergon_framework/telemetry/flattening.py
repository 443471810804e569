"""Notices as plain values, for those who keep them: names, numbers and short texts only.

Objects are told by what identifies them: a call by its task, a run by its transaction's id, a
failure by its kind, code and message. Payloads, results and exceptions never get here, and an
object of any other kind is told by the name of its type.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

from opentelemetry.trace import get_current_span

from ergon_framework.core.failure import Failure
from ergon_framework.errors import ErgonError, describe, text_of
from ergon_framework.ports.context import Attempt, Call
from ergon_framework.ports.journal import Entry
from ergon_framework.ports.notice import CATALOGUE, Notice, Routine
from ergon_framework.telemetry.propagation import extract

LONGEST = 500
"""Characters of one text."""
_MOST = 32  # elements of one list, and keys of one table
_UNITS = ("job_id", "transaction_id", "message_id", "call_id")
# "began_at" is read from a clock that counts from anywhere.
_LEFT_OUT = frozenset({"exception", "result", "began_at", *_UNITS})


def _names(routine: Routine) -> frozenset[str]:
    return frozenset(name for name, known in CATALOGUE.items() if known.routine is routine)


# Sets of their own: each transaction that goes well is asked about several times.
ROUTINE, _WHEN_WELL = _names(Routine.ALWAYS), _names(Routine.WHEN_WELL)


def is_routine(notice: Notice) -> bool:
    """Whether it tells of the happy path; of what the catalogue does not know, never."""
    name = notice.name
    return name in ROUTINE or (name in _WHEN_WELL and _went_well(notice.fields))


def entry_of(notice: Notice, source: str, at: float) -> Entry:
    """The notice as a journal keeps it. ``at`` is the time of day; a notice may have another."""
    given = notice.fields
    run = _run_of(given)
    fields: dict[str, Any] = {}
    for name, value in given.items():
        if name not in _LEFT_OUT and name != "run" and value is not None:
            fields |= _flat(name, value)
    if notice.name == "retry.scheduled":
        fields["attempt"] += 1  # the engine counts from 0, people from 1
    return Entry(
        at=at,
        name=notice.name,
        source=source,
        unit=_unit_of(given, run),
        trace_id=_trace_of(run),
        fields=fields,
    )


def _went_well(fields: Mapping[str, Any]) -> bool:
    get = fields.get
    is_fine = get("failure") is None and get("error") is None
    return is_fine and get("ending", "succeeded") == "succeeded"


def _run_of(fields: Mapping[str, Any]) -> Any:
    if "run" in fields:
        return fields["run"]
    return getattr(fields.get("attempt"), "run", None)


def _unit_of(fields: Mapping[str, Any], run: Any) -> str:
    if run is not None:
        return str(run.transaction.transaction_id)
    return next((str(fields[name]) for name in _UNITS if fields.get(name)), "")


def _trace_of(run: Any) -> str:
    context = get_current_span().get_span_context()
    if not context.is_valid and run is not None:
        context = extract(run.transaction) or context
    return f"{context.trace_id:032x}" if context.is_valid else ""


def _flat(name: str, value: Any) -> dict[str, Any]:
    """One field as one or two plain ones."""
    if isinstance(value, Call):
        return {"task": value.task, "role": value.role}
    if isinstance(value, Attempt) or hasattr(value, "transaction"):  # a run may be its own attempt
        return {"phase": value.phase, name: value.number + 1}
    return {name: plain(value)}


def plain(value: Any) -> Any:
    """A value that JSON can hold and that says no more than it should."""
    if isinstance(value, Enum):
        return plain(value.value)
    if isinstance(value, Failure):
        return _failure(value)
    if isinstance(value, BaseException):
        text = text_of(value) if isinstance(value, ErgonError) else describe(value)
        return text[:LONGEST]
    if hasattr(value, "to_dict"):  # a report
        return plain(value.to_dict())
    if hasattr(value, "__struct_fields__"):
        return plain({field: getattr(value, field) for field in value.__struct_fields__})
    return _simple(value)


def _simple(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return str(value)[:LONGEST]
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in list(value.items())[:_MOST]}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(each) for each in list(value)[:_MOST]]
    return type(value).__name__


def _failure(failure: Failure) -> dict[str, Any]:
    told: dict[str, Any] = {"kind": failure.kind.value, "code": failure.code}
    if failure.message:
        told["message"] = failure.message[:LONGEST]
    if failure.retry_after is not None:
        told["retry_after"] = failure.retry_after
    return told
