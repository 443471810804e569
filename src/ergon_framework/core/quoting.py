"""Somebody else's text in a line of ours: nothing in it can steer a terminal or begin a line."""

from __future__ import annotations

import json


def one_line(text: str) -> str:
    """The text with everything escaped that is not printable, line ends included."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else _escaped(each) for each in text)


def several_lines(text: str) -> str:
    """The same line by line; only line feeds are line ends."""
    return "\n".join(one_line(line) for line in text.expandtabs(4).split("\n"))


def indented(text: str, mark: str = "  | ") -> str:
    """Several lines, each with a mark in front that tells whose they are."""
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


def _escaped(char: str) -> str:
    return char.encode("unicode_escape").decode()
