"""Jobs and steps that have just completed, many with one statement: nearly all settlements are so.

SQLite opens every index of the table for each statement, and that takes about as long as to change
a row. One statement for many rows tells only how many of them were where their workers left them.
If it is not all of them, :class:`NotAllCompleted` undoes the transaction, and the caller settles
one by one.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from enum import IntEnum
from functools import lru_cache
from itertools import chain
from typing import Any, Protocol

import msgspec

from ergon_framework.core.flow import FlowChange, StepEnded
from ergon_framework.core.job import JobStatus
from ergon_framework.errors import JobNotFoundError
from ergon_framework.jobs.stores.documents import feeds_from
from ergon_framework.jobs.stores.flow_settlement import FlowSettlement
from ergon_framework.jobs.stores.sqlite.many_rows import for_many
from ergon_framework.jobs.stores.sqlite.rows import SQL
from ergon_framework.jobs.stores.transitions import is_plain_completion
from ergon_framework.ports.flow import flow_of
from ergon_framework.ports.jobstore import Settlement
from ergon_framework.storage.sql_files import load

_TRANSITIONS = load(SQL, "transitions.sql")
_FLOWS = load(SQL, "flows.sql")


class CompletionKind(IntEnum):
    """What a settlement is written together with."""

    OTHER = 0  # nothing
    JOB = 1  # other completions of jobs that belong to no flow
    STEP = 2  # other completions of steps that count where they did when they were claimed


SIZES = (32, 8)
"""Rows of one statement, the largest number first; what is left is settled one by one."""
COMPLETED_STEP = StepEnded(JobStatus.COMPLETED)


class CompletionTransaction(Protocol):
    """The transaction that completions are written in."""

    cursor: sqlite3.Cursor
    now: float

    @property
    def flows(self) -> FlowSettlement:
        """The flows that it changes."""

    def completed(self, settlements: Sequence[Settlement]) -> None:
        """Jobs have completed: what follows for others."""


class NotAllCompleted(Exception):
    """Some job of a batch was not where its worker left it; the transaction is to be undone."""


def job_values(settlement: Settlement, now: float) -> tuple[Any, ...]:
    """What ``complete`` writes of a job."""
    transition = settlement.transition
    return (
        transition.attempts,
        transition.excused,
        bytearray(settlement.result or b"null"),
        now + (settlement.keep or 0.0),
        now,
        settlement.entry.decode(),
        settlement.key,
        settlement.id,
        settlement.fence,
    )


def step_values(settlement: Settlement, feeds: str, now: float) -> tuple[Any, ...]:
    """What ``complete_step`` writes of a step."""
    transition = settlement.transition
    return (
        transition.attempts,
        transition.excused,
        bytearray(settlement.result or b"null"),
        now,
        settlement.entry.decode(),
        settlement.key,
        settlement.id,
        settlement.fence,
        feeds,
    )


def kind_of(settlement: Settlement) -> CompletionKind:
    """With which others a settlement is written."""
    if not is_plain_completion(settlement):
        return CompletionKind.OTHER
    if not settlement.is_step:
        return CompletionKind.JOB
    # A step that has counted before counts no more, and one whose place nobody knows is looked at.
    is_known = settlement.feeds is not None and place_in(settlement.feeds) is not None
    return CompletionKind.STEP if is_known else CompletionKind.OTHER


def complete_many(
    tx: CompletionTransaction, kind: CompletionKind, settlements: Sequence[Settlement]
) -> int:
    """Complete the first of these, which are all of one kind, and answer how many it were."""
    complete = _complete_steps if kind is CompletionKind.STEP else _complete_jobs
    first = 0
    for size in SIZES:
        while first + size <= len(settlements):
            some = settlements[first : first + size]
            complete(tx, some)
            tx.completed(some)
            first += size
    return first


def _complete_jobs(tx: CompletionTransaction, settlements: Sequence[Settlement]) -> None:
    rows = [job_values(each, tx.now) for each in settlements]
    _write(tx, _TRANSITIONS["complete_many"], rows)


def _complete_steps(tx: CompletionTransaction, settlements: Sequence[Settlement]) -> None:
    rows = []
    for each in settlements:
        planned = plan_claimed(tx.flows, each)
        if planned is None:
            raise NotAllCompleted
        # Before the row is written: should it not be, all of the transaction is undone.
        tx.flows.accept(*planned, each.keep)
        rows.append(step_values(each, each.feeds or "", tx.now))
    _write(tx, _FLOWS["complete_steps"], rows)


def plan_claimed(
    flows: FlowSettlement, settlement: Settlement
) -> tuple[str, FlowChange, tuple[str, ...]] | None:
    """The flow of a completed step, what becomes of it, and the joins at which the step counts.

    None when the row has to be read. The place is as old as the claim: the flow may have ended and
    been deleted since then, and whoever reports so late is told that nothing was applied.
    """
    place = place_in(settlement.feeds or "")
    if place is None:
        return None
    flow_id, feeds = place
    try:
        change = flows.plan(flow_id, COMPLETED_STEP)
    except JobNotFoundError:
        return None
    return None if change is None or not change.counts else (flow_id, change, feeds)


@lru_cache(maxsize=1024)  # as many as a worker settles at once
def place_in(feeds: str) -> tuple[str, tuple[str, ...]] | None:
    """The flow of a step that has not counted, and the joins at which it will.

    None when it has counted, and when the text is damaged.
    """
    try:
        joins = feeds_from(feeds)
    except msgspec.MsgspecError:
        return None
    flow_id = flow_of(joins[0]) if joins else ""
    return (flow_id, joins) if flow_id else None


def _write(tx: CompletionTransaction, statement: str, rows: Sequence[tuple[Any, ...]]) -> None:
    values = [*chain.from_iterable(rows)]
    written = tx.cursor.execute(for_many(statement, len(rows)), values).rowcount
    if written != len(rows):
        raise NotAllCompleted
