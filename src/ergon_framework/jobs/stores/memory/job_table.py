"""The jobs of a memory store and every change of them. Knows no lock, no clock and no notifier.

Rules for editors: a job changes its status in ``_enter``, ``_leave`` and ``claim`` alone, so that
its queue, its unique key and its limit key always follow.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

import msgspec

from ergon_framework.core.claim import ClaimRequest
from ergon_framework.core.flow import FlowChange, StepEnded
from ergon_framework.core.job import (
    REPLACED,
    CancelRequested,
    Expired,
    JobRule,
    JobStatus,
    Transition,
    next_transition,
)
from ergon_framework.core.retention import STANDARD
from ergon_framework.core.unique import WAITING, OnDuplicate, decide, extended
from ergon_framework.errors import DuplicateJobError
from ergon_framework.jobs.stores.flow_settlement import FlowSettlement, returned
from ergon_framework.jobs.stores.memory.flows import FlowBook, MemoryFlowTables
from ergon_framework.jobs.stores.memory.queues import (
    Heap,
    MemoryQueue,
    Offer,
    QueueSet,
    handler_lanes_in,
)
from ergon_framework.jobs.stores.memory.rows import MemoryJob
from ergon_framework.jobs.stores.transitions import (
    cancel_replaced,
    cancel_running,
    cancel_step,
    check_extension,
    complete_signal,
    due_at,
    entry_of,
    expire,
    id_taken,
    key_held,
    may_be_cancelled,
)
from ergon_framework.ports.jobstore import (
    MAX_CLOCK_SKEW,
    ClaimedJob,
    ClaimResult,
    EnqueueResult,
    NewJob,
    Settlement,
)

_RULE = JobRule()


class JobTable:
    """All jobs, found by key, by id and by unique key."""

    def __init__(self) -> None:
        self.records: dict[int, MemoryJob] = {}  # in the order of adding
        self.by_id: dict[str, MemoryJob] = {}
        self.active: dict[int, MemoryJob] = {}
        self.holders: dict[str, MemoryJob] = {}  # of unique keys, until they end
        self.takers: dict[str, MemoryJob] = {}  # who took a key last, of jobs with a rule
        self.queues = QueueSet(self.records)
        self.expiring = Heap()
        self.leaving = Heap()  # final jobs, by when they are to be purged
        self.is_work = False  # something became claimable since this was last looked at …
        self.is_done = False  # … or something ended
        self.flow_book = FlowBook()
        self.retention = STANDARD
        self._last_key = 0
        self._last_fence = 0
        self._moves: FlowSettlement | None = None  # of the flows that this step changes

    # ---- adding ---------------------------------------------------------------------------------

    def add(self, jobs: Sequence[NewJob], now: float) -> list[EnqueueResult]:
        """Add all jobs or none."""
        # All are judged before the first is added: memory has no rollback.
        self._refuse_duplicates(jobs, now)
        return [self._add(job, now) for job in jobs]

    def can_add(self, job: NewJob, now: float) -> bool:
        """Whether :meth:`add` would take it."""
        try:
            self._refuse_duplicates([job], now)
        except DuplicateJobError:
            return False
        return True

    def holder(self, key: str, now: float) -> MemoryJob | None:
        """The job that holds a unique key."""
        found = self.holders.get(key)
        if found is None:
            taker = self.takers.get(key)
            found = taker if taker is not None and taker.holds_key(now) else None
        return found

    def _refuse_duplicates(self, jobs: Sequence[NewJob], now: float) -> None:
        ids: set[str] = set()
        keys: dict[str, NewJob] = {}  # that jobs of this batch will hold
        for job in jobs:
            key = job.unique_key
            holder = None if key is None or key in keys else self.holder(key, now)
            if holder is not None or key in keys:
                # The holder is an earlier job of this batch, which is not stored yet and will wait.
                status = JobStatus.PENDING if holder is None else holder.status
                decided = decide(job.on_duplicate, status)
                if decided is OnDuplicate.REJECT:
                    raise key_held(job, has_ended=status.is_final)
                if decided is OnDuplicate.EXTEND:
                    self._check_extension(job, holder, keys.get(key or ""), now)
                if decided is not OnDuplicate.REPLACE:
                    continue
            if job.id in ids or job.id in self.by_id:
                raise id_taken(job)
            ids.add(job.id)
            if key is not None:
                keys[key] = job

    def _check_extension(
        self, job: NewJob, record: MemoryJob | None, earlier: NewJob | None, now: float
    ) -> None:
        """Before anything is changed: all jobs of a batch are added, or none."""
        held = record.new if record is not None else earlier
        if held is None:
            return
        first = due_at(held, now) if record is None else record.run_at
        check_extension(job, held.id, held.handler, extended(first, due_at(job, now)))

    def _add(self, job: NewJob, now: float) -> EnqueueResult:
        holder = None if job.unique_key is None else self.holder(job.unique_key, now)
        if holder is not None:
            if job.on_duplicate is OnDuplicate.EXTEND:
                self._extend(holder, job, now)
            if job.on_duplicate is not OnDuplicate.REPLACE:
                return EnqueueResult(holder.new.id, False)
            # A step: its flow has to take notice of its end.
            if holder.feeds is not None:
                self.settle(cancel_replaced(holder.position(), now, self.retention), now)
            else:
                transition = next_transition(holder.snapshot(), CancelRequested(), _RULE)
                self._end(holder, replace(transition, why=REPLACED), now)
        self._last_key += 1
        record = MemoryJob(
            key=self._last_key,
            new=job,
            created_at=now,
            changed_at=now,
            run_at=now + job.delay if job.run_at is None else job.run_at,
            expires_at=job.expires_at,
        )
        self._place(record, now)
        self.records[record.key] = self.by_id[job.id] = record
        self.queues.get(job.queue).members += 1
        self._enter(record)
        self._take_key(record)
        return EnqueueResult(job.id, True, None if holder is None else holder.new.id)

    def _extend(self, record: MemoryJob, job: NewJob, now: float) -> None:
        """Let a job that waits do so until the due time of another, with its arguments."""
        self._leave(record)
        record.run_at, record.changed_at = extended(record.run_at, due_at(job, now)), now
        record.expires_at = job.expires_at
        record.new = msgspec.structs.replace(record.new, args=job.args, kwargs=job.kwargs)
        self._enter(record)

    def _take_key(self, record: MemoryJob) -> None:
        if record.new.unique is not None and record.new.unique_key is not None:
            self.takers[record.new.unique_key] = record

    # ---- settling -------------------------------------------------------------------------------

    def settle(self, settlement: Settlement, now: float) -> bool:
        """Apply a transition, if the job still is where the transition was decided."""
        record = self.records.get(settlement.key)
        if (
            record is None
            or record.new.id != settlement.id
            or record.fence != settlement.fence
            or record.status is not settlement.expected
            or (settlement.if_expired and not record.is_expired(now))
        ):
            return False
        if record.status.is_final and self._is_key_taken(record):
            return False
        request = record.cancel_request if may_be_cancelled(settlement) else None
        if request is not None:
            settlement = cancel_running(settlement, request, self.retention)
        if record.feeds is not None:
            return self._settle_step(record, settlement, now)
        self._move(record, settlement.transition, settlement.entry, now)
        if record.status.is_final:
            self._finish(record, settlement.result, settlement.keep, now)
        return True

    def replace(self, settlement: Settlement, job: NewJob, now: float) -> bool:
        """End a job that is no step of a flow, and add another in its place."""
        record = self.records.get(settlement.key)
        if record is None or record.feeds is not None:
            return False
        # Asked before anything is changed, for nothing here is taken back; as if it had ended.
        before, record.status = record.status, settlement.transition.status
        try:
            self._refuse_duplicates([job], now)
        finally:
            record.status = before
        return self.settle(settlement, now) and bool(self._add(job, now))

    def _settle_step(self, record: MemoryJob, settlement: Settlement, now: float) -> bool:
        """Apply a transition of a step; what it brings about is gathered for :meth:`finish`."""
        moves, flow_id, feeds = self.moves(now), record.flow_id or "", record.feeds or ()
        transition, was = settlement.transition, record.status
        change: FlowChange | None = None
        if transition.status.is_final:
            change = moves.plan(flow_id, StepEnded(transition.status, not feeds))
        elif was.is_final:
            change = moves.plan(flow_id, returned(was, feeds))
        elif record.is_joining:
            return False  # a step cannot go before what it waits for has come
        if change is None and (was.is_final or transition.status.is_final):
            return False
        # The join has opened while the step was ended: nobody is going to release it again.
        if was.is_final and record.join_id is not None and moves.tables.is_open(record.join_id):
            record.join_id = None
        # A signal that came before the step was reached stays with it, also while it is cancelled.
        early = None if record.signal is None else record.result
        self._move(record, transition, settlement.entry, now)
        record.result = early
        if record.status.is_final:
            # Without a date to be purged at: steps go with their flow.
            self._finish(record, _result_of(settlement) or early, None, now)
            if change is not None and change.counts:
                # An end counts once. A step that is tried again must not open the same joins twice.
                record.feeds = ()
        elif was.is_final and record.signal is not None and record.join_id is None:
            self._expect_signal(record, now)
        if change is not None:
            keep = settlement.keep if record.status.is_final else 0.0  # nobody asks for a result
            moves.accept(flow_id, change, feeds, keep)
            if early is not None and record.is_joining and record.join_id is None:
                self.settle(complete_signal(record.position(), early, now), now)
        # It goes back to the queue of a flow that stops. The sweep may be past it, and would not
        # return.
        elif moves.is_stopping(flow_id):
            self.settle(cancel_step(record.position(), now, self.retention), now)
        return True

    def shorten_wait(self, record: MemoryJob, now: float) -> bool:
        """Let a job wait from now on that went back to the queue at an instant yet to come.

        A job that was due at once is due, whether it was claimed before or not.
        """
        is_waiting = (
            not record.status.is_final
            and record.status is not JobStatus.ACTIVE
            and not record.is_joining
        )
        wait = record.run_at - record.changed_at
        if (
            not is_waiting
            # Further ahead than clocks of processes differ: this clock was set back since.
            or record.changed_at <= now + MAX_CLOCK_SKEW
            or not (record.deliveries or wait <= 0)
        ):
            return False
        self._leave(record)
        record.run_at, record.changed_at = now + wait, now
        self._enter(record)
        return True

    def end_outdated(self, record: MemoryJob, now: float) -> None:
        """Dead-letter a job that was not started before its expiry."""
        if record.feeds is not None:
            self.settle(expire(record.position(), now, self.retention), now)
            return
        self._end(record, next_transition(record.snapshot(), Expired(), _RULE), now)

    def _end(self, record: MemoryJob, transition: Transition, now: float) -> None:
        keep = self.retention.keep(record.new.queue, transition.status)
        entry = entry_of(transition, record.deliveries, now)
        self._move(record, transition, entry, now)
        self._finish(record, None, keep, now)

    def _move(self, record: MemoryJob, transition: Transition, entry: bytes, now: float) -> None:
        self._leave(record)
        if record.status.is_final and record.new.is_waiting_only:
            self._take_key(record)  # it comes back, and nobody waits with its key
        record.status = transition.status
        record.attempts, record.excused = transition.attempts, transition.excused
        record.is_charged, record.is_solo = False, transition.is_solo
        record.why = transition.why
        record.worker = record.claimed_at = record.lease_expires_at = None
        record.finished_at = record.purge_at = record.result = None
        record.last_error = transition.failure or record.last_error
        record.changed_at = now
        record.history.append(entry)
        if transition.is_reset:
            # An operator wants it in spite of all that happened, an expiry that passed included.
            record.deliveries, record.last_error, record.expires_at = 0, None, None
        if not record.status.is_final:
            is_bound = transition.is_reset and record.join_id is not None  # due from its release on
            record.run_at = record.created_at if is_bound else now + transition.delay
            if transition.lane:
                record.new = msgspec.structs.replace(record.new, executor=transition.lane)
            self._enter(record)

    def _finish(
        self, record: MemoryJob, result: bytes | None, keep: float | None, now: float
    ) -> None:
        record.finished_at, record.result = now, result
        if keep is not None:
            record.purge_at = now + keep
            self.leaving.push(record.key, (record.purge_at,))
        self.is_done = True

    def _is_key_taken(self, record: MemoryJob) -> bool:
        """Whether a job that had ended cannot come back: another holds its unique key."""
        key = record.new.unique_key
        if key is None:
            return False
        taker = self.takers.get(key)
        if taker is None or taker is record or not taker.new.is_waiting_only:
            return key in self.holders
        return key in self.holders or taker.status in WAITING

    # ---- claiming -------------------------------------------------------------------------------

    def claim(self, request: ClaimRequest, now: float) -> ClaimResult:
        """Give a worker what it can take, one job of each queue in turn."""
        self.queues.wake(now)
        offer = Offer(request)
        queues = [queue for queue in self.queues if offer.asks_for(queue)]
        turns: deque[MemoryQueue] = deque(queues)
        jobs: list[ClaimedJob] = []
        outdated = 0
        while turns:
            queue = turns.popleft()
            record = self.queues.next(queue, offer, now)
            if record is None:
                continue
            turns.append(queue)
            if self.flow_book.is_stopping(record):
                self.settle(cancel_step(record.position(), now, self.retention), now)
                continue
            if record.is_outdated(now):
                self.end_outdated(record, now)
                self.finish(now)  # its flow may stop with it
                outdated += 1
                continue
            offer.take(record.new.queue, record.new.executor)
            self._lease(record, request, now)
            self.queues.take_tokens(record, now)
            jobs.append(record.leased(now))
        next_at = min((queue.next_at(now) for queue in queues), default=float("inf"))
        more = any(offer.leaves(queue) for queue in queues)
        next_at = min(next_at, self.queues.wakes_at)
        due = None if next_at == float("inf") else next_at
        expiry = self.expiring.first()
        first_expiry = None if expiry is None else expiry[0][0]
        return ClaimResult(jobs, due, more, outdated, first_expiry, handler_lanes_in(queues))

    def _lease(self, record: MemoryJob, request: ClaimRequest, now: float) -> None:
        self.expiring.discard(record.key)
        self.queues.start(record)
        self.active[record.key] = record
        self._last_fence += 1
        record.fence = self._last_fence  # of the whole store: a new job of an old id has another
        record.status = JobStatus.ACTIVE
        record.deliveries += 1
        record.worker = request.worker
        record.claimed_at = record.changed_at = now
        record.lease_expires_at = now + request.lease
        # While a job runs, the field holds a request to cancel it. The reason for the last wait
        # would be taken for one.
        record.why = ""

    # ---- flows ----------------------------------------------------------------------------------

    def moves(self, now: float) -> FlowSettlement:
        """The flows that this step of a caller changes."""
        if self._moves is None:
            self._moves = FlowSettlement(self.flow_tables(now))
        return self._moves

    def flow_tables(self, now: float) -> MemoryFlowTables:
        """Where flows are read and written."""
        return MemoryFlowTables(self, now)

    def finish(self, now: float) -> None:
        """Do what the settlements of steps bring about."""
        if self._moves is not None:
            self._moves.finish()  # which settles steps, and gathers more in the same place
            self._moves = None

    def go_on_with_flows(self, now: float) -> None:
        """Do one slice of what is left to be released, cancelled or brought back."""
        if self.flow_book.work:
            self.moves(now).do_slice()
            self.finish(now)

    def purge_flows(self, now: float, limit: int) -> int:
        """Delete flows whose retention is over, with their steps. Returns how many steps."""
        purged = 0
        for row in self.flow_book.due(now):
            purged += self.purge_flow(row.id, limit - purged)
            if purged >= limit:
                break
        return purged

    def purge_flow(self, flow_id: str, limit: int) -> int:
        """Delete at most so many steps of a flow. If fewer are left, the flow is deleted, too.
        Returns how many.
        """
        keys = list(self.flow_book.steps.get(flow_id, ()))[:limit]
        for key in keys:
            self.remove(self.records[key])
        if len(keys) < limit:
            self.flow_book.drop(flow_id)
        return len(keys)

    def keep(self, record: MemoryJob) -> None:
        """Keep a job that became a step as long as its flow."""
        record.purge_at = None
        self.leaving.discard(record.key)

    def check_new(self, jobs: Sequence[NewJob], now: float) -> None:
        """Refuse jobs whose ids are taken."""
        self._refuse_duplicates(jobs, now)

    def _place(self, record: MemoryJob, now: float) -> None:
        """Put a new step into its flow."""
        step = record.new.step
        if step is None:
            return
        record.flow_id, record.join_id, record.feeds = step.flow_id, step.join_id, step.feeds
        record.wait, record.signal = step.wait, step.signal
        if step.join_id is not None:
            record.run_at = now if record.new.run_at is None else record.new.run_at
            record.wait = record.new.delay if step.signal is None else step.wait
        elif step.signal is not None and step.wait is not None:
            record.expires_at = now + step.wait
        self.flow_book.enlist(record)

    def release(self, record: MemoryJob, now: float) -> None:
        """A step waits for its predecessors no more."""
        self._leave(record)
        record.join_id, record.changed_at = None, now
        if record.signal is None:
            # A due time that nobody asked for is when it was added, and must not keep it where the
            # clock ran ahead then.
            asked = record.run_at if record.run_at > record.created_at else now
            record.run_at = max(asked, now + (record.wait or 0.0))
        self._enter(record)
        if record.signal is not None:
            self._expect_signal(record, now)

    def _expect_signal(self, record: MemoryJob, now: float) -> None:
        record.run_at = now
        if record.wait is not None:
            record.expires_at = now + record.wait
            self.expiring.push(record.key, (record.expires_at,))

    # ---- coming and going -----------------------------------------------------------------------

    def _enter(self, record: MemoryJob) -> None:
        """A job waits from now on."""
        if record.held_key is not None:
            self.holders[record.held_key] = record
        if record.expires_at is not None:
            self.expiring.push(record.key, (record.expires_at,))
        if not record.is_joining:
            self.queues.wait(record)
            self.is_work = True

    def _leave(self, record: MemoryJob) -> None:
        """A job is no longer in the state it is in."""
        if record.status is JobStatus.ACTIVE:
            del self.active[record.key]
            self.is_work |= self.queues.stop(record)
        elif record.status.is_final:
            self.leaving.discard(record.key)
            return
        else:
            self.expiring.discard(record.key)
            if not record.is_joining:
                self.queues.leave(record)
        if record.held_key is not None:
            del self.holders[record.held_key]

    def put(self, record: MemoryJob) -> None:
        """Take a whole job in: in the place of the same one, or behind all others."""
        old = self.by_id.get(record.new.id)
        # A move that is repeated puts the same job in again. One of another instant is another job
        # of that id.
        if old is not None and old.created_at == record.created_at:
            self._leave(old)
            record.key = old.key
            self.queues.get(old.new.queue).members -= 1
        elif old is not None:
            self.remove(old)
        key = record.new.unique_key or ""
        taker = self.takers.get(key)
        if taker is None or taker.created_at <= record.created_at:
            self._take_key(record)
        if not record.key:
            self._last_key += 1
            record.key = self._last_key
        self.records[record.key] = self.by_id[record.new.id] = record
        self.queues.get(record.new.queue).members += 1
        # A later claim must not get a fence that a claim in the other store has had.
        self._last_fence = max(self._last_fence, record.fence)
        self.flow_book.enlist(record)
        self._arrive(record)

    def _arrive(self, record: MemoryJob) -> None:
        """A job is in the state it says from now on."""
        if record.status.is_final:
            if record.purge_at is not None:
                self.leaving.push(record.key, (record.purge_at,))
        elif record.status is JobStatus.ACTIVE:
            if record.held_key is not None:
                self.holders[record.held_key] = record
            self.queues.start(record)
            self.active[record.key] = record
        else:
            self._enter(record)

    def purge_due(self, key: int, now: float) -> bool:
        """Forget a job that was kept long enough, unless it holds its unique key for longer."""
        record = self.records[key]
        rule = record.new.unique
        if rule is None or not self.keeps_key(record, now):
            self.remove(record)
            return True
        record.purge_at = rule.until(record.created_at)
        if record.purge_at is not None:
            self.leaving.push(key, (record.purge_at,))
        return False

    def keeps_key(self, record: MemoryJob, now: float) -> bool:
        """Whether a job that has ended holds its unique key still."""
        is_last = self.takers.get(record.new.unique_key or "") is record
        return record.new.unique is not None and is_last and record.holds_key(now)

    def remove(self, record: MemoryJob) -> None:
        """Forget a job."""
        self._leave(record)
        self.flow_book.forget(record)
        if self.takers.get(record.new.unique_key or "") is record:
            del self.takers[record.new.unique_key or ""]
        del self.records[record.key], self.by_id[record.new.id]
        self.queues.get(record.new.queue).members -= 1
        self.queues.forget(record.new.queue)


def _result_of(settlement: Settlement) -> bytes | None:
    """What a step leaves to its successors."""
    is_completed = settlement.transition.status is JobStatus.COMPLETED
    return settlement.result or (b"null" if is_completed else None)
