"""A transaction, from what the engine told about it.

Nothing keeps a transaction but its source, so the journal is all there is: retries, failures and
what else was not routine. One that simply succeeded has left no trace in it, and one that was in
trouble in one process and succeeded in another one only its trouble. So what is no ending is told
as what was last known, and the job or fact of the same id is asked, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from ergon_framework.app.explaining.answers import Asked, Explanation
from ergon_framework.app.explaining.fact import explain_fact
from ergon_framework.app.explaining.job import explain_job_id
from ergon_framework.app.explaining.told import entries_told
from ergon_framework.core.rfc3339 import format_instant
from ergon_framework.core.text import coded, quoted, span
from ergon_framework.errors import ErgonError, TransactionException
from ergon_framework.ports.journal import Entry
from ergon_framework.ports.notice import CATALOGUE

_ENDS = {
    "succeeded": "It succeeded{where}",
    "failed": "It failed{where}",
    "timed_out": "It ran out of time{where}",
    "aborted": "It was cut off{where} when its call was stopped, and was handed back without an"
    " outcome",
    "parked": "It was parked{where}, since a gate was closed",
}
_FINAL = frozenset({"succeeded", "failed", "timed_out", "duplicate"})
_UNSEEN = (
    "What came then was not told here: a success in another process is in the journal only with"
    " journal_all = true under [telemetry]."
)
_OVER = {("job", "completed"): "completed", ("fact", "confirmed"): "confirmed by all who read it"}


def explain_transaction(asked: Asked) -> Iterator[Explanation]:
    """What the engine told about a transaction of this id."""
    told = [each for each in asked.entries if _is_of_engine(each)]
    if not told:
        return
    status, last = status_of(told), told[-1]
    why = list(_why(told))
    if status != "succeeded":
        why += _elsewhere(asked)
    if status not in _FINAL:
        why.append(_UNSEEN)
    why += entries_told(_once_each(told), _phrase)
    as_of = None if status in _FINAL else format_instant(last.at)
    yield Explanation("transaction", asked.unit, status, why, as_of)


def _elsewhere(asked: Asked) -> Iterator[str]:
    """Whether the job or fact that it may have come from is done with."""
    for explainer in (explain_job_id, explain_fact):
        with suppress(ErgonError):  # told where that kind is explained
            for each in explainer(asked):
                over = _OVER.get((each.kind, each.status))
                if over is not None:
                    told = f"The {each.kind} of this id is {over}"
                    yield f"{told}: if it came from there, it is over."


def status_of(told: Sequence[Entry]) -> str:
    """How it stood when it was last heard of."""
    last = told[-1]
    if last.name == "transaction.ended":
        return str(last.fields.get("ending", "ended"))
    return {
        "retry.scheduled": "retrying",
        "transaction.stranded": "stranded",
        "transaction.duplicate": "duplicate",
        "settlement.failed": "unsettled",
    }.get(last.name, "running")


def _once_each(told: Sequence[Entry]) -> list[Entry]:
    """Without failed attempts that the entry of their retry tells again."""
    again = {_which(each) for each in told if each.name == "retry.scheduled"}
    return [each for each in told if each.name != "attempt.ended" or _which(each) not in again]


def _which(entry: Entry) -> tuple[str, object, object]:
    return entry.source, entry.fields.get("phase"), entry.fields.get("attempt")


def _phrase(entry: Entry) -> str:
    fields = entry.fields
    failure = fields.get("failure") or {}
    because = f" ({_cause(failure)})" if failure else ""
    attempt = f"attempt {fields.get('attempt')} of {fields.get('phase')} failed{because}"
    if entry.name == "attempt.ended":
        held = f"{fields.get('phase')} was held by a gate{because}"
        return held if failure.get("kind") == "held" else attempt
    if entry.name == "retry.scheduled":
        return f"{attempt}; the next was due {span(float(fields.get('delay') or 0.0))} later"
    if entry.name == "transaction.ended":
        return f"it ended as {str(fields.get('ending')).replace('_', ' ')}"
    return ""


def _is_of_engine(entry: Entry) -> bool:
    known = CATALOGUE.get(entry.name)
    return known is not None and known.part == "engine"


def _why(told: Sequence[Entry]) -> Iterator[str]:
    last = told[-1]
    task = next((each.fields["task"] for each in told if each.fields.get("task")), "")
    where = f" in task {task}" if task else ""
    failure = last.fields.get("failure") or {}
    because = f": {_cause(failure)}" if failure else ""
    retries = sum(each.name == "retry.scheduled" for each in told)
    if last.name == "transaction.ended":
        end = _ENDS.get(str(last.fields.get("ending")), "It ended{where}")
        yield f"{end.format(where=where)}{because}."
        if last.fields.get("ending") == "parked":
            again = f"its source was to bring it again{_later(failure)}"
            yield f"Being held by a gate counts as no attempt; {again}."
        if retries:
            yield f"It was tried again {retries} {'time' if retries == 1 else 'times'} before."
    elif last.name == "retry.scheduled":
        delay = span(float(last.fields.get("delay") or 0.0))
        phase = last.fields.get("phase", "its hook")
        yield f"Another attempt of {phase}{where} was to follow {delay} later{because}."
    else:
        yield f"It was last heard of{where}; it has no outcome that was told."


def _cause(failure: Mapping[str, Any]) -> str:
    """Why it failed. The code that a TransactionException has by default says nothing."""
    code, message = failure["code"], failure.get("message")
    if code == TransactionException.code and message:
        return quoted(message)
    return coded(code, message)


def _later(failure: Mapping[str, Any]) -> str:
    seconds = failure.get("retry_after")
    return "" if seconds is None else f" {span(float(seconds))} later"
