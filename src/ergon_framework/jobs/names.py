"""What a name or a key may be: the same for what clients hand in and for what settings say."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeAlias

from ergon_framework.errors import JobError

LONGEST = 255

Check: TypeAlias = Callable[[str, Any], Any]

# Control characters, what ends a line somewhere, and what UTF-8 cannot carry.
FORBIDDEN = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def name(field: str, value: Any) -> str:
    """The name of a handler or a queue."""
    found = _text(field, value, LONGEST)
    if found[0] == " " or found[-1] == " ":
        raise refusal(field, "begins or ends with a blank", "write it without")
    return found


def text(longest: int = LONGEST) -> Check:
    """A key of so many characters at most."""
    return lambda field, value: _text(field, value, longest)


def _text(field: str, value: Any, longest: int) -> str:
    if not isinstance(value, str):
        raise refusal(field, f"must be text, not {type(value).__name__}", "write it as text")
    if not value:
        raise refusal(field, "is empty", "give it at least one character")
    if len(value) > longest:
        problem = f"has {len(value):,} characters, and the limit is {longest}"
        raise refusal(field, problem, "shorten it, for example to a hash")
    if not (value.isascii() and value.isprintable()):
        found = FORBIDDEN.search(value)
        if found is not None:
            problem = f"holds the control character {found[0]!a} at position {found.start()}"
            raise refusal(field, problem, "use printable characters only")
    return value if type(value) is str else str(value)


def refusal(field: str, problem: str, remedy: str) -> JobError:
    """An error that names the field."""
    return JobError(f"{field} {problem}", remedy=remedy, details={"field": field})
