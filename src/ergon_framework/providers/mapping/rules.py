"""Maps whatever a provider raises to one canonical error.

The provider's own rules come first, then one table of names (``clients.py``), then what an unknown
exception has itself: an HTTP status, or the exception it was raised ``from``. An unknown exception
is an ``internal_error`` and is counted, so that a rule gets written.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from ergon_framework.core.option_values import is_number
from ergon_framework.errors import ConfigurationError
from ergon_framework.providers.errors import ERROR_OF, ProviderError, ProviderInternalError, Reason
from ergon_framework.providers.mapping.clients import (
    DEFECT,
    NAMED,
    TIME_UP,
    WRAPPERS,
    ErrorFinding,
    ErrorReader,
    by_error_answer,
)
from ergon_framework.providers.mapping.retry_after import parse_retry_after
from ergon_framework.providers.redaction import describe_safely

MAX_TYPES = 1024
"""Types of exceptions that are remembered."""


class KnownError(NamedTuple):
    """What the names of a type say."""

    name: str
    names: tuple[str, ...]
    """The names of the type and of its bases, the nearest first."""
    found: ErrorFinding | ErrorReader | None
    unwrap: Callable[[Exception], object] | None


class KnownErrors:
    """What the rules say of each type of exception, looked up once per type by its names."""

    def __init__(self, max_types: int = MAX_TYPES) -> None:
        self._max_types = max_types
        self._known: dict[type, KnownError] = {}

    def __len__(self) -> int:
        return len(self._known)

    def find(self, kind: type[Exception]) -> KnownError:
        """What is known of a type; after the first time, for the price of one look-up."""
        try:
            found = self._known.get(kind)
        except TypeError:  # a metaclass without a hash
            return _read_type(kind)
        if found is None:
            # A program that makes classes as it goes would fill the memory, and keep them alive.
            if len(self._known) >= self._max_types:
                self._known.clear()
            found = self._known[kind] = _read_type(kind)
        return found


find_known = KnownErrors().find


def is_time_up(error: Exception) -> bool:
    """Whether the queue ends the call by its time limit: there is no time for another attempt."""
    return not TIME_UP.isdisjoint(find_known(type(error)).names)


def _read_type(kind: type[Exception]) -> KnownError:
    names = tuple(f"{each.__module__}.{each.__qualname__}" for each in kind.__mro__)
    return KnownError(
        names[0],
        names,
        next((NAMED[name] for name in names if name in NAMED), None),
        next((WRAPPERS[name] for name in names if name in WRAPPERS), None),
    )


class UnmappedTypes:
    """Counts types of exceptions without a rule; beyond ``max_types`` of them, all together."""

    rest = "(others)"

    def __init__(self, max_types: int = 256) -> None:
        self._max_types = max_types
        self._counts: dict[str, int] = {}
        self._lock = threading.Lock()

    def renew(self) -> None:
        """Called in a forked child: the thread that held the lock does not exist there."""
        self._lock = threading.Lock()

    def add(self, name: str) -> None:
        """Count one exception of a type."""
        with self._lock:
            if name not in self._counts and len(self._counts) >= self._max_types:
                name = self.rest
            self._counts[name] = self._counts.get(name, 0) + 1

    def counts(self) -> dict[str, int]:
        """The counts so far, by the name of the type."""
        with self._lock:
            return dict(self._counts)


_unmapped = UnmappedTypes()
os.register_at_fork(after_in_child=_unmapped.renew)

count_unmapped = _unmapped.add


def unmapped_types() -> dict[str, int]:
    """How often each type of exception was met in this process for which there is no rule."""
    return _unmapped.counts()


Match: TypeAlias = type[Exception] | str | Callable[[Exception], bool]
RuleAnswer: TypeAlias = str | type[ProviderError] | Callable[[Exception], ProviderError | None]

_MAX_DEPTH = 8
"""Wrappings and causes that are looked into; also the end of a circle of causes."""


@dataclass(frozen=True, slots=True)
class Rule:
    """What a provider knows about its own exceptions; the first rule that answers wins.

    ``match`` is a class, the dotted name of one (``"acme.errors.Denied"``, subclasses included) or
    a predicate. ``answer`` is a reason code, a canonical class, or a function that makes the
    canonical error; it may answer None to leave it to the next rule.
    """

    match: Match
    answer: RuleAnswer
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

    A canonical error comes back as it is. Interrupts, exits and cancellations are not failures of
    the provider and are refused with a ``TypeError``. ``now`` is the wall clock, for dates in
    headers.
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
        return match in find_known(type(error)).names
    return isinstance(error, match) if isinstance(match, type) else bool(match(error))


def _answer(rule: Rule, error: Exception) -> object:
    answer = rule.answer
    if isinstance(answer, str):
        return _built(error, ErrorFinding(Reason(answer), rule.never_sent))
    if isinstance(answer, type):
        return answer(describe_safely(error), never_sent=rule.never_sent, details=_details(error))
    return answer(error)


# -- the built-in table --------------------------------------------------------------------------


def _built_in(error: Exception, rules: Sequence[Rule], now: Callable[[], float]) -> ProviderError:
    try:
        if isinstance(error, ExceptionGroup):
            return _of_group(error, rules, now)
        found = _find(error, now, _MAX_DEPTH)
    except Exception:  # an exception that cannot even be looked at
        found = None
    if found is None:
        count_unmapped(find_known(type(error)).name)
    return _built(error, found or DEFECT)


def _find(error: Exception, now: Callable[[], float], depth: int) -> ErrorFinding | None:
    _, _, told, unwrap = find_known(type(error))
    if unwrap is not None and depth:
        inner = unwrap(error)
        found = _find(inner, now, depth - 1) if isinstance(inner, Exception) else None
        if found is not None:
            return found
    if isinstance(told, ErrorFinding):
        return told
    found = None if told is None else told(error, now)
    if found is None:
        found = by_error_answer(error, now)
    if found is None and depth and isinstance(error.__cause__, Exception):
        found = _of_cause(error.__cause__, now, depth - 1)
    return found


def _of_cause(cause: Exception, now: Callable[[], float], depth: int) -> ErrorFinding | None:
    """What the cause says; but the wrapping client may have sent an earlier attempt itself."""
    if isinstance(cause, ProviderError) and cause.reason_code in ERROR_OF:
        wait = cause.retry_after_seconds
        return ErrorFinding(
            Reason(cause.reason_code), http_status=cause.http_status, retry_after=wait
        )
    found = _find(cause, now, depth)
    return None if found is None else found._replace(never_sent=False)


def _built(error: Exception, found: ErrorFinding) -> ProviderError:
    return ERROR_OF[found.reason](
        found.text or describe_safely(error),
        http_status=found.http_status,
        retry_after_seconds=found.retry_after,
        never_sent=found.never_sent,
        details=_details(error),
    )


def _details(error: Exception) -> dict[str, str]:
    return {"error_type": find_known(type(error)).name}


# -- groups --------------------------------------------------------------------------------------

_RANKS = {
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
    decisive = min(members, key=lambda each: _RANKS[Reason(each.reason_code)])
    waits = [each.retry_after_seconds for each in members if each.retry_after_seconds is not None]
    return ERROR_OF[decisive.reason_code](
        decisive.message,
        http_status=decisive.http_status,
        retry_after_seconds=max(waits, default=None),
        never_sent=all(each.never_sent for each in members),
        details={**_details(group), "members": len(members)},
    )


def canonical_or_rebuilt(
    error: Exception, rules: Sequence[Rule] = (), wall: Callable[[], float] = time.time
) -> ProviderError:
    """The canonical error for a raw one, with every field as it was agreed; it never raises."""
    try:
        return _canonical_or_rebuilt(canonical(error, rules, now=wall), wall)
    except Exception:
        return _rebuilt(error, wall)


def _canonical_or_rebuilt(error: ProviderError, wall: Callable[[], float]) -> ProviderError:
    made: Any = error
    if not isinstance(made.message, str) or not isinstance(made.details, dict):
        raise TypeError("its __init__ did not call super().__init__()")
    error.retry_after_seconds = _wait(error.retry_after_seconds, wall)
    error.http_status = _status(error.http_status)
    error.never_sent = bool(error.never_sent)
    return error


def _rebuilt(error: Exception, wall: Callable[[], float]) -> ProviderError:
    """Rebuild an error as one of the plain class, with as much of it as can be read."""
    reason, message = _read_attribute(error, "reason_code"), _read_attribute(error, "message")
    kind = ERROR_OF.get(reason, ProviderInternalError) if isinstance(reason, str) else None
    found = (kind or ProviderInternalError)(
        message if isinstance(message, str) else _text(error),
        http_status=_status(_read_attribute(error, "http_status")),
        retry_after_seconds=_wait(_read_attribute(error, "retry_after_seconds"), wall),
        never_sent=_read_attribute(error, "never_sent") is True,
        details={"error_type": type(error).__qualname__},
    )
    found.__cause__ = error
    return found


def _read_attribute(error: Exception, name: str) -> Any:
    try:
        return getattr(error, name, None)
    except Exception:  # a property that raises
        return None


def _text(error: Exception) -> str:
    try:
        return describe_safely(error)
    except Exception:
        return type(error).__qualname__


def _wait(asked: Any, wall: Callable[[], float]) -> float | None:
    if isinstance(asked, str):  # a header passed on as it came
        asked = parse_retry_after(asked, wall())
    return max(0.0, asked) if is_number(asked) else None


def _status(status: Any) -> int | None:
    return status if type(status) is int and 0 <= status < 1000 else None
