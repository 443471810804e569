"""What an operator may set on a queue, whichever store keeps it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from ergon_framework.errors import JobError

_KNOWN = {"is_paused": bool, "max_active": int | None, "rate": float | None, "burst": int}


def checked_changes(changes: Mapping[str, Any]) -> dict[str, Any]:
    """The values to set, by name; ``JobError`` names the one that is wrong."""
    return {name: _checked(name, value) for name, value in changes.items()}


def _checked(name: str, value: Any) -> Any:
    if name not in _KNOWN:
        raise JobError(f"a queue has no setting {name!r}", remedy=f"known are {', '.join(_KNOWN)}")
    try:
        found = msgspec.convert(value, _KNOWN[name])
    except msgspec.ValidationError as error:
        raise JobError(f"{name} of a queue: {error}", remedy="give a value of that type") from None
    if found is not None and name != "is_paused" and not found > 0:
        raise JobError(f"{name} of a queue must be above zero", remedy="None means no limit")
    return found
