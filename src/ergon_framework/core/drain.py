"""How a queue of facts is sent to a peer that may be away: what an answer means, and what follows.

Rules for editors: whether a fact is refused or sent again, and after how long, comes from
``judge``. What is refused is final for that fact; everything else passes, so the queue waits for as
long as it takes, and keeps its order. A batch that is refused as a whole is sent again one by one,
because the refusal may be about one fact in it. Progress ends the backoff.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ergon_framework.core.failure import Failure, Kind
from ergon_framework.core.retry import Backoff, GiveUp, RetriedCall, RetryAfter, RetryRule, judge

DRAIN_BACKOFF = Backoff(base=0.2, factor=2.0, cap=15.0, low=0.5, high=1.0)
_UNLIMITED_ATTEMPTS = 1 << 62  # attempts: a queue waits for as long as it takes
_MIN_DELAY_CAP = 60.0  # seconds that a peer may ask for, however short the backoff


@dataclass(frozen=True, slots=True)
class DrainWait:
    """Wait ``delay`` seconds; what wakes the sender earlier counts after ``least`` of them."""

    delay: float
    least: float


@dataclass(frozen=True, slots=True)
class Answered:
    """What the answers to one batch mean."""

    refused: Sequence[int]
    """Which of the failures are for good."""
    put_off: int | None
    """The first failure that passes, if one does: its fact is sent again."""
    has_progress: bool
    """Whether anything leaves the queue."""
    goes_on: bool
    """Whether the facts behind these may be sent now."""


class DrainMachine:
    """Decides what happens next while one outbox is sent. It belongs to one driver."""

    def __init__(
        self, backoff: Backoff, *, stops_at_refusal: bool = False, looks_up: bool = False
    ) -> None:
        """With ``looks_up`` the drain first asks the peer which of the oldest facts it has."""
        self.is_recovering = looks_up
        self._stops_at_refusal = stops_at_refusal
        self._singles = 0  # how many of the next facts are sent one by one
        self._rule = RetryRule(
            attempts=_UNLIMITED_ATTEMPTS,
            backoff=backoff,
            on=frozenset(Kind) - {Kind.REJECTED},
            max_retry_after=max(backoff.cap, _MIN_DELAY_CAP),
        )
        self._call = RetriedCall(self._rule, began_at=0.0)

    def batch_size(self, most: int) -> int:
        """How many facts may be sent together."""
        # Where a refusal stops the queue, nothing behind the refused fact may be under way with it.
        is_single = self._stops_at_refusal or self.is_recovering or self._singles > 0
        return 1 if is_single else most

    def split(self, count: int) -> None:
        """Note that a batch was refused as a whole: its facts are sent one by one."""
        self._singles = count

    def recovered(self) -> None:
        """The peer lacks the fact at the front: facts go in order, so it lacks all behind it."""
        self.is_recovering = False

    def is_refused(self, failure: Failure) -> bool:
        """Whether the fact will never be taken."""
        return isinstance(judge(self._rule, 0, 0.0, failure, 0.0, 0.0), GiveUp)

    def answered(self, taken: int, failures: Sequence[Failure]) -> Answered:
        """What follows the answers to one batch: so many facts were taken, and these failed."""
        refused = [n for n, failure in enumerate(failures) if self.is_refused(failure)]
        again = sorted(set(range(len(failures))).difference(refused))
        has_progress = bool(taken or refused)
        if has_progress:
            self._singles = max(0, self._singles - 1)
            self._call = RetriedCall(self._rule, began_at=0.0)
        goes_on = not again and not (refused and self._stops_at_refusal)
        return Answered(refused, again[0] if again else None, has_progress, goes_on)

    def wait(self, failure: Failure, dice: float) -> DrainWait:
        """How long to wait after a failure that passes.

        New facts are a reason to look again, but not to knock at a dead peer for each of them. A
        peer that named a time is not disturbed before.
        """
        verdict = self._call.failed(failure, 0.0, dice)
        backoff = self._rule.backoff
        delay = verdict.delay if isinstance(verdict, RetryAfter) else backoff.cap
        least = min(delay, backoff.base) if failure.retry_after is None else delay
        return DrainWait(delay, least)
