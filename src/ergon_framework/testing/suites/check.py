"""How a check is written: a function of its subject that raises when it is not content."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, NoReturn, TypeVar

S = TypeVar("S")


class CheckFailed(AssertionError):
    """The subject does not do what the check's sentence says."""


@dataclass(frozen=True, slots=True)
class Check(Generic[S]):
    """A named sentence about a subject, and the function that tries it out."""

    name: str
    sentence: str
    run: Callable[[S], None]
    needs: frozenset[str]
    required: bool
    colours: tuple[str, ...]


def register(checks: list[Check[S]]) -> Callable[..., Callable[[Callable[[S], None]], None]]:
    """A decorator that adds a function to ``checks``, under its name and with its docstring."""

    def check(
        *needs: str, required: bool = True, colours: tuple[str, ...] = ("sync", "async")
    ) -> Callable[[Callable[[S], None]], None]:
        def add(run: Callable[[S], None]) -> None:
            sentence = (run.__doc__ or "").strip()
            checks.append(Check(run.__name__, sentence, run, frozenset(needs), required, colours))

        return add

    return check


def expect(condition: object, complaint: str) -> None:
    """Fail the check with ``complaint`` unless ``condition`` holds."""
    if not condition:
        fail(complaint)


def fail(complaint: str) -> NoReturn:
    """Fail the check."""
    raise CheckFailed(complaint)
