"""Refuses dead letters that would go back to where messages are read from, in an endless loop."""

from __future__ import annotations

from ergon_framework.errors import ConfigurationError


def refuse_own_dead_letters(**places: str | None) -> None:
    """Refuse a second place that is the first one: both are named by their options."""
    (source, read), (option, written) = places.items()
    if written is not None and written == read:
        raise ConfigurationError(
            f"{option} must not be {written[:80]}, the {source} itself: what is set aside there"
            " would be delivered again",
            remedy=f"give {option} another name, or leave it out",
        )


def is_taken_in(pattern: str, subject: str) -> bool:
    """Whether a pattern of NATS has a subject: ``*`` is one word, ``>`` all that follow."""
    wanted, words = pattern.split("."), subject.split(".")
    if wanted[-1] == ">" and len(words) >= len(wanted):
        wanted, words = wanted[:-1], words[: len(wanted) - 1]
    return len(wanted) == len(words) and all(
        one in ("*", word) for one, word in zip(wanted, words, strict=True)
    )
