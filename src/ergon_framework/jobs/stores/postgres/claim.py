"""Claiming: how jobs are taken from the server, with and without limits, and what is left.

Most claims are one statement for each lane, inside the pipeline of an exchange. Where limits have
to hold (queues with settings, limit keys, jobs that may have expired), a transaction of its own
claims carefully. The queues' rows are locked first, in the order of their names, then the limit
keys of what was found; what runs is counted after the lock, so that it counts what others did
before.

Nobody waits for a limit key here. One that others hold is passed over: its jobs stay due, so that
no wake-up can miss them, and the worker asks again soon. No key is passed over for ever: it is held
only by a transaction that found a job of it, and that one starts the job, or blocks it because the
limit is reached, or has filled its slots with jobs that come before it; or by one that wakes jobs
after some have ended. So two workers cannot refuse it to each other in turns: the one that is
refused is so because the other has it, and whoever gets it moves something on.
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
    NONE,
    Admission,
    Applicant,
    Ask,
    Gate,
    Lane,
    Line,
    Pick,
    Settings,
    Share,
    Turns,
    admit,
)
from ergon_framework.errors import StoreError
from ergon_framework.jobs.stores.postgres.rows import (
    EXECUTOR,
    PRIORITY,
    QUEUE,
    RUN_AT,
    SEQ,
    Answer,
    Held,
    Row,
    leased,
)
from ergon_framework.jobs.stores.postgres.settle import Settling, try_keys, wake
from ergon_framework.jobs.stores.postgres.statements import numbers, statements, texts
from ergon_framework.jobs.stores.postgres.transactions import Transactions, Words
from ergon_framework.jobs.stores.transitions import Standing, outdated
from ergon_framework.jobs.stores.unreadable import MISREAD, problem_of
from ergon_framework.ports.jobstore import Claimed, Leased, Topic

MOST_PROMOTED = 500
MOST_LANES = 256
GLANCE = 64
"""Bounds of one claim: whatever it leaves, the next one finds."""

DEPTH = 1000
DEEPEST = 1_000_000
"""How many jobs of a lane one claim looks past, where limit keys are held: few at first, as nobody
holds one for long; the double each time that one is held still, so that the end is reached."""

Place = tuple[str | None, str | None, int | None, float | None, int | None]
"""Where a job stood: executor, queue, priority, due time and number."""
NOWHERE: Place = (None, None, None, None, None)

_LAST = ("last_executor", "last_queue", "last_priority", "last_run_at", "last_seq")
_SQL = statements("claim.sql")

lane_of = itemgetter(EXECUTOR, QUEUE)
_arrival, _priority = itemgetter(RUN_AT, SEQ), itemgetter(PRIORITY)


def promote(words: Words) -> None:
    """Let those be claimed whose time has come."""
    words.say(_SQL["promote"], {"most": MOST_PROMOTED})


class Quick:
    """Claims plain jobs from queues without settings, in one statement."""

    def __init__(self, words: Words, ask: Ask, picks: Sequence[Pick]) -> None:
        self._picks = picks
        values = _lanes(picks) | {"lease": ask.lease, "worker": ask.worker}
        self._cursor = words.say(_SQL["claim"], values)

    def read(self) -> tuple[list[Row], set[Line]]:
        """The jobs, and where there are others that need a closer look."""
        rows = self._cursor.fetchall()
        special = {self._picks[number].line for number in rows[0][0] or ()}
        return [row[1:] for row in rows if row[1] is not None], special


@dataclass(slots=True)
class Passing:
    """Limit keys that others held a moment ago, and how far to look for jobs behind theirs."""

    keys: set[str] = field(default_factory=set)
    depth: int = DEPTH


def candidates(words: Words, picks: Sequence[Pick], passing: Passing) -> Answer:
    """The first jobs of each pick, held, without those that are passed over; the number of the
    pick stands before each.
    """
    if not passing.keys:
        return words.say(_SQL["candidates"], _lanes(picks))
    past = {"passed": texts(passing.keys), "depth": passing.depth}
    return words.say(_SQL["candidates_past"], _lanes(picks) | past)


def _lanes(picks: Sequence[Pick]) -> dict[str, Any]:
    lanes = [(name, pick, n) for n, pick in enumerate(picks) for name in pick.names]
    return {
        "executors": texts([name for name, _, _ in lanes]),
        "queues": texts([pick.queue for _, pick, _ in lanes]),
        "most": numbers([pick.most for _, pick, _ in lanes]),
        "numbers": numbers([n for _, _, n in lanes]),
    }


def in_order(rows: Iterable[Row]) -> list[Row]:
    """As jobs stand in one queue: see :func:`place`, of which most differ in the end alone."""
    found = sorted(rows, key=_arrival)
    if len(set(map(_priority, found))) > 1:
        found.sort(key=_priority, reverse=True)
    return found


def last_of(rows: Iterable[Row]) -> Place:
    """Where the one of these jobs stood that stood behind the others."""
    row = in_order(rows)[-1]
    return row[EXECUTOR], row[QUEUE], row[PRIORITY], row[RUN_AT], row[SEQ]


def place(row: Row) -> tuple[int, float, int]:
    """Where a job stands among those of its queue."""
    return -row[PRIORITY], row[RUN_AT], row[SEQ]


@dataclass(slots=True)
class Sight:
    """What a look around showed."""

    lanes: list[Lane] = field(default_factory=list)
    blocked: list[Lane] = field(default_factory=list)  # where jobs wait for limit keys
    next_at: float | None = None
    last: Line | None = None  # there may be more lanes after this one


class Look:
    """Looks around at the end of a transaction."""

    def __init__(self, words: Words, ask: Ask, after: Line, last: Place) -> None:
        """``after``: where it begins. ``last``: where it is worth a look before anything is walked
        past; whatever it is, the answer is the same.
        """
        queues = None if ask.queues is None else texts(ask.queues)
        if queues is None:
            values = {"executor": after[0], "queue": after[1], "most": MOST_LANES}
            self._lanes = words.say(_SQL["lanes"], values | dict(zip(_LAST, last, strict=True)))
        else:
            self._lanes = words.say(_SQL["lanes_in"], {"queues": queues})
        self._is_bounded = queues is None
        self._soonest = words.say(_SQL["soonest"], {"queues": queues, "most": GLANCE})
        self._blocked = words.say(_SQL["blocked"], {"most": MOST_LANES}) if ask.asks_more else None

    def read(self) -> Sight:
        """What it showed."""
        lanes = [
            Lane(executor, queue, bool(is_paused), has_settings)
            for executor, queue, is_paused, has_settings in self._lanes.fetchall()
        ]
        sight = Sight(lanes, next_at=self._soonest.fetchall()[0][0])
        if self._is_bounded and len(lanes) == MOST_LANES:
            sight.last = lanes[-1].executor, lanes[-1].queue
        if self._blocked is not None:
            sight.blocked = [Lane(*row) for row in self._blocked.fetchall()]
        return sight


"""How many to look at where some have been refused."""

_FENCE, _ID, _ATTEMPTS, _DELIVERIES, _CLAIMED_AT = 1, 2, 8, 9, 14
_STATUS, _EXPIRES_AT, _KEY, _KEY_LIMIT = range(17, 21)


@dataclass(slots=True)
class Caught:
    """What one careful claim brought."""

    jobs: list[Row] = field(default_factory=list)
    keyed: set[Held] = field(default_factory=set)  # those of them that have a limit key
    taken: Counter[Line] = field(default_factory=Counter)
    spent: set[Line] = field(default_factory=set)  # there is no more to be had for now
    waits: dict[str, float] = field(default_factory=dict)  # when queues have tokens again
    passed: set[str] = field(default_factory=set)  # limit keys that others hold
    refused: int = 0
    outdated: int = 0


def claim_carefully(
    words: Words, ask: Ask, picks: Sequence[Pick], *, passing: Passing, is_again: bool
) -> Caught:
    """Take what may be taken, within a transaction that the caller commits.

    ``passing``: what is not looked at again.
    ``is_again``: some were refused already, so that it pays to look at more than are wanted.
    """
    now, stamp, gates = _gates(words, picks)
    rooms = [gates[pick.queue].room(pick.most, now) for pick in picks]
    wanted = [max(room, GLANCE) if room and is_again else room for room in rooms]
    looks = [replace(p, most=n) for p, n in zip(picks, wanted, strict=True)]
    found = _candidates(words, looks, passing)
    running, held = _running(words, found)
    let_in = _let_in(picks, gates, now)
    admission = admit(_applicants(found), rooms, let_in, running, now, unknown=held)
    rows = {row[SEQ]: row for each in found for row in each}
    started = set(admission.admitted)
    claimed = [_claimed(rows[seq], now, stamp) for seq in admission.admitted]
    caught = Caught(
        jobs=claimed,
        keyed={(row[SEQ], row[_FENCE]) for row in claimed if rows[row[SEQ]][_KEY] is not None},
        passed={rows[seq][_KEY] for seq in admission.passed_over},
        refused=len(admission.blocked) + len(admission.outdated),
        outdated=len(admission.outdated),
    )
    for pick, line in zip(picks, found, strict=True):
        count = sum(row[SEQ] in started for row in line)
        gates[pick.queue].enter(count, now)
        caught.taken[pick.line] = count
    for pick, most, line in zip(picks, wanted, found, strict=True):
        if len(line) < most or gates[pick.queue].room(1, now) == 0:
            caught.spent.add(pick.line)
    _apply(words, ask, admission, rows, now, stamp)
    caught.waits = _close(words, gates, now)
    return caught


def _gates(words: Words, picks: Sequence[Pick]) -> tuple[float, int, dict[str, Gate]]:
    """The time, the least fence, and the gates, which nobody else passes until this is over."""
    values = {"queues": texts(sorted({pick.queue for pick in picks}))}
    locked = words.say(_SQL["lock_gates"], values)
    counted = words.say(_SQL["running_in_queues"], values)
    [[now, stamp]] = words.say(_SQL["now"], {}).fetchall()
    active: dict[str, int] = dict(counted.fetchall())
    settings = {name: Settings(*rest) for name, *rest in locked.fetchall()}
    return (
        now,
        stamp,
        {
            name: Gate(name, _open(settings.get(name, NONE)), active.get(name, 0))
            for name in {pick.queue for pick in picks}
        },
    )


def _let_in(picks: Sequence[Pick], gates: Mapping[str, Gate], now: float) -> dict[str, int]:
    """How many jobs of each queue may start, for all executors together."""
    wanted: Counter[str] = Counter()
    for pick in picks:
        wanted[pick.queue] += pick.most
    return {queue: gates[queue].room(most, now) for queue, most in wanted.items()}


def _open(settings: Settings) -> Settings:
    """A queue that was paused a moment ago lets nobody through."""
    return replace(settings, max_active=0) if settings.is_paused else settings


def _candidates(words: Words, picks: Sequence[Pick], passing: Passing) -> list[list[Row]]:
    """For each pick its jobs, in the order in which they go."""
    found: list[list[Row]] = [[] for _ in picks]
    for number, *row in candidates(words, picks, passing).fetchall():
        found[number].append(tuple(row))
    for pick, rows in zip(picks, found, strict=True):
        rows.sort(key=place)
        del rows[pick.most :]
    return found


def _running(words: Words, found: Sequence[Sequence[Row]]) -> tuple[Mapping[str, int], set[str]]:
    """How many jobs run of each limit key that was found, and nobody changes that until this ends;
    and the keys of which this cannot be said, as others hold them.
    """
    keys = {row[_KEY] for rows in found for row in rows} - {None}
    if not keys:
        return {}, set()
    ours = try_keys(words, keys)
    counted = words.say(_SQL["running_of_keys"], {"keys": texts(keys)})
    held = keys - {key for (key,) in ours.fetchall()}
    return dict(counted.fetchall()), held


def _applicants(found: Sequence[Sequence[Row]]) -> Iterator[Applicant]:
    for line, rows in enumerate(found):
        for row in rows:
            limits = row[_EXPIRES_AT], row[_KEY], row[_KEY_LIMIT]
            yield Applicant(place(row), line, row[QUEUE], *limits)


def _apply(
    words: Words,
    ask: Ask,
    admission: Admission,
    rows: Mapping[int, Row],
    now: float,
    stamp: int,
) -> None:
    """Write it down; who is over passes its turn on."""
    if admission.admitted:
        values = {"now": now, "stamp": stamp, "lease": ask.lease, "worker": ask.worker}
        words.say(_SQL["lease"], values | {"seqs": numbers(admission.admitted)})
    if admission.blocked:
        words.say(_SQL["block"], {"seqs": numbers(admission.blocked)})
    if admission.outdated:
        ends = [outdated(standing(rows[seq]), now) for seq in admission.outdated]
        settling = Settling(words, ends)
        settling.read()
        if settling.freed:
            wake(words, settling.freed)


def _close(words: Words, gates: Mapping[str, Gate], now: float) -> dict[str, float]:
    """Write down the tokens that were taken; when queues without any have some again."""
    waits = {}
    for gate in gates.values():
        if gate.full_at is not None:
            words.say(_SQL["set_full_at"], {"name": gate.name, "full_at": gate.full_at})
        until = gate.waits_until(now)
        if until is not None:
            waits[gate.name] = until
    return waits


def standing(row: Row) -> Standing:
    """What moving a candidate takes."""
    attempts, deliveries, excused = row[_ATTEMPTS : _ATTEMPTS + 3]
    return row[SEQ], row[_ID], row[_STATUS], row[_FENCE], attempts, deliveries, excused


def _claimed(row: Row, now: float, stamp: int) -> Row:
    """A candidate as the database has it now."""
    changed = list(row[:_STATUS])
    changed[_FENCE] = max(changed[_FENCE] + 1, stamp)
    changed[_DELIVERIES] += 1
    changed[_CLAIMED_AT] = now
    return tuple(changed)


logger = logging.getLogger("ergon.jobs")

MOST_REFUSED = 1000
"""How many jobs one exchange looks at in vain: whatever it leaves, the next one finds."""
SOON = 0.05
"""Seconds until asking again for a limit key that others hold, which takes them a commit."""
_START: Line = ("", "")


@dataclass(slots=True)
class Memory:
    """What one process remembers between its claims. It may be out of date: it says where to look
    first, and never what may be done.
    """

    turns: Turns = field(default_factory=dict)
    lanes: list[Lane] = field(default_factory=list)
    after: Line = _START  # where the next look begins
    last: Place = NOWHERE  # of the job that stood behind the others that were claimed last
    depth: int = DEPTH  # how far to look past jobs of limit keys that others hold
    keyed: set[Held] = field(default_factory=set)  # claims of jobs that have a limit key
    owed: Counter[str] = field(default_factory=Counter)  # of limit keys, wake-ups to be repeated
    has_claimed: bool = False


class Claim:
    """The claim of one exchange. Nothing of it changes before a transaction was committed."""

    def __init__(self, transactions: Transactions, ask: Ask, memory: Memory) -> None:
        self._transactions = transactions
        self._ask = ask
        self._memory = memory
        self._share = Share(ask, memory.turns)
        self._sight = Sight()
        self._is_begun = False
        self._is_round = memory.after == _START  # whether the look has come to all lanes
        self._careful: list[Pick] = []  # shares of this cycle that are still to be taken
        self._quick = self._begin_cycle(memory.lanes)
        self._rows: list[Row] = []
        self._waits: dict[str, float] = {}  # when queues have tokens again
        self._passing = Passing(depth=memory.depth)
        self._is_soon = False
        self._refused = 0
        self._outdated = 0

    @property
    def is_empty(self) -> bool:
        """Whether nothing was claimed."""
        return not self._rows

    # ---- within one transaction: say all, and answer how to read the answers --------------------

    def send(self, words: Words) -> Callable[[], None]:
        """Look around; the first time, claim from the lanes that are remembered."""
        if self._is_begun:
            return self._send_look(words)
        promote(words)
        quick = self._quick
        answer = self._send_quick(words, quick) if quick else self._send_look(words)

        def read() -> None:
            self._is_begun = True
            answer()

        return read

    def _send_look(self, words: Words) -> Callable[[], None]:
        look = Look(words, self._ask, self._memory.after, self._memory.last)
        return lambda: self._see(look)

    def _send_quick(self, words: Words, picks: Sequence[Pick]) -> Callable[[], None]:
        quick = Quick(words, self._ask, picks)
        look = Look(words, self._ask, self._memory.after, self._memory.last)

        def read() -> None:
            self._see(look)
            rows, special = quick.read()
            self._take_quick(picks, rows, special)

        return read

    def _send_careful(self, words: Words, picks: Sequence[Pick]) -> Callable[[], None]:
        passing = self._passing
        is_again = self._refused > 0 or bool(passing.keys)
        caught = claim_carefully(words, self._ask, picks, passing=passing, is_again=is_again)
        look = Look(words, self._ask, self._memory.after, self._memory.last)

        def read() -> None:
            self._see(look)
            for pick in picks:
                is_spent = pick.line in caught.spent
                self._share.took(pick.line, caught.taken[pick.line], is_spent=is_spent)
            self._rows += caught.jobs
            self._memory.keyed |= caught.keyed
            self._waits |= caught.waits
            passing.keys |= caught.passed
            self._refused += caught.refused
            self._outdated += caught.outdated

        return read

    def _see(self, look: Look) -> None:
        self._sight = look.read()
        self._memory.lanes = self._sight.lanes
        self._memory.after = self._sight.last or _START

    def _take_quick(self, picks: Sequence[Pick], rows: list[Row], special: set[Line]) -> None:
        taken: Counter[Line] = Counter()
        for (executor, queue), count in Counter(map(lane_of, rows)).items():
            taken[self._share.line_of(executor, queue)] += count
        limited = {lane.queue for lane in self._sight.lanes if lane.has_settings}
        for pick in picks:
            count = taken[pick.line]
            is_special = pick.line in special or pick.queue in limited
            if is_special and count < pick.most:
                self._careful.append(Pick(pick.line, pick.names, pick.most - count))
            self._share.took(pick.line, count, is_spent=count < pick.most and not is_special)
        self._rows += rows
        if rows:
            self._memory.last = last_of(rows)

    # ---- one transaction after the other --------------------------------------------------------

    def go_on(self) -> None:
        """Claim until the slots are full, or nothing is left that may be claimed."""
        if not self._is_begun:
            self._pipe(self.send)
        while self._refused + len(self._passing.keys) < MOST_REFUSED:
            careful, self._careful = self._careful, []
            if careful:
                before = self._outdated
                self._pipe(partial(self._send_careful, picks=careful))
                if self._outdated > before:
                    self._transactions.ring({Topic.DONE, Topic.WORK})
                continue
            quick = self._begin_cycle(self._sight.lanes)
            if quick:
                self._pipe(partial(self._send_quick, picks=quick))
            elif not self._careful and not self._see_more():
                return

    def _pipe(self, send: Callable[[Words], Callable[[], None]]) -> None:
        # Synced, too: a server that forgot a claim would give its fence to somebody else.
        self._transactions.pipe(send, "exchange")

    def _begin_cycle(self, lanes: Sequence[Lane]) -> list[Pick]:
        """Shares for all queues; answers with those that can be taken quickly."""
        picks = self._share.cycle(lanes)
        limited = {lane.queue for lane in lanes if lane.has_settings}
        self._careful = [pick for pick in picks if pick.queue in limited]
        return [pick for pick in picks if pick.queue not in limited]

    def _see_more(self) -> bool:
        """Look at further lanes, if there are any and it matters."""
        if not self._share.has_slots and (not self._ask.asks_more or self._is_left()):
            return False
        if self._sight.last is None:
            if self._is_round:
                return False
            self._is_round = True
        self._pipe(self._send_look)
        return True

    @property
    def has_slots(self) -> bool:
        """Whether the worker will ask again when there is something to be had."""
        return self._share.has_slots

    def hurry(self) -> None:
        """Let the worker ask again soon: something is to be done that cannot be done yet."""
        self._is_soon = True

    # ---- what came of it ------------------------------------------------------------------------

    def result(self) -> Claimed:
        """What the worker got, and when asking again makes sense."""
        order: dict[str, int] = {}
        for row in self._rows:
            order.setdefault(row[QUEUE], len(order))
        self._rows = in_order(self._rows)
        if len(order) > 1:
            self._rows.sort(key=lambda row: order[row[QUEUE]])
        is_more = self._ask.asks_more and self._is_left()
        is_held = bool(self._passing.keys)
        self._memory.depth = min(2 * self._passing.depth, DEEPEST) if is_held else DEPTH
        jobs = self._leased()
        return Claimed(jobs, self._next_at(), is_more, self._outdated)

    def _leased(self) -> list[Leased]:
        """The jobs that were claimed; rows that cannot be read are set aside."""
        jobs: list[Leased] = []
        odd: list[tuple[int, str]] = []
        for row in self._rows:
            try:
                jobs.append(leased(row))
            except MISREAD as error:
                odd.append((row[SEQ], problem_of(error)))
        if odd:
            try:
                self._transactions.set_aside(odd, is_claimed=True)
            except (
                StoreError
            ) as error:  # what was claimed must not be lost for it: a rescue does it
                logger.warning("rows that cannot be read are set aside later: %s", error)
        return jobs

    def _next_at(self) -> float | None:
        """The earliest instant at which something that waits could be claimed."""
        due = {lane.queue for lane in self._sight.lanes if self._share.serves(lane)}
        found = [until for queue, until in self._waits.items() if queue in due]
        if self._sight.next_at is not None:
            found.append(self._sight.next_at)
        if self._passing.keys or self._is_soon:
            times = min(self._passing.depth / DEPTH, 10.0)  # what costs more is done less often
            found.append(self._transactions.now() + SOON * times)
        if self._refused >= MOST_REFUSED:
            found.append(self._transactions.now())  # there may be more: ask again at once
        return min(found, default=None)

    def _is_left(self) -> bool:
        """Whether a due job was left that this worker could run, now or later."""
        return any(map(self._share.is_left, (*self._sight.lanes, *self._sight.blocked)))
