"""Optimistic writes: read, decide, write if nothing has changed; again after a conflict.

Every store has such loops: a compare-and-swap that somebody else won, a unique row that somebody
else inserted first, a commit that was overtaken. This is the one place where they are bounded.
Nothing waits between two tries: whoever lost a race has just learned what changed. What is tried
again after a failure of the store itself is decided by ``core.retry.judge``, not here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class ConflictError(Exception):
    """Somebody else changed what was read; nothing was written. Never leaves a store."""


def is_conflict(error: Exception) -> bool:
    """Whether an attempt says that it lost a race."""
    return isinstance(error, ConflictError)


def retry_conflicts(
    attempt: Callable[[], T],
    *,
    most: int,
    give_up: Callable[[], Exception] | None = None,
    is_conflict: Callable[[Exception], bool] = is_conflict,
) -> T:
    """Make up to ``most`` attempts until one has no conflict; what it returned.

    Each attempt reads anew. After the last one ``give_up()`` is raised, or without it the conflict
    itself. Any other error is raised at once.
    """
    for left in range(most - 1, -1, -1):
        try:
            return attempt()
        except Exception as error:
            if not is_conflict(error):
                raise
            if not left:
                if give_up is None:
                    raise
                raise give_up() from error
    raise ValueError("at least one attempt has to be made")
