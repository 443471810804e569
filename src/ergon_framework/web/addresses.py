"""How an id is written in an address.

A path cannot carry every id that a job may have. Browsers and proxies remove ``..`` and ``.`` from
a path, also where they are written ``%2E%2E``, and turn two slashes into one; and some words have a
meaning of their own below a path. Such an id is written in the query, with a dash in its place:
``/console/jobs/-?id=..``.
"""

from __future__ import annotations

from urllib.parse import quote, urlencode

IN_QUERY = "-"
"""What stands in the path when the id is in the query."""
_LOST = frozenset({"", ".", ".."})
_TAKEN = ("find", "bulk")
_ENDS = ("/why",)


def address_of(folder: str, unit: str, rest: str = "", **query: str) -> str:
    """The address of the page of an id, below a folder. ``rest`` follows the id in the path."""
    if is_path(unit):
        path = f"{folder}/{quote(unit)}{rest}"
    else:
        path, query = f"{folder}/{IN_QUERY}{rest}", {"id": unit, **query}
    return f"{path}?{urlencode(query, quote_via=quote, safe='')}" if query else path


def is_path(unit: str) -> bool:
    """Whether a path can carry this id."""
    is_clear = unit not in _TAKEN and not unit.endswith(_ENDS)
    return is_clear and _LOST.isdisjoint(unit.split("/"))


def named(in_path: str, in_query: str | None) -> str:
    """The id that an address names."""
    return in_query if in_query and in_path == IN_QUERY else in_path
