"""Durations, counts and failures in the words that people are told them in."""

from __future__ import annotations

_LONGEST = 200


def coded(code: object, message: object) -> str:
    """A failure's code and, where there is one, its message."""
    told = quoted(message)
    if told.startswith(f"{code}: "):  # some messages begin with the name of their class
        return told
    return f"{code}: {told}" if told else str(code)


def quoted(message: object) -> str:
    """One line of somebody else's text, without the dot that our sentence brings."""
    text = " ".join(str(message or "").split())
    return (text if len(text) <= _LONGEST else text[:_LONGEST] + "…").rstrip(".")


def times(count: int, what: str) -> str:
    """So many of something."""
    plural = what[:-1] + "ies" if what.endswith("y") else what + "s"
    return f"{count} {what if count == 1 else plural}"


def span(seconds: float) -> str:
    """A duration in the largest unit that fits."""
    seconds = max(0.0, seconds)
    for unit, size in (("days", 86_400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} seconds"
