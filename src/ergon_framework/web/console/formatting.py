"""Numbers, times and states as the pages write them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import NamedTuple

from ergon_framework.core.job import JobStatus
from ergon_framework.storage.urls import shown_url, without_password

NOTHING = "\N{EN DASH}"
"""The text for a value that does not exist."""


class Figure(NamedTuple):
    """A count, and whether there are more."""

    number: int
    is_more: bool = False


class Chip(NamedTuple):
    """A state. Its level decides colour and shape, so that it can be read without colours."""

    level: str
    """``ok``, ``run``, ``wait``, ``warn`` or ``bad``."""
    text: str


_STATUS = {
    JobStatus.PENDING: Chip("wait", "waiting"),
    JobStatus.ACTIVE: Chip("run", "running"),
    JobStatus.RETRYING: Chip("warn", "retrying"),
    JobStatus.COMPLETED: Chip("ok", "completed"),
    JobStatus.FAILED: Chip("bad", "gave up"),
    JobStatus.CANCELLED: Chip("wait", "cancelled"),
}


# Numbers, ids and quoted texts are what differs between two errors of one cause.
_VARIES = re.compile(r"'[^']*'|\"[^\"]*\"|\b[0-9a-fA-F]{8,}(?:-[0-9a-fA-F]{4,})*\b|\d+")


def error_family(handler: str, code: str, message: str) -> tuple[str, str, str]:
    """What errors of one cause have in common, so that they are counted and shown as one."""
    return handler, code, _VARIES.sub("…", message)


def status_chip(status: str) -> Chip:
    """The state of a job."""
    try:
        return _STATUS[JobStatus(status)]
    except ValueError:
        return Chip("bad", status)


def number(value: float | None, is_more: bool = False) -> str:
    """A count with separated thousands, or a rate with one more digit than it needs.

    ``is_more``: there are at least as many.
    """
    if value is None:
        return NOTHING
    if isinstance(value, int) or value >= 100 or value == 0:
        return f"{value:,.0f}" + ("+" if is_more else "")
    return f"{value:.2f}" if value < 10 else f"{value:.1f}"


_UNITS = ((86_400, "d"), (3600, "h"), (60, "min"))


def span(seconds: float | None) -> str:
    """A duration in the largest unit that fits, short enough for a column."""
    if seconds is None:
        return NOTHING
    seconds = max(0.0, seconds)
    for size, unit in _UNITS:
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    if seconds >= 10:
        return f"{seconds:.0f} s"
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1000:.0f} ms"


def instant(text: str | None) -> datetime | None:
    """The instant of a text in RFC 3339; None for anything else."""
    if not text:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def clock(text: str | None) -> str:
    """An instant in UTC, to the second, for people."""
    found = instant(text)
    return NOTHING if found is None else found.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")


_PRECISE = re.compile(r"\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z")


def shortened(text: str) -> str:
    """A sentence with its instants in the form of :func:`clock`."""
    return _PRECISE.sub(lambda found: clock(found[0]), text)


def sentence(text: str, most: int = 200) -> str:
    """A text with a capital first letter, cut to the length of a heading.

    All other letters stay as they are, because they may be part of an id.
    """
    return text[:1].upper() + (text[1:] if len(text) <= most else f"{text[1:most]}…")


def size(count: int) -> str:
    """A number of bytes, for people."""
    if count < 2000:
        return f"{count:,} bytes"
    if count < 2_000_000:
        return f"{count / 1000:,.0f} kB"
    return f"{count / 1_000_000:,.1f} MB"


class Block(NamedTuple):
    """A part of an explanation: a sentence, the command in it, or the lines below it."""

    text: str
    command: str = ""
    lines: str = ""


_COMMAND = re.compile(r"^(.*[:.,])  (\S.*)$", re.DOTALL)
_MARK = "  | "


def blocks(sentences: Iterable[str]) -> list[Block]:
    """The sentences of ``ergon why``, with commands and quoted lines as parts of their own."""
    found: list[Block] = []
    for each in sentences:
        if each.startswith(_MARK):
            before = found.pop() if found else Block("")
            line = each.removeprefix(_MARK)
            found.append(before._replace(lines=f"{before.lines}\n{line}".lstrip("\n")))
            continue
        matched = _COMMAND.match(each)
        found.append(Block(matched[1], matched[2]) if matched else Block(each))
    return found


def client_code(url: str) -> tuple[str, str]:
    """Code that opens a store in a program, with a note about what is hidden of its URL."""
    shown = shown_url(url)
    named = json.dumps(shown or without_password(url), ensure_ascii=False)
    return f"with JobClient({named}) as client:", "" if shown else "with its password"
