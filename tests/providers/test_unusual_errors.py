"""Error classes, numbers and loggers that do what nobody expects: execute() never raises for it."""

from __future__ import annotations

import copy
import logging
import pickle
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import pytest

from ergon_framework.errors import ConfigurationError
from ergon_framework.providers.circuit_breaker import CircuitBreaker
from ergon_framework.providers.errors import (
    ProviderBadRequestError,
    ProviderCircuitOpenError,
    ProviderError,
    ProviderQuotaExceededError,
    ProviderRateLimitError,
    ProviderTimeoutError,
    refused_by_gate,
)
from ergon_framework.providers.quota import QuotaPolicy
from ergon_framework.providers.retry import RetryPolicy
from tests.providers.scripted import ONCE, Scripted, call, rows

pytestmark = pytest.mark.req("PROVIDERS:badinput")
HUGE = 10**400


@dataclass(frozen=True)
class Frozen(ProviderTimeoutError):
    """Cannot be changed."""

    number: int = 7


class NoSuper(ProviderTimeoutError):
    """Forgot its parent's fields."""

    def __init__(self) -> None:
        self.number = 7


class Raising(ProviderTimeoutError):
    """Has a field that cannot be read."""

    @property
    def never_sent(self) -> bool:
        raise ValueError("no")

    @never_sent.setter
    def never_sent(self, value: bool) -> None:
        pass


class Unreadable(ProviderError):
    """Not even its reason can be read."""

    @property
    def reason_code(self) -> str:  # type: ignore[override]
        raise ValueError("no")


class Silent(Exception):
    """Has no text."""

    def __str__(self) -> str:
        raise KeyError("no")

    __repr__ = __str__


@pytest.mark.req("PEF:trap-frozen-error")
@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (Frozen(), "timeout"),
        (NoSuper(), "timeout"),
        (Raising("x"), "timeout"),
        (Unreadable("x"), "internal_error"),
        (Silent(), "internal_error"),
        (ProviderTimeoutError(ValueError("x")), "timeout"),  # type: ignore[arg-type]
        (ProviderRateLimitError("x", retry_after_seconds=HUGE), "rate_limited"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_an_error_of_any_kind_becomes_a_canonical_one(error: Exception, reason: str) -> None:
    """With a text, a number or none, and a row."""
    provider = Scripted(error, retry_policy=ONCE)
    result = call(provider, correlation_id="odd")
    found: Any = result.error
    assert result.reason_code == found.reason_code == reason
    assert isinstance(found.message, str)
    assert (found.retry_after_seconds, found.http_status, found.never_sent) == (None, None, False)
    assert found is error or found.__cause__ is error
    assert [row.reason_code for row in rows(provider, "odd")] == [reason]


@pytest.mark.parametrize(
    "make",
    [
        lambda: RetryPolicy(base_delay_seconds=HUGE),
        lambda: QuotaPolicy(limit=1, window_seconds=HUGE),
        lambda: CircuitBreaker(1, HUGE),
        lambda: Scripted(timeout_budget_seconds=HUGE),
    ],
)
def test_a_setting_that_no_number_holds(make: Callable[[], object]) -> None:
    """Is refused like any other wrong one."""
    with pytest.raises(ConfigurationError):
        make()


def test_a_budget_that_no_number_holds() -> None:
    """Is refused before anything is called."""
    provider = Scripted()
    with pytest.raises(ProviderBadRequestError, match="timeout_budget_seconds"):
        call(provider, timeout_budget_seconds=HUGE)
    assert not provider.calls


class Own(ProviderError):
    """Has a reason that is not on the list."""

    reason_code = "my_reason"


def test_a_breaker_alone_takes_an_error_with_a_reason_of_its_own() -> None:
    """It votes as an internal error, and gives its place back."""
    breaker = CircuitBreaker(1, 0.0)
    breaker.after_call(breaker.before_call(), ValueError())
    breaker.after_call(breaker.before_call(), Own("x"))
    breaker.after_call(breaker.before_call())
    assert breaker.state == "closed"


@pytest.mark.parametrize("error", [ProviderRateLimitError("x", retry_after_seconds="0"), Own("x")])  # type: ignore[arg-type]
def test_a_policy_alone_takes_what_execute_takes(error: Exception) -> None:
    """A header passed on as a text, a reason of its own."""

    def fail() -> None:
        raise error

    outcome = RetryPolicy(max_attempts=2, base_delay_seconds=0).run(fail)
    assert outcome.error is not None
    assert outcome.error.reason_code in ("rate_limited", "internal_error")


def test_a_filter_that_raises() -> None:
    """The host's logging is no part of a call."""

    def refuse(_: logging.LogRecord) -> bool:
        raise RuntimeError("no")

    logger = logging.getLogger("ergon_framework.providers")
    logger.addFilter(refuse)
    try:
        provider = Scripted(
            ProviderTimeoutError("x"), retry_policy=ONCE, circuit_breaker=CircuitBreaker(1)
        )
        assert call(provider).reason_code == "timeout"
        assert provider.circuit_breaker is not None
        assert provider.circuit_breaker.state == "open"
    finally:
        logger.removeFilter(refuse)


@pytest.mark.parametrize(
    "kind", [ProviderCircuitOpenError, ProviderQuotaExceededError, ProviderRateLimitError]
)
def test_a_refusal_is_what_its_constructor_makes(kind: type[ProviderCircuitOpenError]) -> None:
    """The quick way leaves nothing out that the long way sets, also on its way to a process."""
    quick = refused_by_gate(kind, "come back later", 2.5)
    slow = kind("come back later", retry_after_seconds=2.5, never_sent=True)
    assert (type(quick), quick.args, vars(quick)) == (type(slow), slow.args, vars(slow))
    assert (str(quick), quick.to_dict()) == (str(slow), slow.to_dict())
    back = pickle.loads(pickle.dumps(quick))  # noqa: S301 - made on the line before
    assert (type(back), back.args, vars(back)) == (type(slow), slow.args, vars(slow))


@pytest.mark.parametrize("is_refused", [False, True])
def test_a_result_travels_and_compares_whatever_was_read_of_it(is_refused: bool) -> None:
    """Parts of it are made when they are read: a copy, a pickle and a comparison have them all."""
    first = ProviderTimeoutError("x") if is_refused else {"ok": 1}
    provider = Scripted(
        first,
        retry_policy=ONCE,
        circuit_breaker=CircuitBreaker(1),
        quota=QuotaPolicy(limit=100),
    )
    results = [call(provider) for _ in range(20)]
    result = results[-1]
    for again in (
        copy.copy(result),
        pickle.loads(pickle.dumps(result)),  # noqa: S301 - made here
        replace(result),
    ):
        assert asdict(again)["quota"] == asdict(result)["quota"]
        assert (again.attempt_log, again.quota) == (result.attempt_log, result.quota)
        assert str(again.error) == str(result.error)
    assert result.error is result.error
    assert "quota=QuotaSnapshot(limit_count=100," in repr(result)
    assert not hasattr(result, "no_such_field")
