"""The Redis job store: all calls of its ports."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec

from ergon_framework.core.claim import NO_LIMITS, ClaimRequest
from ergon_framework.core.retention import JobRetention
from ergon_framework.errors import StoreError, StoreUnavailableError
from ergon_framework.jobs.stores.documents import Reader, earliest, queue_of, text_of
from ergon_framework.jobs.stores.erasure import erased
from ergon_framework.jobs.stores.redis.admin import count_in, search
from ergon_framework.jobs.stores.redis.flows import RedisFlows
from ergon_framework.jobs.stores.redis.queues import RedisQueues
from ergon_framework.jobs.stores.redis.records import RedisJobRecords
from ergon_framework.jobs.stores.redis.rows import (
    NUMBERS,
    Blobs,
    RedisRow,
    cancel_request_of,
    claimed_job,
    job_from,
    name_of_key,
    pairs,
    parts_in,
    place_in,
    read_settings,
    rows_in,
    schedule_blob,
    schedule_row,
    settings_blob,
    unreadable_from,
    wire_erased,
    wire_hold,
    wire_settlement,
    worker_row,
)
from ergon_framework.jobs.stores.redis.scripts import JOBS, KEY_WAKES, script
from ergon_framework.jobs.stores.redis.transactions import INSPECT_INTERVAL, RedisTransactions
from ergon_framework.jobs.stores.redis.transitions import (
    EXCHANGE,
    MAX_ATTEMPTS,
    ExchangeAnswer,
    Transitions,
    answer_in,
    unreadable_claim,
)
from ergon_framework.jobs.stores.transitions import (
    MAX_WOKEN,
    WORKER_FORGOTTEN_AFTER,
    settle_cancelled,
)
from ergon_framework.jobs.stores.unreadable import (
    READ_ERRORS,
    SkippedRows,
    argument_problem,
    key_is_held,
    left_out_of,
    problem_of,
    unreadable_job,
)
from ergon_framework.ports.jobstore import (
    MAX_CLOCK_SKEW,
    MOST_COUNTED,
    MOST_SAMPLED,
    CancelRequest,
    ClaimedJob,
    ClaimResult,
    EnqueueResult,
    Job,
    LeaseRenewal,
    Named,
    NewJob,
    PruneResult,
    Queue,
    Schedule,
    Search,
    Settlement,
    StatusCounts,
    Subscription,
    Topic,
    Unreadable,
    WorkerRecord,
)
from ergon_framework.storage.conflicts import ConflictError, retry_conflicts
from ergon_framework.storage.redis.client import DEFAULT_TIMEOUTS, RedisTimeouts
from ergon_framework.storage.urls import option_for, shown_url

logger = logging.getLogger("ergon.jobs")

MAX_BATCH = 500
MAX_BATCH_BYTES = 8 << 20
"""Settlements, renewals or purged jobs of one script, and bytes of results: the server serves no
other client meanwhile."""

_SHORTEN = script("frozen", *JOBS, "shorten")
_WAITS = script("frozen", *JOBS, "waits")
_RENEW = script("frozen", *JOBS, "renew")
_REQUEST_CANCEL = script("frozen", *JOBS, "request_cancel")
_answers = msgspec.msgpack.Decoder(list[bool]).decode

_PURGE = script("frozen", *JOBS, "delete", "purge")
_ERASE = script("frozen", *JOBS, "erase")
_PRUNE = script("frozen", *JOBS, "delete", "prune")
_HEARTBEAT = script("rows", "heartbeat")
_RESTORE = script("frozen", *JOBS, "restore")
_HELD, _NONE = 2, 3

_swept = msgspec.msgpack.Decoder(tuple[int, int, list[str]]).decode


T = TypeVar("T")


class RedisJobStore:
    """Jobs in one Redis database, which any number of processes on any machine may share."""

    def __init__(
        self,
        url: str,
        *,
        clock: Callable[[], float] | None = None,
        read_only: bool = False,
        prefix: str | None = None,
        timeouts: RedisTimeouts = DEFAULT_TIMEOUTS,
        inspect_interval: float = INSPECT_INTERVAL,
    ) -> None:
        """Connect, and look at what is there; refuses a server that would lose jobs.

        ``inspect_interval`` is after how many seconds the server is asked again whether it still
        keeps what it acknowledges.
        """
        self.transactions = RedisTransactions(
            url,
            clock=clock,
            read_only=read_only,
            prefix=prefix,
            timeouts=timeouts,
            inspect_interval=inspect_interval,
        )
        self.shown_url = shown_url(url)
        """The URL that commands in messages contain."""
        self.transitions = Transitions(self.transactions)
        self._flows = RedisFlows(self.transactions, self.transitions.end_outdated)
        self._queues = RedisQueues(self.transactions, self.unreadable)
        self._reader = Reader()
        self._turns: dict[str, str] = {}  # by executor: the queue that was first the last time

    @property
    def records(self) -> RedisJobRecords:
        """All records of the store, for copies into another store or from one."""
        return RedisJobRecords(self.transactions, self.transitions, self, self.flows)

    @property
    def retention(self) -> JobRetention:
        """How long jobs are kept that the store ends by itself."""
        return self.transactions.retention

    @retention.setter
    def retention(self, retention: JobRetention) -> None:
        self.transactions.retention = retention

    @property
    def flows(self) -> RedisFlows:
        """The flows of the store."""
        return self._flows

    @property
    def durability(self) -> str:
        """What an acknowledgement means."""
        return self.transactions.durability

    @property
    def is_synced(self) -> bool:
        """Whether the server syncs before it answers."""
        return self.transactions.is_synced

    @property
    def is_made(self) -> bool:
        """Whether the store was ever opened for writing. Keys with other names belong to other
        programs.
        """
        return self.transactions.is_made

    @property
    def name(self) -> str:
        """The name of the store shown to users."""
        return self.transactions.name

    def now(self) -> float:
        """The store's clock."""
        return self.transactions.now()

    def subscribe(self, topic: Topic) -> Subscription:
        """Subscribe this process to each change of that kind, made by any process."""
        return self.transactions.subscribe(topic)

    def announce(self) -> None:
        """Wake the workers."""
        self.transactions.announce()

    def close(self) -> None:
        """Close everything. May be called twice."""
        self.transactions.close()

    def add(self, jobs: Sequence[NewJob]) -> list[EnqueueResult]:
        """Store all jobs or none. Raises DuplicateJobError."""
        return self.transitions.add_once(jobs) if jobs else []

    def settle_and_claim(
        self, settlements: Sequence[Settlement], request: ClaimRequest | None
    ) -> tuple[list[bool], ClaimResult]:
        """Apply what happened, then claim; very many settlements are applied in several steps.

        One that was applied before, and whose answer was lost, is answered with True again.
        """
        applied, claimed = self._exchange(settlements, request)
        if not all(applied):
            applied = settle_cancelled(
                settlements,
                applied,
                self.cancel_requests,
                lambda again: self.transitions.apply(again, "exchange"),
                self.retention,
            )
        return applied, claimed

    def _exchange(
        self, settlements: Sequence[Settlement], request: ClaimRequest | None
    ) -> tuple[list[bool], ClaimResult]:
        applied: list[bool] = []
        # Until what is left fits beside the claim: a script holds up all other clients.
        while settlements and (request is None or _share(settlements) < len(settlements)):
            share = _share(settlements)
            applied += self.transitions.apply(settlements[:share], "exchange")
            settlements = settlements[share:]
        if request is None:
            return applied, ClaimResult([])
        blobs = Blobs()
        wire = [wire_settlement(settlement, blobs) for settlement in settlements]
        # A claim whose answer was lost is not made again: the lease of the first would hold on.
        head, data, bodies, late = self.transactions.write(
            EXCHANGE,
            "exchange",
            wire,
            self._wire_request(request),
            blobs=blobs,
            is_repeatable=False,
        )
        answer = answer_in(head)
        return applied + answer.applied, self._claimed(answer, data, bodies, late)

    def renew(self, holds: Sequence[LeaseRenewal], lease: float) -> list[bool]:
        """Renew leases and charge attempts. False for each job that this holder has lost."""
        answers: list[bool] = []
        for first in range(0, len(holds), MAX_BATCH):
            wire = [wire_hold(hold) for hold in holds[first : first + MAX_BATCH]]
            answers += _answers(self.transactions.write(_RENEW, "renew", wire, lease))
        return answers

    def request_cancel(self, job: Job, request: CancelRequest) -> bool:
        """Record that a running job is to be cancelled. False: this claim of it no longer runs."""
        claim = job.id, job.key, job.fence
        return bool(self.transactions.write(_REQUEST_CANCEL, "desk", *claim, text_of(request)))

    def cancel_requests(self, claims: Sequence[LeaseRenewal]) -> Mapping[str, CancelRequest]:
        """Which of these claims are to be cancelled, by job id."""
        found: dict[str, CancelRequest] = {}
        for first in range(0, len(claims), MAX_BATCH):
            some = claims[first : first + MAX_BATCH]
            kept = self.transactions.call("HMGET", "job", *(each.id for each in some))
            for claim, row in zip(some, kept, strict=True):
                request = None if row is None else cancel_request_of(row, claim)
                if request is not None:
                    found[claim.id] = request
        return found

    def shorten(self, leases: Mapping[str, float], others: float) -> int:
        """Shorten leases that end later than a renewal at this moment would make them end."""
        # Asked first, with a plain command: clocks are hardly ever set back, and a script would
        # count as a write each time.
        latest = self.now() + min((*leases.values(), others))
        if not self.transactions.call("ZCOUNT", "leases", f"({latest!r}", "+inf"):
            return 0
        least = min((*leases.values(), others))
        number: int = self.transactions.write(_SHORTEN, "renew", dict(leases), others, least)
        return number

    def shorten_waits(self) -> int:
        """Restore the decided wait of jobs that went back to their queue, after the clock was set
        back.
        """
        latest = self.now() + MAX_CLOCK_SKEW
        if not self.transactions.call("ZCOUNT", "later", f"({latest!r}", "+inf"):
            return 0
        changed, first, is_over = 0, 0, False
        while not is_over:
            number, first = self.transactions.write(_WAITS, "renew", MAX_CLOCK_SKEW, first)
            changed += number
            is_over = first == 0
        return changed

    def expired_leases(self, limit: int) -> list[Job]:
        """Running jobs whose lease has expired, the oldest first."""
        return self._readable("overdue", limit)

    def _readable(self, where: str, limit: int, wanted: tuple[Any, ...] | None = None) -> list[Job]:
        """Jobs of one place. Rows that cannot be read are set aside."""
        found, unreadable, _ = self.transitions.look(where, None, limit, wanted)
        # Set aside until a look finds none: else they would be found first at each look.
        while unreadable and not self.transactions.is_read_only:
            self.transitions.set_aside(unreadable)
            found, unreadable, _ = self.transitions.look(where, None, limit, wanted)
        return [job for _, job in found]

    def find(self, job_id: str) -> Job | None:
        """One job."""
        found, unreadable, _ = self.transitions.look("ids", [job_id], 0, None)
        if unreadable:
            raise unreadable_job(job_id, unreadable[0].problem, option_for(self))
        return found[0][1] if found else None

    def holder(self, unique_key: str) -> str | None:
        """The id of the job that holds a unique key."""
        return self.transitions.holder(unique_key)

    # ---- claiming -------------------------------------------------------------------------------

    def _wire_request(self, request: ClaimRequest) -> tuple[Any, ...]:
        """What a worker asks, as ``claim.lua`` wants it."""
        return (
            request.worker,
            request.lease,
            list(request.slots.items()),
            request.default,
            dict(request.routes),
            list(request.own),
            None if request.queues is None else list(request.queues),
            request.wants_more,
            self._turns,
            dict(request.handlers),
            request.version,
        )

    def _claimed(
        self, answer: ExchangeAnswer, data: bytes, bodies: bytes, late: bytes
    ) -> ClaimResult:
        self._turns.update(zip(answer.turns[::2], answer.turns[1::2], strict=True))
        texts = parts_in(bodies, answer.lengths)
        found = zip(answer.ids, rows_in(data), texts, strict=True)
        jobs = self._leased(found)
        next_at = None if answer.next_at is False else float(answer.next_at)
        expires_at = None if answer.expires_at is False else float(answer.expires_at)
        outdated = self._outdated(answer.outdated, late)
        lanes = tuple(answer.handler_lanes)
        return ClaimResult(jobs, next_at, answer.is_left, outdated, expires_at, lanes)

    def _leased(self, found: Iterable[tuple[str, RedisRow, memoryview]]) -> list[ClaimedJob]:
        """The claimed jobs. Rows that cannot be read are set aside."""
        jobs: list[ClaimedJob] = []
        unreadable: list[Unreadable] = []
        for each in found:
            try:
                jobs.append(claimed_job(*each))
            except READ_ERRORS as error:
                unreadable.append(unreadable_claim(each[0], each[1], error))
        if unreadable:
            try:
                self.transitions.set_aside(unreadable, is_claimed=True)
            except StoreError as error:  # what was claimed must not be lost for it
                logger.warning("rows that cannot be read are set aside later: %s", error)
        return jobs

    def _outdated(self, ids: Sequence[str], data: bytes) -> int:
        try:
            return self.transitions.end_outdated(ids, data, "exchange")
        except StoreError as error:
            # What was claimed must not be lost for it: a sweep finds those jobs, too.
            logger.warning("outdated jobs are ended later: %s", error)
            return 0

    # ---- jobs -----------------------------------------------------------------------------------

    def search(self, search_: Search, limit: int | None = None) -> Iterator[Job]:
        """Matching jobs, the newest first, read in pages."""
        return search(self.transitions.look_at, self._running, search_, limit)

    def count(self, search_: Search) -> int:
        """How many jobs match."""
        found = self.flows.count(search_)
        if found is None:
            counts = self.transactions.call("HGETALL", "counts")
            found = count_in(pairs(counts), search_)
        return sum(1 for _ in self.search(search_)) if found is None else found

    def _running(self) -> list[bytes]:
        found: list[bytes] = self.transactions.call("ZRANGE", "leases", 0, -1)
        return found

    def unreadable(self, limit: int | None = None) -> list[Unreadable]:
        """The rows that were set aside because they cannot be read, the newest first."""
        found = pairs(self.transactions.call("HGETALL", "unreadable"))
        noted = [unreadable_from(*each) for each in found]
        return sorted(noted, key=lambda each: (-each.since, each.id))[:limit]

    def left_out(self) -> Iterator[Unreadable]:
        """Rows that a search skips as unreadable although no worker has set them aside."""

        def searched(log: SkippedRows) -> Iterator[Job]:
            return search(partial(self.transitions.look_at, log=log), self._running, Search(), None)

        return left_out_of(searched, self.unreadable())

    def restore_unreadable(self, key: Any) -> bool:
        """Read an unreadable row again, and put the job back where it was."""
        problem = self._problem(str(key))
        answer = 3 if problem else self.transactions.write(_RESTORE, "desk", key, False)
        if problem and self.transactions.call("HEXISTS", "unreadable", key) == 0:
            return False
        if answer == _HELD:
            raise key_is_held(str(key))
        if answer == _NONE:
            raise unreadable_job(str(key), problem or "its row is no job's", option_for(self))
        return bool(answer)

    def _problem(self, job_id: str) -> str | None:
        """What is wrong with a row; None if it is a job that can be run."""
        names = ("job", "body", "tale", "flow:step")
        parts = (self.transactions.call("HGET", name, job_id) for name in names)
        row, body, tale, place = parts
        try:
            [parsed] = rows_in(row or b"")
            texts = memoryview(body or b""), memoryview(tale or b"")
            return argument_problem(job_from(job_id, parsed, *texts, place_in(place)))
        except READ_ERRORS as error:
            return problem_of(error)

    def discard_unreadable(self, key: Any) -> bool:
        """Delete an unreadable row for good."""
        return bool(self.transactions.write(_RESTORE, "desk", key, True))

    def replace(self, settlement: Settlement, job: NewJob) -> bool:
        """End a job that is no step of a flow, and add another in its place, in one script."""
        return self.transitions.replace(settlement, job)

    def purge(self, jobs: Sequence[Job]) -> int:
        """Delete final jobs that have not changed since they were read."""
        purged = 0
        for first in range(0, len(jobs), MAX_BATCH):
            wire = [
                (job.id, job.key, job.fence, NUMBERS[job.status], job.finished_at)
                for job in jobs[first : first + MAX_BATCH]
            ]
            purged += self.transactions.write(_PURGE, "desk", wire)
        return purged

    def erase(self, jobs: Sequence[Job]) -> int:
        """Erase the content of final jobs that have not changed since they were read."""
        number, now = 0, self.now()
        for first in range(0, len(jobs), MAX_BATCH):
            blobs = Blobs()
            wire = [
                wire_erased(job, erased(job, now), blobs) for job in jobs[first : first + MAX_BATCH]
            ]
            number += self.transactions.write(_ERASE, "desk", wire, blobs=blobs)
        return number

    def prunable(self, limit: int) -> list[Job]:
        """Ended jobs whose retention is over and that are not steps of flows."""
        return self._readable("prunable", min(limit, MAX_BATCH), (MAX_BATCH_BYTES,))

    def prune(self, limit: int, *, purges: bool = True) -> PruneResult:
        """Delete jobs whose retention is over, end expired jobs, and forget dead workers.

        Also makes jobs due again that wait for a limit key which is free.
        """
        purged = ended = workers = 0
        # One bounded script after the other, so that other clients get in between.
        while purged + ended < limit:
            most = min(MAX_BATCH, limit - purged - ended)
            some_purged, forgotten, some_ended = self._sweep(most, purges)
            purged, ended, workers = purged + some_purged, ended + some_ended, workers + forgotten
            if some_purged + some_ended < most:
                break
        return PruneResult(purged, ended, workers, purged + ended >= limit)

    def _sweep(self, most: int, purges: bool) -> tuple[int, int, int]:
        arguments = (most, WORKER_FORGOTTEN_AFTER, purges)
        head, data = self.transactions.write(_PRUNE, "sweep", *arguments)
        purged, forgotten, ids = _swept(head)
        return purged, forgotten, self.transitions.end_outdated(ids, data, "sweep")

    # ---- queues ---------------------------------------------------------------------------------

    def queues(self) -> list[Queue]:
        """Every queue with jobs or settings, by name."""
        return self._queues.queues()

    def queue_names(
        self, *, prefix: str = "", after: str = "", limit: int = 100, is_due: bool = False
    ) -> list[str]:
        """The next queues that have jobs or settings, by name."""
        return self._queues.queue_names(prefix=prefix, after=after, limit=limit, is_due=is_due)

    def look_at_queues(
        self, names: Sequence[str], *, most: int = MOST_COUNTED, sample: int = MOST_SAMPLED
    ) -> list[Queue]:
        """The given queues, in this order. The counts are exact, as the server keeps them."""
        return self._queues.look_at(names, sample)

    def count_by_status(self, *, most: int = MOST_COUNTED) -> StatusCounts:
        """The jobs of the whole store by status; exact, as the server keeps the counts."""
        return self._queues.count_by_status()

    def set_queue(self, name: str, **changes: Any) -> Queue:
        """Change some settings of a queue; the answer has no counts."""

        def attempt() -> Queue:
            # Read, decided here and swapped: Lua would need the rules of queues a second time.
            blob = self.transactions.call("HGET", "queues", name)
            before = NO_LIMITS if blob is None else read_settings(blob)
            after = before.changed(changes, self.now())
            kept = None if after.is_plain else settings_blob(after)
            is_other = after.of_key(0.0) != before.of_key(0.0)
            woken = MAX_WOKEN if is_other else None
            if not self.transitions.swap_settings(name, blob, kept, woken):
                raise ConflictError
            return queue_of(name, after)

        return self._retried(attempt)

    def pinned_queues(self) -> dict[str, str]:
        """The versions that queues are pinned to."""
        kept = self.transactions.call("HGETALL", "queues")
        found = {name: read_settings(blob).pinned_version for name, blob in pairs(kept)}
        return {name: version for name, version in found.items() if version is not None}

    def key_wakes_at(self, queue: str, limit_key: str) -> float | None:
        """When jobs that wait for a token of this limit key are due; None if none waits."""
        name = name_of_key(queue, limit_key)
        found = self.transactions.call("ZSCORE", KEY_WAKES, name)
        return None if found is None else float(found)

    # ---- workers --------------------------------------------------------------------------------

    def heartbeat(self, record: WorkerRecord) -> None:
        """Store a worker's heartbeat record. A record with the state ``gone`` removes it."""
        blob = None if record.state == "gone" else msgspec.json.encode(record)
        blobs = Blobs()
        kept = int(2 * WORKER_FORGOTTEN_AFTER)
        names = [name for name in (*record.executors, *record.serves) if name]
        self.transactions.write(
            _HEARTBEAT, "desk", record.id, blobs.add(blob), kept, names, blobs=blobs
        )

    def check_tables(self) -> None:
        """Raise ``StoreError`` unless the server answers with keys that this program knows.

        One that was flushed passes: it is a store without jobs, and takes new ones.
        """
        self.transactions.check_version()

    def workers(self) -> list[WorkerRecord]:
        """The workers with a heartbeat record, by id."""
        return [each for each in self._worker_records() if not each.has_ended]

    def ended_workers(self) -> list[WorkerRecord]:
        """The final records of workers that have ended."""
        return [each for each in self._worker_records() if each.has_ended]

    def _worker_records(self) -> list[WorkerRecord]:
        found = sorted(pairs(self.transactions.call("HGETALL", "workers")))
        return self._reader.workers(worker_row(*each) for each in found)

    def named(self) -> list[Named]:
        """The executors that due jobs name, by name."""
        return self._queues.named()

    def waiting_for(self, executor: str, due_before: float, limit: int) -> list[Job]:
        """Jobs that name this executor, could be claimed, and became due before that instant."""
        return self.transitions.look_at("named", [executor], limit, (None, None, None, due_before))[
            0
        ]

    # ---- schedules ------------------------------------------------------------------------------

    def schedules(self) -> list[Schedule]:
        """All schedules, by name."""
        found = sorted(pairs(self.transactions.call("HGETALL", "schedules")))
        return self._reader.schedules(schedule_row(*each) for each in found)

    def next_schedules(self, limit: int) -> list[Schedule]:
        """Schedules that fire next, the earliest first. Paused schedules, and those without another
        fire, are left out.
        """
        return earliest(self.schedules(), limit)

    def put_schedule(self, schedule: Schedule) -> None:
        """Store a schedule; nothing of an earlier definition is kept."""

        def attempt() -> None:
            before = self._stored(schedule.name)
            self._swap(schedule.name, before, schedule_blob(schedule))

        self._retried(attempt)

    def drop_schedule(self, name: str) -> bool:
        """Remove a schedule. Returns whether it existed."""

        def attempt() -> bool:
            before = self._stored(name)
            if before is not None:
                self._swap(name, before, None)
            return before is not None

        return self._retried(attempt)

    def fire(
        self, name: str, expected: float, next_at: float | None, jobs: Sequence[NewJob]
    ) -> bool:
        """Advance ``next_at`` and add the jobs, in one commit, if ``next_at`` still is
        ``expected``.

        A job whose id or unique key is taken is skipped.
        """

        def attempt() -> bool:
            before = self._stored(name)
            if before is None:
                return False
            found = self._reader.schedules([schedule_row(name, before)])
            # Another worker has fired it since.
            if not found or found[0].next_at != expected:
                return False
            after = msgspec.structs.replace(found[0], next_at=next_at, last_at=expected)
            self.transitions.add(jobs, (name, before, schedule_blob(after)))
            return True

        return self._retried(attempt)

    def _stored(self, name: str) -> bytes | None:
        found: bytes | None = self.transactions.call("HGET", "schedules", name)
        return found

    def _swap(self, name: str, before: bytes | None, after: bytes | None) -> None:
        """Write a schedule; ``ConflictError`` if another client changed it since it was read."""
        if not self.transitions.swap_schedule(name, before, after):
            raise ConflictError

    def _retried(self, attempt: Callable[[], T]) -> T:
        return retry_conflicts(attempt, max_attempts=MAX_ATTEMPTS, give_up=self._too_busy)

    def _too_busy(self) -> StoreUnavailableError:
        return StoreUnavailableError(
            f"{self.name}: others change the same settings without end", remedy="try again later"
        )


def _share(settlements: Sequence[Settlement]) -> int:
    """How many settlements go into one script: the first of them, at least one."""
    size = 0
    for n, settlement in enumerate(settlements[:MAX_BATCH]):
        size += len(settlement.result or b"")
        if n and size > MAX_BATCH_BYTES:
            return n
    return min(len(settlements), MAX_BATCH)
