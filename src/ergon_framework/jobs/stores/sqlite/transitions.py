"""Every change of a job within one SQLite transaction: insert, settle, block, wake, set aside.

``SqliteTransitions`` also remembers whom to notify when the transaction is committed.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain, count, groupby
from typing import Any

from ergon_framework.core.claim import waits_for_token
from ergon_framework.core.flow import StepEnded
from ergon_framework.core.job import JobStatus, Transition
from ergon_framework.core.retention import STANDARD, JobRetention
from ergon_framework.core.unique import OnDuplicate, extended, is_held
from ergon_framework.errors import DuplicateJobError
from ergon_framework.jobs.stores.documents import (
    column_key,
    feeds_from,
    feeds_text,
    is_special,
    label_rows,
    options_text,
    states_from,
    step_options_text,
    text_of,
)
from ergon_framework.jobs.stores.flow_settlement import FlowSettlement, returned
from ergon_framework.jobs.stores.sqlite.completions import (
    SIZES,
    CompletionKind,
    complete_many,
    job_values,
    kind_of,
    place_in,
    plan_claimed,
    step_values,
)
from ergon_framework.jobs.stores.sqlite.flow_tables import SqliteFlowTables, flow_row
from ergon_framework.jobs.stores.sqlite.many_rows import for_many
from ergon_framework.jobs.stores.sqlite.rows import SQL, unreadable_row
from ergon_framework.jobs.stores.transitions import (
    DUE,
    JOINING,
    LATER,
    MAX_HISTORY_BYTES,
    MAX_HISTORY_ENTRIES,
    SIGNALLING,
    JobPosition,
    cancel_replaced,
    cancel_running,
    cancel_step,
    check_extension,
    complete_signal,
    due_at,
    expire,
    id_taken,
    is_plain_completion,
    latest,
    may_be_cancelled,
    on_duplicate,
)
from ergon_framework.jobs.stores.unreadable import Note, log_set_aside, note_of, was_status
from ergon_framework.ports.jobstore import (
    CancelRequest,
    EnqueueResult,
    Job,
    LeaseRenewal,
    NewJob,
    Settlement,
    cancel_request_in,
)
from ergon_framework.storage.sql_files import load
from ergon_framework.storage.sqlite.errors import is_moved_away

_TRANSITIONS = load(SQL, "transitions.sql")
_JOBS = load(SQL, "jobs.sql")
_COMPLETE = _TRANSITIONS["complete"]
_FLOWS = load(SQL, "flows.sql")
_COMPLETE_STEP = _FLOWS["complete_step"]
MAX_SINGLE_STEPS = 4
"""Up to so many steps are read one by one."""


class SqliteTransitions:
    """The transitions of one transaction."""

    __slots__ = (
        *("_flows", "_is_any_blocked", "_steps", "cursor", "is_done", "is_work", "now"),
        "retention",
    )

    def __init__(
        self, cursor: sqlite3.Cursor, now: float, retention: JobRetention = STANDARD
    ) -> None:
        self.cursor = cursor
        self.now = now
        self.retention = retention
        # Notifications wait for the commit: a worker woken before it would find nothing.
        self.is_work = False  # something may have become claimable
        self.is_done = False  # something has ended
        self._is_any_blocked: bool | None = None  # whether any job waits for a key; None: not read
        self._flows: FlowSettlement | None = None  # of the steps that were settled
        self._steps: dict[int, tuple[Any, ...]] = {}  # that were read before they are settled

    @property
    def flows(self) -> FlowSettlement:
        """The flows that this transaction changes."""
        if self._flows is None:
            self._flows = FlowSettlement(SqliteFlowTables(self))
        return self._flows

    def finish(self) -> None:
        """Do what the settlements of steps bring about: counts, releases and sweeps."""
        if self._flows is not None:
            self._flows.finish()

    def apply_all(
        self, settlements: Sequence[Settlement], *, are_together: bool = True
    ) -> list[bool]:
        """Apply transitions in their order; one by one unless ``are_together``.

        Together, many completions are one statement each, and :class:`NotAllCompleted` is raised
        when one of them cannot be applied: the transaction is to be undone then.
        """
        steps = [each for each in settlements if each.is_step]
        if len(steps) > MAX_SINGLE_STEPS:
            self._read_steps(steps)
        if are_together and len(settlements) >= SIZES[-1]:
            applied = self._apply_together(settlements)
        else:
            applied = [self.apply(settlement) for settlement in settlements]
        self._steps = {}
        return applied

    def _apply_together(self, settlements: Sequence[Settlement]) -> list[bool]:
        applied: list[bool] = []
        for kind, some in groupby(settlements, kind_of):
            run = list(some)
            done = 0 if kind is CompletionKind.OTHER else complete_many(self, kind, run)
            applied += [True] * done
            applied += [self.apply(each) for each in run[done:]]
        return applied

    def completed(self, settlements: Sequence[Settlement]) -> None:
        """Jobs have completed: what follows for others."""
        self.is_done = True
        if self._is_any_blocked is not False:
            for each in settlements:
                self._release(each.key)

    def _read_steps(self, settlements: Sequence[Settlement]) -> None:
        """Read steps all at once where they have to be read, and their flows."""
        flow_ids: set[str] = set()
        seqs: list[int] = []
        for each in settlements:
            place = place_in(each.feeds or "")
            if place is not None and kind_of(each) is CompletionKind.STEP:
                flow_ids.add(place[0])
            else:
                seqs.append(each.key)
        if seqs:
            found = self.cursor.execute(_FLOWS["steps"], (text_of(seqs),)).fetchall()
            self._steps = {row[0]: row[1:] for row in found}
            flow_ids.update(row[1] for row in found)
        if flow_ids:  # without their plans, which may be long and do not matter here
            rows = self.cursor.execute(_FLOWS["flows_of_steps"], (text_of(list(flow_ids)),))
            self.flows.hold(map(flow_row, rows.fetchall()))

    def apply(self, settlement: Settlement) -> bool:
        """Apply a transition if the job still is where it was decided; otherwise change nothing.

        The fence in the condition of each statement tells a late report from a current one.
        """
        is_usual = was_applied = False
        if not settlement.is_step:
            is_usual = is_plain_completion(settlement)
            was_applied = self._complete(settlement) if is_usual else self._apply_plain(settlement)
        if not was_applied:  # a job may have become a step since it was claimed
            was_applied = self._apply_step(settlement)
        if not was_applied and may_be_cancelled(settlement):
            request = self.cancel_request(settlement)
            return request is not None and self.apply(
                cancel_running(settlement, request, self.retention)
            )
        if was_applied:
            is_final = is_usual or settlement.transition.status.is_final
            self.is_done |= is_final
            self.is_work |= not is_final
            if self._is_any_blocked is not False:
                self._release(settlement.key)
        return was_applied

    def apply_to_job(self, settlement: Settlement) -> bool:
        """The same for a job that does not run, unless it is a step of a flow by now."""
        was_applied = self._apply_plain(settlement)
        self.is_done |= was_applied and settlement.transition.status.is_final
        return was_applied

    def request_cancel(self, job: Job, request: CancelRequest) -> bool:
        """Record that a running job is to be cancelled. False: this claim of it no longer runs."""
        values = (text_of(request), job.key, job.id, job.fence)
        return self.cursor.execute(_TRANSITIONS["request_cancel"], values).rowcount == 1

    def cancel_request(self, claim: Settlement | LeaseRenewal) -> CancelRequest | None:
        """Who asked for the cancellation of a running job."""
        values = (claim.key, claim.id, claim.fence)
        found = self.cursor.execute(_TRANSITIONS["cancel_request"], values).fetchone()
        return None if found is None else cancel_request_in(found[0])

    def cancel_requests(self, claims: Sequence[LeaseRenewal]) -> dict[str, CancelRequest]:
        """The same for many claims, by job id: a worker asks for all that it holds."""
        fences = {each.key: (each.id, each.fence) for each in claims}
        rows = self.cursor.execute(_TRANSITIONS["cancel_requests"], (text_of(list(fences)),))
        asked = [
            (job_id, cancel_request_in(why))
            for seq, job_id, fence, why in rows.fetchall()
            if fences[seq] == (job_id, fence)
        ]
        return {job_id: request for job_id, request in asked if request is not None}

    def _apply_plain(self, settlement: Settlement) -> bool:
        """Apply any other transition of a job that belongs to no flow."""
        if settlement.transition.status.is_final:
            return self._end(settlement)
        return self._wait(settlement)

    def _apply_step(self, settlement: Settlement) -> bool:
        """Apply a transition of a step; what it brings about is gathered for :meth:`finish`."""
        if kind_of(settlement) is CompletionKind.STEP and self._complete_claimed_step(settlement):
            return True
        # Taken out: what was read before holds for the first transition of a step alone.
        found = self._steps.pop(settlement.key, None)
        if found is None:
            found = self.cursor.execute(_FLOWS["step"], (settlement.key,)).fetchone()
        if found is None:
            return False
        flow_id, feeds, join_id, signal, stage = found
        if settlement.transition.status.is_final:
            return self._end_step(settlement, flow_id, feeds)
        if settlement.expected.is_final:
            return self._restart_step(settlement, flow_id, feeds, join_id, signal)
        if stage in (JOINING, SIGNALLING):
            return False  # a step cannot go before what it waits for has come
        if not self._move(settlement, _FLOWS["wait_step"], _waiting_stage(settlement)):
            return False
        if self.flows.is_stopping(flow_id):
            position = self.cursor.execute(_FLOWS["position"], (settlement.key,)).fetchone()
            self.apply(cancel_step(position, self.now, self.retention))
        return True

    def _end_step(self, settlement: Settlement, flow_id: str, feeds: str) -> bool:
        transition = settlement.transition
        change = self.flows.plan(flow_id, StepEnded(transition.status, feeds == "[]"))
        if change is None:
            return False
        if change.counts and is_plain_completion(settlement):
            if not self._complete_step(settlement, feeds):
                return False
            self.flows.accept(flow_id, change, feeds_from(feeds), settlement.keep)
            return True
        values = (
            transition.status.value,
            transition.attempts,
            transition.excused,
            transition.is_solo,
            transition.why,
            settlement.result or (b"null" if transition.status is JobStatus.COMPLETED else None),
            self.now,
        )
        failure, entry, *place = _conditions(settlement, transition, self.now)
        left = "[]" if change.counts else feeds
        self.cursor.execute(_FLOWS["end_step"], (*values, failure, entry, left, *place))
        if self.cursor.rowcount != 1:
            return False
        self.flows.accept(flow_id, change, feeds_from(feeds), settlement.keep)
        return True

    def _complete_claimed_step(self, settlement: Settlement) -> bool:
        """The usual end of a step without a look at it; False: it has to be looked at."""
        planned = plan_claimed(self.flows, settlement)
        if planned is None or not self._complete_step(settlement, settlement.feeds or ""):
            return False
        self.flows.accept(*planned, settlement.keep)
        return True

    def _complete_step(self, settlement: Settlement, feeds: str) -> bool:
        """The usual end of a step, as ``_complete`` is that of a job."""
        values = step_values(settlement, feeds, self.now)
        return self.cursor.execute(_COMPLETE_STEP, values).rowcount == 1

    def _restart_step(
        self,
        settlement: Settlement,
        flow_id: str,
        feeds: str,
        join_id: str | None,
        signal: str | None,
    ) -> bool:
        change = self.flows.plan(flow_id, returned(settlement.expected, feeds_from(feeds)))
        if change is None:
            return False
        stage = _waiting_stage(settlement)
        # Its join may have opened while the step was ended. Then nobody releases it again.
        waits = join_id and self.cursor.execute(_FLOWS["is_closed"], (join_id,)).fetchone()
        if waits or signal is not None:
            stage = JOINING if waits else SIGNALLING
        if not self._move(settlement, _FLOWS["restart_step"], stage):
            return False
        self.flows.accept(flow_id, change)
        if not waits:
            rows = self.cursor.execute(_FLOWS["released"], (self.now, settlement.key)).fetchall()
            for *position, early in rows:
                if early is not None:  # its signal came before it was cancelled
                    self.apply(complete_signal(tuple(position), early, self.now))
        return True

    def insert_steps(self, steps: Sequence[NewJob]) -> None:
        """Insert new steps of a flow."""
        # Runs of one kind, in the order of the steps: it is that of their numbers.
        for is_plain, some in groupby(steps, _is_plain_step):
            run = list(some)
            if is_plain:
                rows = [_plain_step_row(job, self.now) for job in run]
                _write_rows(self, _FLOWS["insert_plain_step"], rows, run)
            else:
                rows = [_step_row(job, self.now) for job in run]
                _write_rows(self, _FLOWS["insert_step"], rows, run)
                large = [(job.id, job.args, job.kwargs) for job in run if _is_large(job)]
                self.cursor.executemany(_JOBS["insert_payload_of"], large)
        self.index(steps)

    def index(self, jobs: Iterable[NewJob | Job]) -> None:
        """Let jobs that are there be found by their tags and metadata."""
        rows = label_rows(jobs)
        if rows:
            self.cursor.executemany(_JOBS["insert_label"], rows)

    def release_step(self, seq: int) -> None:
        """Release a step whose row was set aside while its join opened."""
        found = self.cursor.execute(_FLOWS["step"], (seq,)).fetchone()
        if found is None or found[2] is None:
            return
        if self.cursor.execute(_FLOWS["is_closed"], (found[2],)).fetchone() is None:
            self.flows.release(found[2])

    def lose_step(self, seq: int) -> None:
        """A step whose row was set aside is discarded: its flow takes it for cancelled."""
        found = self.cursor.execute(_FLOWS["step"], (seq,)).fetchone()
        aside = self.cursor.execute(_JOBS["is_aside"], (seq,)).fetchone()
        if found is None or aside is None or was_status(note_of(aside[0])).is_final:
            return
        change = self.flows.plan(found[0], StepEnded(JobStatus.CANCELLED, found[1] == "[]"))
        if change is not None:
            self.flows.accept(found[0], change, feeds_from(found[1]))

    def is_any_stopping(self) -> bool:
        """Whether some flow stops, and no sweep has come to all its steps yet."""
        return self.cursor.execute(_FLOWS["any_stopping"]).fetchone() is not None

    def cancel_stopped(self, seqs: Sequence[int]) -> set[int]:
        """Cancel those of these jobs that are steps of flows which stop; answers which."""
        found = self.cursor.execute(_FLOWS["stopped"], (text_of(seqs),)).fetchall()
        for position in found:
            self.apply(cancel_step(position, self.now, self.retention))
        return {position[0] for position in found}

    def still_due(self, seqs: Sequence[int]) -> set[int]:
        """Those of these jobs that can be claimed."""
        found = self.cursor.execute(_FLOWS["still_due"], (text_of(seqs),)).fetchall()
        return {seq for (seq,) in found}

    def set_aside(self, seq: int, problem: str) -> None:
        """Set a row aside that cannot be read; nothing else of it is changed."""
        found = unreadable_row(self.cursor, seq, problem)
        note = text_of(Note(found.status, problem))
        self.cursor.execute(_JOBS["set_aside"], (note, self.now, seq))
        log_set_aside(found)
        self.is_work = True  # it may have held a limit key, or a place in its queue

    def set_all_aside(self, unreadable: Iterable[tuple[int, str]]) -> None:
        """The same for many, by number and problem."""
        for seq, problem in unreadable:
            self.set_aside(seq, problem)

    def end_outdated(self, row: JobPosition) -> None:
        """Dead-letter a job that was not started before its expiry."""
        self.apply(expire(row, self.now, self.retention))

    def replace(self, row: JobPosition) -> None:
        """Cancel a job for another one with its unique key."""
        self.apply(cancel_replaced(row, self.now, self.retention))

    def extend(self, seq: int, job: NewJob) -> None:
        """Let a job that waits do so until the due time of another, with its arguments."""
        run_at, holder, handler = self.cursor.execute(_JOBS["due_at"], (seq,)).fetchone()
        due = extended(run_at, due_at(job, self.now))
        check_extension(job, holder, handler, due)
        is_large = _is_large(job)
        given = (None, None) if is_large else (job.args, job.kwargs)
        self.cursor.execute(_JOBS["extend"], (seq, due, self.now, job.expires_at, *given))
        self.cursor.execute(_JOBS["drop_payload"], (seq,))
        if is_large:
            self.cursor.execute(_JOBS["insert_payload"], (seq, job.args, job.kwargs))
        self._release(seq)  # others may go that waited for the same limit key

    def block(self, seqs: list[int]) -> None:
        """Let jobs wait until one of their limit key has stopped."""
        self.cursor.executemany(_TRANSITIONS["block"], [(seq,) for seq in seqs])
        self._is_any_blocked = True

    def wake_keys(self, most: int) -> None:
        """Make blocked jobs due whose limit key is free: their wake-up was missed."""
        key = ""
        for _ in range(most):
            found = self.cursor.execute(_TRANSITIONS["next_blocked_key"], (key,)).fetchone()
            if found is None:
                return
            key = found[0]
            self._wake(key)

    def running_of_key(self, key: str) -> int:
        """How many jobs of a limit key run."""
        count: int = self.cursor.execute(_TRANSITIONS["running_of_key"], (key,)).fetchone()[0]
        return count

    def _complete(self, settlement: Settlement) -> bool:
        """The usual end of a job, by the cheapest statement: most settlements are this one."""
        values = job_values(settlement, self.now)
        return self.cursor.execute(_COMPLETE, values).rowcount == 1

    def _end(self, settlement: Settlement) -> bool:
        transition, now = settlement.transition, self.now
        self.cursor.execute(
            _TRANSITIONS["end"],
            (
                transition.status.value,
                transition.attempts,
                transition.excused,
                transition.is_solo,
                transition.why,
                settlement.result
                or (b"null" if transition.status is JobStatus.COMPLETED else None),
                None if settlement.keep is None else now + settlement.keep,
                now,
                *_conditions(settlement, transition, now),
            ),
        )
        return self.cursor.rowcount == 1

    def _wait(self, settlement: Settlement) -> bool:
        statement = _TRANSITIONS["restart" if settlement.transition.is_reset else "wait"]
        return self._move(settlement, statement, _waiting_stage(settlement))

    def _move(self, settlement: Settlement, statement: str, stage: int) -> bool:
        """Let a job wait from now on."""
        transition, now = settlement.transition, self.now
        if settlement.expected.is_final and self._is_key_held(settlement.key):
            return False
        try:
            self.cursor.execute(
                statement,
                (
                    stage,
                    transition.status.value,
                    transition.attempts,
                    transition.excused,
                    transition.is_solo,
                    transition.why,
                    now + transition.delay,
                    now,
                    *_conditions(settlement, transition, now),
                ),
            )
        except sqlite3.IntegrityError as error:
            if is_moved_away(error):
                raise
            return False  # it had ended, and another job holds its unique key now
        if self.cursor.rowcount != 1:
            return False
        if transition.lane:
            self.cursor.execute(_TRANSITIONS["set_lane"], (transition.lane, settlement.key))
        self._shorten(settlement.key)
        if settlement.expected.is_final:
            self._take_key_again(settlement)
        return True

    def _is_key_held(self, seq: int) -> bool:
        """Whether a job that had ended cannot come back: another holds its unique key."""
        return self.cursor.execute(_JOBS["other_holder"], (seq,)).fetchone() is not None

    def _take_key_again(self, settlement: Settlement) -> None:
        """A job that came back has the unique key again that it holds while it waits."""
        [key] = self.cursor.execute(_JOBS["waiting_key"], (settlement.key,)).fetchone()
        if key is not None:
            self.cursor.execute(_JOBS["take_key"], (settlement.id, key, "[]", None))

    def _shorten(self, seq: int) -> None:
        values = (seq, MAX_HISTORY_BYTES, MAX_HISTORY_ENTRIES)
        found = self.cursor.execute(_TRANSITIONS["long_history"], values).fetchone()
        if found is not None:
            self.cursor.execute(_TRANSITIONS["set_history"], (latest(found[0]), seq))

    def _release(self, seq: int) -> None:
        """A job stopped, or waits no more: wake the jobs that wait for its limit key."""
        # Read once for each transaction, as most stores have no limits at all: a look for each
        # settled job would cost more than the settlement.
        if self._is_any_blocked is None:
            self._is_any_blocked = self._returns_row("any_blocked")
            # Its queue may have had no room until now; which queue it is does not matter to a
            # notification.
            if self._returns_row("any_max_active"):
                self.is_work = True
        if self._is_any_blocked:
            [key] = self.cursor.execute(_TRANSITIONS["limit_key"], (seq,)).fetchone()
            if key is not None:
                self._wake(key)

    def _returns_row(self, statement: str) -> bool:
        return self.cursor.execute(_TRANSITIONS[statement]).fetchone() is not None

    def _wake(self, key: str) -> None:
        """Make the first of each lane due, not of one: a paused queue would keep the key unused."""
        running = self.running_of_key(key)
        for queue, executor in self._lanes_of_key(key):
            own = self.cursor.execute(_TRANSITIONS["key_waits"], (key, queue)).fetchone()
            if own is None:
                self.cursor.execute(_TRANSITIONS["wake"], (key, queue, executor, running))
                self.is_work |= self.cursor.rowcount > 0
                continue
            wakes_at, rate = own
            if not waits_for_token(wakes_at, rate, self.now):
                self._wake_lane(key, queue, executor, 1)

    def wake_key_of(self, queue: str, key: str, most: int) -> None:
        """Make some jobs of each lane of one queue due, whose limit key has tokens again."""
        for each, executor in self._lanes_of_key(key):
            if each == queue:
                self._wake_lane(key, queue, executor, most)

    def _wake_lane(self, key: str, queue: str, executor: str, most: int) -> None:
        self.cursor.execute(_TRANSITIONS["wake_some"], (key, queue, executor, most))
        self.is_work |= self.cursor.rowcount > 0

    def _lanes_of_key(self, key: str) -> Iterator[tuple[str, str]]:
        """Where jobs wait for a limit key: queue, and the executor they name."""
        lane = ("", "")
        statement = _TRANSITIONS["next_lane_of_key"]
        while found := self.cursor.execute(statement, (key, *lane)).fetchone():
            lane = found
            yield lane


def _waiting_stage(settlement: Settlement) -> int:
    return DUE if settlement.transition.delay <= 0.0 else LATER


def _conditions(settlement: Settlement, transition: Transition, now: float) -> tuple[Any, ...]:
    """What is written down about a transition, and where the job must stand for it."""
    return (
        None if transition.failure is None else text_of(transition.failure),
        settlement.entry.decode(),
        settlement.key,
        settlement.id,
        settlement.fence,
        settlement.expected.value,
        not settlement.if_expired,
        now,
    )


LARGE = 2048
"""Bytes of arguments above which they get a row of their own."""

# A purged job's number may be given to a new one, even of the same id. It does not begin with the
# same fence: a worker that comes back late with the old job finds that it has lost it.
_fences = count(int.from_bytes(os.urandom(5)))


def _draw_fences() -> None:
    """In a forked child: fences of its own, or parent and child would give the same ones."""
    global _fences  # noqa: PLW0603 - one per process
    _fences = count(int.from_bytes(os.urandom(5)))


os.register_at_fork(after_in_child=_draw_fences)

_PLAIN = _JOBS["insert_plain"]
_FULL = _JOBS["insert"]


def add_jobs(tx: SqliteTransitions, jobs: Sequence[NewJob]) -> list[EnqueueResult]:
    """Add all of them; raises DuplicateJobError, and then the caller rolls back."""
    if len(jobs) == 1:
        return [_add(tx, jobs[0])]
    # Keys have to be looked up one after the other, and large arguments need the number of their
    # row.
    if any(job.unique_key is not None or _is_large(job) for job in jobs):
        return [_add(tx, job) for job in jobs]
    _insert_many(tx, jobs)
    return [EnqueueResult(job.id, True) for job in jobs]


def add_new_jobs(tx: SqliteTransitions, jobs: Sequence[NewJob]) -> int:
    """Add those that can be added, and leave out the others; how many there were."""
    added = 0
    for job in jobs:
        # Before `add`: it may cancel the holder of a key first, which a refused id could not undo
        # here.
        if tx.cursor.execute(_JOBS["has_id"], (job.id,)).fetchone() is None:
            with suppress(DuplicateJobError):
                added += add_jobs(tx, [job])[0].is_new
    return added


def _add(tx: SqliteTransitions, job: NewJob) -> EnqueueResult:
    if job.unique_key is None or (holder := _holder(tx, job.unique_key)) is None:
        _insert(tx, job)
        return EnqueueResult(job.id, True)
    decided = on_duplicate(job, holder[1], JobStatus(holder[2]))
    if decided is OnDuplicate.EXTEND:
        tx.extend(holder[0], job)
    if decided is not OnDuplicate.REPLACE:
        return EnqueueResult(holder[1], False)
    tx.replace(holder)  # first: two rows that hold one unique key would break its index
    _insert(tx, job)
    return EnqueueResult(job.id, True, holder[1])


def _holder(tx: SqliteTransitions, key: str) -> JobPosition | None:
    """The job that holds a unique key."""
    return holder_of(tx.cursor, key, tx.now)


def holder_of(cursor: sqlite3.Cursor, key: str, now: float) -> JobPosition | None:
    """The job that holds a unique key: until it ends, or by its rule."""
    row: JobPosition | None = cursor.execute(_JOBS["key_holder"], (key,)).fetchone()
    if row is None and (taker := cursor.execute(_JOBS["key_taker"], (key,)).fetchone()) is not None:
        *position, states, until = taker
        if is_held(JobStatus(position[2]), states_from(states), until, now):
            row = tuple(position)
    return row


def taken_key(job: NewJob | Job, created_at: float) -> tuple[Any, ...]:
    """What is written down about the key of a job with a rule."""
    rule = job.unique
    assert rule is not None  # noqa: S101 - whoever has none has taken nothing
    return job.id, job.unique_key, text_of(rule.ended_states), rule.until(created_at)


def _insert(tx: SqliteTransitions, job: NewJob) -> None:
    row = _row(job, tx.now)
    try:
        if is_special(job):
            tx.cursor.execute(_FULL, row + _rest(job))
        else:
            tx.cursor.execute(_PLAIN, row)
    except sqlite3.IntegrityError as error:
        if is_moved_away(error):
            raise
        # The id, and not the unique key: that was looked up under the write lock of this
        # transaction.
        raise id_taken(job) from None
    if row[-1] is None:
        values = (tx.cursor.lastrowid, job.args, job.kwargs)
        tx.cursor.execute(_JOBS["insert_payload"], values)
    if job.tags or job.metadata:
        tx.index((job,))
    if job.unique is not None:
        tx.cursor.execute(_JOBS["take_key"], taken_key(job, tx.now))


def _insert_many(tx: SqliteTransitions, jobs: Sequence[NewJob]) -> None:
    """Insert jobs without large arguments."""
    statement, rows = _PLAIN, [_row(job, tx.now) for job in jobs]
    are_special = any(map(is_special, jobs))
    if are_special:
        statement, rows = _FULL, [row + _rest(job) for row, job in zip(rows, jobs, strict=True)]
    _write_rows(tx, statement, rows, jobs)
    if are_special:
        tx.index(jobs)


def _write_rows(
    tx: SqliteTransitions, statement: str, rows: list[tuple[Any, ...]], jobs: Sequence[NewJob]
) -> None:
    left = 0
    if len(rows) >= ROWS_AT_ONCE:
        together = for_many(statement, ROWS_AT_ONCE)
        left = len(rows) - len(rows) % ROWS_AT_ONCE
        for start in range(0, left, ROWS_AT_ONCE):
            part = rows[start : start + ROWS_AT_ONCE]
            try:
                tx.cursor.execute(together, [*chain.from_iterable(part)])
            except sqlite3.IntegrityError as error:
                if is_moved_away(error):
                    raise
                left = start  # nothing of this part was written; one by one tells which it is
                break
    connection = tx.cursor.connection
    before = connection.total_changes - left
    try:
        tx.cursor.executemany(statement, rows[left:])
    except sqlite3.IntegrityError as error:
        if is_moved_away(error):
            raise
        # Those before it are there, until the caller rolls back.
        raise id_taken(jobs[connection.total_changes - before]) from None


ROWS_AT_ONCE = 50
"""Rows that one statement inserts: SQLite opens every index of the table for each statement, and
that takes longer than to insert a row. More than these bring nothing."""


def _is_large(job: NewJob) -> bool:
    return len(job.args) + len(job.kwargs) > LARGE


def _row(job: NewJob, now: float) -> tuple[Any, ...]:
    """What every job has."""
    run_at = now + job.delay if job.run_at is None else job.run_at
    is_large = _is_large(job)
    return (
        DUE if run_at <= now else LATER,
        next(_fences),
        now,
        run_at,
        job.queue,
        job.executor,
        job.priority,
        job.id,
        job.handler,
        None if is_large else bytearray(job.args),
        None if is_large else bytearray(job.kwargs),
    )


def _is_plain_step(job: NewJob) -> bool:
    """Whether the plain statement says all of a step: it waits for others, or for nothing."""
    step = job.step
    return not (
        step is None
        or step.signal is not None
        or step.wait is not None
        or job.delay
        or job.expires_at is not None
        or job.unique_key is not None
        or job.limit_key is not None
        or _is_large(job)
    )


def _plain_step_row(job: NewJob, now: float) -> tuple[Any, ...]:
    """The row of such a step. None is bound for nothing: that takes longer than a text."""
    step = job.step
    assert step is not None  # noqa: S101 - as above
    stage, fence, created_at, run_at, *rest = _row(job, now)
    if step.join_id is not None:
        stage, run_at = JOINING, now if job.run_at is None else job.run_at
    place = (step.flow_id, step.join_id or "", feeds_text(step.feeds))
    return stage, fence, created_at, run_at, *rest, step_options_text(job), *place


def _step_row(job: NewJob, now: float) -> tuple[Any, ...]:
    """A new step of a flow."""
    step = job.step
    assert step is not None  # noqa: S101 - whoever adds a flow gives each job its place
    stage, fence, created_at, run_at, *rest = _row(job, now)
    expires_at, *special = _rest(job)
    wait = step.wait
    if step.join_id is not None:
        stage, run_at = JOINING, now if job.run_at is None else job.run_at
        wait = job.delay or None if step.signal is None else wait
    elif step.signal is not None:
        stage, expires_at = SIGNALLING, None if wait is None else now + wait
    place = (step.flow_id, step.join_id, text_of(step.feeds), wait, step.signal)
    return stage, fence, created_at, run_at, *rest, expires_at, *special, *place


def _rest(job: NewJob) -> tuple[Any, ...]:
    """What some jobs have."""
    return (
        job.expires_at,
        column_key(job),
        job.limit_key,
        job.limit,
        options_text(job),
    )
