"""RFC 3339 text to seconds since the epoch and back, without a clock or a calendar library.

Seconds are floats, as everywhere in Ergon: exact to the microsecond until the year 2242. Minutes
are memorised: the calendar is the slow part, and the instants of one run share a few minutes.
"""

from __future__ import annotations

import math
import re
from functools import lru_cache

_DAY = 86_400
_ERA = 146_097  # days in 400 years, after which the calendar repeats itself
_EPOCH = 719_468  # days from 0000-03-01 to 1970-01-01
_EARLIEST = -62_167_219_200  # 0000-01-01T00:00:00Z
_END = 253_402_300_800  # 10000-01-01T00:00:00Z, which four digits cannot say
_MINUTE = re.compile(r"(\d{4})-(\d\d)-(\d\d)[Tt ](\d\d):(\d\d):", re.ASCII)
_SECONDS_AND_ZONE = re.compile(r"(\d\d)(?:\.(\d{1,9}))?(?:[Zz]|([+-]\d\d):(\d\d))", re.ASCII)
_MISSHAPEN = "not of the form 2025-01-01T12:00:00Z or 2025-01-01T12:00:00.5+02:00"


@lru_cache(maxsize=256)  # requests come in batches, which have one deadline
def parse_rfc3339(text: str) -> float:
    """The instant that an RFC 3339 text names, or a ValueError that says why it names none."""
    minute: int = _start_of_minute(text[:17])
    match = _SECONDS_AND_ZONE.fullmatch(text, 17)
    if match is None:
        raise ValueError(_MISSHAPEN)
    seconds, fraction, offset_hours, offset_minutes = match.groups()
    if seconds > "60":
        raise ValueError("there is no such time of day")
    at = minute + int(seconds)
    if offset_hours:
        at -= _offset(offset_hours, offset_minutes)
    if seconds == "60" and at % _DAY:
        raise ValueError("a leap second is the last one of a day in UTC")
    if not fraction:
        return float(at)
    scale: int = 10 ** len(fraction)
    return (at * scale + int(fraction)) / scale  # of integers, so that it is rounded only once


def format_rfc3339(at: float) -> str:
    """The instant in UTC, to the microsecond; a fraction of zero is left out."""
    if not _EARLIEST <= at < _END:  # false for NaN as well
        raise ValueError("not between the years 0000 and 9999")
    whole = math.floor(at)
    micros = round((at - whole) * 1_000_000)
    if micros == 1_000_000:
        whole, micros = whole + 1, 0
    minutes, seconds = divmod(whole, 60)
    start = _minute_text(minutes)
    return f"{start}{seconds:02}.{micros:06}Z" if micros else f"{start}{seconds:02}Z"


def _offset(hours: str, minutes: str) -> int:
    """The seconds by which a zone is ahead of UTC; ``hours`` carries the sign."""
    if hours[1:] > "23" or minutes > "59":
        raise ValueError("there is no such offset")
    seconds = int(hours[1:]) * 3600 + int(minutes) * 60
    return seconds if hours[0] == "+" else -seconds


# Both directions count years from March, so that the leap day is the last day of its year and
# months have the lengths 31 30 31 30 31, 31 30 31 30 31, 31 and whatever is left: (153 m + 2) / 5.


@lru_cache(maxsize=256)
def _start_of_minute(text: str) -> int:
    """Seconds since the epoch at which a ``yyyy-mm-ddThh:mm:`` begins, read as UTC."""
    match = _MINUTE.fullmatch(text)
    if match is None:
        raise ValueError(_MISSHAPEN)
    year, month, day, hour, minute = map(int, match.groups())
    is_leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    longest = (31, 28 + is_leap, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
    if not 1 <= month <= 12 or not 1 <= day <= longest[month - 1]:
        raise ValueError("there is no such day")
    if hour > 23 or minute > 59:
        raise ValueError("there is no such time of day")
    year -= month < 3
    day_of_year = (153 * ((month - 3) % 12) + 2) // 5 + day - 1
    days = year * 365 + year // 4 - year // 100 + year // 400 + day_of_year
    return (days - _EPOCH) * _DAY + hour * 3600 + minute * 60


@lru_cache(maxsize=256)
def _minute_text(minutes: int) -> str:
    """The ``yyyy-mm-ddThh:mm:`` that begins that many minutes after the epoch."""
    days, minute = divmod(minutes, 1440)
    era, day_of_era = divmod(days + _EPOCH, _ERA)
    year = (day_of_era - day_of_era // 1460 + day_of_era // 36524 - day_of_era // 146096) // 365
    day_of_year = day_of_era - (365 * year + year // 4 - year // 100)
    months = (5 * day_of_year + 2) // 153
    day = day_of_year - (153 * months + 2) // 5 + 1
    month = months + 3 if months < 10 else months - 9
    date = f"{era * 400 + year + (month < 3):04}-{month:02}-{day:02}"
    return f"{date}T{minute // 60:02}:{minute % 60:02}:"
