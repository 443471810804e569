"""Which due jobs a claim takes: shares, limits and keys. Pure; no I/O.

A worker asks for jobs (``ClaimRequest``). Due jobs stand in lanes, one for each executor and queue
that they name. A job whose handler a worker did not have stands in a lane of that handler
(``executor#handler``), and a worker asks for those of the handlers that it has.

The queues of an executor take turns at being first and get equal shares; what one leaves goes to
the others, in the next cycle (``ClaimPlan``). A queue may be paused, or limited to so many jobs at
once or per second (``QueueLimits``, ``QueueGate``); one that is pinned to a version is paused for
workers of any other. Where limits have to hold, ``admit`` decides which of the candidates start, on
what was counted under locks.

The Redis store decides in ``claim.lua``; its behaviour suite and the differential tests hold it to
the same answers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Any, NamedTuple, TypeVar

import msgspec

from ergon_framework.core.job import handler_lane, route
from ergon_framework.core.quota import TokenBucket
from ergon_framework.errors import JobError


class ClaimRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker can take right now."""

    worker: str
    lease: float
    slots: Mapping[str, int]  # executor to free slots; only executors that can run something
    default: str = ""  # the executor of jobs that name none …
    routes: Mapping[str, str] = {}  # … unless their queue has one of its own
    own: frozenset[str] = frozenset()  # the executors this worker has, busy or not; empty: any
    # executor to those of its handlers that jobs wait for in lanes of their own
    handlers: Mapping[str, tuple[str, ...]] = {}
    queues: tuple[str, ...] | None = None  # None: all
    version: str = ""  # of the program that the worker runs; a queue may be pinned to one
    wants_more: bool = True  # whether ``ClaimResult.more`` matters


@dataclass(frozen=True, slots=True)
class ClaimBounds:
    """How much one claim does at most, so that it costs the same however many jobs wait.

    Whatever a claim leaves because of them, the next one finds.
    """

    # Bounds instead of limits by time: a claim is one transaction, and every other writer waits
    # while it runs.
    max_promoted: int = 500
    """Scheduled jobs that become due."""
    max_lanes: int = 256
    """Lanes that are read for each executor."""
    max_refused: int = 1000
    """Jobs that are read but cannot start: expired, or their limit key is used up."""
    scan_size: int = 64
    """Jobs that are read at once, where some of them are expected to be refused."""
    unkeyed_scan: int = 16
    """Jobs of a lane that are looked at to find one without a limit key, where keys take turns."""


DEFAULT_BOUNDS = ClaimBounds()


def lane_executor(request: ClaimRequest, named: str, queue: str) -> str:
    """Which executor of the worker runs what stands in a lane.

    The name of a lane of a handler that the worker does not have is answered as it is: no executor
    is called so.
    """
    if "#" in named:
        base, handler = route(named)
        executor = base or request.routes.get(queue, request.default)
        return executor if handler in request.handlers.get(executor, ()) else named
    return named or request.routes.get(queue, request.default)


def handler_lanes_of(request: ClaimRequest, executor: str) -> Iterator[tuple[str, str]]:
    """The lanes of handlers that an executor has and jobs wait for: of jobs that name the executor,
    and of those that leave it to the routes.
    """
    for handler in request.handlers.get(executor, ()):
        yield handler_lane(executor, handler), handler_lane("", handler)


_LIMITS = {"max_active": int | None, "rate": float | None, "burst": int}
_KEY_LIMITS = {f"key_{name}": _LIMITS[name] for name in _LIMITS}
_SETTINGS: dict[str, Any] = {
    "is_paused": bool,
    **_LIMITS,
    **_KEY_LIMITS,
    "pinned_version": str | None,
}
MAX_LIMIT = 1_000_000_000
"""What a limit of a queue may be: stores keep whole numbers of 64 bits, and Redis fewer."""
MIN_RATE = 1e-8
"""Jobs a second; with fewer, the next one would be due beyond the dates that can be shown."""
MAX_VERSION = 100
"""Characters of the version of a program."""


def checked_changes(changes: Mapping[str, Any]) -> dict[str, Any]:
    """The values to set, by name; ``JobError`` names the one that is wrong."""
    return {name: _checked(name, value) for name, value in changes.items()}


def _checked(name: str, value: Any) -> Any:
    if name not in _SETTINGS:
        raise JobError(
            f"a queue has no setting {name!r}", remedy=f"known are {', '.join(_SETTINGS)}"
        )
    try:
        found = msgspec.convert(value, _SETTINGS[name])
    except msgspec.ValidationError as error:
        raise JobError(f"{name} of a queue: {error}", remedy="give a value of that type") from None
    if name == "pinned_version":
        return None if found is None else checked_version(found)
    # ``not found > 0`` and not ``found <= 0``: the former also refuses NaN.
    if found is not None and name != "is_paused" and not found > 0:
        raise JobError(f"{name} of a queue must be above zero", remedy="None means no limit")
    if found is not None and name.endswith("rate") and found < MIN_RATE:
        raise JobError(
            f"{name} of a queue must be at least {MIN_RATE:g} a second, which is once in three"
            " years",
            remedy="pause the queue if nothing is to run",
        )
    if found is not None and name != "is_paused" and found > MAX_LIMIT:
        raise JobError(
            f"{name} of a queue must be at most {MAX_LIMIT:,}", remedy="None means no limit"
        )
    return found


def checked_version(version: str) -> str:
    """A version of a program, as workers name theirs and queues are pinned to one."""
    if not (0 < len(version) <= MAX_VERSION and version.isprintable()):
        raise JobError(
            f"a version has 1 to {MAX_VERSION} printable characters; this one is"
            f" {version[:MAX_VERSION]!r}",
            remedy="name the version as your deployment does, for example 2.4.1",
        )
    return version


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """The limits of one queue, as stored."""

    is_paused: bool = False
    max_active: int | None = None
    rate: float | None = None
    burst: int = 1
    full_at: float = 0.0
    key_max_active: int | None = None
    key_rate: float | None = None
    key_burst: int = 1
    pinned_version: str | None = None  # only workers of this version claim from it

    def seen_by(self, version: str) -> QueueLimits:
        """The limits for a worker of this version. If the queue is pinned to another one, it is
        paused.
        """
        is_ours = self.pinned_version in (None, version)
        return self if is_ours else replace(self, is_paused=True)

    @property
    def limits_keys(self) -> bool:
        """Whether each limit key of the queue has limits of its own."""
        return self.key_max_active is not None or self.key_rate is not None

    def of_key(self, full_at: float) -> QueueLimits:
        """The limits of one limit key, whose bucket will be full at that instant."""
        limits = self.key_max_active, self.key_rate, self.key_burst
        return QueueLimits(False, *limits, full_at)

    @property
    def bucket(self) -> TokenBucket | None:
        """The tokens of a queue with a rate."""
        return None if self.rate is None else TokenBucket(self.rate, self.burst, self.full_at)

    @property
    def is_plain(self) -> bool:
        """Whether the queue has no limits at all."""
        return replace(self, full_at=0.0) == QueueLimits()

    def changed(self, changes: dict[str, Any], now: float) -> QueueLimits:
        """The limits after a change; tokens that were taken stay taken."""
        after = replace(self, **checked_changes(changes))
        # A queue that had no rate before starts with a full bucket.
        if after.rate is None or self.bucket is None:
            return replace(after, full_at=0.0)
        bucket = self.bucket.changed(after.rate, after.burst, now)
        return replace(after, full_at=bucket.full_at)


NO_LIMITS = QueueLimits()
_as_stored = (
    *(bool | int, int | None, int | float | None, int, int | float),
    *(int | None, int | float | None, int),
    str | None,
)


def limits_from(row: Sequence[Any]) -> QueueLimits:
    """The limits of a queue by its row, whose values may be of any type.

    A queue whose limits cannot be read starts no job until an operator sets them again.
    """
    if not all(map(isinstance, row, _as_stored)):
        # Paused, and not unlimited: a limit that protects a provider must not vanish because its
        # row was damaged.
        return QueueLimits(is_paused=True)
    return QueueLimits(bool(row[0]), *row[1:])


class QueueGate:
    """What the limits of one queue let through during one claim; a paused queue is not asked.

    A limit key of a queue that limits each of its keys has a gate, too: see ``QueueLimits.of_key``.
    """

    __slots__ = (
        *("_active", "_bucket", "_was_used", "has_entered"),
        *("is_paused", "limits", "max_active", "name"),
    )

    def __init__(self, name: str, settings: QueueLimits, active: int) -> None:
        self.name = name
        self.limits = settings
        self.is_paused = settings.is_paused
        self.max_active = settings.max_active
        self._active = active
        self._bucket = settings.bucket
        self._was_used = False
        self.has_entered = False  # whether jobs have started

    @property
    def full_at(self) -> float | None:
        """When the bucket will be full, if that has changed and has to be written down."""
        return self._bucket.full_at if self._bucket is not None and self._was_used else None

    def room(self, most: int, now: float) -> int:
        """How many more may start now, up to ``most``."""
        if self.max_active is not None:
            most = min(most, self.max_active - self._active)
        if self._bucket is not None:
            healed = self._bucket.healed(now)
            self._was_used |= healed is not self._bucket  # it has to be written down
            self._bucket = healed
            most = min(most, healed.free(now))
        return max(0, most)

    def waits_until(self, now: float) -> float | None:
        """When the rate allows another one, if nothing but the rate stands in the way."""
        if self._bucket is None or self._bucket.free(now) > 0:
            return None
        # A slot in the queue is freed by the end of a job, which wakes the worker by itself. Only
        # tokens come back by time alone.
        if self.max_active is not None and self._active >= self.max_active:
            return None
        return self._bucket.next_at(now)

    def looks_again_at(self, now: float) -> float | None:
        """When to look again at jobs that were refused; None: when another one has ended."""
        return now if self.room(1, now) else self.waits_until(now)

    def enter(self, count: int, now: float) -> None:
        """Count jobs that have started, and take their tokens."""
        self._active += count
        self.has_entered |= count > 0
        if self._bucket is not None and count:
            self._bucket = self._bucket.take(count, now)
            self._was_used = True


def waits_for_token(wakes_at: float | None, rate: float | None, now: float) -> bool:
    """Whether jobs of a limit key still wait for their next token, which comes at ``wakes_at``.

    A token is never further away than one comes in: the clock was set back otherwise.
    """
    return wakes_at is not None and rate is not None and now < wakes_at <= now + 1.0 / rate


class Candidate(NamedTuple):
    """A due job that could start, as far as limits are concerned."""

    place: tuple[int, float, int]
    """Priority, age, and the number of the job. The smallest goes first."""
    pick: int
    """The number of its pick; each pick has room for so many."""
    queue: str
    expires_at: float | None = None
    key: str | None = None
    """The limit key of the job, …"""
    limit: int = 1
    """… of which so many jobs may run at once."""

    @property
    def number(self) -> int:
        """Which job it is."""
        return self.place[-1]


KeyOfQueue = tuple[str, str]
"""A queue that limits each of its limit keys, and one of those."""

_place = itemgetter(0)


@dataclass(slots=True)
class Admission:
    """What becomes of candidates, by number; one that is not mentioned stays where it is."""

    admitted: list[int] = field(default_factory=list)
    blocked: list[int] = field(default_factory=list)  # wait for their limit key
    outdated: list[int] = field(default_factory=list)
    passed_over: list[int] = field(default_factory=list)  # could not be judged this time


def admit(
    candidates: Iterable[Candidate],
    rooms: Sequence[int],
    gates: Mapping[str, int],
    running: Mapping[str, int],
    now: float,
    *,
    unknown: Collection[str] = (),
    key_gates: Mapping[KeyOfQueue, QueueGate] | None = None,
) -> Admission:
    """Which candidates start, and which of those before them may not.

    Each belongs to a pick, which has so much room. Picks of one queue share what its gate lets
    through: the first by priority and age gets that, and a limit key, whatever its pick. Of keys
    that are ``unknown``, it is not known how many run: their jobs neither start nor wait for the
    key, and take no room. A queue that limits its keys itself has a gate for each, which is asked
    instead of the job's own limit, and counts what starts.
    """
    own = key_gates or {}
    admission = Admission()
    left, open_gates, active = list(rooms), dict(gates), dict(running)
    # One order for all picks: without it, the executor that is asked about first would take the
    # last place of a limit key from an older job.
    for place, pick, queue, expires_at, key, limit in sorted(candidates, key=_place):
        # Skipped without a verdict: the job stays where it is and is a candidate again at the next
        # claim.
        if left[pick] == 0 or open_gates[queue] == 0:
            continue
        number = place[-1]
        if key is not None and key in unknown:
            admission.passed_over.append(number)
        # Before the limit key: a job that has expired must not be put to wait for a key.
        elif expires_at is not None and expires_at <= now:
            admission.outdated.append(number)
        elif key is not None and not _has_room(
            own.get((queue, key)), active.get(key, 0), limit, now
        ):
            admission.blocked.append(number)
        else:
            admission.admitted.append(number)
            left[pick] -= 1
            open_gates[queue] -= 1
            if key is not None:
                active[key] = active.get(key, 0) + 1
                if (queue, key) in own:
                    own[queue, key].enter(1, now)
    return admission


def _has_room(gate: QueueGate | None, running: int, limit: int, now: float) -> bool:
    """Whether a limit key lets one more job start: by the queue's limits, or by the job's own."""
    return running < limit if gate is None else gate.room(1, now) > 0


Row = TypeVar("Row")


def deal(turns: Mapping[str, Sequence[Row]], most: int) -> tuple[list[Row], str]:
    """One job of each limit key in turn, until there are so many; and whose turn was the last.

    ``turns`` has the keys in the order in which it is their turn, each with its first jobs. Jobs
    without a key have one turn together, under the empty name. Priority and age decide within a
    key, and never between two of them.
    """
    dealt: list[Row] = []
    last = ""
    for n in range(max(map(len, turns.values()), default=0)):
        for key, rows in turns.items():
            if len(dealt) == most:
                return dealt, last
            if n < len(rows):
                dealt.append(rows[n])
                last = key
    return dealt, last


def in_turn(keys: Iterable[str], after: str, most: int) -> list[str]:
    """The next keys after the one whose turn was the last, the first of all after the last of all.

    The empty name, of jobs without a key, comes before all others.
    """
    return sorted(set(keys), key=lambda key: (key <= after, key))[:most]


Turns = dict[str, str]
"""For each executor, the queue that was first at the last claim."""

ShareKey = tuple[str, str]
"""An executor that has slots, and one of its queues."""


class Lane(NamedTuple):
    """The due jobs of one queue that name one executor."""

    executor: str  # as the jobs name it; empty: left to the routes
    queue: str
    is_paused: bool = False
    has_settings: bool = False


class Pick(NamedTuple):
    """How many jobs to take of one queue, for one executor."""

    share: ShareKey
    names: tuple[str, ...]  # the executors that these jobs name
    most: int

    @property
    def queue(self) -> str:
        """The queue."""
        return self.share[1]


class ClaimPlan:
    """Plans one claim: the slots that are left, and the queues that have no more due jobs."""

    def __init__(self, request: ClaimRequest, turns: Turns) -> None:
        self._request = request
        self._turns = turns
        # A probe asks with no free slots, only to learn what is left.
        self._left = {executor: slots for executor, slots in request.slots.items() if slots > 0}
        self._turned: set[str] = set()
        self._spent: set[ShareKey] = set()

    @property
    def has_slots(self) -> bool:
        """Whether an executor of this worker has slots left."""
        return bool(self._left)

    def next_picks(self, lanes: Iterable[Lane]) -> list[Pick]:
        """One pick for each queue that may have due jobs; empty if there is nothing to claim."""
        request, left, spent = self._request, self._left, self._spent
        found: dict[str, dict[str, list[str]]] = {}
        for lane in lanes:
            # Unpacked by position: this loop runs over every lane at each claim.
            named, queue = lane[:2]
            executor = lane_executor(request, named, queue)
            if executor in left and (executor, queue) not in spent and self.serves(lane):
                found.setdefault(executor, {}).setdefault(queue, []).append(named)
        picks: list[Pick] = []
        for executor, queues in found.items():
            picks += self._shared(executor, queues)
        return picks

    def record(self, share: ShareKey, count: int, *, is_spent: bool) -> None:
        """Record how many jobs were claimed for a share, and whether the queue has no more."""
        executor = share[0]
        if is_spent:
            self._spent.add(share)
        left = self._left.get(executor, 0) - count
        if left > 0:
            self._left[executor] = left
        else:
            self._left.pop(executor, None)

    def look_again(self) -> None:
        """Queues that had no more due jobs may have some by now."""
        self._spent.clear()

    def share_of(self, executor: str, queue: str) -> ShareKey:
        """The share that a job of this queue belongs to, if it names this executor."""
        return self._executor(executor, queue), queue

    def serves(self, lane: Lane) -> bool:
        """Whether the worker may take jobs of this queue."""
        asked = self._request.queues
        return not lane.is_paused and (asked is None or lane.queue in asked)

    def is_left(self, lane: Lane) -> bool:
        """Whether an executor of this worker could run what stands there, now or later."""
        request = self._request
        executor = self._executor(lane.executor, lane.queue)
        # No executor has a name with "#": that is the lane of a handler which others have.
        is_own = executor in request.own or (not request.own and "#" not in executor)
        return is_own and self.serves(lane)

    def _shared(self, executor: str, queues: Mapping[str, list[str]]) -> list[Pick]:
        slots = self._left[executor]
        if len(queues) == 1:  # as in most claims: all slots are for one queue
            [(queue, names)] = queues.items()
            if executor not in self._turned:
                self._turned.add(executor)
                self._turns[executor] = queue
            return [Pick((executor, queue), tuple(names), slots)]
        first = self._turns.get(executor, "")
        # By name, beginning after the queue that was first the last time: each gets its turn,
        # however many there are.
        order = sorted(queues, key=lambda queue: (queue <= first, queue))
        if executor not in self._turned:
            self._turned.add(executor)
            # With fewer slots than queues, those that got nothing come first the next time.
            self._turns[executor] = order[slots - 1 if slots < len(order) else 0]
        each, rest = divmod(slots, len(order))
        return [
            Pick((executor, queue), tuple(queues[queue]), each + (n < rest))
            for n, queue in enumerate(order)
            if each or n < rest
        ]

    def _executor(self, named: str, queue: str) -> str:
        return lane_executor(self._request, named, queue)
