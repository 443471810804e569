"""What connectors over JSON share: whether a payload comes back as it went in."""

from __future__ import annotations

from typing import Any


def difference(given: Any, found: Any, path: str) -> tuple[str, str] | None:
    """Where what comes back differs first and how, without any value; None when it is equal."""
    if given == found:
        return None
    pairs: list[tuple[str, Any, Any]] = []
    if isinstance(given, dict) and isinstance(found, dict) and given.keys() == found.keys():
        pairs = [(f"{path}[{_short(key)}]", given[key], found[key]) for key in given]
    elif isinstance(given, list) and isinstance(found, list) and len(given) == len(found):
        pairs = [(f"{path}[{n}]", *both) for n, both in enumerate(zip(given, found, strict=True))]
    inner = (difference(one, other, at) for at, one, other in pairs)
    told = f"is of type {type(given).__name__} and would come back as {type(found).__name__}"
    return next((each for each in inner if each is not None), (path, told))


def _short(key: object) -> str:
    text = str(key)
    return ascii(text if len(text) <= 40 else text[:40] + "…")
