"""Statements for many rows at once.

SQLite opens every index of a table for each statement, and that may take longer than the row.
"""

from __future__ import annotations

import re
from functools import cache

_PARAMETER = re.compile(r"\?(\d+)")
_VALUES = "VALUES "


@cache
def for_many(statement: str, times: int) -> str:
    """A statement with one row of values, whose parameters have numbers, as it takes that many."""
    first = statement.rindex(_VALUES) + len(_VALUES)
    end = _end_of_row(statement, first)
    row = statement[first:end]
    width = max(int(number) for number in _PARAMETER.findall(row))

    def nth(place: int) -> str:
        return _PARAMETER.sub(lambda found: f"?{int(found[1]) + place * width}", row)

    return f"{statement[:first]}{', '.join(map(nth, range(times)))}{statement[end:]}"


def _end_of_row(statement: str, first: int) -> int:
    depth = 0
    for place in range(first, len(statement)):
        depth += {"(": 1, ")": -1}.get(statement[place], 0)
        if not depth:
            return place + 1
    raise ValueError(f"no row of values ends in the statement {statement!r}")
