"""The worker's one link to its store: a thread that settles, claims, renews and does the chores.

Everything that gathers while one exchange with the store is under way goes into the next, so the
busier the worker, the larger its batches. A store that goes away is asked again and again, with
growing waits; what is to be settled is kept meanwhile, and nothing is claimed.

A claim is asked for only when it may bring something: after a bell, when a due time has come, when
the last one was filled to the brim, and now and then in case something changed without a bell.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from ergon_framework.core.retry import Backoff
from ergon_framework.engine.clocks import SYSTEM_CLOCK
from ergon_framework.errors import ErgonError, StoreBrokenError
from ergon_framework.jobs.claims import Claim
from ergon_framework.jobs.settings import JobsSettings
from ergon_framework.ports.jobstore import Ask, Claimed, JobStore, Leased, Settlement, Topic
from ergon_framework.storage.failpoints import declare, failpoint

logger = logging.getLogger(__name__)

CHARGE_AFTER = 0.05
"""Seconds after which a started job's attempt is charged, if it has not ended by then."""
OUTAGE = Backoff(base=0.1, factor=2.0, cap=5.0, low=0.8, high=1.2)

declare("worker.claimed", "worker.before_settle", "worker.before_renew")


class Chores(Protocol):
    """What has to be done now and then by somebody who may talk to the store."""

    def run(self, now: float) -> float:
        """Do what is due; answers when to come again."""

    def bounce(self) -> None:
        """The store was away: what was known about it may be out of date."""


class Keeper:
    """Talks to the store in a thread of its own."""

    def __init__(
        self,
        store: JobStore,
        settings: JobsSettings,
        ask: Callable[[Mapping[str, int]], Ask],
        deliver: Callable[[list[Claim]], None],
        report: Callable[[str, dict[str, Any]], None],
    ) -> None:
        self.store = store
        self.chores: Chores | None = None
        self.claims: dict[str, Claim] = {}  # by job id: everything this worker holds
        self.offset = 0.0  # the store's clock minus ours
        self.is_dry = False  # the last claim left free slots
        self.counters = {"late": 0, "outages": 0}
        self._settings = settings
        self._ask = ask
        self._deliver = deliver
        self._report = report
        self._lock = threading.Lock()
        self._settlements: list[Settlement] = []
        self._slots: dict[str, int] = {}
        self.probes = 0
        self.is_left = False  # something due could not be claimed
        self._is_probing = False
        self._is_asleep = False
        self._may_claim = True
        self._ends = False
        self._news = True  # something may be claimable
        self._next_at: float | None = None  # … or will be then, by our clock
        self._renew_at = 0.0
        self._charge_at: float | None = None
        self._failures = 0
        self._now = SYSTEM_CLOCK.now
        self._bell = store.listen(Topic.WORK)
        self._thread: threading.Thread | None = None

    # ---- from the worker's loop ----

    def start(self) -> None:
        """Begin. The store's first answer comes in this thread, so that its error does too."""
        self.offset = self.store.now() - self._now()
        self._renew_at = self._now() + self._settings.lease / 3
        self._thread = SYSTEM_CLOCK.spawn("ergon-keeper", self._serve)

    def offer(self, executor: str, slots: int) -> int:
        """Add free slots of an executor, or take some back; answers the change that was made."""
        with self._lock:
            had = self._slots.get(executor, 0)
            has = max(0, had + slots)
            self._slots[executor] = has
            wakes = slots > 0 and self._is_asleep and not self.is_dry
        if wakes:
            self._wake()
        return has - had

    def settle(self, settlements: Sequence[Settlement]) -> None:
        """Take note of outcomes; they are written with the next exchange."""
        with self._lock:
            self._settlements += settlements
            wakes, self._is_asleep = self._is_asleep, False
        if wakes:
            self._wake()

    def probe(self) -> None:
        """Find out whether anything due is left; ``probes`` grows when ``is_left`` is fresh."""
        self._is_probing = self._news = True
        self._wake()

    def stop_claiming(self) -> None:
        """Take no more jobs."""
        self._may_claim = False

    def end(self) -> None:
        """Settle what is left, then return; waited for with :meth:`join`."""
        self._may_claim = False
        self._ends = True
        self._wake()

    def join(self, seconds: float) -> bool:
        """Wait for the thread; whether everything was settled."""
        if self._thread is not None:
            self._thread.join(seconds)
            if self._thread.is_alive():
                return False
        self._bell.close()
        return not self._settlements

    @property
    def is_settled(self) -> bool:
        """Whether nothing waits to be written."""
        return not self._settlements and not self._is_busy

    # ---- the thread ----

    _is_busy = False

    def _wake(self) -> None:
        self._bell.ring()

    def _serve(self) -> None:
        while True:
            try:
                self._once()
                if self._failures:
                    self._recovered()
            except StoreBrokenError:
                logger.critical("the store takes no more writes; the worker stops", exc_info=True)
                self._report("store.broken", {})
                return
            except ErgonError as error:
                self._outage(error)
            except Exception as error:
                logger.exception("the store raised something unexpected")
                self._outage(error)
            if self._ends and not self._settlements:
                return
            self._sleep()

    def _once(self) -> None:
        """One exchange, if there is anything to exchange, then what else is due."""
        with self._lock:
            settlements, self._settlements = self._settlements, []
            self._is_busy = True
        try:
            ask = self._due_ask()
            if settlements or ask is not None:
                self._exchange(settlements, ask)
                settlements = []
        finally:
            with self._lock:
                self._settlements[:0] = settlements  # not written: keep them, in order
                self._is_busy = False
        self._renew_due()
        if self.chores is not None and not self._ends:
            self._chores_at = self.chores.run(self._now())

    _chores_at: float | None = None

    def _due_ask(self) -> Ask | None:
        if not self._may_claim:
            return None
        now = self._now()
        if not (self._news or (self._next_at is not None and now >= self._next_at)):
            return None
        with self._lock:
            slots = {name: free for name, free in self._slots.items() if free > 0}
        return self._ask(slots) if slots or self._is_probing else None

    def _exchange(self, settlements: Sequence[Settlement], ask: Ask | None) -> None:
        # A ring from here on may be for something that this claim does not see.
        self._news = self._news and ask is None
        if settlements:
            failpoint("worker.before_settle")
        try:
            applied, claimed = self.store.exchange(settlements, ask)
        except BaseException:
            self._news = True
            raise
        for settlement, was_applied in zip(settlements, applied, strict=True):
            self._applied(settlement, was_applied)
        if ask is not None:
            self._take(ask, claimed)

    def _applied(self, settlement: Settlement, was_applied: bool) -> None:
        claim = self.claims.get(settlement.id)
        if claim is not None and claim.job.fence == settlement.fence:
            del self.claims[settlement.id]
        if was_applied:
            self._report("job.settled", {"settlement": settlement})
        else:
            self.counters["late"] += 1
            logger.warning(
                "job %s: a late result was ignored; somebody else holds the job", settlement.id
            )
            self._report("job.late", {"job_id": settlement.id})

    def _take(self, ask: Ask, claimed: Claimed) -> None:
        now = self._now()
        wait = None if claimed.next_at is None else claimed.next_at - self.store.now()
        soonest = now + self._settings.poll  # commits we cannot hear of
        self._next_at = soonest if wait is None else min(soonest, now + max(0.0, wait))
        claims = [Claim(job) for job in claimed.jobs]
        taken = self._count(ask, claimed.jobs)
        with self._lock:
            for executor, count in taken.items():
                self._slots[executor] = max(0, self._slots.get(executor, 0) - count)
        self.is_left = claimed.more
        if self._is_probing:
            self._is_probing = False
            self.probes += 1
        full = any(taken.get(name, 0) >= free for name, free in ask.slots.items())
        self._news = self._news or (full and bool(ask.slots))
        self.is_dry = not full
        for claim in claims:
            self.claims[claim.job.id] = claim
        if claims:
            self._charge_at = now + CHARGE_AFTER
            failpoint("worker.claimed")
            self._deliver(claims)

    @staticmethod
    def _count(ask: Ask, jobs: Sequence[Leased]) -> dict[str, int]:
        taken: dict[str, int] = {}
        for job in jobs:
            name = executor_of(ask, job)
            taken[name] = taken.get(name, 0) + 1
        return taken

    def _renew_due(self) -> None:
        now = self._now()
        if now >= self._renew_at:
            self._renew_at = now + self._settings.lease / 3
            self.offset = self.store.now() - now
            self._renew(list(self.claims.values()))
        elif self._charge_at is not None and now >= self._charge_at:
            self._charge_at = None
            started = [each for each in self.claims.values() if each.is_written]
            self._renew([each for each in started if not each.is_recorded])

    def _renew(self, claims: list[Claim]) -> None:
        claims = [claim for claim in claims if not claim.lost]
        if not claims:
            return
        failpoint("worker.before_renew")
        holds = [claim.hold() for claim in claims]
        kept = self.store.renew(holds, self._settings.lease)
        for claim, hold, is_kept in zip(claims, holds, kept, strict=True):
            claim.is_recorded = claim.is_recorded or hold.is_charged
            if not is_kept and claim.job.id in self.claims:
                claim.lost = True
                logger.warning(
                    "job %s: its lease was lost; its result will not count", claim.job.id
                )
                self._report("lease.lost", {"job_id": claim.job.id})

    def _sleep(self) -> None:
        now = self._now()
        with self._lock:
            if self._settlements and not self._failures:
                return
            is_free = self._is_probing or any(free > 0 for free in self._slots.values())
            if self._news and self._may_claim and is_free and not self._failures:
                return
            self._is_asleep = True
        until = [self._renew_at]
        until += [at for at in (self._charge_at, self._chores_at) if at is not None]
        if self._next_at is not None and self._may_claim and is_free:
            until.append(self._next_at)
        if self._failures:
            self._sit_out(now + OUTAGE.delay(self._failures - 1, random.random()))  # noqa: S311
        elif self._bell.wait(max(0.0, min(until) - now)):
            self._news = True
        self._is_asleep = False

    # ---- a store that is away ----

    def _sit_out(self, until: float) -> None:
        """Wait, whatever rings: the store has to come back before any of it matters."""
        while (now := self._now()) < until and not self._ends:
            self._bell.wait(until - now)

    def _outage(self, error: Exception) -> None:
        self._failures += 1
        if self.chores is not None:
            self.chores.bounce()  # so that the next round asks the store for certain
        if self._failures == 1:
            self.counters["outages"] += 1
            logger.error("the store does not answer, and is asked again: %s", error)
            self._report("store.lost", {"error": str(error)})

    def _recovered(self) -> None:
        logger.warning("the store answers again, after %d attempts", self._failures)
        self._failures = 0
        self._news = True
        self._report("store.back", {})


def executor_of(ask: Ask, job: Leased) -> str:
    """Which executor runs a job."""
    return job.executor or ask.routes.get(job.queue, ask.default)
