"""Gathers units for one call of a function that takes a list, and gives each its own outcome.

Every unit has its own lifecycle in the engine, with its own attempts, timeouts and settlement. Only
the innermost call is shared: units whose attempts run at the same time join a *batch*, which is
handed over when it is full, or when its first unit has waited for ``linger`` seconds. A unit that
is tried again joins whatever batch is open then.

The first unit of a batch *leads* it: its worker makes the call. In threads, a worker that the
engine gave up on goes on leading for those who joined it. In asyncio it is cancelled; before the
call another unit leads then, and during the call they all have run out of time.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

from ergon_framework.engine.clocks import current_clock
from ergon_framework.errors import (
    ExceptionType,
    NonRetryableException,
    TransactionException,
    TransactionTimeoutException,
)
from ergon_framework.ports.clock import Signal
from ergon_framework.ports.context import Attempt, current_attempt
from ergon_framework.task.options import BatchRule

B = TypeVar("B")
NEVER = float("inf")
MAX_CALLS = 16
"""How many calls of one task keep their batches. Older calls have ended."""
LATE = 0.05
"""Seconds between two looks at whether the engine has given up on an overdue attempt."""


class CallBatches(Generic[B]):
    """The batches of each call of a task: no unit joins a batch that an earlier call left open."""

    def __init__(self, make: Callable[[], B]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._made: dict[str, B] = {}

    def current(self) -> B:
        """The batches of the call that this code runs in."""
        attempt = current_attempt()
        key = "" if attempt is None else attempt.call.call_id
        # Without the lock, as in almost every case: it is needed only to make one.
        found = self._made.get(key)
        return self._begin(key) if found is None else found

    def _begin(self, key: str) -> B:
        with self._lock:
            found = self._made.get(key)
            if found is None:
                found = self._made[key] = self._make()
                # Units that wait in batches of an evicted call hold them by reference: if it still
                # runs, its next unit only opens new ones.
                while len(self._made) > MAX_CALLS:
                    del self._made[next(iter(self._made))]
            return found


class _Unit:
    """One unit of a batch, and its result."""

    __slots__ = ("attempt", "is_done", "is_gone", "outcome", "payload", "turn")

    def __init__(self, payload: Any) -> None:
        self.payload = payload
        self.attempt: Attempt | None = current_attempt()
        self.is_done = False
        self.is_gone = False  # asyncio: it was cancelled while it waited
        self.outcome: Any = None
        self.turn: Any = None  # asyncio: what its task waits for

    @property
    def is_cancelled(self) -> bool:
        """Whether the engine gave up on its attempt."""
        return self.attempt is not None and self.attempt.is_cancelled

    @property
    def deadline_at(self) -> float:
        """When the engine gives up on it."""
        found = None if self.attempt is None else self.attempt.deadline_at
        return NEVER if found is None else found

    def end(self, outcome: Any) -> None:
        """Note what became of it."""
        self.outcome, self.is_done = outcome, True

    def answer(self) -> Any:
        """Return its result, or raise its failure."""
        outcome, self.outcome = self.outcome, None
        if isinstance(outcome, _Raised):
            # Units share an error, and each one that raises it would lengthen its traceback.
            raise outcome.error.with_traceback(outcome.trace)
        return outcome


class _Raised:
    """A failure, as opposed to an exception that a function may return on purpose."""

    def __init__(self, error: BaseException) -> None:
        self.error = error
        self.trace = error.__traceback__


def _share(owner: str, units: list[_Unit], result: Any) -> None:
    """Give each unit its part of the function's return value."""
    # A named tuple and the like is a value; a plain one is what a comprehension was turned into.
    if not isinstance(result, list) and type(result) is not tuple:
        for unit in units:
            unit.end(result)
        return
    if len(result) != len(units):
        text = f"the consumer {owner!r} returned {len(result)} results for {len(units)} units"
        for unit in units:  # one error each: an error belongs to one transaction
            unit.end(_Raised(NonRetryableException(text, remedy="return one for each, in order")))
        return
    for unit, each in zip(units, result, strict=True):
        unit.end(_Raised(each) if isinstance(each, BaseException) else each)


def _fail(units: list[_Unit], error: BaseException) -> None:
    for unit in units:
        unit.end(_Raised(error))


class _Batch:
    """Units that will be handed over together."""

    def __init__(self, signal: Signal) -> None:
        self.units: list[_Unit] = []
        self.signal = signal  # its units wait here

    @property
    def is_abandoned(self) -> bool:
        """Whether the engine gave up on all its units: then its call takes no place any more."""
        return all(unit.is_cancelled for unit in self.units)

    @property
    def given_up_at(self) -> float:
        """When the engine gives up on the last of its units."""
        return max(unit.deadline_at for unit in self.units)


class ThreadBatches:
    """The batches of one call of a consumer, for threads."""

    def __init__(self, owner: str, rule: BatchRule, call: Callable[[list[Any]], Any]) -> None:
        self._owner = owner
        self._rule = rule
        self._call = call
        self._lock = threading.Lock()
        self._open: _Batch | None = None
        self._running: list[_Batch] = []
        self._waiting: deque[_Batch] = deque()  # for one of the calls under way to end

    def join(self, payload: Any) -> Any:
        """Join a batch and wait; returns or raises the result of this unit."""
        unit = _Unit(payload)
        with self._lock:
            batch = self._open
            leads = batch is None
            if batch is None:
                batch = self._open = _Batch(current_clock().signal(self._lock))
            batch.units.append(unit)
            if len(batch.units) == self._rule.size:
                self._open = None
                batch.signal.notify_all()
            if not leads:
                self._follow(batch, unit)
        if leads:
            self._lead(batch)
        return unit.answer()

    def _follow(self, batch: _Batch, unit: _Unit) -> None:
        # The supervisor does not notify this signal when it gives up on a unit, so the wait ends at
        # the deadline and then looks every LATE seconds.
        until = unit.deadline_at
        while not unit.is_done and not unit.is_cancelled:
            batch.signal.wait(None if until == NEVER else until)
            if current_clock().now() >= until:
                until = current_clock().now() + LATE

    def _lead(self, batch: _Batch) -> None:
        with self._lock:
            self._fill(batch)
            # The engine has decided about a unit that it gave up on: done here as well, it might be
            # done twice.
            units = [unit for unit in batch.units if not unit.is_cancelled]
        try:
            if units:
                _share(self._owner, units, self._call([unit.payload for unit in units]))
        # Also SystemExit and the like: the other units of the batch wait for an outcome in their
        # own threads.
        except BaseException as error:
            _fail(units, error)
        finally:
            with self._lock:
                self._running.remove(batch)
                self._let_next_begin()
                batch.signal.notify_all()

    def _fill(self, batch: _Batch) -> None:
        """Wait until the batch is full, or its time is over and a call may begin."""
        until = current_clock().now() + self._rule.linger
        while self._open is batch and current_clock().now() < until:
            batch.signal.wait(until)
        # It stays open while it waits for a running call to end, and so may still fill up.
        self._waiting.append(batch)
        while self._waiting[0] is not batch or not self._may_begin():
            batch.signal.wait(self._looks_again_at() if self._waiting[0] is batch else None)
        self._waiting.popleft()
        self._running.append(batch)
        self._let_next_begin()
        if self._open is batch:
            self._open = None

    def _may_begin(self) -> bool:
        under_way = sum(not each.is_abandoned for each in self._running)
        return under_way < self._rule.calls

    def _looks_again_at(self) -> float | None:
        """When to look again: nothing notifies this batch when a running call is abandoned."""
        live = (each.given_up_at for each in self._running if not each.is_abandoned)
        first = min(live, default=0.0)  # the last of them may be abandoned just now
        return None if first == NEVER else max(first, current_clock().now() + LATE)

    def _let_next_begin(self) -> None:
        if self._waiting:
            self._waiting[0].signal.notify_all()


class _AsyncBatch:
    """The async version of :class:`_Batch`."""

    def __init__(self) -> None:
        self.units: list[_Unit] = []
        self.is_due = False  # full, or its first unit has waited long enough
        self.timer: asyncio.TimerHandle | None = None
        self.leader: _Unit | None = None

    @property
    def is_abandoned(self) -> bool:
        """Whether the engine gave up on its call, which swallowed its cancellation."""
        attempt = None if self.leader is None else self.leader.attempt
        return attempt is not None and not attempt.ticket


class AsyncBatches:
    """The batches of one call of a consumer, for asyncio."""

    def __init__(
        self, owner: str, rule: BatchRule, call: Callable[[list[Any]], Awaitable[Any]]
    ) -> None:
        self._owner = owner
        self._rule = rule
        self._call = call
        self._open: _AsyncBatch | None = None
        self._due: deque[_AsyncBatch] = deque()
        self._running: list[_AsyncBatch] = []
        self._looking: asyncio.TimerHandle | None = None

    async def join(self, payload: Any) -> Any:
        """Join a batch and wait; returns or raises the result of this unit."""
        unit, batch = self._enter(payload)
        try:
            leads = await unit.turn
        except asyncio.CancelledError:
            unit.is_gone = True
            if unit.turn.done() and not unit.turn.cancelled() and unit.turn.result():
                self._pass_on(batch)  # its turn came with the cancellation: another one leads
            raise
        if leads:
            await self._lead(unit, batch)
        return unit.answer()

    def _enter(self, payload: Any) -> tuple[_Unit, _AsyncBatch]:
        loop = asyncio.get_running_loop()
        unit = _Unit(payload)
        unit.turn = loop.create_future()
        batch = self._open
        if batch is None:
            batch = self._open = _AsyncBatch()
            batch.timer = loop.call_later(self._rule.linger, self._hand_over, batch)
        batch.units.append(unit)
        if len(batch.units) == self._rule.size:
            self._open = None
            self._hand_over(batch)
        return unit, batch

    def _hand_over(self, batch: _AsyncBatch) -> None:
        if not batch.is_due:
            batch.is_due = True
            self._due.append(batch)
            self._begin()

    def _begin(self) -> None:
        """Begin due batches while fewer calls than allowed are under way."""
        while self._due and self._under_way() < self._rule.calls:
            batch = self._due.popleft()
            if batch is self._open:
                self._open = None
            if batch.timer is not None:
                batch.timer.cancel()
            self._running.append(batch)
            self._pass_on(batch)
        if self._due:
            self._look_again()

    def _under_way(self) -> int:
        return sum(not each.is_abandoned for each in self._running)

    def _look_again(self) -> None:
        """Look again when a running call may be abandoned: nothing notifies the others of that."""
        loop = asyncio.get_running_loop()
        leaders = [each.leader for each in self._running if not each.is_abandoned]
        first = min((each.deadline_at for each in leaders if each is not None), default=NEVER)
        if self._looking is not None:
            self._looking.cancel()
        if first != NEVER:
            self._looking = loop.call_at(max(first, loop.time() + LATE), self._begin)

    def _pass_on(self, batch: _AsyncBatch) -> None:
        """Make the first unit that still waits the leader. Without any, the call is not made."""
        for unit in batch.units:
            if not unit.turn.done():
                batch.leader = unit
                unit.turn.set_result(True)
                return
        self._running.remove(batch)
        # Not called from here: _begin may be the caller, and is in the middle of its own loop.
        if self._due:
            asyncio.get_running_loop().call_soon(self._begin)

    async def _lead(self, leader: _Unit, batch: _AsyncBatch) -> None:
        # The engine has decided about units that it cancelled while they waited.
        units = [unit for unit in batch.units if not unit.is_gone and not unit.turn.cancelled()]
        try:
            _share(self._owner, units, await self._call([unit.payload for unit in units]))
        except asyncio.CancelledError:
            for unit in units:
                unit.end(_Raised(_cut_off(leader)))
            raise
        except BaseException as error:
            _fail(units, error)
        finally:
            for unit in units:
                # False: its outcome is there, and it has nothing to lead. A cancelled turn is done
                # already.
                if not unit.turn.done():
                    unit.turn.set_result(False)
            self._running.remove(batch)
            self._begin()


def _cut_off(leader: _Unit) -> TransactionException:
    """What a unit gets whose batch was cancelled with its leader."""
    if leader.is_cancelled:
        return TransactionTimeoutException("the call of the batch ran out of time")
    return TransactionException("the call of the batch was cancelled", ExceptionType.SYSTEM)
