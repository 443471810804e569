"""Text that people read: durations, counts and failures in words, and foreign text made safe.

Text from elsewhere (a message, a job's output) is escaped before it is printed, so that nothing in
it steers a terminal or looks like a line of ours.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence

_MAX_LENGTH = 200


def failure_text(code: object, message: object) -> str:
    """A failure's code, and its message if it has one."""
    sentence = one_sentence(message)
    if sentence.startswith(f"{code}: "):  # some messages begin with the name of their class
        return sentence
    return f"{code}: {sentence}" if sentence else str(code)


def one_sentence(message: object) -> str:
    """A message of other code on one line, without its final dot: our sentence has its own."""
    text = " ".join(str(message or "").split())
    return (text if len(text) <= _MAX_LENGTH else text[:_MAX_LENGTH] + "…").rstrip(".")


def counted(count: int, what: str) -> str:
    """A number with its noun in the singular or plural."""
    plural = what[:-1] + "ies" if what.endswith("y") else what + "s"
    return f"{count} {what if count == 1 else plural}"


def duration(seconds: float) -> str:
    """A duration in the largest unit that fits."""
    seconds = max(0.0, seconds)
    for unit, size in (("days", 86_400), ("hours", 3600), ("minutes", 60)):
        # Two of a unit at least: "90.0 minutes" says more than "1.5 hours".
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} seconds"


# ---- text from elsewhere in a line of ours: nothing in it steers a terminal or begins a line -----


def one_line(text: str) -> str:
    """The text with everything escaped that is not printable, line ends included."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else _escaped(each) for each in text)


def several_lines(text: str) -> str:
    """Like ``one_line``, line by line. Only line feeds end a line."""
    return "\n".join(one_line(line) for line in text.expandtabs(4).split("\n"))


def indented(text: str, mark: str = "  | ") -> str:
    """Several lines, each with a mark in front that shows where they come from."""
    return "\n".join(mark + line for line in several_lines(text).split("\n"))


def whole_record(text: str, mark: str = "  | ") -> str:
    """A record of several lines: each but the first has a mark, so that none looks like another."""
    if text.isprintable():
        return text
    first, *rest = several_lines(text).split("\n")
    marked = (line if line.startswith(mark) else mark + line for line in rest)
    return "\n".join((first, *marked))


def quoted_json(text: str) -> str:
    """JSON on one line, whose texts hold nothing that a terminal would obey; the same value."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else json.dumps(each)[1:-1] for each in text)


def toml_text(text: str) -> str:
    """A text as a settings file writes it, on one line."""
    safe = text.replace("\\", r"\\").replace('"', r"\"")
    return '"' + "".join(c if c.isprintable() else rf"\U{ord(c):08x}" for c in safe) + '"'


def toml_table(section: str, name: str) -> str:
    """The heading of a table as a settings file writes it, whatever its name is."""
    return f"[{section}.{_toml_key(name)}]"


def toml_heading(path: Iterable[object]) -> str:
    """The heading of the table at a path of keys."""
    return f"[{'.'.join(_toml_key(str(key)) for key in path)}]"


def _toml_key(name: str) -> str:
    return name if _BARE.fullmatch(name) else toml_text(name)


_BARE = re.compile("[A-Za-z0-9_-]+")


def _escaped(char: str) -> str:
    return char.encode("unicode_escape").decode()


def first_names(names: Sequence[str], most: int = 5) -> str:
    """The first few of many names, and how many more there are."""
    more = len(names) - most
    shown = ", ".join(names[:most])
    return f"{shown} and {more} more" if more > 0 else shown or "none"
