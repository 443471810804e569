"""The store's other two sides: the operator's desk and the cron schedules."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from struct import Struct
from typing import Any

import msgspec

from ergon_framework.errors import StoreUnavailableError
from ergon_framework.jobs.stores.gates import NONE, Settings, queue_of
from ergon_framework.jobs.stores.own_moves import WORKER_FORGOTTEN_AFTER
from ergon_framework.jobs.stores.queue_counts import named_in
from ergon_framework.jobs.stores.readable import Reader
from ergon_framework.jobs.stores.redis import rows
from ergon_framework.jobs.stores.redis.looking import count_in, search
from ergon_framework.jobs.stores.redis.moves import MOST_TURNS, LateError, Moves
from ergon_framework.jobs.stores.redis.names import script
from ergon_framework.jobs.stores.unreadable import (
    MISREAD,
    UNREADABLE,
    argument_problem,
    key_is_held,
    problem_of,
    unreadable_job,
)
from ergon_framework.ports.jobstore import (
    Job,
    Named,
    NewJob,
    Queue,
    Schedule,
    Search,
    Sweep,
    Unreadable,
    WorkerRecord,
)

AT_ONCE = 500
"""Jobs that one script purges or sweeps: nobody else is served while it runs."""

_PURGE = script("bar", "rows", "moves", "removing", "purge")
_SWEEP = script("bar", "rows", "moves", "removing", "sweep")
_QUEUES = script("rows", "moves", "queues")
_NAMED = script("rows", "named")
_SWAP = script("bar", "rows", "swap")
_TELL = script("rows", "tell")
_RESTORE = script("bar", "rows", "moves", "restore")
_HELD, _NONE = 2, 3
_AT = Struct(">d")

_swept = msgspec.msgpack.Decoder(tuple[int, int, list[str]]).decode
_settings = msgspec.msgpack.Decoder(tuple[bool, int | bool, float | bool, int, float]).decode
_fields = msgspec.msgpack.Decoder(list[Any]).decode


class RedisDesk(Moves):
    """What operators and cron need."""

    def __init__(
        self,
        url: str,
        *,
        clock: Callable[[], float] | None = None,
        read_only: bool = False,
        prefix: str | None = None,
    ) -> None:
        super().__init__(url, clock=clock, read_only=read_only, prefix=prefix)
        self._reader = Reader()

    # ---- jobs -----------------------------------------------------------------------------------

    def search(self, search_: Search, limit: int | None = None) -> Iterator[Job]:
        """Matching jobs, the newest first, read in pages."""
        return search(self._look_at, self._running, search_, limit)

    def count(self, search_: Search) -> int:
        """How many match."""
        counts = self._link.call("HGETALL", self._key("counts"))
        found = count_in(pairs(counts), search_)
        return sum(1 for _ in self.search(search_)) if found is None else found

    def _running(self) -> list[bytes]:
        found: list[bytes] = self._link.call("ZRANGE", self._key("leases"), 0, -1)
        return found

    def unreadable(self, limit: int | None = None) -> list[Unreadable]:
        """The rows that were set aside because they cannot be read, the newest first."""
        found = pairs(self._link.call("HGETALL", self._key("unreadable")))
        noted = [rows.unreadable_from(*each) for each in found]
        return sorted(noted, key=lambda each: (-each.since, each.id))[:limit]

    def restore_unreadable(self, key: Any) -> bool:
        """Read such a row again, and put it back where it stood."""
        problem = self._problem(str(key))
        answer = 3 if problem else self._write(_RESTORE, "desk", key, False)
        if problem and self._link.call("HEXISTS", self._key("unreadable"), key) == 0:
            return False
        if answer == _HELD:
            raise key_is_held(str(key))
        if answer == _NONE:
            raise unreadable_job(str(key), problem or "its row is no job's")
        return bool(answer)

    def _problem(self, job_id: str) -> str | None:
        """What is wrong with a row; None if it is a job that can be run."""
        names = [self._key(name) for name in ("job", "body", "tale")]
        row, body, tale = (self._link.call("HGET", name, job_id) for name in names)
        try:
            [parsed] = rows.rows_in(row or b"")
            texts = memoryview(body or b""), memoryview(tale or b"")
            return argument_problem(rows.job_from(job_id, parsed, *texts))
        except MISREAD as error:
            return problem_of(error)

    def discard_unreadable(self, key: Any) -> bool:
        """Delete such a row for good."""
        return bool(self._write(_RESTORE, "desk", key, True))

    def purge(self, jobs: Sequence[Job]) -> int:
        """Delete final jobs that have not been moved since they were read."""
        purged = 0
        for first in range(0, len(jobs), AT_ONCE):
            wire = [
                (job.id, job.key, job.fence, rows.NUMBERS[job.status], job.finished_at)
                for job in jobs[first : first + AT_ONCE]
            ]
            purged += self._write(_PURGE, "desk", wire)
        return purged

    def sweep(self, limit: int) -> Sweep:
        """Purge what has been kept long enough, end what is outdated, forget dead workers.

        Also lets jobs run again that wait for a limit key nobody holds.
        """
        purged = ended = workers = 0
        while purged + ended < limit:
            most = min(AT_ONCE, limit - purged - ended)
            some_purged, forgotten, some_ended = self._sweep(most)
            purged, ended, workers = purged + some_purged, ended + some_ended, workers + forgotten
            if some_purged + some_ended < most:
                break
        return Sweep(purged, ended, workers, purged + ended >= limit)

    def _sweep(self, most: int) -> tuple[int, int, int]:
        head, data = self._write(_SWEEP, "sweep", most, WORKER_FORGOTTEN_AFTER)
        purged, forgotten, ids = _swept(head)
        return purged, forgotten, self._end_outdated(ids, data, "sweep")

    # ---- queues ---------------------------------------------------------------------------------

    def queues(self) -> list[Queue]:
        """Every queue that has jobs or settings, by name."""
        counted, kept, times = self._run(_QUEUES)
        counts: dict[str, dict[str, int]] = {}
        for name, number in pairs(counted):
            status, _, queue = name.partition(":")
            counts.setdefault(queue, {})[rows.STATUSES[int(status)].value] = int(number)
        for each in self.unreadable():
            mine = counts.setdefault(each.queue, {})
            mine[UNREADABLE] = mine.get(UNREADABLE, 0) + 1
        settings = {name: read_settings(blob) for name, blob in pairs(kept)}
        oldest = {name: float(instant) for name, instant in pairs(times)}
        return [
            queue_of(name, settings.get(name, NONE), counts.get(name), oldest.get(name))
            for name in sorted({*counts, *settings})
        ]

    def set_queue(self, name: str, **changes: Any) -> Queue:
        """Change ``is_paused``, ``max_active``, ``rate`` or ``burst``; the answer has no counts."""
        for _ in range(MOST_TURNS):
            blob = self._link.call("HGET", self._key("queues"), name)
            before = NONE if blob is None else read_settings(blob)
            after = before.changed(changes, self.now())
            if self._swap("queue", name, blob, None if after.is_plain else settings_blob(after)):
                return queue_of(name, after)
        raise self._too_busy()

    # ---- workers --------------------------------------------------------------------------------

    def tell(self, record: WorkerRecord) -> None:
        """Note that a worker lives; a record with state ``gone`` removes it."""
        blob = None if record.state == "gone" else msgspec.json.encode(record)
        blobs = rows.Blobs()
        kept = int(2 * WORKER_FORGOTTEN_AFTER)
        names = [name for name in record.executors if name]
        self._write(_TELL, "desk", record.id, blobs.add(blob), kept, names, blobs=blobs)

    def workers(self) -> list[WorkerRecord]:
        """Those that told of themselves, by id."""
        found = sorted(pairs(self._link.call("HGETALL", self._key("workers"))))
        return self._reader.workers(_worker_row(*each) for each in found)

    def named(self) -> list[Named]:
        """The executors that due jobs name, by name."""
        lanes, seen = self._run(_NAMED)
        found = zip(lanes[::2], lanes[1::2], strict=True)
        return named_in(
            [(executor.decode(), queue.decode()) for executor, queue in found],
            {name: float(instant) for name, instant in pairs(seen)},
        )

    def waiting_for(self, executor: str, due_before: float, limit: int) -> list[Job]:
        """Jobs that name this executor, could be claimed, and became due before that instant."""
        return self._look_at("named", [executor], limit, (None, None, None, due_before))[0]

    # ---- schedules ------------------------------------------------------------------------------

    def schedules(self) -> list[Schedule]:
        """All, by name."""
        found = sorted(pairs(self._link.call("HGETALL", self._key("schedules"))))
        return self._reader.schedules(_schedule_row(*each) for each in found)

    def put_schedule(self, schedule: Schedule) -> None:
        """Add or replace the definition, keeping nothing of the old one."""
        for _ in range(MOST_TURNS):
            before = self._stored(schedule.name)
            if self._swap("schedule", schedule.name, before, _schedule_blob(schedule)):
                return
        raise self._too_busy()

    def drop_schedule(self, name: str) -> bool:
        """Remove one; whether it was there."""
        while (before := self._stored(name)) is not None:
            if self._swap("schedule", name, before, None):
                return True
        return False

    def fire(
        self, name: str, expected: float, next_at: float | None, jobs: Sequence[NewJob]
    ) -> bool:
        """Move ``next_at`` on and add the jobs, in one commit, if it still is ``expected``.

        A job whose id or unique key is taken is skipped: the schedule goes on without it.
        """
        while (before := self._stored(name)) is not None:
            found = self._reader.schedules([_schedule_row(name, before)])
            if not found or found[0].next_at != expected:
                return False
            after = msgspec.structs.replace(found[0], next_at=next_at, last_at=expected)
            try:
                self._add(jobs, (name, before, _schedule_blob(after)))
            except LateError:
                continue
            return True
        return False

    def _swap(self, what: str, name: str, before: bytes | None, after: bytes | None) -> bool:
        """Put a record in the place of another; False: that was not there any more."""
        blobs = rows.Blobs()
        numbers = blobs.add(before), blobs.add(after)
        return bool(
            self._write(_SWAP, "desk", what, name, *numbers, blobs=blobs, is_repeatable=False)
        )

    def _stored(self, name: str) -> bytes | None:
        found: bytes | None = self._link.call("HGET", self._key("schedules"), name)
        return found

    def _too_busy(self) -> StoreUnavailableError:
        return StoreUnavailableError(
            f"{self.name}: others change the same settings without end", remedy="try again later"
        )


def pairs(words: Sequence[bytes]) -> Iterator[tuple[str, bytes]]:
    """Names and values, which the server gives one after the other."""
    for name, value in zip(words[::2], words[1::2], strict=True):
        yield name.decode(), value


def _worker_row(name: str, blob: bytes) -> tuple[Any, ...]:
    """Id, instant and JSON; no instant where somebody else wrote nonsense."""
    if len(blob) < _AT.size:
        return name, None, blob
    return name, *_AT.unpack_from(blob), blob[_AT.size :]


def _schedule_row(name: str, blob: bytes) -> tuple[Any, ...]:
    """The fields of a schedule; none but the name where somebody else wrote nonsense."""
    try:
        row = _fields(blob)
    except msgspec.MsgspecError:
        row = []
    width = len(Schedule.__struct_fields__)
    return tuple(row) if len(row) == width else (name, *[None] * (width - 1))


def _schedule_blob(schedule: Schedule) -> bytes:
    return rows.encode(msgspec.structs.astuple(schedule))


def read_settings(blob: bytes) -> Settings:
    """The settings of a queue, as they are kept."""
    try:
        is_paused, max_active, rate, burst, full_at = _settings(blob)
    except msgspec.MsgspecError:
        return Settings(is_paused=True)  # nobody knows how it is limited, so that it waits
    return Settings(is_paused, max_active or None, rate or None, burst, full_at)


def settings_blob(settings: Settings) -> bytes:
    """As the scripts want them: false for what is not there."""
    return rows.encode(
        (
            settings.is_paused,
            settings.max_active or False,
            settings.rate or False,
            settings.burst,
            settings.full_at,
        )
    )
