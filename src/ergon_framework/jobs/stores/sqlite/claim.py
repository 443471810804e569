"""Claiming: which of the due jobs a worker gets.

``core.claim`` decides: ``ClaimPlan`` says how many jobs to take of which queue, ``QueueGate`` what
a queue's limits let through, ``admit`` which candidates start. Here lanes and candidates are read,
and what was decided is written. Only lanes are looked at for which the worker has a slot, and of
those only the first entries, so a claim costs the same however many jobs wait.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice, takewhile
from typing import NamedTuple

from ergon_framework.core.claim import (
    DEFAULT_BOUNDS,
    NO_LIMITS,
    Candidate,
    ClaimBounds,
    ClaimPlan,
    ClaimRequest,
    KeyOfQueue,
    Lane,
    Pick,
    QueueGate,
    QueueLimits,
    ShareKey,
    Turns,
    admit,
    deal,
    handler_lanes_of,
    in_turn,
    limits_from,
)
from ergon_framework.jobs.stores.sqlite.rows import (
    SQL,
    CandidateRow,
    are_readable,
    check_candidate,
    claimed_job,
)
from ergon_framework.jobs.stores.sqlite.transitions import SqliteTransitions
from ergon_framework.jobs.stores.unreadable import READ_ERRORS, RowError, problem_of
from ergon_framework.ports.jobstore import ClaimedJob, ClaimResult
from ergon_framework.storage.sql_files import load

_SQL = load(SQL, "claim.sql")


def limits_of(cursor: sqlite3.Cursor, queue: str) -> QueueLimits:
    """The limits of a queue; one without a row has none."""
    row = cursor.execute(_SQL["queue"], (queue,)).fetchone()
    return NO_LIMITS if row is None else limits_from(row)


class QueueGates:
    """The queues that one claim has to do with."""

    def __init__(self, cursor: sqlite3.Cursor, now: float, version: str) -> None:
        self._cursor = cursor
        self._now = now
        self._version = version
        self._gates: dict[str, QueueGate] = {}

    def __getitem__(self, queue: str) -> QueueGate:
        gate = self._gates.get(queue)
        if gate is None:
            settings = limits_of(self._cursor, queue).seen_by(self._version)
            active = 0
            if settings.max_active is not None:
                [active] = self._cursor.execute(_SQL["running_in_queue"], (queue,)).fetchone()
            gate = self._gates[queue] = QueueGate(queue, settings, active)
        return gate

    def save(self) -> None:
        """Write down what the claim used."""
        for gate in self._gates.values():
            if gate.full_at is not None:
                self._cursor.execute(_SQL["set_full_at"], (gate.full_at, gate.name))


class KeyGates:
    """The limit keys that one claim has to do with, in queues that limit each of their keys."""

    def __init__(self, tx: SqliteTransitions, bounds: ClaimBounds) -> None:
        self._tx = tx
        self._bounds = bounds
        self._cursor = tx.cursor
        self._gates: dict[KeyOfQueue, QueueGate] = {}
        self._blocked: set[KeyOfQueue] = set()

    def of(self, queue: str, limits: QueueLimits, keys: set[str]) -> Mapping[KeyOfQueue, QueueGate]:
        """The gates of these keys of one queue."""
        return {(queue, key): self._gate(queue, limits, key) for key in keys}

    def _gate(
        self, queue: str, limits: QueueLimits, key: str, full_at: float | None = None
    ) -> QueueGate:
        gate = self._gates.get((queue, key))
        if gate is None:
            if full_at is None and limits.key_rate is not None:
                row = self._cursor.execute(_SQL["key"], (queue, key)).fetchone()
                full_at = row and row[0]
            active = 0
            if limits.key_max_active is not None:
                values = (key, queue)
                [active] = self._cursor.execute(_SQL["running_of_key_in"], values).fetchone()
            # A key without a row has a full bucket: `prune` deletes the rows of full ones.
            gate = QueueGate(key, limits.of_key(full_at or 0.0), active)
            self._gates[queue, key] = gate
        return gate

    @property
    def are_any(self) -> bool:
        """Whether the claim met a key of such a queue."""
        return bool(self._gates)

    def wake(self) -> None:
        """Make jobs due whose limit keys have tokens again."""
        now, most = self._tx.now, self._bounds.max_promoted
        for row in self._cursor.execute(_SQL["keys_to_wake"], (now, most)).fetchall():
            queue, key, full_at, *settings = row
            limits = limits_from(settings)
            gate = self._gate(queue, limits, key, full_at)
            self._cursor.execute(_SQL["woken"], (queue, key))
            # As many as may start, so that the next ones need no wake-up of their own.
            self._tx.wake_key_of(queue, key, gate.room(self._bounds.scan_size, now) or 1)

    def block(self, queue: str, keys: set[str]) -> None:
        """Jobs of these keys wait from now on."""
        self._blocked.update((queue, key) for key in keys)

    def save(self) -> None:
        """Write down what the claim used, and when to look again at jobs that wait."""
        now = self._tx.now
        for (queue, key), gate in self._gates.items():
            is_blocked = (queue, key) in self._blocked
            if gate.full_at is None and not gate.has_entered and not is_blocked:
                continue
            wakes_at = gate.looks_again_at(now)
            if wakes_at is not None and not is_blocked:
                # This claim blocked nothing of the key, but jobs may wait for it since an earlier
                # one.
                found = self._cursor.execute(_SQL["has_blocked"], (key, queue)).fetchone()
                wakes_at = wakes_at if found else None
            if gate.full_at is None and wakes_at is None:
                continue  # the end of a job wakes the next one
            full_at = gate.limits.full_at if gate.full_at is None else gate.full_at
            self._cursor.execute(_SQL["set_key"], (queue, key, full_at, wakes_at))


class Outlook(NamedTuple):
    """What a claim looks at besides the queues that it takes from."""

    has_flow_work: int
    is_later_due: int | None
    """Whether the first job that waits for its time is due; None: none waits."""
    last_executor: object
    """The last executor that due jobs name; None: nothing is due. Text, if the row is sound."""
    expires_at: float | None
    """The first expiry of any job that waits."""
    wakes_at: float | None
    """When jobs that wait for a token are due again."""

    def has_none_of(self, named: str) -> bool:
        """Whether no due job can name this executor."""
        last = self.last_executor
        return last is None or (isinstance(last, str) and named > last)


Place = tuple[int, float, int] | None
"""Priority, due time and number of a job; None: before all jobs."""


@dataclass(slots=True)
class SqliteClaimMemory:
    """What one process remembers between its claims."""

    turns: Turns = field(default_factory=dict)
    key_turns: dict[ShareKey, str] = field(default_factory=dict)
    """In queues that limit their keys: the key whose turn was the last."""
    places: dict[ShareKey, Place] = field(default_factory=dict)
    """Where to look for jobs without a key, among many that have one."""
    wakes_at: float = 0.0
    """When some limit key had tokens again, by the last look; a claim ends with such a look."""


MAX_SINGLE_LEASES = 4
"""Up to so many jobs are leased one by one: for more, one statement for all is faster."""

_STATUS, _EXPIRES_AT, _KEY, _KEY_LIMIT, _PRIORITY, _RUN_AT = range(13, 19)


class SqliteClaim:
    """One claim of one worker, inside a transaction."""

    def __init__(
        self,
        tx: SqliteTransitions,
        request: ClaimRequest,
        memory: SqliteClaimMemory,
        bounds: ClaimBounds = DEFAULT_BOUNDS,
    ) -> None:
        self._tx = tx
        self._bounds = bounds
        self._cursor = tx.cursor
        self._now = tx.now
        self._request = request
        self._memory = memory
        self._turns = memory.turns
        self._plan = ClaimPlan(request, memory.turns)
        self._gates = QueueGates(tx.cursor, tx.now, request.version)
        self._keys = KeyGates(tx, bounds)
        self._running: dict[str, int] = {}  # by limit key
        self._used_up: set[str] = set()  # keys of the queue that is looked at
        self._jobs: list[ClaimedJob] = []
        self._outdated = 0
        self._refused = 0
        self._next_at: list[float] = []
        self._is_any_stopping = False  # there are flows that stop, whose steps may not start
        self._outlook: Outlook
        self._open_after: dict[tuple[str, str], str | None] = {}  # lane: the next open queue

    def run(self) -> ClaimResult:
        """Take what the worker can take, and see what is left."""
        self._prepare()
        plan, lanes = self._plan, list(self._lanes())
        while plan.has_slots and (picks := plan.next_picks(lanes)):
            for pick in picks:
                taken = self._take(pick)
                plan.record(pick.share, taken, is_spent=taken < pick.most)
        self._gates.save()
        self._keys.save()
        if self._outdated or self._is_any_stopping:  # an end may let jobs of its limit key go
            self._open_after.clear()
        if self._may_have_changed():
            self._look()
        is_more = self._request.wants_more and self._is_more()
        expires_at, wakes_at = self._outlook.expires_at, self._outlook.wakes_at
        if wakes_at is not None:
            self._next_at.append(wakes_at)
        self._memory.wakes_at = math.inf if wakes_at is None else wakes_at
        waiting = tuple(self._handler_lanes()) if self._request.wants_more else ()
        next_at = self._when_next()
        return ClaimResult(self._jobs, next_at, is_more, self._outdated, expires_at, waiting)

    def _prepare(self) -> None:
        """Do what is due besides: a slice of a flow, and jobs whose time or token has come."""
        outlook = self._look()
        if outlook.has_flow_work:
            self._tx.flows.do_slice()
            self._is_any_stopping = self._tx.is_any_stopping()
            outlook = self._look()
        is_waking = self._memory.wakes_at <= self._now
        if outlook.is_later_due:
            self._cursor.execute(_SQL["promote"], (self._now, self._bounds.max_promoted))
        if is_waking:
            self._keys.wake()
        if outlook.is_later_due or is_waking:
            self._look()

    def _look(self) -> Outlook:
        """One statement instead of one each, since there is nothing of most of it."""
        row = self._cursor.execute(_SQL["outlook"], (self._now,)).fetchone()
        self._outlook = outlook = Outlook(*row)
        return outlook

    def _may_have_changed(self) -> bool:
        """Whether the outlook may be another one, now that jobs were claimed."""
        outlook = self._outlook
        return (
            outlook.expires_at is not None
            or outlook.wakes_at is not None
            or self._keys.are_any
            or self._outdated > 0
            or self._is_any_stopping
        )

    # ---- lanes ----------------------------------------------------------------------------------

    def _lanes(self) -> Iterator[Lane]:
        """Where due jobs stand that an executor with free slots can run."""
        for executor in (name for name, slots in self._request.slots.items() if slots > 0):
            for queue in self._unnamed(executor):
                yield Lane("", queue)
            if executor:
                for queue in self._queues(executor, executor):
                    yield Lane(executor, queue)
            for named, unnamed in handler_lanes_of(self._request, executor):
                for queue in self._queues(named, executor):
                    yield Lane(named, queue)
                for queue in self._unnamed(executor, unnamed):
                    yield Lane(unnamed, queue)

    def _unnamed(self, executor: str, lane: str = "") -> Iterator[str]:
        """The queues whose jobs go to this executor when they name none.

        ``lane`` is that of jobs which name none and wait for a handler.
        """
        request = self._request
        for queue, route in request.routes.items():
            if route == executor and self._is_served(queue) and self._has_lane(lane, queue):
                yield queue
        if executor == request.default:
            yield from (
                queue for queue in self._queues(lane, executor) if queue not in request.routes
            )

    def _handler_lanes(self) -> Iterator[str]:
        """The lanes of handlers in which jobs are due that executors of this worker might run."""
        for base in ("", *self._request.own):
            # "$" comes after "#": between them are the names that begin with ``base#``.
            lane, end = f"{base}#", f"{base}$"
            for _ in range(self._bounds.max_lanes):
                row = self._cursor.execute(_SQL["next_lane"], (lane, end)).fetchone()
                if row is None:
                    break
                lane = row[0]
                yield lane

    def _executors(self) -> Iterator[str]:
        """The executors that due jobs name."""
        name = ""
        for _ in range(self._bounds.max_lanes):
            row = self._cursor.execute(_SQL["next_executor"], (name,)).fetchone()
            if row is None:
                return
            name = row[0]
            if "#" not in name:  # the lane of a handler, which is asked for by itself
                yield name

    def _queues(self, named: str, turn: str) -> Iterator[str]:
        """Queues with due jobs that name an executor, from the one whose turn it is."""
        queues = self._open_queues(named, self._turns.get(turn, ""))
        return islice(queues, self._bounds.max_lanes)

    def _open_queues(self, named: str, first: str) -> Iterator[str]:
        """All such queues, without those that are paused or left to other workers."""
        if self._request.queues is None:
            found = self._round(named, first)
        else:
            found = (queue for queue in self._request.queues if self._has_lane(named, queue))
        return (queue for queue in found if not self._gates[queue].is_paused)

    def _round(self, named: str, first: str) -> Iterator[str]:
        """The queues after the first one, then those up to it."""
        if self._outlook.has_none_of(named):
            return
        low, high = self._cursor.execute(_SQL["end_queues"], (named,)).fetchone()
        if low == high:
            if low is not None:
                yield low
            return
        yield from self._after(named, first)
        if first:
            yield from takewhile(lambda queue: queue <= first, self._after(named, ""))

    def _after(self, named: str, queue: str) -> Iterator[str]:
        statement = _SQL["next_queue"]
        while row := self._cursor.execute(statement, (named, queue)).fetchone():
            queue = row[0]
            yield queue
            if self._gates[queue].is_paused:
                found = self._next_open(named, queue)
                if found is None:
                    return
                queue = found
                if self._has_lane(named, queue):
                    yield queue

    def _next_open(self, named: str, queue: str) -> str | None:
        """The first queue after a paused one that is not; it may have no due jobs any more.

        Behind a paused queue there may be very many others, and the file is locked meanwhile: one
        statement walks past them, and only once in a claim, which makes no other job due.
        """
        place = named, queue
        if place not in self._open_after:
            row = self._cursor.execute(_SQL["next_open_queue"], place).fetchone()
            self._open_after[place] = None if row is None else row[0]
        return self._open_after[place]

    def _has_lane(self, named: str, queue: str) -> bool:
        if self._outlook.has_none_of(named):
            return False
        return self._cursor.execute(_SQL["has_lane"], (named, queue)).fetchone() is not None

    def _is_asked(self, queue: str) -> bool:
        return self._request.queues is None or queue in self._request.queues

    # ---- one pick -------------------------------------------------------------------------------

    def _take(self, pick: Pick) -> int:
        """Claim jobs of one queue for one executor; how many it were."""
        queue, names, most = pick.queue, pick.names, pick.most
        gate = self._gates[queue]
        taken = 0
        while taken < most:
            # A claim holds the write lock of the file: however many jobs are refused, it ends
            # soon, and the next claim goes on behind them.
            if self._refused >= self._bounds.max_refused:
                self._next_at.append(self._now)  # there may be more: ask again at once
                break
            room = gate.room(most - taken, self._now)
            if room == 0:
                break
            # Where one was refused, the next ones often are too: read more of them at once.
            wanted = room if self._refused == 0 else max(room, self._bounds.scan_size)
            if gate.limits.limits_keys:
                wanted = room
                rows = self._candidates_in_turn(pick, wanted)
            else:
                rows = self._candidates(names, queue, wanted)
            readable = self._without_stopped(self._readable_rows(rows))
            started = self._lease(self._admitted(readable, pick, room), queue)
            self._block_rest(pick)
            gate.enter(started, self._now)
            taken += started
            if len(rows) < wanted and not (rows and gate.limits.limits_keys):
                break  # where keys take turns, one may have had fewer jobs than its share
        until = gate.waits_until(self._now)
        if until is not None and any(self._has_lane(name, queue) for name in names):
            self._next_at.append(until)
        return taken

    def _candidates(self, names: tuple[str, ...], queue: str, wanted: int) -> list[CandidateRow]:
        rows: list[CandidateRow] = []
        for name in names:
            rows += self._cursor.execute(_SQL["candidates"], (name, queue, wanted)).fetchall()
        return self._first(rows, wanted) if len(names) > 1 else rows

    def _first(self, rows: list[CandidateRow], wanted: int) -> list[CandidateRow]:
        """The first of several lanes together."""
        rows = self._readable_rows(rows)
        rows.sort(key=lambda row: (-row[_PRIORITY], row[_RUN_AT], row[0]))
        return rows[:wanted]

    # ---- keys take turns ------------------------------------------------------------------------

    def _candidates_in_turn(self, pick: Pick, wanted: int) -> list[CandidateRow]:
        """The first jobs of the limit keys whose turn it is; as many of each as it may start."""
        after = self._memory.key_turns.get(pick.share, "")
        keys = self._next_keys(pick, after, wanted)
        free = self._without_key(pick, wanted)
        order = in_turn([*keys, *([""] if free else [])], after, wanted)
        # Rounded up: the shares must not be fewer together than are wanted. `deal` stops there.
        each = -(-wanted // len(order)) if order else 0
        turns = {key: self._of_key(pick, key, each) if key else free[:each] for key in order}
        rows, last = deal(turns, wanted)
        if rows:  # where nothing is due, the next turn is still that of the next key
            self._memory.key_turns[pick.share] = last
        return rows

    def _next_keys(self, pick: Pick, after: str, wanted: int) -> list[str]:
        """The next limit keys with due jobs; from the first one on where there are no more."""
        found = in_turn(self._keys_after(pick, after, wanted), after, wanted)
        if after and len(found) < wanted:
            first = self._keys_after(pick, "", wanted - len(found))
            found += [key for key in in_turn(first, "", wanted - len(found)) if key <= after]
        return found

    def _keys_after(self, pick: Pick, after: str, wanted: int) -> Iterator[str]:
        statement = _SQL["next_due_key"]
        for name in pick.names:
            key = after
            for _ in range(wanted):
                row = self._cursor.execute(statement, (name, pick.queue, key)).fetchone()
                if row is None:
                    break
                key = row[0]
                yield key

    def _of_key(self, pick: Pick, key: str, wanted: int) -> list[CandidateRow]:
        statement, rows = _SQL["candidates_of_key"], []
        for name in pick.names:
            rows += self._cursor.execute(statement, (name, pick.queue, key, wanted)).fetchall()
        return self._first(rows, wanted) if len(pick.names) > 1 else rows

    def _without_key(self, pick: Pick, wanted: int) -> list[CandidateRow]:
        """Due jobs without a limit key.

        No index tells them from jobs with one. So each claim reads some more jobs of the lane, from
        where the last claim stopped, and remembers the place where it finds any.
        """
        rows: list[CandidateRow] = []
        for name in pick.names:
            lane = (name, pick.queue)
            start = self._memory.places.get(lane)
            found = self._places_after(lane, start)
            free = [seq for *_, seq, is_free in found if is_free][:wanted]
            if not free:
                is_end = len(found) < self._bounds.unkeyed_scan
                self._memory.places[lane] = None if is_end else found[-1][:3]
            for seq in free:
                rows += self._cursor.execute(_SQL["candidate"], (seq,)).fetchall()
        return self._first(rows, wanted) if len(pick.names) > 1 else rows

    def _places_after(self, lane: ShareKey, place: Place) -> list[tuple[int, float, int, int]]:
        most = self._bounds.unkeyed_scan
        if place is None:
            return self._cursor.execute(_SQL["places"], (*lane, most)).fetchall()
        # Two statements, because priorities go down and the rest goes up: one comparison of rows
        # cannot say "after this place".
        found = self._cursor.execute(_SQL["places_beside"], (*lane, *place, most)).fetchall()
        values = (*lane, place[0], most - len(found))
        return found + self._cursor.execute(_SQL["places_below"], values).fetchall()

    def _block_rest(self, pick: Pick) -> None:
        """Let more jobs of keys wait that are used up, so that the next claims meet fewer.

        After what may start was leased: that is due no more.
        """
        for key in self._used_up:
            for name in pick.names:
                values = (name, pick.queue, key, self._bounds.scan_size)
                self._refused += self._cursor.execute(_SQL["block_key"], values).rowcount
        self._used_up = set()

    # ---- one job --------------------------------------------------------------------------------

    def _readable_rows(self, rows: list[CandidateRow]) -> list[CandidateRow]:
        """Without those that cannot be read, which are set aside."""
        if are_readable(rows):
            return rows
        readable: list[CandidateRow] = []
        for row in rows:
            try:
                check_candidate(row)
            except RowError as error:
                self._set_aside(row, error)
            else:
                readable.append(row)
        return readable

    def _set_aside(self, row: CandidateRow, error: Exception) -> None:
        self._refused += 1
        self._tx.set_aside(row[0], problem_of(error))

    def _admitted(self, rows: list[CandidateRow], pick: Pick, room: int) -> list[CandidateRow]:
        """The first that may start; those before them that may not stop being due."""
        queue = pick.queue
        if all(row[_EXPIRES_AT] is None and row[_KEY] is None for row in rows):
            return rows[:room]  # what ``admit`` would say, without asking it for each plain job
        by_seq = {row[0]: row for row in rows}
        keys = {row[_KEY] for row in rows} - {None}
        limits, own, running = self._gates[queue].limits, None, {}
        if limits.limits_keys:
            own = self._keys.of(queue, limits, keys)
        else:
            running = {key: self._running_of(key) for key in keys}
        admission = admit(
            _candidates(rows, queue), [room], {queue: room}, running, self._now, key_gates=own
        )
        for seq in admission.outdated:
            _, fence, job_id, *_ = row = by_seq[seq]
            self._tx.end_outdated((seq, job_id, row[_STATUS], fence, *row[7:10], queue))
        if admission.blocked:
            self._tx.block(admission.blocked)
            if own is not None:
                used_up = {by_seq[seq][_KEY] for seq in admission.blocked}
                self._keys.block(queue, used_up)
                self._used_up |= used_up
        if admission.outdated:
            self._tx.finish()  # flows may stop with them, and with those the next jobs
            self._is_any_stopping = self._tx.is_any_stopping()
        self._outdated += len(admission.outdated)
        self._refused += len(admission.outdated) + len(admission.blocked)
        admitted = [by_seq[seq] for seq in admission.admitted]
        if admission.outdated:
            # An expired step may have stopped its flow, and so have cancelled jobs that were
            # admitted with it.
            due = self._tx.still_due(admission.admitted)
            admitted = self._without_stopped([row for row in admitted if row[0] in due])
        for row in admitted:
            if row[_KEY] in self._running:
                self._running[row[_KEY]] += 1
        return admitted

    def _without_stopped(self, rows: list[CandidateRow]) -> list[CandidateRow]:
        """Without the steps of flows that stop, which are cancelled: no sweep has come to them."""
        if not self._is_any_stopping or not rows:
            return rows
        stopped = self._tx.cancel_stopped([row[0] for row in rows])
        self._refused += len(stopped)
        return [row for row in rows if row[0] not in stopped]

    def _running_of(self, key: str) -> int:
        """How many jobs of a limit key run, those of this claim included."""
        if key not in self._running:
            self._running[key] = self._tx.running_of_key(key)
        return self._running[key]

    def _lease(self, rows: list[CandidateRow], queue: str) -> int:
        """Lease what can be read; how many it were."""
        now, request = self._now, self._request
        jobs: list[ClaimedJob] = []
        for row in rows:
            try:
                jobs.append(claimed_job(self._cursor, row, queue, now))
            except READ_ERRORS as error:
                self._set_aside(row, error)
        if len(jobs) < len(rows):
            started = {job.key for job in jobs}
            rows = [row for row in rows if row[0] in started]
        until = now + request.lease
        if len(rows) > MAX_SINGLE_LEASES:
            values = (now, until, request.worker, str([row[0] for row in rows]))
            self._cursor.execute(_SQL["lease_many"], values)
        else:
            many = [(now, until, request.worker, row[0]) for row in rows]
            self._cursor.executemany(_SQL["lease"], many)
        self._jobs += jobs
        return len(jobs)

    # ---- what is left ---------------------------------------------------------------------------

    def _when_next(self) -> float | None:
        """The earliest instant at which something that waits could be claimed."""
        rows: list[tuple[float, str]] = []
        if self._outlook.is_later_due is not None:
            rows = self._cursor.execute(_SQL["soonest"], (self._bounds.scan_size,)).fetchall()
        served = [run_at for run_at, queue in rows if self._is_served(queue)]
        if served:
            self._next_at.append(served[0])
        elif len(rows) == self._bounds.scan_size:
            # All that was read is paused, or for other workers. When the last of it is due it has
            # left this list, and the next look sees further.
            self._next_at.append(rows[-1][0])
        return min(self._next_at, default=None)

    def _is_more(self) -> bool:
        """Whether a due job is left that this worker could run, now or later."""
        own = self._request.own
        lanes = [self._open_queues(named, "") for named in own or ("", *self._executors())]
        lanes += map(self._unnamed, own)
        for executor in self._request.handlers:
            for named, unnamed in handler_lanes_of(self._request, executor):
                lanes += (self._open_queues(named, ""), self._unnamed(executor, unnamed))
        if any(next(queues, None) is not None for queues in lanes):
            return True
        return any(
            self._plan.is_left(Lane(named, queue, self._gates[queue].is_paused))
            for _, queue, named in self._blocked()
        )

    def _blocked(self) -> Iterator[tuple[str, str, str]]:
        """Where jobs wait for limit keys: key, queue, and the executor they name."""
        lane = ("", "", "")
        for _ in range(self._bounds.max_lanes):
            found = self._cursor.execute(_SQL["next_blocked"], lane).fetchone()
            if found is None:
                return
            lane = found
            yield lane

    def _is_served(self, queue: str) -> bool:
        return self._is_asked(queue) and not self._gates[queue].is_paused


def _candidates(rows: list[CandidateRow], queue: str) -> Iterator[Candidate]:
    for row in rows:
        place = -row[_PRIORITY], row[_RUN_AT], row[0]
        yield Candidate(place, 0, queue, row[_EXPIRES_AT], row[_KEY], row[_KEY_LIMIT])
