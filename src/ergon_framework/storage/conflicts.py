"""Bounded retries of optimistic writes: read, decide, write if nothing changed, else start over.

Every store has such loops: a compare-and-set that another process won, a unique row that another
process inserted first, a commit that was overtaken. This is the one place that bounds them.

    def attempt() -> Row:
        row = read()
        if not write_if_unchanged(row.version, changed(row)):
            raise ConflictError
        return row

    retry_conflicts(attempt, max_attempts=10, give_up=lambda: StoreUnavailableError("too busy"))

There is no delay between two attempts: the loser of a race has just learned what changed, and the
winner has finished. Retries after a failure of the store itself need a delay, and are decided by
``core.retry.judge``, not here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class ConflictError(Exception):
    """Another writer changed what was read; nothing was written. Never leaves a store."""


def _is_conflict_error(error: Exception) -> bool:
    return isinstance(error, ConflictError)


def retry_conflicts(
    attempt: Callable[[], T],
    *,
    max_attempts: int,
    give_up: Callable[[], Exception] | None = None,
    is_conflict: Callable[[Exception], bool] = _is_conflict_error,
    before_retry: Callable[[], object] | None = None,
) -> T:
    """Call ``attempt`` until it ends without a conflict, at most ``max_attempts`` times.

    ``attempt`` has to read anew each time; it reports a lost race by raising ``ConflictError``, or
    an error that ``is_conflict`` recognizes. Every other error is raised at once.

    ``before_retry`` is called between two attempts, for callers that have to drop what they
    remembered. After the last conflict ``give_up()`` is raised; without it, the conflict itself.
    """
    for left in range(max_attempts - 1, -1, -1):
        try:
            return attempt()
        except Exception as error:
            if not is_conflict(error):
                raise
            if not left:
                if give_up is None:
                    raise
                raise give_up() from error
        # Outside of the handler: what goes wrong here is not a consequence of the conflict.
        if before_retry is not None:
            before_retry()
    raise ValueError("at least one attempt has to be made")
