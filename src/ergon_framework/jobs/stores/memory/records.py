"""Reads and writes everything in a memory job store as records."""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import islice
from typing import Any, cast

from ergon_framework.jobs.stores.flow_settlement import FlowRow, FlowWork
from ergon_framework.jobs.stores.memory.flows import FlowBook
from ergon_framework.jobs.stores.memory.job_table import JobTable
from ergon_framework.jobs.stores.memory.rows import MAX_HISTORY, MemoryJob
from ergon_framework.jobs.stores.records import (
    KeyBuckets,
    SettingsStore,
    by_queue,
    discard_settings,
    dump_settings,
    load_settings,
)
from ergon_framework.ports.flow import Join
from ergon_framework.ports.jobstore import Job, NewJob
from ergon_framework.ports.transfer import (
    C,
    Fence,
    FlowRecord,
    JobRecord,
    TransferRecord,
    as_page,
)


class MemoryJobRecords:
    """The records of one store: its jobs and flows, the limits of its queues, its schedules."""

    def __init__(
        self, step: Callable[[], AbstractContextManager[JobTable]], store: SettingsStore
    ) -> None:
        """``step`` gives the table for one step of one caller."""
        self._step = step
        self._store = store
        self._mark: bytes | None = None
        self._id = f"memory {secrets.token_hex(16)}"

    def store_id(self) -> str:
        """A random word: each store in memory is another one."""
        return self._id

    def dump(self, kind: type[C], after: Any, limit: int) -> list[C]:
        """The records of a kind after a place, in order."""
        if kind not in (JobRecord, FlowRecord):
            return dump_settings(self._store, self, kind, after, limit)
        with self._step() as table:
            if kind is FlowRecord:
                return cast("list[C]", _flows(table.flow_book, after or "", limit))
            return cast("list[C]", _page(table, after or 0, limit))

    def load(self, records: Sequence[TransferRecord], fence: Fence | None = None) -> None:
        """Write records of one kind, in order."""
        with self._step() as table:
            self._check(fence)
            for each in records:
                if isinstance(each, JobRecord):
                    table.put(_record(each))
                elif isinstance(each, FlowRecord):
                    put_flow(table.flow_book, each)
            table.is_work = False  # workers come when the move is over
        load_settings(self._store, self, records)

    def discard(self, records: Sequence[TransferRecord], fence: Fence | None = None) -> None:
        """Delete records of one kind. Records that do not exist are skipped."""
        with self._step() as table:
            self._check(fence)
            for each in records:
                if isinstance(each, FlowRecord):
                    table.flow_book.discard(each.flow.id)
                    _strip(table.flow_book, each.flow.id)
                record = table.by_id.get(each.identity)
                if isinstance(each, JobRecord) and record is not None:
                    table.remove(record)
        discard_settings(self._store, records)

    def buckets(self) -> Mapping[str, float]:
        """When the bucket of each queue with a rate will be full."""
        with self._step() as table:
            found = {queue.settings.name: queue.full_at for queue in table.queues}
        return {name: full_at for name, full_at in found.items() if full_at is not None}

    def fill_buckets(self, full_at: Mapping[str, float]) -> None:
        """Set when the buckets of queues will be full."""
        with self._step() as table:
            for name, instant in full_at.items():
                table.queues.get(name).fill(instant)

    def key_buckets(self) -> KeyBuckets:
        """When the bucket of each limit key of which tokens were taken will be full."""
        with self._step() as table:
            return by_queue(
                (queue.settings.name, key, bucket.full_at)
                for queue in table.queues
                for key, bucket in queue.key_buckets.items()
            )

    def fill_key_buckets(self, full_at: KeyBuckets) -> None:
        """Set when the buckets of limit keys will be full."""
        with self._step() as table:
            for name, keys in full_at.items():
                table.queues.get(name).fill_keys(keys)

    def move_state(self) -> bytes | None:
        """The recorded state of a move into this store."""
        with self._step():
            return self._mark

    def set_move_state(self, state: bytes | None, fence: Fence | None = None) -> None:
        """Record the state of a move into this store, or delete the record."""
        with self._step():
            if fence is not None:
                fence.check_change(self._mark, state)
            self._mark = state

    def _check(self, fence: Fence | None) -> None:
        """No other process writes to memory, so that once is enough for settings, too."""
        if fence is not None:
            fence.check(self._mark)


def _page(table: JobTable, after: int, limit: int) -> list[JobRecord]:
    """One page of jobs; it has fewer jobs when they are large."""
    later = (record for key, record in table.records.items() if key > after)
    records = (JobRecord(record.job(), record.changed_at) for record in islice(later, limit))
    return as_page((each, _payload_size(each.job)) for each in records)


def _payload_size(job: Job) -> int:
    return len(job.args) + len(job.kwargs) + len(job.result or b"")


def _flows(book: FlowBook, after: str, limit: int) -> list[FlowRecord]:
    """One page of flows by id; it has fewer flows when they are large."""
    ids = sorted(flow_id for flow_id in book.flows if flow_id > after)[:limit]
    joins: dict[str, list[Join]] = {flow_id: [] for flow_id in ids}
    for join in book.joins.values():
        if join.flow_id in joins:
            joins[join.flow_id].append(join)
    work: dict[str, dict[str, str]] = {flow_id: {} for flow_id in ids}
    for each in book.work.values():
        if each.flow_id in work:
            work[each.flow_id][each.target] = each.kind
    records = (
        FlowRecord(book.flows[flow_id].flow(), tuple(joins[flow_id]), work[flow_id])
        for flow_id in ids
    )
    return as_page((each, each.payload_size) for each in records)


def put_flow(book: FlowBook, copy: FlowRecord) -> None:
    """Take a whole flow in: in the place of the same one, or behind all others."""
    _strip(book, copy.flow.id)
    book.put(FlowRow.of(copy.flow))
    book.joins.update({join.id: join for join in copy.joins})
    book.work.update({target: FlowWork(target, kind, 0) for target, kind in copy.work.items()})


def _strip(book: FlowBook, flow_id: str) -> None:
    """Delete the joins and the unfinished work of a flow; its steps stay."""
    for join in [each.id for each in book.joins.values() if each.flow_id == flow_id]:
        del book.joins[join]
    for target in [each.target for each in book.work.values() if each.flow_id == flow_id]:
        del book.work[target]


def _record(copy: JobRecord) -> MemoryJob:
    """A job as the store keeps it; its key is given when it is put in."""
    job = copy.job
    step = job.step
    return MemoryJob(
        key=0,
        new=_new(job),
        created_at=job.created_at,
        changed_at=copy.changed_at,
        run_at=job.run_at,
        expires_at=job.expires_at,
        status=job.status,
        # A `Job` counts the attempt that runs, and a record does not.
        attempts=job.attempts - job.is_charged,
        is_charged=job.is_charged,
        deliveries=job.deliveries,
        excused=job.excused,
        is_solo=job.is_solo,
        fence=job.fence,
        why=job.why,
        worker=job.worker,
        claimed_at=job.claimed_at,
        lease_expires_at=job.lease_expires_at,
        finished_at=job.finished_at,
        purge_at=job.purge_at,
        result=job.result,
        last_error=job.last_error,
        flow_id=None if step is None else step.flow_id,
        join_id=None if step is None else step.join_id,
        feeds=None if step is None else step.feeds,
        wait=None if step is None else step.wait,
        signal=None if step is None else step.signal,
        # Other stores keep longer histories: a move must not cut them.
        history=deque(job.history, maxlen=max(MAX_HISTORY, len(job.history))),
    )


def _new(job: Job) -> NewJob:
    return NewJob(
        id=job.id,
        handler=job.handler,
        executor=job.executor,
        queue=job.queue,
        args=job.args,
        kwargs=job.kwargs,
        priority=job.priority,
        timeout=job.timeout,
        max_attempts=job.max_attempts,
        max_deliveries=job.max_deliveries,
        retry=job.retry,
        unique_key=job.unique_key,
        limit_key=job.limit_key,
        limit=job.limit,
        result_ttl=job.result_ttl,
        correlation_id=job.correlation_id,
        trace_context=job.trace_context,
        uses=job.uses,
        step=job.step,
        tags=job.tags,
        metadata=job.metadata,
        unique=job.unique,
    )
