"""The words of a canonical error: short, on one line, and without secrets."""

from __future__ import annotations

import re

from ergon_framework.errors import describe

LONGEST_MESSAGE = 500
"""Characters of a message; the raw exception, which is kept as the cause, has the rest."""

_LONGEST_READ = 4000

_VEILED_NAMES = (
    r"authorization|api[ _-]?key|access[ _-]?key|[\w-]{0,40}(?:token|secret|password)"
    r"|passwd|pwd|credentials?|cookie|signature"
)
_VEILS = (
    # user:password@ in a URL: up to the last @ before the path, as a password may hold one
    ("@", re.compile(r"(\w://)[^/\s]*@"), r"\1***@"),
    # query strings and fragments, of whole URLs and of paths alone
    ("?", re.compile(r"(?<=\S)\?\S+"), "?***"),
    ("#", re.compile(r"(?<=\S)#[^\s=#]*=\S*"), "#***"),
    ("bearer ", re.compile(r"\b(bearer) \S+", re.IGNORECASE), r"\1 ***"),
    ("basic ", re.compile(r"\b(basic) [\w+/=-]{6,}", re.IGNORECASE), r"\1 ***"),
    ("=", re.compile(rf"\b({_VEILED_NAMES})(['\"]?\s?=\s?)\S+", re.IGNORECASE), r"\1\2***"),
    (":", re.compile(rf"\b({_VEILED_NAMES})(['\"]?\s?:\s?)\S+", re.IGNORECASE), r"\1\2***"),
)
"""What each secret looks like; without its mark there is none, and nothing to search for."""


def message_of(error: BaseException) -> str:
    """The name of an exception and what it says, fit for logs, rows and dead letters.

    Only the first line: what follows is detail, such as the parameters of an SQL statement.
    """
    name, _, text = describe(error).partition(": ")
    line = text.strip().partition("\n")[0]
    return veiled(line, f"{name}: ") if line else name


def veiled(text: str, title: str = "") -> str:
    """A text without what looks like a secret, and not longer than a message may be."""
    text = text[:_LONGEST_READ]
    lowered = text.lower()
    for mark, pattern, replacement in _VEILS:
        if mark in lowered:
            text = pattern.sub(replacement, text)
    text = title + text
    if not text.isprintable():  # databases refuse some of these, and terminals obey others
        text = "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in text)
    return text if len(text) <= LONGEST_MESSAGE else text[: LONGEST_MESSAGE - 1] + "…"
