"""Every change of a job in Redis, and reading jobs: how the scripts are called."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from ergon_framework.core.job import JobStatus
from ergon_framework.errors import StoreError, StoreUnavailableError
from ergon_framework.jobs.stores.redis.rows import (
    STATUSES,
    Blobs,
    Place,
    RedisRow,
    body_of,
    holder_in,
    job_from,
    parts_in,
    rows_in,
    standing,
    status_in,
    unreadable_from,
    wire_job,
    wire_settlement,
)
from ergon_framework.jobs.stores.redis.scripts import JOBS, script
from ergon_framework.jobs.stores.redis.transactions import RedisTransactions
from ergon_framework.jobs.stores.transitions import (
    cancel_replaced,
    expire,
    expires_too_soon,
    id_taken,
    key_held,
    other_handler,
)
from ergon_framework.jobs.stores.unreadable import (
    READ_ERRORS,
    SkippedRows,
    UnreadableLog,
    log_set_aside,
    problem_of,
)
from ergon_framework.ports.jobstore import EnqueueResult, Job, NewJob, Settlement, Unreadable
from ergon_framework.storage.conflicts import ConflictError, retry_conflicts
from ergon_framework.storage.redis.client import RedisScript

EXCHANGE = script("frozen", *JOBS, "limits", "claim", "exchange")
_PLAIN = script("frozen", "plain")
ADD = script("frozen", *JOBS, "add")
_READ = script(*JOBS, "read")
_SWAP = script("frozen", "rows", "swap")
_SET_QUEUE = script("frozen", *JOBS, "set_queue")
_ASIDE = script("frozen", *JOBS, "set_aside")
MAX_ATTEMPTS = 100
"""How often a job is sent again with the transition of one that it replaces."""


class ExchangeAnswer(msgspec.Struct, frozen=True, array_like=True):
    """How an exchange begins its answer."""

    applied: list[bool]
    next_at: float | bool
    is_left: bool
    turns: list[str]
    ids: list[str]
    lengths: list[int]
    outdated: list[str]
    expires_at: float | bool
    handler_lanes: list[str] = []


class _Seen(msgspec.Struct, frozen=True, array_like=True):
    """How a look begins its answer."""

    ids: list[str]
    bodies: list[int]
    tales: list[int]
    last: float | bool
    missed: list[str] = []  # rows that are no job's
    places: list[tuple[str, Place | bool]] = []  # of steps


answer_in = msgspec.msgpack.Decoder(ExchangeAnswer).decode
_seen = msgspec.msgpack.Decoder(_Seen).decode
_added = msgspec.msgpack.Decoder(list[tuple[str, bool, str] | bool]).decode


def _is_plain(job: NewJob) -> bool:
    """Whether nothing of it has to be looked up, and it is found by its id alone."""
    return job.unique_key is None and not job.tags and job.metadata is None


class Transitions:
    """Adds, settles and reads jobs; asks the core where the store itself has to settle one."""

    def __init__(self, transactions: RedisTransactions) -> None:
        self._transactions = transactions
        self._unreadable_log = UnreadableLog()

    def add_once(self, jobs: Sequence[NewJob]) -> list[EnqueueResult]:
        """Add jobs. When the answer is lost, their ids tell whether that was done."""
        try:
            return self.add(jobs)
        except StoreUnavailableError as error:
            if error.details.get("outcome") != "unknown":
                raise
            # A script runs whole or not at all: if one of the jobs is there, it was carried out.
            try:
                there, _ = self.look_at("ids", [job.id for job in jobs])
            except StoreError:
                raise error from None  # the first error says that the outcome is not known
        found = {job.id: body_of(job) for job in there}
        for job in jobs:
            if job.id in found and found[job.id] != body_of(job):
                raise id_taken(job)
        if not found:
            return self.add(jobs)
        return [
            EnqueueResult(*(job.id, True) if job.id in found else (self._holder(job), False))
            for job in jobs
        ]

    def _holder(self, job: NewJob) -> str:
        """The job that holds the unique key of another."""
        return self.holder(job.unique_key or "") or job.id

    def holder(self, key: str) -> str | None:
        """The id of the job that holds a unique key: until it ends, or by its rule."""
        found = self._transactions.call("HGET", "unique", key)
        if found is not None:
            return str(found.decode())
        taker = self._transactions.call("HGET", "in:keys", key)
        return None if taker is None else holder_in(taker, self._status, self._now())

    def _status(self, job_id: str) -> JobStatus | None:
        return status_in(self._transactions.call("HGET", "job", job_id))

    def _now(self) -> float:
        return self._transactions.now()

    def replace(self, settlement: Settlement, job: NewJob) -> bool:
        """End a job that is no step, and add one in its place; False: it has been moved since."""
        try:
            self.add([job], ends=settlement)
        except EndedError:
            return False
        return True

    def add(
        self,
        jobs: Sequence[NewJob],
        fires: Sequence[Any] | None = None,
        ends: Settlement | None = None,
    ) -> list[EnqueueResult]:
        """Add jobs; of those of a schedule that fires, the ones that can be added.

        ``ends`` is that of a job in whose place they come; raises EndedError where it does not
        apply.
        """
        blobs = Blobs()
        wire = [wire_job(job, blobs) for job in jobs]
        if fires is None and ends is None and all(map(_is_plain, jobs)):
            return self.add_plain(jobs, wire, blobs)
        if fires is not None:
            fires = (fires[0], blobs.add(fires[1]), blobs.add(fires[2]))
        ended = None if ends is None else wire_settlement(ends, blobs)
        transitions: dict[str, Any] = {}
        call = "fire" if fires is not None else "add" if ends is None else "desk"

        # A script cannot ask the core. Where it has to replace a job, it changes nothing and gives
        # the row back; the transition for that row goes along with the next attempt.
        def attempt() -> list[EnqueueResult]:
            kind, *rest = self._transactions.write(
                *(ADD, call, wire, transitions, fires, ended),
                blobs=blobs,
                is_repeatable=fires is not None,
            )
            if kind == b"added":
                found = [each for each in _added(rest[0]) if not isinstance(each, bool)]
                return [EnqueueResult(job_id, is_new, old or None) for job_id, is_new, old in found]
            if kind == b"late":  # also the answer to a repeated fire that was carried out
                raise FiredError
            if kind == b"moved":
                raise EndedError
            holder = rest[1].decode() if len(rest) > 1 else ""
            transitions.pop(holder, None)  # another client changed it since
            if kind != b"again":
                transitions[holder] = self._move_for(kind, rest, jobs, blobs)
            raise _ReplacedError

        return retry_conflicts(
            attempt,
            max_attempts=MAX_ATTEMPTS,
            give_up=self._too_busy,
            is_conflict=lambda error: isinstance(error, _ReplacedError),
        )

    def _too_busy(self) -> StoreUnavailableError:
        return StoreUnavailableError(
            f"{self._transactions.name}: others replace the same jobs without end",
            remedy="try again later",
        )

    def add_plain(
        self, jobs: Sequence[NewJob], wire: Sequence[Any], blobs: Blobs
    ) -> list[EnqueueResult]:
        """Add jobs without unique keys: nothing but their ids can stand in the way."""
        kind, *rest = self._transactions.write(
            _PLAIN, "add", wire, blobs=blobs, is_repeatable=False
        )
        if kind == b"id":
            raise id_taken(jobs[rest[0] - 1])
        return [EnqueueResult(job.id, True) for job in jobs]

    def _move_for(
        self, kind: bytes, rest: Sequence[Any], jobs: Sequence[NewJob], blobs: Blobs
    ) -> tuple[Any, ...]:
        """The transition of a job that is to be replaced; raises where none can be."""
        if kind == b"id":
            raise id_taken(jobs[rest[0] - 1])
        if kind == b"key":
            raise key_held(jobs[rest[0] - 1], rest[1].decode(), has_ended=len(rest) > 2)
        if kind == b"handler":
            raise other_handler(jobs[rest[0] - 1], rest[1].decode())
        if kind == b"expiry":
            raise expires_too_soon(jobs[rest[0] - 1], rest[1].decode())
        [row] = rows_in(rest[2])
        holder = rest[1].decode()
        transition = cancel_replaced(
            standing(holder, row), self._transactions.now(), self._transactions.retention
        )
        return wire_settlement(transition, blobs)

    def apply(self, settlements: Sequence[Settlement], call: str) -> list[bool]:
        """Move jobs that still are where the transitions were decided; which of them were."""
        blobs = Blobs()
        wire = [wire_settlement(settlement, blobs) for settlement in settlements]
        return answer_in(
            self._transactions.write(EXCHANGE, call, wire, None, blobs=blobs)[0]
        ).applied

    def end_outdated(self, ids: Sequence[str], data: bytes, call: str) -> int:
        """Dead-letter jobs that were not started before their expiry; how many it were."""
        now = self._transactions.now()
        found = zip(ids, rows_in(data), strict=True)
        keep = self._transactions.retention
        transitions = [expire(standing(job_id, row), now, keep) for job_id, row in found]
        return sum(self.apply(transitions, call)) if transitions else 0

    def look_at(
        self,
        where: str,
        which: list[str] | int | None,
        most: int = 0,
        wanted: tuple[Any, ...] | None = None,
        log: SkippedRows | None = None,
    ) -> tuple[list[Job], int | None]:
        """Some jobs, and the number below which to look on, if there may be more."""
        found, unreadable, last = self.look(where, which, most, wanted)
        for each in unreadable:
            (log or self._unreadable_log).left_out(each)
        return [job for _, job in found], last

    def look(
        self,
        where: str,
        which: list[str] | int | None,
        most: int,
        wanted: tuple[Any, ...] | None,
    ) -> tuple[list[tuple[RedisRow, Job]], list[Unreadable], int | None]:
        """The same, with the rows they were made of, and those that are none."""
        head, data, bodies, tales = self._transactions.run(_READ, where, which, most, wanted)
        seen = _seen(head)
        parts = zip(
            seen.ids,
            rows_in(data),
            parts_in(bodies, seen.bodies),
            parts_in(tales, seen.tales),
            strict=True,
        )
        last = None if seen.last is False else int(seen.last)
        places = {job_id: place for job_id, place in seen.places if not isinstance(place, bool)}
        found: list[tuple[RedisRow, Job]] = []
        unreadable = [self._unreadable_values(job_id) for job_id in seen.missed]
        for job_id, row, body, tale in parts:
            try:
                found.append((row, job_from(job_id, row, body, tale, places.get(job_id))))
            except READ_ERRORS as error:
                unreadable.append(_unreadable(job_id, row, problem_of(error)))
        return found, unreadable, last

    def _unreadable_values(self, job_id: str) -> Unreadable:
        """What is known of a row that is no job's."""
        note = self._transactions.call("HGET", "unreadable", job_id)
        if note is not None:
            return unreadable_from(job_id, note)
        return Unreadable(
            key=job_id, id=job_id, queue="", status="", problem="its row is no job's", since=0.0
        )

    def set_aside(self, unreadable: Sequence[Unreadable], *, is_claimed: bool = False) -> None:
        """Set rows aside that cannot be read.

        ``is_claimed``: they have just been claimed, which is undone.
        """
        wire = [(each.id, each.problem, is_claimed) for each in unreadable]
        self._transactions.write(_ASIDE, "exchange", wire)
        for each in unreadable:
            log_set_aside(each)

    def swap_schedule(self, name: str, before: bytes | None, after: bytes | None) -> bool:
        """Put a schedule in the place of another; False: that was not there any more."""
        return self._swap(_SWAP, name, before, after)

    def swap_settings(
        self, name: str, before: bytes | None, after: bytes | None, woken: int | None = None
    ) -> bool:
        """The same with the settings of a queue.

        ``woken``: how many limit keys are looked at again, where their limits have changed.
        """
        return self._swap(_SET_QUEUE, name, before, after, woken)

    def _swap(
        self, what: RedisScript, name: str, before: bytes | None, after: bytes | None, *more: Any
    ) -> bool:
        blobs = Blobs()
        numbers = blobs.add(before), blobs.add(after)
        return bool(
            self._transactions.write(
                what, "desk", name, *numbers, *more, blobs=blobs, is_repeatable=False
            )
        )


def _unreadable(job_id: str, row: RedisRow, problem: str) -> Unreadable:
    return Unreadable(
        key=job_id,
        id=job_id,
        queue=row.queue,
        status=STATUSES[row.status].value,
        problem=problem,
        since=row.changed_at,
    )


def unreadable_claim(job_id: str, row: RedisRow, error: Exception) -> Unreadable:
    """A row that was claimed and cannot be read."""
    return _unreadable(job_id, row, problem_of(error))


class FiredError(ConflictError):
    """The schedule has been changed, or has fired, since it was read."""


class EndedError(Exception):
    """The job in whose place others were to come has been moved, or is a step by now."""


class _ReplacedError(ConflictError):
    """The job to be replaced has been changed since it was read, or was read only now."""
