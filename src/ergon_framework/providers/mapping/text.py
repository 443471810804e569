"""The words of a canonical error: short, on one line, and without secrets."""

from __future__ import annotations

from ergon_framework import redaction
from ergon_framework.errors import describe

LONGEST_MESSAGE = 500
"""Characters of a message; the raw exception, which is kept as the cause, has the rest."""

_LONGEST_READ = 4000


def message_of(error: BaseException) -> str:
    """The name of an exception and what it says, fit for logs, rows and dead letters.

    Only the first line: what follows is detail, such as the parameters of an SQL statement.
    """
    name, _, text = describe(error).partition(": ")
    line = text.strip().partition("\n")[0]
    return veiled(line, f"{name}: ") if line else name


def veiled(text: str, title: str = "") -> str:
    """A text without what looks like a secret, and not longer than a message may be."""
    text = title + redaction.message(text[:_LONGEST_READ])
    if not text.isprintable():  # databases refuse some of these, and terminals obey others
        text = "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in text)
    return text if len(text) <= LONGEST_MESSAGE else text[: LONGEST_MESSAGE - 1] + "…"
