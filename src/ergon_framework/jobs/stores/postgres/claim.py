"""Claiming: how jobs are taken from the server, with and without limits, and what is left.

Most claims are one statement for each lane, inside the pipeline of an exchange. Where limits have
to hold (queues with settings, limit keys, jobs that may have expired), a transaction of its own
claims under locks. The queues' rows are locked first, in the order of their names, then the limit
keys of what was found; what runs is counted after the lock, so that it counts what others did
before.

No claim waits for a limit key. One that others hold is passed over: its jobs stay due, so that
no wake-up can miss them, and the worker asks again soon. No key is passed over for ever: it is held
only by a transaction that found a job of it, and that one starts the job, or blocks it because the
limit is reached, or has filled its slots with jobs that come before it; or by one that wakes jobs
after some have ended. So two workers cannot refuse it to each other in turns: the one that is
refused is so because the other has it, and the one that gets it changes the state of a job.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from operator import itemgetter
from typing import Any

from ergon_framework.core.claim import (
    DEFAULT_BOUNDS,
    NO_LIMITS,
    Admission,
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
)
from ergon_framework.errors import StoreError
from ergon_framework.jobs.stores.postgres.flow_tables import settle_steps
from ergon_framework.jobs.stores.postgres.key_limits import (
    KeyTurns,
    block_rest,
    candidates_in_turn,
    key_gates,
    place,
    save_keys,
    wake_due,
)
from ergon_framework.jobs.stores.postgres.rows import (
    EXECUTOR,
    PRIORITY,
    QUEUE,
    RUN_AT,
    SEQ,
    Held,
    Row,
    StatementResult,
    claimed_job,
)
from ergon_framework.jobs.stores.postgres.settle import SettleBatch, try_keys, wake
from ergon_framework.jobs.stores.postgres.statements import numbers, statements, texts
from ergon_framework.jobs.stores.postgres.transactions import PostgresTransactions, PostgresTx
from ergon_framework.jobs.stores.transitions import JobPosition, expire
from ergon_framework.jobs.stores.unreadable import READ_ERRORS, problem_of
from ergon_framework.ports.jobstore import ClaimedJob, ClaimResult, Settlement, Topic

START_DEPTH = 1000
MAX_DEPTH = 1_000_000
"""How many jobs of a lane one claim looks past, where limit keys are held: few at first, as each is
held for a commit only; twice as many whenever one is still held, so that the end is reached."""

Place = tuple[str | None, str | None, int | None, float | None, int | None]
"""Where a job stood: executor, queue, priority, due time and number."""
NOWHERE: Place = (None, None, None, None, None)

FIRST_BLOCKED = 8
"""Places where jobs wait for limit keys at which a thorough claim looks first. Often one is for
this worker, which is all that it asks; there may be as many places as there are keys."""

_LAST = ("last_executor", "last_queue", "last_priority", "last_run_at", "last_seq")
_SQL = statements("claim.sql")

lane_of = itemgetter(EXECUTOR, QUEUE)
_arrival, _priority = itemgetter(RUN_AT, SEQ), itemgetter(PRIORITY)


def promote(tx: PostgresTx, max_promoted: int) -> None:
    """Make jobs due whose time has come."""
    tx.execute(_SQL["promote"], {"most": max_promoted})


class PlainClaim:
    """Fast path of a claim: plain jobs from queues without limits, in one statement."""

    def __init__(self, tx: PostgresTx, request: ClaimRequest, picks: Sequence[Pick]) -> None:
        self._picks = picks
        values = _lanes(picks) | {"lease": request.lease, "worker": request.worker}
        self._cursor = tx.execute(_SQL["claim"], values)

    def read(self) -> tuple[list[Row], set[ShareKey]]:
        """The jobs, and where there are others that need a closer look."""
        rows = self._cursor.fetchall()
        # There is always a first row: the numbers stand there even where nothing was leased.
        special = {self._picks[number].share for number in rows[0][0] or ()}
        return [row[1:] for row in rows if row[1] is not None], special


@dataclass(slots=True)
class SkippedKeys:
    """Limit keys that others held a moment ago, and how far to look for jobs behind theirs."""

    keys: set[str] = field(default_factory=set)
    depth: int = START_DEPTH


def candidates(tx: PostgresTx, picks: Sequence[Pick], skipped: SkippedKeys) -> StatementResult:
    """The first jobs of each pick, held, without those that are passed over; the number of the
    pick stands before each.
    """
    if not skipped.keys:
        return tx.execute(_SQL["candidates"], _lanes(picks))
    past = {"passed": texts(skipped.keys), "depth": skipped.depth}
    return tx.execute(_SQL["candidates_past"], _lanes(picks) | past)


def _lanes(picks: Sequence[Pick]) -> dict[str, Any]:
    lanes = [(name, pick, n) for n, pick in enumerate(picks) for name in pick.names]
    return {
        "executors": texts([name for name, _, _ in lanes]),
        "queues": texts([pick.queue for _, pick, _ in lanes]),
        "most": numbers([pick.most for _, pick, _ in lanes]),
        "numbers": numbers([n for _, _, n in lanes]),
    }


def in_order(rows: Iterable[Row]) -> list[Row]:
    """Sorted as jobs stand in one queue, like :func:`place`: by priority, due time and number."""
    # Stable sorts, the second of which most claims can leave out: their jobs have one priority.
    found = sorted(rows, key=_arrival)
    if len(set(map(_priority, found))) > 1:
        found.sort(key=_priority, reverse=True)
    return found


def last_of(rows: Iterable[Row]) -> Place:
    """Where the one of these jobs stood that stood behind the others."""
    row = in_order(rows)[-1]
    return row[EXECUTOR], row[QUEUE], row[PRIORITY], row[RUN_AT], row[SEQ]


@dataclass(slots=True)
class LaneView:
    """The lanes that a scan found."""

    lanes: list[Lane] = field(default_factory=list)
    blocked: list[Lane] = field(default_factory=list)  # where jobs wait for limit keys
    has_more_blocked: bool = False  # there may be more of those
    next_at: float | None = None
    last: ShareKey | None = None  # there may be more lanes after this one
    has_flow_work: bool = False  # something of flows is left to be done in slices
    expires_at: float | None = None
    wakes_at: float | None = None  # when jobs that wait for a token are due again


class LaneScan:
    """Scans the lanes that have due jobs, at the end of a transaction."""

    def __init__(
        self,
        tx: PostgresTx,
        request: ClaimRequest,
        after: ShareKey,
        last: Place,
        bounds: ClaimBounds = DEFAULT_BOUNDS,
    ) -> None:
        """``after``: where it begins. ``last``: where it is worth a look before anything is walked
        past; whatever it is, the answer is the same.
        """
        self._max_lanes = bounds.max_lanes
        queues = None if request.queues is None else texts(request.queues)
        if queues is None:
            values = {"executor": after[0], "queue": after[1], "most": bounds.max_lanes}
            values |= {"version": request.version}
            self._lanes = tx.execute(_SQL["lanes"], values | dict(zip(_LAST, last, strict=True)))
        else:
            asked = {"queues": queues, "version": request.version}
            self._lanes = tx.execute(_SQL["lanes_in"], asked)
        self._is_bounded = queues is None
        version = request.version
        soonest = {"queues": queues, "most": bounds.scan_size, "version": version}
        self._soonest = tx.execute(_SQL["soonest"], soonest)
        self._blocked = blocked_lanes(tx, FIRST_BLOCKED, version) if request.wants_more else None

    def read(self) -> LaneView:
        """What it found."""
        lanes = [
            Lane(executor, queue, bool(is_paused), has_settings)
            for executor, queue, is_paused, has_settings in self._lanes.fetchall()
        ]
        [[next_at, has_flow_work, expires_at, wakes_at]] = self._soonest.fetchall()
        view = LaneView(
            lanes,
            next_at=next_at,
            has_flow_work=has_flow_work,
            expires_at=expires_at,
            wakes_at=wakes_at,
        )
        if self._is_bounded and len(lanes) == self._max_lanes:
            view.last = lanes[-1].executor, lanes[-1].queue
        if self._blocked is not None:
            view.blocked, view.has_more_blocked = self._blocked()
        return view


def blocked_lanes(tx: PostgresTx, most: int, version: str) -> Callable[[], tuple[list[Lane], bool]]:
    """Look where jobs wait for limit keys, at so many places; answers how to read what was found,
    and whether there may be more.
    """
    found = tx.execute(_SQL["blocked"], {"most": most, "version": version})

    def read() -> tuple[list[Lane], bool]:
        rows = found.fetchall()
        lanes = {
            Lane(executor, queue, bool(is_paused)): None for executor, queue, is_paused, _ in rows
        }
        return list(lanes), any(is_last for *_, is_last in rows)

    return read


_FENCE, _ID, _ATTEMPTS, _DELIVERIES, _CLAIMED_AT = 1, 2, 8, 9, 14  # columns of ``candidates``
_STATUS, _EXPIRES_AT, _KEY, _KEY_LIMIT = range(17, 21)


@dataclass(slots=True)
class LimitedClaim:
    """What one claim under locks brought."""

    jobs: list[Row] = field(default_factory=list)
    keyed: set[Held] = field(default_factory=set)  # those of them that have a limit key
    taken: Counter[ShareKey] = field(default_factory=Counter)
    spent: set[ShareKey] = field(default_factory=set)  # there is no more to be had for now
    waits: dict[str, float] = field(default_factory=dict)  # when queues have tokens again
    passed: set[str] = field(default_factory=set)  # limit keys that others hold
    refused: int = 0
    outdated: int = 0
    steps: list[Settlement] = field(default_factory=list)  # ends of outdated ones


def claim_limited(
    tx: PostgresTx,
    request: ClaimRequest,
    picks: Sequence[Pick],
    *,
    skipped: SkippedKeys,
    min_candidates: int,
    turns: KeyTurns,
    bounds: ClaimBounds,
) -> LimitedClaim:
    """Take what may be taken, within a transaction that the caller commits.

    ``turns``: where to go on in queues whose keys take turns.
    ``skipped``: what is not looked at again. ``min_candidates``: how many to look at for each pick,
    if more than are wanted: worth it after some were refused.
    """
    now, stamp, gates = _gates(tx, picks, request.version)
    rooms = [gates[pick.queue].room(pick.most, now) for pick in picks]
    wanted = [
        max(room, min_candidates) if room and not gates[pick.queue].limits.limits_keys else room
        for pick, room in zip(picks, rooms, strict=True)
    ]
    wider = [pick._replace(most=n) for pick, n in zip(picks, wanted, strict=True)]
    found = _candidates(tx, wider, skipped, gates, turns, bounds.unkeyed_scan)
    running, held = _running(tx, found)
    keys = _key_gates(tx, found, gates)
    let_in = _let_in(picks, gates, now)
    admission = admit(
        _core_candidates(found), rooms, let_in, running, now, unknown=held, key_gates=keys
    )
    rows = {row[SEQ]: row for each in found for row in each}
    started = set(admission.admitted)
    claimed = [_claimed(rows[seq], now, stamp) for seq in admission.admitted]
    claim = LimitedClaim(
        jobs=claimed,
        keyed={(row[SEQ], row[_FENCE]) for row in claimed if rows[row[SEQ]][_KEY] is not None},
        passed={rows[seq][_KEY] for seq in admission.passed_over},
        refused=len(admission.blocked) + len(admission.outdated),
        outdated=len(admission.outdated),
    )
    for pick, found_rows in zip(picks, found, strict=True):
        count = sum(row[SEQ] in started for row in found_rows)
        gates[pick.queue].enter(count, now)
        claim.taken[pick.share] = count
    for pick, most, found_rows in zip(picks, wanted, found, strict=True):
        gate = gates[pick.queue]
        # Where keys take turns, one may have had fewer jobs than its share.
        is_all = not found_rows if gate.limits.limits_keys else len(found_rows) < most
        if is_all or gate.room(1, now) == 0:
            claim.spent.add(pick.share)
    claim.steps = _apply(tx, request, admission, rows, now, stamp)
    claim.waits = _close(tx, gates, now)
    if keys:
        blocked = {(rows[seq][QUEUE], rows[seq][_KEY]) for seq in admission.blocked} & keys.keys()
        if blocked:
            claim.refused += block_rest(tx, picks, blocked, bounds.scan_size)
        save_keys(tx, keys, blocked, now)
    return claim


def _gates(
    tx: PostgresTx, picks: Sequence[Pick], version: str
) -> tuple[float, int, dict[str, QueueGate]]:
    """The time, the least fence, and the gates; they stay locked until the transaction ends."""
    values = {"queues": texts(sorted({pick.queue for pick in picks}))}
    locked = tx.execute(_SQL["lock_gates"], values)
    counted = tx.execute(_SQL["running_in_queues"], values)
    [[now, stamp]] = tx.execute(_SQL["now"], {}).fetchall()
    active: dict[str, int] = dict(counted.fetchall())
    settings = {name: QueueLimits(*rest).seen_by(version) for name, *rest in locked.fetchall()}
    return (
        now,
        stamp,
        {
            name: QueueGate(name, _open(settings.get(name, NO_LIMITS)), active.get(name, 0))
            for name in {pick.queue for pick in picks}
        },
    )


def _let_in(picks: Sequence[Pick], gates: Mapping[str, QueueGate], now: float) -> dict[str, int]:
    """How many jobs of each queue may start, for all executors together."""
    wanted: Counter[str] = Counter()
    for pick in picks:
        wanted[pick.queue] += pick.most
    return {queue: gates[queue].room(most, now) for queue, most in wanted.items()}


def _open(settings: QueueLimits) -> QueueLimits:
    """The limits of a queue; one that was paused since the scan starts no job."""
    return replace(settings, max_active=0) if settings.is_paused else settings


def _candidates(
    tx: PostgresTx,
    picks: Sequence[Pick],
    skipped: SkippedKeys,
    gates: Mapping[str, QueueGate],
    turns: KeyTurns,
    unkeyed_scan: int,
) -> list[list[Row]]:
    """For each pick its jobs, in the order in which they go."""
    found: list[list[Row]] = [[] for _ in picks]
    plain = [
        pick._replace(most=0) if gates[pick.queue].limits.limits_keys else pick for pick in picks
    ]
    if any(pick.most for pick in plain):
        for number, *row in candidates(tx, plain, skipped).fetchall():
            found[number].append(tuple(row))
    for pick, rows in zip(plain, found, strict=True):
        rows.sort(key=place)
        del rows[pick.most :]
    for n, pick in enumerate(picks):
        if pick.most and gates[pick.queue].limits.limits_keys:
            found[n] = candidates_in_turn(tx, pick, turns, skipped.keys, unkeyed_scan)
    return found


def _running(tx: PostgresTx, found: Sequence[Sequence[Row]]) -> tuple[Mapping[str, int], set[str]]:
    """How many jobs of each limit key run, and the keys whose count is not known.

    The keys are locked, so that the count holds until the transaction ends; one that another
    transaction has locked is not waited for.
    """
    keys = {row[_KEY] for rows in found for row in rows} - {None}
    if not keys:
        return {}, set()
    ours = try_keys(tx, keys)
    counted = tx.execute(_SQL["running_of_keys"], {"keys": texts(keys)})
    held = keys - {key for (key,) in ours.fetchall()}
    return dict(counted.fetchall()), held


def _key_gates(
    tx: PostgresTx, found: Sequence[Sequence[Row]], gates: Mapping[str, QueueGate]
) -> dict[KeyOfQueue, QueueGate]:
    """Gates of the limit keys of what was found, in queues that limit each of their keys."""
    limits = {name: gate.limits for name, gate in gates.items() if gate.limits.limits_keys}
    wanted = {
        (row[QUEUE], row[_KEY])
        for rows in found
        for row in rows
        if row[QUEUE] in limits and row[_KEY] is not None
    }
    return key_gates(tx, wanted, limits)


def _core_candidates(found: Sequence[Sequence[Row]]) -> Iterator[Candidate]:
    for number, rows in enumerate(found):
        for row in rows:
            limits = row[_EXPIRES_AT], row[_KEY], row[_KEY_LIMIT]
            yield Candidate(place(row), number, row[QUEUE], *limits)


def _apply(
    tx: PostgresTx,
    request: ClaimRequest,
    admission: Admission,
    rows: Mapping[int, Row],
    now: float,
    stamp: int,
) -> list[Settlement]:
    """Write the admission; an outdated job passes its turn at a limit key on.

    Answers with the ends of outdated steps. A transaction that holds jobs does not wait for their
    flows: those are for one of their own.
    """
    if admission.admitted:
        values = {"now": now, "stamp": stamp, "lease": request.lease, "worker": request.worker}
        tx.execute(_SQL["lease"], values | {"seqs": numbers(admission.admitted)})
    if admission.blocked:
        tx.execute(_SQL["block"], {"seqs": numbers(admission.blocked)})
    if not admission.outdated:
        return []
    ends = [expire(standing(rows[seq]), now, tx.retention) for seq in admission.outdated]
    batch = SettleBatch(tx, ends)
    applied = batch.read()
    if batch.effects.freed:
        wake(tx, batch.effects.freed)
    return [end for end, was_applied in zip(ends, applied, strict=True) if not was_applied]


def _close(tx: PostgresTx, gates: Mapping[str, QueueGate], now: float) -> dict[str, float]:
    """Write down the tokens that were taken; when queues without any have some again."""
    waits = {}
    for gate in gates.values():
        if gate.full_at is not None:
            tx.execute(_SQL["set_full_at"], {"name": gate.name, "full_at": gate.full_at})
        until = gate.waits_until(now)
        if until is not None:
            waits[gate.name] = until
    return waits


def standing(row: Row) -> JobPosition:
    """What moving a candidate takes."""
    attempts, deliveries, excused = row[_ATTEMPTS : _ATTEMPTS + 3]
    numbers = attempts, deliveries, excused
    return row[SEQ], row[_ID], row[_STATUS], row[_FENCE], *numbers, row[QUEUE]


def _claimed(row: Row, now: float, stamp: int) -> Row:
    """A candidate as the database has it now."""
    changed = list(row[:_STATUS])
    # As the statement `lease` writes it: to read the row again would cost a round trip.
    changed[_FENCE] = max(changed[_FENCE] + 1, stamp)
    changed[_DELIVERIES] += 1
    changed[_CLAIMED_AT] = now
    return tuple(changed)


logger = logging.getLogger("ergon.jobs")

HELD_KEY_DELAY = 0.05
"""Seconds until asking again for a limit key that others hold, which takes them a commit."""
_FIRST_LANE: ShareKey = ("", "")


@dataclass(slots=True)
class PostgresClaimMemory:
    """What one process remembers between its claims. It may be out of date: it says where to look
    first, and never what may be done.
    """

    turns: Turns = field(default_factory=dict)
    key_turns: KeyTurns = field(default_factory=KeyTurns)
    lanes: list[Lane] = field(default_factory=list)
    after: ShareKey = _FIRST_LANE  # where the next look begins
    last: Place = NOWHERE  # of the job that stood behind the others that were claimed last
    depth: int = START_DEPTH  # how far to look past jobs of limit keys that others hold
    keyed: set[Held] = field(default_factory=set)  # claims of jobs that have a limit key
    owed: Counter[str] = field(default_factory=Counter)  # of limit keys, wake-ups to be repeated
    has_claimed: bool = False


class PostgresClaim:
    """The claim of one exchange. Nothing of it changes before a transaction was committed."""

    def __init__(
        self,
        transactions: PostgresTransactions,
        request: ClaimRequest,
        memory: PostgresClaimMemory,
        bounds: ClaimBounds = DEFAULT_BOUNDS,
    ) -> None:
        self._transactions = transactions
        self._bounds = bounds
        self._request = request
        self._memory = memory
        self._plan = ClaimPlan(request, memory.turns)
        self._view = LaneView()
        self._is_begun = False
        self._is_round = memory.after == _FIRST_LANE  # whether the look has come to all lanes
        self._limited: list[Pick] = []  # shares of this cycle that are still to be taken
        self._plain = self._begin_cycle(memory.lanes)
        self._rows: list[Row] = []
        self._waits: dict[str, float] = {}  # when queues have tokens again
        self._skipped = SkippedKeys(depth=memory.depth)
        self._is_soon = False
        self._refused = 0
        self._outdated = 0
        self._steps: list[Settlement] = []  # ends of outdated ones, to be written

    @property
    def is_empty(self) -> bool:
        """Whether nothing was claimed."""
        return not self._rows

    # ---- within one transaction: execute all, and return how to read the results -----------------

    def send(self, tx: PostgresTx) -> Callable[[], None]:
        """Scan the lanes; the first time, claim from those that are remembered before."""
        if self._is_begun:
            return self._send_scan(tx)
        promote(tx, self._bounds.max_promoted)
        plain = self._plain
        answer = self._send_plain(tx, plain) if plain else self._send_scan(tx)

        def read() -> None:
            self._is_begun = True
            answer()

        return read

    def _scan(self, tx: PostgresTx) -> LaneScan:
        memory = self._memory
        return LaneScan(tx, self._request, memory.after, memory.last, self._bounds)

    def _send_scan(self, tx: PostgresTx) -> Callable[[], None]:
        scan = self._scan(tx)
        return lambda: self._see(scan)

    def _send_plain(self, tx: PostgresTx, picks: Sequence[Pick]) -> Callable[[], None]:
        plain = PlainClaim(tx, self._request, picks)
        scan = self._scan(tx)

        def read() -> None:
            self._see(scan)
            rows, special = plain.read()
            self._take_plain(picks, rows, special)

        return read

    def _send_limited(self, tx: PostgresTx, picks: Sequence[Pick]) -> Callable[[], None]:
        skipped = self._skipped
        is_again = self._refused > 0 or bool(skipped.keys)
        claim = claim_limited(
            tx,
            self._request,
            picks,
            skipped=skipped,
            min_candidates=self._bounds.scan_size if is_again else 0,
            turns=self._memory.key_turns,
            bounds=self._bounds,
        )
        scan = self._scan(tx)

        def read() -> None:
            # First: which queues have settings decides what becomes of a share that was not filled.
            self._see(scan)
            for pick in picks:
                is_spent = pick.share in claim.spent
                self._plan.record(pick.share, claim.taken[pick.share], is_spent=is_spent)
            self._rows += claim.jobs
            self._memory.keyed |= claim.keyed
            self._waits |= claim.waits
            skipped.keys |= claim.passed
            self._refused += claim.refused
            self._outdated += claim.outdated
            self._steps += claim.steps

        return read

    def _see(self, scan: LaneScan) -> None:
        self._view = scan.read()
        self._memory.lanes = self._view.lanes
        self._memory.after = self._view.last or _FIRST_LANE

    def _take_plain(self, picks: Sequence[Pick], rows: list[Row], special: set[ShareKey]) -> None:
        taken: Counter[ShareKey] = Counter()
        for (executor, queue), count in Counter(map(lane_of, rows)).items():
            taken[self._plan.share_of(executor, queue)] += count
        limited = {lane.queue for lane in self._view.lanes if lane.has_settings}
        for pick in picks:
            count = taken[pick.share]
            # The plain statement leaves out queues with settings, also those that got them since
            # the last scan.
            is_special = pick.share in special or pick.queue in limited
            if is_special and count < pick.most:
                self._limited.append(Pick(pick.share, pick.names, pick.most - count))
            self._plan.record(pick.share, count, is_spent=count < pick.most and not is_special)
        self._rows += rows
        if rows:
            self._memory.last = last_of(rows)

    # ---- one transaction after the other --------------------------------------------------------

    def go_on(self) -> None:
        """Claim until the slots are full, or nothing is left that may be claimed."""
        if not self._is_begun:
            self._run(self.send)
        self._wake_keys()
        while self._refused + len(self._skipped.keys) < self._bounds.max_refused:
            limited, self._limited = self._limited, []
            if limited:
                before = self._outdated
                self._run(partial(self._send_limited, picks=limited))
                self._end_steps()
                if self._outdated > before:
                    self._transactions.notify({Topic.DONE, Topic.WORK})
                continue
            plain = self._begin_cycle(self._view.lanes)
            if plain:
                self._run(partial(self._send_plain, picks=plain))
            elif not self._limited and not self._see_more():
                return

    def _wake_keys(self) -> None:
        """Make jobs due whose limit keys have tokens again."""
        at = self._view.wakes_at
        if at is None or at > self._transactions.now():
            return
        # In a transaction of its own, which waits for nobody: it locks keys before jobs.
        if self._transactions.stepwise(lambda tx: wake_due(tx, self._bounds), "exchange"):
            self.look_again()

    def _end_steps(self) -> None:
        """End outdated steps; jobs that wait for their limit keys are woken soon."""
        steps, self._steps = self._steps, []
        if steps:
            _, effects = settle_steps(self._transactions, steps, "exchange")
            self._memory.owed += effects.freed

    def look_again(self) -> None:
        """Look at the lanes again: something may have become due since the last look."""
        if self._is_begun:
            self._plan.look_again()
            self._run(self._send_scan)

    @property
    def has_flow_work(self) -> bool:
        """Whether something of flows is left to be done in slices."""
        return self._view.has_flow_work

    def _run(self, send: Callable[[PostgresTx], Callable[[], None]]) -> None:
        # Synced, too: after a crash, a server that lost a claim would give its fence away again.
        self._transactions.pipelined(send, "exchange")

    def _begin_cycle(self, lanes: Sequence[Lane]) -> list[Pick]:
        """Picks for all queues; returns those that the fast path can take."""
        picks = self._plan.next_picks(lanes)
        limited = {lane.queue for lane in lanes if lane.has_settings}
        self._limited = [pick for pick in picks if pick.queue in limited]
        return [pick for pick in picks if pick.queue not in limited]

    def _see_more(self) -> bool:
        """Scan further lanes, if there are any and it matters."""
        if not self._plan.has_slots and (not self._request.wants_more or self._is_left()):
            return False
        if self._view.last is None:
            if self._is_round:
                return False
            # The scan began in the middle, behind what this process looked at last: once more from
            # the first lane.
            self._is_round = True
        self._run(self._send_scan)
        return True

    @property
    def has_slots(self) -> bool:
        """Whether the worker will ask again when there is something to be had."""
        return self._plan.has_slots

    def ask_again_soon(self) -> None:
        """Let the worker ask again soon: something is to be done that cannot be done yet."""
        self._is_soon = True

    # ---- what came of it ------------------------------------------------------------------------

    def result(self) -> ClaimResult:
        """What the worker got, and when asking again makes sense."""
        order: dict[str, int] = {}
        for row in self._rows:
            order.setdefault(row[QUEUE], len(order))
        self._rows = in_order(self._rows)
        if len(order) > 1:
            self._rows.sort(key=lambda row: order[row[QUEUE]])
        is_more = self._request.wants_more and self._is_left()
        is_held = bool(self._skipped.keys)
        self._memory.depth = min(2 * self._skipped.depth, MAX_DEPTH) if is_held else START_DEPTH
        jobs = self._leased()
        expires_at, lanes = self._view.expires_at, self._view.lanes
        waiting = tuple(sorted({each.executor for each in lanes if "#" in each.executor}))
        next_at = self._next_at()
        return ClaimResult(jobs, next_at, is_more, self._outdated, expires_at, waiting)

    def _leased(self) -> list[ClaimedJob]:
        """The claimed jobs. Rows that cannot be read are set aside."""
        jobs: list[ClaimedJob] = []
        unreadable: list[tuple[int, str]] = []
        for row in self._rows:
            try:
                jobs.append(claimed_job(row))
            except READ_ERRORS as error:
                unreadable.append((row[SEQ], problem_of(error)))
        if unreadable:
            try:
                self._transactions.set_aside(unreadable, is_claimed=True)
            except StoreError as error:
                # The other jobs were claimed and have to be answered. A rescue meets these rows
                # again when their leases have expired.
                logger.warning("rows that cannot be read are set aside later: %s", error)
        return jobs

    def _next_at(self) -> float | None:
        """The earliest instant at which something that waits could be claimed."""
        due = {lane.queue for lane in self._view.lanes if self._plan.serves(lane)}
        found = [until for queue, until in self._waits.items() if queue in due]
        found += [at for at in (self._view.next_at, self._view.wakes_at) if at is not None]
        if self._skipped.keys or self._is_soon:
            # A look past more jobs costs more, and is made less often.
            times = min(self._skipped.depth / START_DEPTH, 10.0)
            found.append(self._transactions.now() + HELD_KEY_DELAY * times)
        if self._refused >= self._bounds.max_refused:
            found.append(self._transactions.now())  # there may be more: ask again at once
        return min(found, default=None)

    def _is_left(self) -> bool:
        """Whether a due job is left that this worker could run, now or later."""
        view = self._view
        if any(map(self._plan.is_left, (*view.lanes, *view.blocked))):
            return True
        if not view.has_more_blocked:
            return False
        most, version = self._bounds.max_lanes, self._request.version
        try:
            view.blocked, _ = self._transactions.read(lambda tx: blocked_lanes(tx, most, version)())
        except StoreError as error:
            # What was claimed must not be lost for it: the next thorough claim looks again.
            logger.warning("it is not known whether jobs wait for limit keys: %s", error)
            return True
        view.has_more_blocked = False
        return any(map(self._plan.is_left, view.blocked))
