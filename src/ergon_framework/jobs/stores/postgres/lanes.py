"""Who gets what: which lanes one claim takes jobs from, and how many of each. Knows no server.

Due jobs stand in lanes, one for each executor and queue that they name. The queues of an executor
take turns at being first, and get equal shares; what one leaves goes to the others, in the next
cycle.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ergon_framework.core.ask import Ask

Turns = dict[str, str]
"""For each executor the queue that was first at the last claim."""

Line = tuple[str, str]
"""An executor that has slots, and one of its queues."""


@dataclass(frozen=True, slots=True)
class Lane:
    """Where due jobs stand."""

    executor: str  # as the jobs name it; empty: left to the routes
    queue: str
    is_paused: bool = False
    has_settings: bool = False


@dataclass(frozen=True, slots=True)
class Pick:
    """How many jobs to take of one queue, for one executor."""

    line: Line
    names: tuple[str, ...]  # the executors that these jobs name
    most: int

    @property
    def queue(self) -> str:
        """The queue."""
        return self.line[1]


class Share:
    """One claim: the slots that are left, and the queues that have no more to give."""

    def __init__(self, ask: Ask, turns: Turns) -> None:
        self._ask = ask
        self._turns = turns
        self._left = {executor: slots for executor, slots in ask.slots.items() if slots > 0}
        self._turned: set[str] = set()
        self._spent: set[Line] = set()

    @property
    def has_slots(self) -> bool:
        """Whether an executor of this worker has slots left."""
        return bool(self._left)

    def cycle(self, lanes: Iterable[Lane]) -> list[Pick]:
        """One share for each queue that may have something; empty: there is nothing to be had."""
        found: dict[str, dict[str, list[str]]] = {}
        for lane in lanes:
            executor = self._executor(lane.executor, lane.queue)
            if executor in self._left and self.serves(lane):
                names = found.setdefault(executor, {}).setdefault(lane.queue, [])
                names.append(lane.executor)
        picks: list[Pick] = []
        for executor, queues in found.items():
            open_queues = {q: n for q, n in queues.items() if (executor, q) not in self._spent}
            picks += self._shared(executor, open_queues)
        return picks

    def took(self, line: Line, count: int, *, is_spent: bool) -> None:
        """So many were claimed of a queue, which may have no more."""
        executor = line[0]
        if is_spent:
            self._spent.add(line)
        left = self._left.get(executor, 0) - count
        if left > 0:
            self._left[executor] = left
        else:
            self._left.pop(executor, None)

    def line_of(self, executor: str, queue: str) -> Line:
        """Whose share a job of this queue is, that names this executor."""
        return self._executor(executor, queue), queue

    def serves(self, lane: Lane) -> bool:
        """Whether the worker may take jobs of this queue."""
        asked = self._ask.queues
        return not lane.is_paused and (asked is None or lane.queue in asked)

    def is_left(self, lane: Lane) -> bool:
        """Whether an executor of this worker could run what stands there, now or later."""
        ask = self._ask
        return self.serves(lane) and (
            not ask.own or self._executor(lane.executor, lane.queue) in ask.own
        )

    def _shared(self, executor: str, queues: Mapping[str, list[str]]) -> list[Pick]:
        slots = self._left[executor]
        first = self._turns.get(executor, "")
        order = sorted(queues, key=lambda queue: (queue <= first, queue))
        if not order:
            return []
        if executor not in self._turned:
            self._turned.add(executor)
            # With fewer slots than queues, those that got nothing come first the next time.
            self._turns[executor] = order[slots - 1 if slots < len(order) else 0]
        share, rest = divmod(slots, len(order))
        return [
            Pick((executor, queue), tuple(queues[queue]), share + (n < rest))
            for n, queue in enumerate(order)
            if share or n < rest
        ]

    def _executor(self, named: str, queue: str) -> str:
        return named or self._ask.routes.get(queue, self._ask.default)
