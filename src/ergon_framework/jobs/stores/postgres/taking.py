"""The claim of one exchange: whose turn it is, what was got, and what is left."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from ergon_framework.errors import StoreError
from ergon_framework.jobs.stores.postgres.careful import claim_carefully
from ergon_framework.jobs.stores.postgres.claiming import (
    DEEPEST,
    DEPTH,
    NOWHERE,
    Look,
    Passing,
    Place,
    Quick,
    Sight,
    in_order,
    lane_of,
    last_of,
    promote,
)
from ergon_framework.jobs.stores.postgres.ground import Transactions
from ergon_framework.jobs.stores.postgres.lanes import Lane, Line, Pick, Share, Turns
from ergon_framework.jobs.stores.postgres.rows import QUEUE, SEQ, Held, Row, leased
from ergon_framework.jobs.stores.postgres.words import Words
from ergon_framework.jobs.stores.unreadable import MISREAD, problem_of
from ergon_framework.ports.jobstore import Ask, Claimed, Leased, Topic

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
