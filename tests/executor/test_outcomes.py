from __future__ import annotations

import asyncio
import json
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pydantic
import pytest

from ergon_framework.core.executor_protocol import Status
from ergon_framework.errors import Business, Discard, Retry, Snooze
from ergon_framework.executor import Held, RetryLater
from ergon_framework.executor.outcomes import MAX_MESSAGE, failed, not_found, succeeded, written

pytestmark = pytest.mark.req("JOBS:executor", "EXEC:Outcome")


class Broken(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text either")


class Cruel(Exception):
    def __str__(self) -> str:
        raise SystemExit(1)


class Refused(Business):
    """A class of the user's."""


class Model(pydantic.BaseModel):
    at: datetime


class Text(str):
    __slots__ = ()


def line(outcome: Any, limit: int = 1000) -> dict[str, Any]:
    """The outcome as it leaves."""
    found: dict[str, Any] = json.loads(written(outcome, limit)[1])
    return found


@pytest.mark.parametrize(
    ("error", "status", "kind", "message"),
    [
        (ValueError("no such path"), "error", "ValueError", "no such path"),
        (ValueError(), "error", "ValueError", "ValueError"),
        (Broken(), "error", "Broken", "Broken"),
        (Cruel(), "error", "Cruel", "Cruel"),
        (SystemExit(3), "error", "SystemExit", "3"),
        (KeyboardInterrupt(), "error", "KeyboardInterrupt", "KeyboardInterrupt"),
        (asyncio.CancelledError(), "error", "CancelledError", "CancelledError"),
        (RecursionError("too deep"), "error", "RecursionError", "too deep"),
        (TimeoutError("too slow"), "timeout", "TimeoutError", "too slow"),
        (Business("no such customer"), "error", "Business", "no such customer"),
        (Refused("too late"), "error", "Business", "too late"),
        (Retry("busy"), "retry", "Retry", "busy"),
        (Snooze(3, "quota"), "retry", "held", "quota"),
        (Discard("cancelled"), "success", "discarded", "cancelled"),
        (RetryLater("busy"), "retry", "RetryLater", "busy"),
        (Held("quota", 3), "retry", "held", "quota"),
    ],
)
@pytest.mark.req("EXEC:status")
def test_what_a_handler_raises_becomes_an_outcome(
    error: BaseException, status: str, kind: str, message: str
) -> None:
    """The status by the class, the text by the exception, no traceback."""
    told = line(failed("j", error))
    assert (told["status"], told["error_type"], told["error_message"]) == (status, kind, message)
    assert told["job_id"] == "j"


def test_what_derives_from_a_final_class_is_told_by_its_name() -> None:
    """A worker gives up on names: that of the class that the handler's options know."""
    told = line(failed("j", KeyError("x"), (OSError, LookupError)))
    assert (told["status"], told["error_type"]) == ("error", "LookupError")
    late = line(failed("j", TimeoutError("x"), (OSError,)))
    assert (late["status"], late["error_type"]) == ("error", "OSError")
    assert line(failed("j", Retry("x"), (Exception,)))["status"] == "retry"
    assert line(failed("j", ValueError("x"), (OSError,)))["error_type"] == "ValueError"


@pytest.mark.req("EXEC:retry_after")
def test_the_wished_delay_travels() -> None:
    """It is a number of seconds, or null where the policy shall decide."""
    assert line(failed("j", Retry("x", after=2.5)))["retry_after_seconds"] == 2.5
    assert line(failed("j", Retry("x", timedelta(minutes=1))))["retry_after_seconds"] == 60
    assert line(failed("j", Snooze(timedelta(hours=1))))["retry_after_seconds"] == 3600
    assert line(failed("j", RetryLater("x", delay=2.5)))["retry_after_seconds"] == 2.5
    assert line(failed("j", RetryLater("x")))["retry_after_seconds"] is None
    assert line(failed("j", Held("x", 3)))["retry_after_seconds"] == 3


@pytest.mark.parametrize("delay", [-1, float("nan"), float("inf")])
def test_a_delay_that_makes_no_sense_is_refused(delay: float) -> None:
    """Whoever asks for it hears it at once."""
    with pytest.raises(ValueError, match="delay"):
        RetryLater("x", delay=delay)
    with pytest.raises(ValueError, match="delay"):
        Held("x", delay)
    with pytest.raises(ValueError, match="delay"):
        Retry(after=delay)
    with pytest.raises(ValueError, match="delay"):
        Snooze(delay)


@pytest.mark.parametrize("delay", ["soon", [1], object()])
def test_a_delay_that_is_no_time_is_refused_with_what_to_write(delay: Any) -> None:
    """And not with what Python thinks of its type."""
    told = r"a number of seconds or a timedelta, for example 30 or timedelta\(minutes=5\)"
    with pytest.raises(ValueError, match=told):
        Retry(after=delay)
    with pytest.raises(ValueError, match=told):
        Snooze(delay)


@pytest.mark.parametrize(
    "error", [Business(), Retry(), Snooze(1), Discard(), RetryLater(), Held("", 1)]
)
def test_a_wish_without_words_says_something(error: Exception) -> None:
    """An outcome never has an empty message."""
    assert " " in line(failed("j", error))["error_message"]


@pytest.mark.parametrize("error", [Retry("busy"), Snooze(3), Discard("cancelled")])
def test_what_was_asked_for_has_no_traceback(error: Exception) -> None:
    """Only what went wrong is told with the place where it did."""
    with pytest.raises(type(error)) as raised:
        raise error
    assert "error_traceback" not in line(failed("j", raised.value))


@pytest.mark.req("X3")
@pytest.mark.parametrize(
    "result",
    [
        object(),
        {(1, 2): 3},
        {"deep": [object()]},
        "\ud800",
        (each for each in ""),
        1j,
        {1: "a", "1": "b"},
        [{"deep": {date(2026, 1, 1): 1, "2026-01-01": 2}}],
        {1: Text("a"), "1": Text("b")},
    ],
    ids=[
        *("object", "key", "nested", "surrogate", "generator", "complex"),
        *("keys that are one in JSON", "the same nested", "the same with odd values"),
    ],
)
def test_a_result_that_json_cannot_hold_is_an_error_of_its_own(result: Any) -> None:
    """The process lives, and the type says what happened."""
    outcome, text = written(succeeded("j", result))
    told = json.loads(text)
    assert told["status"] == "error" == outcome.status
    assert told["error_type"] == "unserialisable_result"
    assert type(result).__name__ in told["error_message"]
    assert told["result"] is None


@pytest.mark.req("X3")
def test_a_result_that_holds_itself_is_an_error() -> None:
    """Nesting without end ends in an outcome."""
    loop: list[Any] = []
    loop.append(loop)
    assert line(succeeded("j", loop))["error_type"] == "unserialisable_result"


def test_a_result_that_was_not_awaited_is_told_as_such() -> None:
    """A forgotten await is the reason, and not a type that JSON lacks."""
    result = asyncio.sleep(0)
    told = line(succeeded("j", result))
    result.close()
    assert told["error_type"] == "unserialisable_result"
    assert "it was not awaited (write await before the call" in told["error_message"]


def test_a_model_whose_dump_breaks_is_an_error() -> None:
    """Code of the user's runs there, and may do anything."""

    class Nasty:
        def model_dump(self, mode: str) -> Any:
            raise RuntimeError(mode)

    assert line(succeeded("j", Nasty()))["error_type"] == "unserialisable_result"


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        ((1, 2), [1, 2]),
        (datetime(2025, 1, 1, tzinfo=UTC), "2025-01-01T00:00:00Z"),
        (Model(at=datetime(2025, 1, 1, tzinfo=UTC)), {"at": "2025-01-01T00:00:00Z"}),
        ([Text("a")], ["a"]),
        (float("nan"), None),
        (Status.RETRY, "retry"),
        ({"made": [Path("a/b.png")]}, {"made": ["a/b.png"]}),
        ("\u2028 🎉", "\u2028 🎉"),
    ],
)
def test_other_results_are_written(result: Any, expected: Any) -> None:
    """Dates, paths, models and subclasses of plain types have a form in JSON."""
    assert line(succeeded("j", result))["result"] == expected


@pytest.mark.req("X2")
def test_a_result_over_the_limit_is_an_error_of_its_own() -> None:
    """The limit counts the whole line without its newline."""
    fits = len(written(succeeded("j", "x" * 10))[1]) - 1
    assert line(succeeded("j", "x" * 10), fits)["status"] == "success"
    told = line(succeeded("j", "x" * 11), fits)
    assert told["error_type"] == "result_too_large"
    assert str(fits + 1) in told["error_message"]


def test_messages_are_clean_and_bounded() -> None:
    """A message of any length, with halves of characters, is a line that any reader takes."""
    told = line(failed("j", ValueError("\ud800" + "x" * 100_000)), 100_000)
    assert told["error_message"].startswith("?x")
    assert len(told["error_message"]) == MAX_MESSAGE + 1


@pytest.mark.req("EXEC:error_type")
def test_an_unknown_handler_has_the_reserved_type() -> None:
    """The name is shown, but not all of a long one."""
    told = line(not_found("j", "x" * 5000))
    assert told["error_type"] == "handler_not_found"
    assert len(told["error_message"]) < 200
