"""What should be, beside what is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Sum:
    """One line of the table."""

    what: str
    expected: int | str
    found: int | str


def problems(sums: Sequence[Sum]) -> list[str]:
    """Every line that is not as it should be, in words."""
    return [
        f"{each.what} is {each.found}, and should be {each.expected}"
        for each in sums
        if each.found != each.expected
    ]


def table(sums: Sequence[Sum]) -> str:
    """All of them as plain text."""
    width = max(len(each.what) for each in sums)
    rows = [(each.what, str(each.expected), str(each.found)) for each in sums]
    return "\n".join(
        f"{what:<{width}}  {expected:>8}  {found:>8}"
        for what, expected, found in [("", "expected", "found"), *rows]
    )
