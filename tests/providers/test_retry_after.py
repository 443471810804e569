from __future__ import annotations

import math
from datetime import UTC, datetime
from email.message import Message
from email.utils import format_datetime
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ergon_framework.providers.mapping.retry_after import (
    header,
    is_used_up,
    parse_retry_after,
    retry_after_seconds,
)

NOW = datetime(2024, 5, 1, 12, 0, 0, tzinfo=UTC).timestamp()


@pytest.mark.req("PEF:A-9")
@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("0", 0.0),
        ("120", 120.0),
        ("2.5", 2.5),
        ("-3", 0.0),
        ("Wed, 01 May 2024 12:00:30 GMT", 30.0),
        ("Wednesday, 01-May-24 12:00:30 GMT", 30.0),
        ("Wed May  1 12:00:30 2024", 30.0),
        ("Wed, 01 May 2024 12:00:30 -0000", 30.0),
        ("Wed, 01 May 2024 14:00:30 +0200", 30.0),
        ("Wed, 01 May 2024 11:59:30 GMT", 0.0),
    ],
)
def test_both_forms_of_retry_after_are_read(value: str, seconds: float) -> None:
    """Numbers of seconds and dates in each of HTTP's formats; what has passed is no wait."""
    assert parse_retry_after(value, NOW) == pytest.approx(seconds)


@pytest.mark.req("PEF:A-9")
@pytest.mark.parametrize(
    "value",
    [
        None,
        "",
        "soon",
        "nan",
        "inf",
        "1e9",
        "1_000",
        "0x10",
        "٣",
        "1, 2",
        "9" * 5000,
        "Wed, 99 May 2024 12:00:30 GMT",
        "Wed, 01 May 99999999999 12:00:30 GMT",
    ],
)
def test_garbage_is_as_good_as_no_header(value: str | None) -> None:
    """Nothing that is neither a number nor a date makes anybody wait or raises."""
    assert parse_retry_after(value, NOW) is None


@pytest.mark.req("PEF:A-9")
@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after-ms": "1500", "retry-after": "9"}, 1.5),
        ({"x-ms-retry-after-ms": "20"}, 0.02),
        ({"retry-after-ms": "soon", "retry-after": "9"}, 9.0),
        ({"Retry-After": "9"}, 9.0),
        ({b"Retry-After": b"9"}, None),
        ({"retry-after": b"9"}, 9.0),
        ({"retry-after": 9}, 9.0),
        ({}, None),
    ],
)
def test_the_finer_header_goes_first(headers: dict[Any, Any], seconds: float | None) -> None:
    """Milliseconds are preferred; names are found whatever their case."""
    assert retry_after_seconds(headers, NOW) == seconds


@pytest.mark.req("PEF:A-9")
@pytest.mark.parametrize(
    ("reset", "seconds"),
    [
        ("30", 30.0),
        (f"{NOW + 30:.0f}", 30.0),
        (f"{(NOW + 30) * 1000:.0f}", 30.0),
        (f"{NOW - 30:.0f}", 0.0),
        ("-1", 0.0),
        ("never", None),
    ],
)
def test_the_reset_of_a_window_is_read_in_each_form(reset: str, seconds: float | None) -> None:
    """A wait, an instant in seconds and one in milliseconds are told apart by their size."""
    for name in ("x-ratelimit-reset", "ratelimit-reset", "x-rate-limit-reset"):
        assert retry_after_seconds({name: reset}, NOW, is_throttled=True) == seconds


def test_a_reset_is_no_pause_unless_the_call_was_throttled() -> None:
    """APIs tell their reset with every answer; a server error is not to wait for it."""
    assert retry_after_seconds({"x-ratelimit-reset": "3000"}, NOW) is None


def test_a_reset_is_no_pause_while_something_is_left() -> None:
    """Then it was another limit that refused, and nobody said for how long."""
    headers = {"x-ratelimit-reset": "3000", "x-ratelimit-remaining": "12"}
    assert retry_after_seconds(headers, NOW, is_throttled=True) is None
    headers["x-ratelimit-remaining"] = "0"
    assert retry_after_seconds(headers, NOW, is_throttled=True) == 3000.0
    assert is_used_up(headers)


def test_headers_of_any_kind_are_read() -> None:
    """Those of httpx, of the standard library, plain ones, none, and broken ones."""

    class Broken:
        def get(self, name: str) -> str:
            raise RuntimeError(name)

    message = Message()
    message["Retry-After"] = "4"
    assert header(httpx.Headers({"Retry-After": "4"}), "retry-after") == "4"
    assert header(message, "retry-after") == "4"
    assert header(None, "retry-after") is None
    assert header(Broken(), "retry-after") is None
    assert header([("retry-after", "4")], "retry-after") is None


@given(st.text() | st.from_regex(r"[A-Z][a-z]{2}, \d\d? [A-Z][a-z]{2} \d{1,6} \d\d:\d\d:\d\d .*"))
def test_no_text_raises(value: str) -> None:
    """Whatever a header says, the answer is a wait of zero or more, or none."""
    wait = retry_after_seconds({"retry-after": value}, NOW, is_throttled=True)
    assert wait is None or (math.isfinite(wait) and wait >= 0)
    reset = retry_after_seconds({"x-ratelimit-reset": value}, NOW, is_throttled=True)
    assert reset is None or (math.isfinite(reset) and reset >= 0)


@given(st.datetimes(datetime(1971, 1, 1), datetime(2999, 1, 1)), st.floats(0, 4e9))  # noqa: DTZ001 - aware below
def test_a_date_means_the_time_until_then(date: datetime, now: float) -> None:
    """Never earlier than the date says, and never in the past."""
    aware = date.replace(tzinfo=UTC, microsecond=0)
    wait = parse_retry_after(format_datetime(aware, usegmt=True), now)
    assert wait == max(0.0, aware.timestamp() - now)
