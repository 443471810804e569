"""What an exception of a task means for the job that it was about."""

from __future__ import annotations

from collections.abc import Collection

from ergon_framework.core.failure import Failure, Kind
from ergon_framework.core.job import Failed, Held, Seen
from ergon_framework.core.lifecycle import Step
from ergon_framework.engine.classify import classify
from ergon_framework.errors import TransactionException, describe

LONGEST_MESSAGE = 4096
"""Characters of an error message that are kept."""


def seen_of(error: Exception, transaction_id: str, give_up_on: Collection[str]) -> Seen:
    """The event that the job's own rule judges. Business and final refusals are rejections."""
    kind = classify(error, Step.PROCESS, transaction_id)[0].kind
    plain = _inner(error)
    failure = classify(plain, Step.PROCESS, transaction_id)[0]
    if failure.code in give_up_on:
        kind = Kind.REJECTED
    text = describe(plain)[:LONGEST_MESSAGE]
    found = Failure(kind, failure.code, text, failure.retry_after)
    return Held(found) if kind is Kind.HELD else Failed(found)


def _inner(error: Exception) -> Exception:
    """What the task raised, where the engine has put a category around it."""
    if type(error) is TransactionException:
        cause = error.__cause__
        if cause is not None and issubclass(type(cause), Exception):
            return cause  # type: ignore[return-value]
    return error


def held_for(seconds: float) -> Held:
    """A gate is closed: nothing was attempted."""
    return Held(Failure(Kind.HELD, "held", "a gate refused before anything was attempted", seconds))
