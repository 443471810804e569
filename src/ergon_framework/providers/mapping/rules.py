"""From whatever a provider raises to one canonical error.

The provider's own rules come first, then one table of names (``names.py``), then whatever
an unknown exception tells by itself: an HTTP status it carries, or the exception it was raised
``from``. What nobody knows is an ``internal_error`` and is counted, so that a rule gets written.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ergon_framework.errors import ConfigurationError
from ergon_framework.providers.errors import ERROR_OF, ProviderError, Reason
from ergon_framework.providers.mapping.findings import DEFECT, Finding
from ergon_framework.providers.mapping.http import by_error_answer
from ergon_framework.providers.mapping.kinds import count_unmapped, known
from ergon_framework.providers.mapping.text import message_of

Match: TypeAlias = type[Exception] | str | Callable[[Exception], bool]
Answer: TypeAlias = str | type[ProviderError] | Callable[[Exception], ProviderError | None]

_DEEPEST = 8
"""Wrappings and causes that are looked into; also the end of a circle of causes."""


@dataclass(frozen=True, slots=True)
class Rule:
    """What a provider knows about its own exceptions; the first rule that answers wins.

    ``match`` is a class, the dotted name of one (``"acme.errors.Denied"``, subclasses included) or
    a predicate. ``answer`` is a reason code, a canonical class, or a function that makes the
    canonical error; it may answer None to leave it to the next rule.
    """

    match: Match
    answer: Answer
    never_sent: bool = False
    """Together with a reason code or a class: the provider never saw the request."""

    def __post_init__(self) -> None:
        if not (isinstance(self.match, str) or callable(self.match)):
            raise ConfigurationError(
                f"a rule matches a class, a dotted name or a predicate, not {self.match!r}"
            )
        if isinstance(self.answer, str) and self.answer not in ERROR_OF:
            raise ConfigurationError(
                f"a rule answers {self.answer!r}, which is no reason code",
                remedy=f"one of {', '.join(ERROR_OF)}",
            )
        if not (isinstance(self.answer, str) or callable(self.answer)):
            raise ConfigurationError(
                f"a rule answers with a reason code or a function, not {self.answer!r}"
            )


def canonical(
    error: Exception, rules: Sequence[Rule] = (), *, now: Callable[[], float] = time.time
) -> ProviderError:
    """The canonical error for a raw one, which it keeps as its cause.

    A canonical error comes back as it is. Interrupts, exits and cancellations are nobody's failure
    and are refused with a ``TypeError``. ``now`` is the wall clock, for dates in headers.
    """
    if isinstance(error, ProviderError) and error.reason_code in ERROR_OF:
        return error
    if not isinstance(error, Exception):
        raise TypeError(f"{type(error).__name__} is not an error of a provider: let it pass")
    broken: list[str] = []
    found = _by_rules(error, rules, broken) if rules else None
    if found is None:
        found = _built_in(error, rules, now)
    if found.__cause__ is None:
        found.__cause__ = error
    if broken:
        found.details["broken_rules"] = broken
    return found


# -- the provider's rules ------------------------------------------------------------------------


def _by_rules(error: Exception, rules: Sequence[Rule], broken: list[str]) -> ProviderError | None:
    for index, rule in enumerate(rules):
        try:
            answer = _answer(rule, error) if _is_match(rule, error) else None
        except Exception as fault:  # a broken rule must not hide the error it was to explain
            broken.append(f"rule {index}: {type(fault).__name__}")
            continue
        if isinstance(answer, ProviderError) and answer.reason_code in ERROR_OF:
            return answer
        if answer is not None:
            broken.append(f"rule {index}: answered with {type(answer).__name__}")
    return None


def _is_match(rule: Rule, error: Exception) -> bool:
    match = rule.match
    if isinstance(match, str):
        return match in known(type(error)).names
    return isinstance(error, match) if isinstance(match, type) else bool(match(error))


def _answer(rule: Rule, error: Exception) -> object:
    answer = rule.answer
    if isinstance(answer, str):
        return _built(error, Finding(Reason(answer), rule.never_sent))
    if isinstance(answer, type):
        return answer(message_of(error), never_sent=rule.never_sent, details=_details(error))
    return answer(error)


# -- the built-in table --------------------------------------------------------------------------


def _built_in(error: Exception, rules: Sequence[Rule], now: Callable[[], float]) -> ProviderError:
    try:
        if isinstance(error, ExceptionGroup):
            return _of_group(error, rules, now)
        found = _find(error, now, _DEEPEST)
    except Exception:  # an exception that cannot even be looked at
        found = None
    if found is None:
        count_unmapped(known(type(error)).name)
    return _built(error, found or DEFECT)


def _find(error: Exception, now: Callable[[], float], depth: int) -> Finding | None:
    _, _, told, unwrap = known(type(error))
    if unwrap is not None and depth:
        inner = unwrap(error)
        found = _find(inner, now, depth - 1) if isinstance(inner, Exception) else None
        if found is not None:
            return found
    if isinstance(told, Finding):
        return told
    found = None if told is None else told(error, now)
    if found is None:
        found = by_error_answer(error, now)
    if found is None and depth and isinstance(error.__cause__, Exception):
        found = _of_cause(error.__cause__, now, depth - 1)
    return found


def _of_cause(cause: Exception, now: Callable[[], float], depth: int) -> Finding | None:
    """What the cause says, but for one thing: who wrapped it may have tried before, and sent."""
    if isinstance(cause, ProviderError) and cause.reason_code in ERROR_OF:
        wait = cause.retry_after_seconds
        return Finding(Reason(cause.reason_code), http_status=cause.http_status, retry_after=wait)
    found = _find(cause, now, depth)
    return None if found is None else found._replace(never_sent=False)


def _built(error: Exception, found: Finding) -> ProviderError:
    return ERROR_OF[found.reason](
        found.text or message_of(error),
        http_status=found.http_status,
        retry_after_seconds=found.retry_after,
        never_sent=found.never_sent,
        details=_details(error),
    )


def _details(error: Exception) -> dict[str, str]:
    return {"error_type": known(type(error)).name}


# -- groups --------------------------------------------------------------------------------------

_TELLING = {
    reason: rank
    for rank, reason in enumerate(
        (
            # What no retry can help, the plainest first …
            Reason.AUTH_FAILED,
            Reason.BAD_REQUEST,
            Reason.QUOTA_EXHAUSTED,
            Reason.CIRCUIT_OPEN,
            Reason.RESPONSE_INVALID,
            Reason.INTERNAL_ERROR,
            # … then what can, beginning with the one that says when.
            Reason.RATE_LIMITED,
            Reason.DEPENDENCY_UNAVAILABLE,
            Reason.TIMEOUT,
            Reason.CONNECTION_ERROR,
        )
    )
}


def _of_group(
    group: ExceptionGroup[Exception], rules: Sequence[Rule], now: Callable[[], float]
) -> ProviderError:
    members = [canonical(each, rules, now=now) for each in group.exceptions]
    telling = min(members, key=lambda each: _TELLING[Reason(each.reason_code)])
    waits = [each.retry_after_seconds for each in members if each.retry_after_seconds is not None]
    return ERROR_OF[telling.reason_code](
        telling.message,
        http_status=telling.http_status,
        retry_after_seconds=max(waits, default=None),
        never_sent=all(each.never_sent for each in members),
        details={**_details(group), "members": len(members)},
    )
