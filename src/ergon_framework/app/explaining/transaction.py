"""A transaction, from what the engine told about it.

Nothing keeps a transaction but its source, so the journal is all there is: retries, failures and
what else was not routine. One that simply succeeded has left no trace in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ergon_framework.app.explaining.answers import Asked, Explanation
from ergon_framework.app.explaining.told import entries_told
from ergon_framework.core.wording import coded, span
from ergon_framework.ports.journal import Entry
from ergon_framework.ports.notice import CATALOGUE

_ENDS = {
    "succeeded": "It succeeded",
    "failed": "It failed",
    "timed_out": "It ran out of time",
    "aborted": "It was cut off when its call was stopped, and handed back without an outcome",
    "parked": "It was parked: a gate was closed, nothing was attempted, and its source brings it"
    " again",
}


def explain_transaction(asked: Asked) -> Iterator[Explanation]:
    """What the engine told about a transaction of this id."""
    told = [each for each in asked.entries if _is_of_engine(each)]
    if told:
        status = status_of(told)
        past = entries_told(_once_each(told), _phrase)
        yield Explanation("transaction", asked.unit, status, [*_why(told), *past])


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
    because = f" ({coded(failure['code'], failure.get('message'))})" if failure else ""
    attempt = f"attempt {fields.get('attempt')} of {fields.get('phase')} failed{because}"
    if entry.name == "attempt.ended":
        return attempt
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
    where = f" in the task {task}" if task else ""
    failure = last.fields.get("failure") or {}
    because = f": {coded(failure['code'], failure.get('message'))}" if failure else ""
    retries = sum(each.name == "retry.scheduled" for each in told)
    if last.name == "transaction.ended":
        end = _ENDS.get(str(last.fields.get("ending")), "It ended")
        yield f"{end}{where}{because}."
        if retries:
            yield f"It was tried again {retries} {'time' if retries == 1 else 'times'} before."
    elif last.name == "retry.scheduled":
        delay = span(float(last.fields.get("delay") or 0.0))
        phase = last.fields.get("phase", "its hook")
        yield f"Another attempt of {phase}{where} was to follow {delay} later{because}."
    else:
        yield f"It was last heard of{where}; it has no outcome that was told."
