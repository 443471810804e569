from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ergon_framework.core.rfc3339 import format_rfc3339, parse_rfc3339

pytestmark = pytest.mark.req("EXEC:Encoding", "JOBS:wire")

CALM = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # busy machines

NOON = 1735732800.0  # 2025-01-01T12:00:00Z
EXACT_YEARS = st.datetimes(
    min_value=datetime(1900, 1, 1),  # noqa: DTZ001 - hypothesis wants it naive
    max_value=datetime(2242, 1, 1),  # noqa: DTZ001
    timezones=st.just(UTC),
)


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("2025-01-01T12:00:00Z", NOON),
        ("2025-01-01t12:00:00z", NOON),
        ("2025-01-01 12:00:00Z", NOON),
        ("2025-01-01T12:00:00+00:00", NOON),
        ("2025-01-01T12:00:00-00:00", NOON),
        ("2025-01-01T14:00:00+02:00", NOON),
        ("2025-01-01T00:30:00-11:30", NOON),
        ("2025-01-02T11:59:00+23:59", NOON),
        ("2025-01-01T12:00:00.5Z", NOON + 0.5),
        ("2025-01-01T12:00:00.000000Z", NOON),
        ("2025-01-01T12:00:00.123456789Z", 1735732800.123456789),
        ("2025-01-01T12:00:00.123456789+00:00", 1735732800.123456789),
        ("1969-12-31T23:59:59.25Z", -0.75),
        ("1970-01-01T00:00:00Z", 0.0),
        ("2000-02-29T00:00:00Z", 951782400.0),
        ("0000-01-01T00:00:00Z", -62167219200.0),
        ("9999-12-31T23:59:59Z", 253402300799.0),
    ],
)
def test_an_instant_is_read_with_any_offset_and_up_to_nine_digits(text: str, at: float) -> None:
    """Executors and orchestrators of any language write the same moment in many ways."""
    assert parse_rfc3339(text) == at


@pytest.mark.parametrize(
    "text", ["2016-12-31T23:59:60Z", "2016-12-31T15:59:60-08:00", "2017-01-01T05:29:60+05:30"]
)
def test_a_leap_second_is_read_as_the_next_second(text: str) -> None:
    """RFC 3339 allows it, and seconds since the epoch have no room for it."""
    assert parse_rfc3339(text) == parse_rfc3339("2017-01-01T00:00:00Z")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "form"),
        ("yesterday", "form"),
        ("2025-01-01", "form"),
        ("2025-01-01T12:00:00", "form"),
        ("2025-01-01T12:00Z", "form"),
        ("2025-01-01T12:00:00.Z", "form"),
        ("2025-01-01T12:00:00,5Z", "form"),
        ("2025-01-01T12:00:00.1234567891Z", "form"),
        ("2025-01-01T12:00:00+0200", "form"),
        ("2025-01-01T12:00:00+02", "form"),
        ("2025-01-01T12:00:00 +02:00", "form"),
        ("2025-01-01T12:00:00Z ", "form"),
        ("2025-01-01T12:00:00Z\n", "form"),
        (" 2025-01-01T12:00:00Z", "form"),
        ("20250101T120000Z", "form"),
        ("12025-01-01T12:00:00Z", "form"),
        ("-025-01-01T12:00:00Z", "form"),
        ("2025-1_-01T12:00:00Z", "form"),
        ("\u0662\u0660\u0662\u0665-01-01T12:00:00Z", "form"),
        ("2025-01-01T12:00:\u0660\u0660Z", "form"),
        ("1735732800", "form"),
        ("2025-02-29T12:00:00Z", "day"),
        ("1900-02-29T12:00:00Z", "day"),
        ("2025-00-01T12:00:00Z", "day"),
        ("2025-13-01T12:00:00Z", "day"),
        ("2025-04-31T12:00:00Z", "day"),
        ("2025-01-00T12:00:00Z", "day"),
        ("2025-01-01T24:00:00Z", "time of day"),
        ("2025-01-01T12:60:00Z", "time of day"),
        ("2025-01-01T12:00:61Z", "time of day"),
        ("2025-01-01T12:00:00+24:00", "offset"),
        ("2025-01-01T12:00:00-01:60", "offset"),
        ("2025-01-01T12:00:60Z", "leap second"),
        ("2016-12-31T23:59:60+01:00", "leap second"),
    ],
)
def test_what_is_no_instant_is_refused_with_a_reason(text: str, reason: str) -> None:
    """The reason says which rule was broken."""
    with pytest.raises(ValueError, match=reason):
        parse_rfc3339(text)


@pytest.mark.parametrize(
    ("at", "text"),
    [
        (NOON, "2025-01-01T12:00:00Z"),
        (NOON + 0.5, "2025-01-01T12:00:00.500000Z"),
        (1735732800.123456, "2025-01-01T12:00:00.123456Z"),
        (NOON - 1e-7, "2025-01-01T12:00:00Z"),
        (-0.75, "1969-12-31T23:59:59.250000Z"),
        (0, "1970-01-01T00:00:00Z"),
        (951868799, "2000-02-29T23:59:59Z"),
        (-62167219200, "0000-01-01T00:00:00Z"),
        (253402300799, "9999-12-31T23:59:59Z"),
    ],
)
def test_an_instant_is_written_in_utc(at: float, text: str) -> None:
    """To the microsecond, carried over to the next second, without a fraction of zero."""
    assert format_rfc3339(at) == text


@pytest.mark.parametrize(
    "at", [float("nan"), float("inf"), -float("inf"), -62167219200.5, 253402300800.0, 1e300]
)
def test_what_four_digits_of_a_year_cannot_say_is_refused(at: float) -> None:
    """A wrong text would be worse than none."""
    with pytest.raises(ValueError, match="between the years"):
        format_rfc3339(at)


@CALM
@given(EXACT_YEARS)
def test_writing_and_reading_agree_with_the_calendar_of_the_standard_library(
    moment: datetime,
) -> None:
    """The same text and the same float, and there and back without loss."""
    at = moment.timestamp()
    text = format_rfc3339(at)
    assert text == moment.isoformat().replace("+00:00", "Z")
    assert parse_rfc3339(text) == at


@CALM
@given(EXACT_YEARS, st.integers(-1439, 1439))
def test_offsets_agree_with_the_standard_library(moment: datetime, offset: int) -> None:
    """Every whole minute of offset that RFC 3339 can write."""
    there = moment.astimezone(timezone(timedelta(minutes=offset)))
    assert parse_rfc3339(there.isoformat()) == moment.timestamp()


@CALM
@given(st.floats(-62167219200, 253402300799))
def test_every_float_in_range_is_written_as_something_readable(at: float) -> None:
    """The text is never further away than half a microsecond, or the next float."""
    assert abs(parse_rfc3339(format_rfc3339(at)) - at) <= max(0.51e-6, abs(at) * 2.3e-16)


@CALM
@given(st.text(alphabet="0123456789-:.TZ+ ", max_size=40) | st.text(max_size=40))
def test_no_text_does_worse_than_a_value_error(text: str) -> None:
    """Whatever stands in an instant's place, its reader needs to catch one thing."""
    try:
        at = parse_rfc3339(text)
    except ValueError:
        return
    assert isinstance(at, float)
