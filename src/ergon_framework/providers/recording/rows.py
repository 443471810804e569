"""What a recorder asks of rows, and of the errors of a store that was given some."""

from __future__ import annotations

from collections.abc import Sequence

from ergon_framework.errors import StoreError
from ergon_framework.ports.providerstore import AttemptRow, Batch, Outcome


def is_final(row: AttemptRow) -> bool:
    """Whether the row says how an execution ended; others may be done without."""
    return row.attempt_number > 0 and row.outcome != Outcome.RETRY


def says_away(error: Exception) -> bool:
    """Whether the store said that the fault is its own, and not of what it was given."""
    return isinstance(error, StoreError) and type(error) is not StoreError


def merged(units: Sequence[Batch]) -> Batch:
    """All of them in one."""
    whole = Batch()
    for unit in units:
        whole.attempts += unit.attempts
        whole.letters += unit.letters
    return whole


def row_count(batches: Sequence[Batch]) -> int:
    """How many rows and letters they hold."""
    return sum(len(batch.attempts) + len(batch.letters) for batch in batches)
