from __future__ import annotations

from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from functools import cache
from itertools import islice
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ergon_framework.core.schedule import Instants
from ergon_framework.errors import JobError
from ergon_framework.jobs.cron import MAX_LINE, check_cron, check_zone, interval, read_cron

BERLIN = "Europe/Berlin"
FORWARD, BACK = (2026, 3, 29), (2026, 10, 25)  # in Berlin: 02:00 to 03:00, and 03:00 to 02:00


def on(day: tuple[int, int, int], line: str, zone: str = BERLIN) -> list[str]:
    """Every fire of a line on one day, as the zone's clock shows it."""
    clock = ZoneInfo(zone)
    start = datetime(*day, tzinfo=clock)
    found = list[str]()
    for at in read_cron(line, zone)(start.timestamp() - 1):
        shown = datetime.fromtimestamp(at, clock)
        if shown.date() != date(*day):
            return found
        found.append(f"{shown:%H:%M%z}" if shown.second == 0 else f"{shown:%H:%M:%S%z}")
    return found


def first(line: str, after: str, count: int = 1, zone: str = "UTC") -> list[str]:
    """The next fires in UTC."""
    start = datetime.fromisoformat(after).timestamp()
    fires = islice(read_cron(line, zone)(start), count)
    return [f"{datetime.fromtimestamp(at, UTC):%Y-%m-%dT%H:%M:%SZ}" for at in fires]


def refusal(line: str) -> JobError:
    """What is said about a line."""
    with pytest.raises(JobError) as caught:
        read_cron(line)
    assert caught.value.remedy
    return caught.value


# ---- lines --------------------------------------------------------------------------------------


@pytest.mark.req("JOBS:cron", "X15")
@pytest.mark.parametrize(
    ("line", "fires"),
    [
        ("*/15 * * * *", ["2026-01-01T00:15:00Z", "2026-01-01T00:30:00Z"]),
        ("  30   4  1,15 *  5 ", ["2026-01-01T04:30:00Z", "2026-01-02T04:30:00Z"]),
        ("0 9-17/4 * * mon-fri", ["2026-01-01T09:00:00Z", "2026-01-01T13:00:00Z"]),
        ("0 9 * * fri-sun", ["2026-01-02T09:00:00Z", "2026-01-03T09:00:00Z"]),
        ("0 9 * * Sat-SUN", ["2026-01-03T09:00:00Z", "2026-01-04T09:00:00Z"]),
        ("0 9 * * sun-mon", ["2026-01-04T09:00:00Z", "2026-01-05T09:00:00Z"]),
        ("*/20 * * * * *", ["2026-01-01T00:00:20Z", "2026-01-01T00:00:40Z"]),
        ("15,45 59 23 31 12 *", ["2026-12-31T23:59:15Z", "2026-12-31T23:59:45Z"]),
        ("0 0 L * *", ["2026-01-31T00:00:00Z", "2026-02-28T00:00:00Z"]),
        ("0 0 * * MON#2", ["2026-01-12T00:00:00Z", "2026-02-09T00:00:00Z"]),
        ("0 0 29 2 *", ["2028-02-29T00:00:00Z", "2032-02-29T00:00:00Z"]),
        ("0 0 29 2 */7", ["2032-02-29T00:00:00Z", "2060-02-29T00:00:00Z"]),
        ("@hourly", ["2026-01-01T01:00:00Z", "2026-01-01T02:00:00Z"]),
        ("@daily", ["2026-01-02T00:00:00Z", "2026-01-03T00:00:00Z"]),
        ("@midnight", ["2026-01-02T00:00:00Z", "2026-01-03T00:00:00Z"]),
        ("@weekly", ["2026-01-04T00:00:00Z", "2026-01-11T00:00:00Z"]),
        ("@monthly", ["2026-02-01T00:00:00Z", "2026-03-01T00:00:00Z"]),
        ("@Yearly", ["2027-01-01T00:00:00Z", "2028-01-01T00:00:00Z"]),
        ("@annually", ["2027-01-01T00:00:00Z", "2028-01-01T00:00:00Z"]),
        ("@every 30s", ["2026-01-01T00:00:30Z", "2026-01-01T00:01:00Z"]),
        ("@every 1h30m", ["2026-01-01T01:30:00Z", "2026-01-01T03:00:00Z"]),
    ],
)
def test_a_line_means_these_instants(line: str, fires: list[str]) -> None:
    """Five fields, six with seconds in front, names and intervals."""
    assert first(line, "2026-01-01T00:00:00Z", 2) == fires


def test_the_instant_itself_is_not_after_it() -> None:
    """Who asks again at a fire gets the next one, also within the second."""
    assert first("* * * * *", "2026-01-01T00:00:00Z") == ["2026-01-01T00:01:00Z"]
    assert first("* * * * *", "2025-12-31T23:59:59.999999Z") == ["2026-01-01T00:00:00Z"]
    assert first("* * * * * *", "2026-01-01T00:00:00.5Z") == ["2026-01-01T00:00:01Z"]
    assert first("@every 10s", "2026-01-01T00:00:00.5Z") == ["2026-01-01T00:00:10Z"]


def test_a_checked_line_has_one_spelling() -> None:
    """Two settings files that mean the same are the same."""
    assert check_cron(" 0\t0 *  * * ") == "0 0 * * *"
    assert check_cron("@EVERY  90") == check_cron("@every 1m30s") == "@every 90s"
    assert check_cron("@Daily") == "@daily"


@pytest.mark.req("JOBS:cron", "JOBS:badinput")
@pytest.mark.parametrize(
    ("line", "field"),
    [
        ("60 * * * *", "minute field '60'"),
        ("x * * * *", "minute field 'x'"),
        ("* 24 * * *", "hour field '24'"),
        ("* * 0 * *", "day-of-month field '0'"),
        ("* * 32 * *", "day-of-month field '32'"),
        ("* * * 13 *", "month field '13'"),
        ("* * * * 8", "day-of-week field '8'"),
        ("* * * * MON#6", "day-of-week field 'MON#6'"),
        ("* * * * montag", "day-of-week field 'montag'"),
        ("99 * * * * *", "second field '99'"),
        ("0 99 * * * *", "minute field '99'"),
        ("*/0 * * * *", "minute field '*/0'"),
        ("5-1 * * * *", "minute field '5-1'"),
        ("1, * * * *", "minute field '1,'"),
    ],
)
def test_an_error_names_the_field(line: str, field: str) -> None:
    """Also when seconds stand in front."""
    assert f"the {field} of the cron line {line!r}" in refusal(line).message


@pytest.mark.req("JOBS:cron", "JOBS:badinput")
@pytest.mark.parametrize(
    "line",
    ["0 0 30 2 *", "0 0 31 2,4,6,9,11 *", "0 30 12 31 FEB *", "0 0 */3 2 MON#5", "0 0 31 4 */2"],
)
def test_a_line_that_never_fires_is_refused(line: str) -> None:
    """Each field is right, but no calendar has such a day."""
    assert refusal(line).message == f"the cron line {line!r} never fires"


@pytest.mark.req("JOBS:badinput")
@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("", "has 0 fields"),
        ("nightly", "the cron line 'nightly' has 1 field"),
        ("* * * *", "has 4 fields"),
        ("* * * * * * *", "has 7 fields"),
        ("@reboot", "is not understood"),
        ("@daily 5", "is not understood"),
        ("@every", "is not understood"),
        ("@every 1h 30m", "is not understood"),
        ("@every 0s", "is no interval"),
        ("@every 1.5h", "is no interval"),
        ("@every 30m1h", "is no interval"),
        ("@every -5", "is no interval"),
        ("@every ²", "is no interval"),
        ("@every 367d", "is no interval"),
        ("@every 999999999d", "is no interval"),
        ("1," * MAX_LINE + "1 * * * *", "is too long"),
    ],
)
def test_other_lines_are_refused(line: str, problem: str) -> None:
    """With a sentence that says what is wrong."""
    assert problem in refusal(line).message


@given(st.text(st.sampled_from("0123456789*/-,#LWlMONFEB@ \t²é"), max_size=30))
def test_any_text_is_a_line_or_is_refused(text: str) -> None:
    """Nothing a user can type raises anything else, and what is taken fires."""
    with suppress(JobError):
        assert next(read_cron(text)(1.8e9)) > 1.8e9


def test_intervals_in_words() -> None:
    """Days, hours, minutes and seconds, in this order, each once."""
    assert [interval(text) for text in ("90", "2d", "1H30M", "1d1s", "60m")] == [
        90,
        172_800,
        5400,
        86_401,
        3600,
    ]


# ---- zones --------------------------------------------------------------------------------------


@pytest.mark.req("JOBS:cron")
def test_a_line_is_read_in_its_zone() -> None:
    """Noon is at another instant in winter than in summer."""
    line = "0 12 1 1,7 *"
    assert first(line, "2026-01-01T00:00:00Z", 2, BERLIN) == [
        "2026-01-01T11:00:00Z",
        "2026-07-01T10:00:00Z",
    ]


@pytest.mark.req("JOBS:cron", "JOBS:badinput")
@pytest.mark.parametrize(
    "zone", ["", "Mars/Base", "Europe", "../etc/passwd", "/etc/passwd", "a\0b"]
)
def test_an_unknown_zone_is_refused(zone: str) -> None:
    """Neither a directory nor a path is a zone."""
    with pytest.raises(JobError, match="there is no time zone") as caught:
        check_zone(zone)
    assert caught.value.remedy


def test_a_misspelt_zone_is_guessed() -> None:
    """The usual mistake is the case of a letter."""
    with pytest.raises(JobError) as caught:
        read_cron("@daily", "europe/berlin")
    assert caught.value.remedy == "did you mean 'Europe/Berlin'?"


# ---- daylight saving ----------------------------------------------------------------------------


@pytest.mark.req("JOBS:cron")
@pytest.mark.parametrize(
    ("line", "fires"),
    [
        ("30 2 * * *", ["03:00+0200"]),
        ("0,20,40 2 * * *", ["03:00+0200"]),
        ("30 1,2,3 * * *", ["01:30+0100", "03:00+0200", "03:30+0200"]),
        ("0 2-4 * * *", ["03:00+0200", "04:00+0200"]),
        ("10,20 30 2 * * *", ["03:00+0200"]),
        ("0 0 29 * *", ["00:00+0100"]),
        ("*/30 1-3 * * *", ["01:00+0100", "01:30+0100", "03:00+0200", "03:30+0200"]),
        ("* 2 * * *", []),
    ],
)
def test_when_the_clock_goes_forward(line: str, fires: list[str]) -> None:
    """A fixed time that is left out fires once, at the change; an interval just goes on."""
    assert on(FORWARD, line) == fires


@pytest.mark.req("JOBS:cron")
@pytest.mark.parametrize(
    ("line", "fires"),
    [
        ("30 2 * * *", ["02:30+0200"]),
        ("0,45 2 * * *", ["02:00+0200", "02:45+0200"]),
        ("15 30 2 * * *", ["02:30:15+0200"]),
        ("30 1-3 * * *", ["01:30+0200", "02:30+0200", "03:30+0100"]),
        ("*/30 2 * * *", ["02:00+0200", "02:30+0200", "02:00+0100", "02:30+0100"]),
        ("*/30 59 2 * * *", ["02:59+0200", "02:59:30+0200"]),
    ],
)
def test_when_the_clock_goes_back(line: str, fires: list[str]) -> None:
    """A fixed time that comes twice fires at the first; an interval goes on through both."""
    assert on(BACK, line) == fires


@pytest.mark.req("JOBS:cron")
def test_hours_of_the_change_are_all_there() -> None:
    """An hourly line fires 23 and 25 times on the days of the changes."""
    assert len(on(FORWARD, "@hourly")) == 23
    assert len(on(BACK, "@hourly")) == 25
    assert len(on(BACK, "*/10 * * * *")) == 150


def test_a_change_by_half_an_hour() -> None:
    """Lord Howe sets its clock back from 02:00 to 01:30."""
    assert on((2026, 4, 5), "*/30 0-2 * * *", "Australia/Lord_Howe") == [
        "00:00+1100",
        "00:30+1100",
        "01:00+1100",
        "01:30+1100",
        "01:30+1030",
        "02:00+1030",
        "02:30+1030",
    ]


ZONES = (
    "UTC",
    BERLIN,
    "America/Havana",  # changes at midnight
    "America/Santiago",
    "Australia/Lord_Howe",  # by half an hour
    "Antarctica/Troll",  # by two hours
    "Africa/Casablanca",  # for Ramadan
    "Asia/Kathmandu",
)


@cache
def changes(zone: str) -> list[float]:
    """Hours of 2026 and 2027 in which the zone's clock is set, or any hour if it never is."""
    hours = [1_767_225_600.0 + 3600 * n for n in range(2 * 365 * 24)]
    offsets = [datetime.fromtimestamp(at, ZoneInfo(zone)).utcoffset() for at in hours]
    found = [at for at, a, b in zip(hours, offsets, offsets[1:], strict=False) if a != b]
    return found or hours[:1]


@st.composite
def places(draw: st.DrawFn) -> tuple[str, float]:
    """A zone and an instant, mostly near a change of its clock."""
    zone = draw(st.sampled_from(ZONES))
    near = draw(st.sampled_from(changes(zone)))
    return zone, near + 60.0 * draw(st.integers(-300, 300) | st.integers(-100_000, 100_000))


lines = st.sampled_from(
    [
        "*/10 * * * *",
        "0 */2 * * *",
        "* 2 * * *",
        "30 * * * *",
        "15 2 * * *",
        "0,45 0-3 * * *",
        "7,37 23,0,1 * * *",
        "10,50 30 1,2 * * *",
        "*/20 15 * * * *",
        "0 0 * * SUN",
    ]
)


@given(lines, places(), st.integers(1, 200))
def test_where_one_begins_to_look_makes_no_difference(
    line: str, place: tuple[str, float], step: int
) -> None:
    """What a schedule stores is only an instant: asking from any fire gives the rest."""
    zone, start = place
    instants = read_cron(line, zone)
    fires = list(islice(instants(start), 12))
    assert fires == sorted(set(fires))
    assert fires[0] > start
    for n, at in enumerate(fires[:-1]):
        assert next(instants(at)) == fires[n + 1]
        between = min(at + step, fires[n + 1] - 1)
        assert next(instants(between)) == fires[n + 1]


def is_shown(minute: datetime, zone: ZoneInfo, hours: set[int], minutes: set[int]) -> bool:
    """Whether a clock shows one of these times."""
    local = minute.astimezone(zone)
    return local.hour in hours and local.minute in minutes


@pytest.mark.parametrize(
    ("line", "hours", "minutes"),
    [
        ("*/10 * * * *", set(range(24)), set(range(0, 60, 10))),
        ("45 */3 * * *", set(range(0, 24, 3)), {45}),
        ("*/30 0-2 * * *", {0, 1, 2}, {0, 30}),
    ],
)
@given(place=places())
def test_intervals_fire_whenever_the_clock_shows_their_times(
    line: str, hours: set[int], minutes: set[int], place: tuple[str, float]
) -> None:
    """Compared with a look at the clock in every minute of a day."""
    zone, start = place
    begin = datetime.fromtimestamp(start, UTC)
    day = [begin + timedelta(minutes=n) for n in range(1, 1441)]
    seen = [m.timestamp() for m in day if is_shown(m, ZoneInfo(zone), hours, minutes)]
    assert until(read_cron(line, zone), start, day[-1].timestamp()) == seen


def until(instants: Instants, start: float, end: float) -> list[float]:
    """The fires of a stretch of time."""
    found = []
    for at in instants(start):
        if at > end:
            break
        found.append(at)
    return found
