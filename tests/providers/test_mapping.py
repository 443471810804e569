from __future__ import annotations

import asyncio
import concurrent.futures
import json
import os
import pickle
import subprocess
import sys
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ergon_framework.errors import ConfigurationError
from ergon_framework.providers.errors import (
    ERROR_OF,
    ProviderAuthError,
    ProviderBadRequestError,
    ProviderCircuitOpenError,
    ProviderConnectionError,
    ProviderDependencyError,
    ProviderError,
    ProviderInternalError,
    ProviderQuotaExceededError,
    ProviderRateLimitError,
    ProviderResponseFormatError,
    ProviderTimeoutError,
    Reason,
)
from ergon_framework.providers.mapping import Rule, canonical, unmapped_types
from ergon_framework.providers.mapping.rules import KnownErrors, UnmappedTypes
from ergon_framework.providers.redaction import MAX_MESSAGE
from tests.providers.locks import recorded_locks

EVERY_CLASS = [
    (ProviderTimeoutError, "timeout"),
    (ProviderConnectionError, "connection_error"),
    (ProviderRateLimitError, "rate_limited"),
    (ProviderAuthError, "auth_failed"),
    (ProviderQuotaExceededError, "quota_exhausted"),
    (ProviderBadRequestError, "bad_request"),
    (ProviderResponseFormatError, "response_invalid"),
    (ProviderDependencyError, "dependency_unavailable"),
    (ProviderInternalError, "internal_error"),
    (ProviderCircuitOpenError, "circuit_open"),
]

RETRYABLE = {"timeout", "connection_error", "rate_limited", "dependency_unavailable"}


@pytest.mark.req("PEF:E-2", "PEF:E-3", "PEF:E-4", "PEF:E-5", "PEF:E-6", "PEF:E-7", "PEF:E-8")
@pytest.mark.req("PEF:E-9", "PEF:E-10", "PEF:E-11")
@pytest.mark.parametrize(("kind", "code"), EVERY_CLASS)
def test_a_class_stands_for_its_code(kind: type[ProviderError], code: str) -> None:
    """Each class has its reason code and says whether a retry may help."""
    assert ERROR_OF[code] is kind
    assert kind("x").reason_code == code
    assert kind("x").code == code
    assert kind.retryable == (code in RETRYABLE)


@pytest.mark.req("PEF:E-1", "PEF:E-12")
def test_classes_and_codes_are_one_to_one() -> None:
    """Ten codes, ten classes, one base above them."""
    assert {reason.value for reason in Reason} == set(ERROR_OF)
    assert len(set(ERROR_OF.values())) == len(ERROR_OF) == 10
    assert all(issubclass(kind, ProviderError) for kind in ERROR_OF.values())


@pytest.mark.req("PEF:E-13")
@pytest.mark.parametrize("kind", [ProviderError, *ERROR_OF.values()])
def test_a_canonical_error_passes_unchanged(kind: type[ProviderError]) -> None:
    """It is the same object afterwards, whatever rules there are."""
    error = kind("x", http_status=418)
    assert canonical(error) is error
    assert canonical(error, [Rule(Exception, Reason.TIMEOUT)]) is error
    assert error.__cause__ is None


def test_a_made_up_reason_code_is_not_canonical() -> None:
    """A subclass cannot add an eleventh code, on which nobody could decide."""

    class Strange(ProviderError):
        reason_code = "strange"

    error = canonical(Strange("x"))
    assert error.reason_code == "internal_error"
    assert isinstance(error.__cause__, Strange)


@pytest.mark.req("PEF:E-14")
def test_the_raw_exception_is_the_cause() -> None:
    """Nothing of it is lost, and its type is named for rows and dead letters."""
    raw = TimeoutError("no answer")
    error = canonical(raw)
    assert type(error) is ProviderTimeoutError
    assert error.__cause__ is raw
    assert error.message == "TimeoutError: no answer"
    assert error.details == {"error_type": "builtins.TimeoutError"}
    assert not error.never_sent


@pytest.mark.req("PEF:E-15")
@pytest.mark.parametrize(
    "interrupt",
    [KeyboardInterrupt(), SystemExit(1), asyncio.CancelledError(), GeneratorExit()],
    ids=lambda each: type(each).__name__,
)
def test_an_interrupt_is_never_mapped(interrupt: Any) -> None:
    """It is nobody's failure, and no rule can make it one."""
    with pytest.raises(TypeError, match=type(interrupt).__name__):
        canonical(interrupt, [Rule(lambda _: True, Reason.TIMEOUT)])
    group: Any = BaseExceptionGroup("", [interrupt])
    with pytest.raises(TypeError):
        canonical(group)


@pytest.mark.req("PEF:E-13")
@pytest.mark.parametrize(
    ("raw", "code", "never_sent"),
    [
        (TimeoutError(), "timeout", False),
        (asyncio.TimeoutError(), "timeout", False),  # noqa: UP041 - the alias is what is tested
        (concurrent.futures.TimeoutError(), "timeout", False),
        (subprocess.TimeoutExpired("x", 1), "timeout", False),
        (json.JSONDecodeError("x", "", 0), "response_invalid", False),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "x"), "response_invalid", False),
        (asyncio.IncompleteReadError(b"", 4), "connection_error", False),
        (KeyError("x"), "internal_error", False),
        (MemoryError(), "internal_error", False),
        (concurrent.futures.CancelledError(), "internal_error", False),
    ],
    ids=lambda each: type(each).__name__ if isinstance(each, Exception) else "",
)
def test_an_error_of_the_standard_library(raw: Exception, code: str, never_sent: bool) -> None:
    """Time-outs of every kind, answers that are no JSON, and plain bugs."""
    error = canonical(raw)
    assert (error.reason_code, error.never_sent) == (code, never_sent)


@pytest.mark.req("PEF:A-2")
def test_what_nobody_knows_is_counted() -> None:
    """An unknown exception is an internal error, and its type is told, so that a rule follows."""

    class Unheard(Exception):
        pass

    name = f"{Unheard.__module__}.{Unheard.__qualname__}"
    assert name not in unmapped_types()
    for _ in range(3):
        assert type(canonical(Unheard())) is ProviderInternalError
    canonical(TimeoutError())
    assert unmapped_types()[name] == 3
    assert "builtins.TimeoutError" not in unmapped_types()


@pytest.mark.req("PEF:A-2")
def test_the_count_of_unknown_types_is_bounded_and_exact() -> None:
    """A provider that makes classes as it goes fills neither the counts nor the cache."""
    counts = UnmappedTypes(max_types=256)

    def count() -> None:
        for index in range(3000):
            counts.add(f"t{index % 1000}")

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(counts.counts()) == 256 + 1
    assert sum(counts.counts().values()) == 12_000
    known = KnownErrors(max_types=8)
    for index in range(18):
        made = type(f"Made{index}", (TimeoutError,), {})
        assert known.find(made).found is not None
        assert len(known) <= 8


def test_a_forked_child_does_not_wait_for_the_parents_lock() -> None:
    """The lock may be held by a thread that does not exist in the child."""
    with recorded_locks("ergon_framework.providers") as locks:
        counts = UnmappedTypes()
    (lock,) = locks
    lock.acquire()
    counts.renew()
    counts.add("x")
    assert counts.counts() == {"x": 1}


def test_an_exception_raised_from_a_known_one_is_told_by_it() -> None:
    """A client's own wrapping, raised ``from`` what happened, does not hide it."""

    class Wrapped(Exception):
        pass

    def raised(cause: Exception) -> Wrapped:
        error = Wrapped("it failed")
        error.__cause__ = cause
        return error

    refused = canonical(raised(raised(ConnectionRefusedError())))
    assert refused.reason_code == "connection_error"
    assert not refused.never_sent, "whoever wraps may have tried before"
    limited = canonical(raised(ProviderRateLimitError("x", retry_after_seconds=3)))
    assert (limited.reason_code, limited.retry_after_seconds) == ("rate_limited", 3)
    assert canonical(raised(KeyError("x"))).reason_code == "internal_error"


def test_a_mere_context_tells_nothing() -> None:
    """What happened to be handled meanwhile is not the reason."""
    raw = RuntimeError("x")
    raw.__context__ = ConnectionRefusedError()
    assert canonical(raw).reason_code == "internal_error"


def test_a_circle_of_causes_ends() -> None:
    """Two exceptions that are each other's cause are an internal error like any other."""
    one, other = RuntimeError("one"), RuntimeError("other")
    one.__cause__, other.__cause__ = other, one
    assert canonical(one).reason_code == "internal_error"


class TestRules:
    class Denied(Exception):
        pass

    class Locked(Denied):
        pass

    DENIED = f"{__name__}.TestRules.Denied"

    @pytest.mark.req("PEF:E-13")
    @pytest.mark.parametrize("answer", ["auth_failed", Reason.AUTH_FAILED, ProviderAuthError])
    def test_a_provider_knows_its_own_exceptions(self, answer: Any) -> None:
        """By class, by name or by a look at it; subclasses included."""
        name = f"{self.Denied.__module__}.{self.Denied.__qualname__}"
        for match in (self.Denied, name, lambda error: "no entry" in str(error)):
            raw = self.Locked("no entry")
            error = canonical(raw, [Rule(match, answer, never_sent=True)])
            assert type(error) is ProviderAuthError
            assert error.__cause__ is raw
            assert error.never_sent
            assert error.message == "Locked: no entry"

    def test_a_rule_goes_before_the_table_and_before_later_rules(self) -> None:
        """The provider knows best."""
        rules = [Rule(OSError, Reason.BAD_REQUEST), Rule(Exception, Reason.TIMEOUT)]
        assert canonical(ConnectionRefusedError(), rules).reason_code == "bad_request"
        assert canonical(KeyError(), rules).reason_code == "timeout"

    def test_a_rule_may_make_the_error_or_decline(self) -> None:
        """A function answers with a canonical error, or with None to leave it to the others."""
        made = ProviderRateLimitError("later", retry_after_seconds=7)
        rules = [Rule(Exception, lambda _: None), Rule(KeyError, lambda _: made)]
        raw = KeyError("x")
        assert canonical(raw, rules) is made
        assert made.__cause__ is raw
        assert canonical(KeyError("y"), rules).__cause__ is raw, "what a rule has set stays"
        assert canonical(TimeoutError(), rules).reason_code == "timeout"

    @pytest.mark.parametrize(
        "rule",
        [
            Rule(lambda _: 1 / 0, Reason.TIMEOUT),  # type: ignore[arg-type, return-value]
            Rule(Exception, lambda _: 1 / 0),  # type: ignore[arg-type, return-value]
            Rule(Exception, lambda _: "auth_failed"),  # type: ignore[arg-type, return-value]
        ],
    )
    def test_a_broken_rule_hides_nothing(self, rule: Rule) -> None:
        """The next one is asked, and the error says which rule is broken."""
        error = canonical(ConnectionResetError("x"), [rule])
        assert error.reason_code == "connection_error"
        assert len(error.details["broken_rules"]) == 1

    @pytest.mark.parametrize(
        ("match", "answer"),
        [(3, "timeout"), (KeyError, "no_such_code"), (KeyError, 3), ((KeyError,), "timeout")],
    )
    def test_a_rule_that_makes_no_sense_is_refused(self, match: Any, answer: Any) -> None:
        """When it is written, not when it is needed."""
        with pytest.raises(ConfigurationError):
            Rule(match, answer)


class TestGroups:
    def test_what_forbids_a_retry_tells_most(self) -> None:
        """One member that will always fail makes the whole call fail always."""
        raw = ExceptionGroup("x", [TimeoutError(), ExceptionGroup("y", [ProviderAuthError("no")])])
        error = canonical(raw)
        assert error.reason_code == "auth_failed"
        assert error.__cause__ is raw
        assert error.details["members"] == 2

    def test_the_longest_pause_is_kept(self) -> None:
        """Whoever calls again must not come too early for any of them."""
        members: list[Exception] = [
            ProviderRateLimitError("x", retry_after_seconds=2),
            ProviderDependencyError("x", retry_after_seconds=5, http_status=503),
        ]
        error = canonical(ExceptionGroup("x", members))
        assert (error.reason_code, error.retry_after_seconds) == ("rate_limited", 5)

    def test_never_sent_is_for_all_or_for_none(self) -> None:
        """One member that may have been served is enough."""
        refused = ConnectionRefusedError()
        assert canonical(ExceptionGroup("x", [refused, refused])).never_sent
        assert not canonical(ExceptionGroup("x", [refused, ConnectionResetError()])).never_sent

    def test_rules_reach_the_members(self) -> None:
        """A provider's own exception is known inside a group too."""
        rules = [Rule(KeyError, Reason.QUOTA_EXHAUSTED)]
        assert canonical(ExceptionGroup("x", [KeyError()]), rules).reason_code == "quota_exhausted"

    def test_a_task_group_fails_like_its_task(self) -> None:
        """What asyncio raises for a failed child is told by the child."""

        async def fail() -> None:
            raise ConnectionResetError

        async def main() -> None:
            async with asyncio.TaskGroup() as group:
                group.create_task(fail())

        with pytest.raises(ExceptionGroup) as caught:
            asyncio.run(main())
        assert canonical(caught.value).reason_code == "connection_error"


@pytest.mark.parametrize("kind", [ProviderError, *ERROR_OF.values()])
def test_errors_travel_between_processes(kind: type[ProviderError]) -> None:
    """A pool pickles them; no field gets lost."""
    error = kind(
        "x", http_status=503, retry_after_seconds=2.5, never_sent=True, remedy="r", details={"a": 1}
    )
    there = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own
    assert type(there) is kind
    assert there.__dict__ == error.__dict__
    assert str(there) == str(error)


def test_a_mapped_error_travels_without_its_cause() -> None:
    """The raw exception may not be made for it."""

    class Local(Exception):
        lock = threading.Lock()

    error = canonical(Local("x"))
    there = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own
    assert (type(there), there.message) == (ProviderInternalError, "Local: x")


class Odd(Exception):
    """Whatever is read of it raises."""

    def __getattribute__(self, name: str) -> Any:
        if name in {"status_code", "status", "response", "http_status", "headers", "__cause__"}:
            raise RuntimeError(name)
        return super().__getattribute__(name)

    def __str__(self) -> str:
        raise RuntimeError("no words")


class Unhashable(type):
    __hash__ = None  # type: ignore[assignment]

    def __eq__(cls, other: object) -> bool:
        return False


class Homeless(Exception, metaclass=Unhashable):
    """Its class cannot be kept in a dict."""


@pytest.mark.parametrize("kind", [Odd, Homeless])
def test_an_exception_that_cannot_be_looked_at_is_still_an_error(kind: type[Exception]) -> None:
    """Broken properties, words and classes hide nothing."""
    raw = kind()
    error = canonical(raw)
    assert type(error) is ProviderInternalError
    assert error.message == kind.__name__
    assert error.__cause__ is raw


def _group(members: list[Exception]) -> Exception:
    return ExceptionGroup("some failed", members)


LEAVES = st.one_of(
    st.sampled_from([OSError, TimeoutError, KeyError, ValueError, ConnectionError, StopIteration]),
).flatmap(
    lambda kind: st.lists(st.text(max_size=40) | st.integers(), max_size=2).map(lambda a: kind(*a))
)


@pytest.mark.req("PEF:E-13")
@given(
    st.recursive(
        LEAVES, lambda kids: st.lists(kids, min_size=1, max_size=3).map(_group), max_leaves=5
    )
)
def test_every_exception_becomes_exactly_one_canonical_error(raw: Exception) -> None:
    """Whatever it is: one class, one known code, a cause, a bounded line that can be stored."""
    error = canonical(raw)
    assert type(error) is ERROR_OF[error.reason_code]
    assert error.__cause__ is raw
    assert len(error.message) <= MAX_MESSAGE
    assert error.message.isprintable()
    error.message.encode()
    json.dumps(error.to_dict())


@pytest.mark.slow
def test_no_client_is_imported() -> None:
    """The table knows other packages by name only."""
    code = (
        "import sys, ergon_framework.providers.mapping\n"
        "wrong = {'httpx', 'requests', 'aiohttp', 'redis', 'sqlalchemy', 'psycopg', 'urllib3',"
        " 'email', 'sqlite3', 'ssl', 'asyncio'} & set(sys.modules)\n"
        "sys.exit(f'imported: {wrong}' if wrong else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], env=os.environ, check=False)  # noqa: S603
    assert done.returncode == 0
