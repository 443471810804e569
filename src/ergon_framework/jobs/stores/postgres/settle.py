"""Applying transitions within one transaction, and whom to wake when it is committed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg

from ergon_framework.core.job import JobStatus
from ergon_framework.jobs.stores.documents import text_of
from ergon_framework.jobs.stores.postgres.rows import Row, StatementResult
from ergon_framework.jobs.stores.postgres.statements import (
    flags,
    numbers,
    statements,
    texts,
    writable,
)
from ergon_framework.jobs.stores.postgres.transactions import PostgresTx
from ergon_framework.jobs.stores.transitions import (
    DUE,
    ENDED,
    LATER,
    MAX_HISTORY_BYTES,
    MAX_HISTORY_ENTRIES,
    is_plain_completion,
    latest,
)
from ergon_framework.ports.jobstore import CancelRequest, Job, LeaseRenewal, Settlement
from ergon_framework.storage.postgres.pipeline import ByteaArray, Texts

KEY_LOCKS = 0x4A4F4253
"""The class of the advisory locks for limit keys: ``JOBS`` in ASCII."""

_SQL = statements("transitions.sql")


@dataclass(slots=True)
class Effects:
    """What settled jobs leave to be done after the commit."""

    freed: Counter[str] = field(default_factory=Counter)  # how many of a limit key have stopped
    long: list[tuple[int, str]] = field(default_factory=list)  # histories to be shortened
    is_work: bool = False  # something may have become claimable
    is_done: bool = False  # something has ended

    def note(self, settlement: Settlement, row: Row) -> None:
        """A transition was applied; the server answered with this row."""
        _, key, history, is_any_limited = row
        is_final = settlement.transition.status.is_final
        self.is_done |= is_final
        self.is_work |= is_any_limited or not is_final
        if key is not None:
            self.freed[key] += 1
        if history is not None:
            self.long.append((settlement.key, history))

    def add(self, other: Effects) -> None:
        """Take what others leave to be done along."""
        self.freed += other.freed
        self.long += other.long
        self.is_work |= other.is_work
        self.is_done |= other.is_done


class SettleBatch:
    """The transitions of one transaction: sent at once, and read when it is committed.

    Steps of flows are passed over: their transitions count as not applied. ``StepSettlement`` does
    those, in a transaction that has locked their flows.
    """

    def __init__(self, tx: PostgresTx, settlements: Sequence[Settlement]) -> None:
        self._settlements = settlements
        self._sent: list[tuple[list[Settlement], StatementResult]] = []
        for wave in waves(settlements):
            usual, others = _plain_and_other(wave)
            if usual:
                self._sent.append((usual, tx.execute(_SQL["complete"], _completions(usual))))
            if others:
                self._sent.append((others, tx.execute(_SQL["move"], _moves(others))))
                # Jobs that come back from their end: one that holds its key only while it waits has
                # given it up.
                back = [each.key for each in others if each.expected.is_final]
                if back:
                    tx.execute(_SQL["take_keys_back"], {"seqs": numbers(back)})
        self.effects = Effects()

    def read(self) -> list[bool]:
        """For each settlement, whether it was applied."""
        # Two settlements of one call may be about the same job, and only one of them is applied.
        applied: set[int] = set()  # by identity: two may be about one job
        for wave, cursor in self._sent:
            rows = {row[0]: row for row in cursor.fetchall()}
            for settlement in wave:
                row = rows.get(settlement.key)
                if row is not None:
                    applied.add(id(settlement))
                    self.effects.note(settlement, row)
        return [id(each) in applied for each in self._settlements]


def one_by_one(tx: PostgresTx, settlements: Sequence[Settlement]) -> tuple[list[bool], Effects]:
    """The same outside of a pipeline: one that is not unique is refused alone."""
    applied, effects = [], Effects()
    for settlement in settlements:
        try:
            # A savepoint: the violation of one settlement must not undo the others.
            with tx.connection.transaction():
                batch = SettleBatch(tx, [settlement])
                applied += batch.read()
                effects.add(batch.effects)
        except psycopg.errors.UniqueViolation:
            applied.append(False)  # it had ended, and another job holds its unique key now
    return applied, effects


def request_cancel(tx: PostgresTx, job: Job, request: CancelRequest) -> StatementResult:
    """Record that a running job is to be cancelled. Returns the job that was found."""
    values = {"note": text_of(request), "seq": job.key, "id": job.id, "fence": job.fence}
    return tx.execute(_SQL["request_cancel"], values)


def cancel_requests(tx: PostgresTx, claims: Sequence[LeaseRenewal]) -> StatementResult:
    """Which of these claims are to be cancelled: their ids, and what was noted."""
    values = {
        "seqs": numbers([each.key for each in claims]),
        "ids": texts([each.id for each in claims]),
        "fences": numbers([each.fence for each in claims]),
    }
    return tx.execute(_SQL["cancel_requests"], values)


def shorten(tx: PostgresTx, long: Iterable[tuple[int, str]]) -> None:
    """Keep the latest part of histories."""
    for seq, history in long:
        values = {"seq": seq, "long": history, "history": latest(history)}
        tx.execute(_SQL["set_history"], values)


def lock_keys(tx: PostgresTx, keys: Iterable[str]) -> None:
    """Lock limit keys: no other transaction starts or wakes jobs of them until this one ends."""
    tx.execute(_SQL["lock_keys"], {"class": KEY_LOCKS, "keys": texts(keys)})


def try_keys(tx: PostgresTx, keys: Iterable[str]) -> StatementResult:
    """The same without waiting; answers with the keys that were free, and are locked now."""
    return tx.execute(_SQL["try_keys"], {"class": KEY_LOCKS, "keys": texts(keys)})


def wake(tx: PostgresTx, freed: Counter[str]) -> StatementResult:
    """Let jobs go that wait for limit keys; answers with those that go.

    Without the lock of a key, a job that begins to wait for it now may be missed. To wake
    too many does no harm: claims judge them again.
    """
    values = {"keys": texts(freed), "freed": numbers(freed.values())}
    return tx.execute(_SQL["wake"], values)


def blocked_keys(tx: PostgresTx, after: str, limit: int) -> StatementResult:
    """Limit keys that jobs wait for."""
    return tx.execute(_SQL["blocked_keys"], {"after": after, "limit": limit})


def were_applied(tx: PostgresTx, settlements: Sequence[Settlement]) -> StatementResult:
    """Which transitions stand in their jobs' histories: their places, from 1 on, and limit keys."""
    values = {
        "seqs": numbers([each.key for each in settlements]),
        "ids": texts([each.id for each in settlements]),
        "entries": Texts([each.entry for each in settlements]),
    }
    return tx.execute(_SQL["were_applied"], values)


def waves(settlements: Sequence[Settlement]) -> list[list[Settlement]]:
    """One statement changes a job at most once: a second transition of a job goes into the next."""
    found: list[dict[Any, Settlement]] = []
    for settlement in settlements:
        for wave in found:
            if settlement.key not in wave:
                wave[settlement.key] = settlement
                break
        else:
            found.append({settlement.key: settlement})
    # By number, as every transaction that changes several jobs does: no deadlock can come of it.
    return [[wave[key] for key in sorted(wave)] for wave in found]


def _plain_and_other(settlements: list[Settlement]) -> tuple[list[Settlement], list[Settlement]]:
    """The usual ends, and all other moves."""
    usual: list[Settlement] = []
    others: list[Settlement] = []
    for each in settlements:
        (usual if is_plain_completion(each) else others).append(each)
    return usual, others


def _completions(settlements: list[Settlement]) -> dict[str, Any]:
    return _conditions(settlements) | {
        "results": ByteaArray([each.result or b"null" for each in settlements]),
    }


def _moves(settlements: list[Settlement]) -> dict[str, Any]:
    return (
        _conditions(settlements)
        | changes(settlements)
        | {
            "expected": texts([each.expected.value for each in settlements]),
            "rescues": flags([each.if_expired for each in settlements]),
            "stages": numbers([stage_of(each) for each in settlements]),
            "resets": flags([each.transition.is_reset for each in settlements]),
        }
    )


def changes(settlements: Sequence[Settlement]) -> dict[str, Any]:
    """What transitions write that are no plain completions."""
    transitions = [each.transition for each in settlements]
    return {
        "statuses": texts([transition.status.value for transition in transitions]),
        "solos": flags([transition.is_solo for transition in transitions]),
        "whys": texts([writable(transition.why) for transition in transitions]),
        "delays": numbers([transition.delay for transition in transitions]),
        "lanes": texts([transition.lane or None for transition in transitions]),
        "results": ByteaArray([_result(each) for each in settlements]),
        "failures": texts(
            [
                None if transition.failure is None else text_of(transition.failure)
                for transition in transitions
            ]
        ),
        "longest": MAX_HISTORY_BYTES,
        "most": MAX_HISTORY_ENTRIES,
    }


def _conditions(settlements: list[Settlement]) -> dict[str, Any]:
    """What is written down about transitions, and where the jobs must stand for them."""
    return {
        "seqs": numbers([each.key for each in settlements]),
        "ids": texts([each.id for each in settlements]),
        "fences": numbers([each.fence for each in settlements]),
        "attempts": numbers([each.transition.attempts for each in settlements]),
        "excuses": numbers([each.transition.excused for each in settlements]),
        "keeps": numbers([_keep(each) for each in settlements]),
        "entries": Texts([each.entry for each in settlements]),
    }


def stage_of(settlement: Settlement) -> int:
    """Where a transition puts a job that belongs to no flow."""
    transition = settlement.transition
    if transition.status.is_final:
        return ENDED
    return DUE if transition.delay <= 0.0 else LATER


def _keep(settlement: Settlement) -> float | None:
    return settlement.keep if settlement.transition.status.is_final else None


def _result(settlement: Settlement) -> bytes | None:
    if settlement.transition.status is JobStatus.COMPLETED:
        return settlement.result or b"null"
    return settlement.result if settlement.transition.status.is_final else None
