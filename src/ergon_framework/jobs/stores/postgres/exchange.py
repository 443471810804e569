"""One call of a worker: settle, then claim, in as few round trips as possible.

The first pipeline settles, claims from the lanes that the last scan found, scans the lanes and
commits. In most cases that is all. What follows are transactions of their own: waking jobs whose
limit key was freed, and claiming on while there are slots left and something to be had.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence

from ergon_framework.core.claim import DEFAULT_BOUNDS, ClaimBounds, ClaimRequest
from ergon_framework.errors import StoreError, StoreUnavailableError
from ergon_framework.jobs.stores.postgres.claim import PostgresClaim, PostgresClaimMemory
from ergon_framework.jobs.stores.postgres.flow_tables import (
    StepSettlement,
    do_slice,
    settle_steps,
)
from ergon_framework.jobs.stores.postgres.rows import Held, StatementResult
from ergon_framework.jobs.stores.postgres.settle import (
    Effects,
    SettleBatch,
    lock_keys,
    one_by_one,
    shorten,
    try_keys,
    wake,
    were_applied,
)
from ergon_framework.jobs.stores.postgres.transactions import (
    PostgresTransactions,
    PostgresTx,
    is_conflict,
)
from ergon_framework.ports.jobstore import ClaimResult, Settlement, Topic

logger = logging.getLogger("ergon.jobs")

Unconfirmed = set[Held]
"""Claims whose settlement may have been committed: the answer was lost."""


class WorkerExchange:
    """One call of a worker, or of a client that only settles."""

    def __init__(
        self,
        transactions: PostgresTransactions,
        settlements: Sequence[Settlement],
        unconfirmed: Unconfirmed,
        memory: PostgresClaimMemory,
        bounds: ClaimBounds = DEFAULT_BOUNDS,
    ) -> None:
        self._transactions = transactions
        self._bounds = bounds
        self._settlements = settlements
        self._unconfirmed = unconfirmed
        self._memory = memory
        statuses = {each.transition.status for each in settlements}
        self._topics = {Topic.DONE if each.is_final else Topic.WORK for each in statuses}
        self._freed: Counter[str] = Counter()
        self._long: list[tuple[int, str]] = []
        self._is_work = False  # others may go on because of what has stopped
        self._has_steps = any(each.is_step for each in settlements)

    def run(self, request: ClaimRequest | None) -> tuple[list[bool], ClaimResult]:
        """Settle and claim."""
        memory = self._memory
        claim = None
        if request is not None:
            claim = PostgresClaim(self._transactions, request, memory, self._bounds)
        memory.has_claimed |= claim is not None
        keys = ((each.key, each.fence) for each in self._settlements) if memory.keyed else ()
        keyed = memory.keyed.intersection(keys)
        memory.keyed -= keyed
        # With freed keys the claim comes after the wake-up: jobs that wait for them are due then.
        applied = self._settle(None if keyed or memory.owed else claim)
        try:
            if not self._has_steps and not all(applied):
                self._settle_missed(applied, claim)
            self._follow(claim)
            if claim is not None:
                self._claim(claim)
            if memory.owed and (claim is None or not claim.has_slots):
                self._wake_owed()  # nothing brings this process back to it soon
        except StoreError as error:
            # What is committed has to be answered. The next call gets the error.
            if not applied and (claim is None or claim.is_empty):
                raise
            logger.warning("an exchange was cut short: %s", error)
        return applied, ClaimResult([]) if claim is None else claim.result()

    def _claim(self, claim: PostgresClaim) -> None:
        """Claim what is left; where something of flows is left to be done, do a slice of it."""
        claim.go_on()
        if claim.has_flow_work:
            self._note(do_slice(self._transactions, "exchange"))
            self._follow(claim)
            claim.look_again()
            claim.go_on()

    def _settle(self, claim: PostgresClaim | None) -> list[bool]:
        def send(tx: PostgresTx) -> Callable[[], list[bool]]:
            plain, steps, known = self._settlements, None, None
            if self._has_steps:
                steps = StepSettlement(tx)
                known = steps.apply(self._settlements)
                steps.finish()  # before the claim: what was released may be claimed at once
                self._topics |= steps.topics()
                pairs = zip(self._settlements, known, strict=True)
                plain = [each for each, was_applied in pairs if was_applied is None]
            batch = SettleBatch(tx, plain)
            sure = self._resolve_unconfirmed(tx)
            claimed = None if claim is None else claim.send(tx)

            def read() -> list[bool]:
                applied = batch.read()
                self._note(batch.effects)
                if steps is not None and known is not None:
                    rest = iter(applied)
                    applied = [next(rest) if each is None else each for each in known]
                    self._note(steps.read())
                applied = sure(applied)
                if claimed is not None:
                    claimed()
                return applied

            return read

        try:
            return self._transactions.pipelined(send, "exchange", topics=self._topics)
        except StoreUnavailableError as error:
            if error.details.get("is_lost"):
                # The commit may have been made: without this note the repeated settlement would
                # look late, although it is this very outcome that was stored.
                self._unconfirmed |= {(each.key, each.fence) for each in self._settlements}
            raise
        except StoreError as error:
            if not is_conflict(error):
                raise
            return self._settle_one_by_one()

    def _settle_missed(self, applied: list[bool], claim: PostgresClaim | None) -> None:
        """Settle what the plain statements passed over: jobs that became steps since the claim."""
        missed = [n for n, was_applied in enumerate(applied) if not was_applied]
        left = [self._settlements[n] for n in missed]
        found, effects = settle_steps(self._transactions, left, "exchange")
        for n, was_applied in zip(missed, found, strict=True):
            applied[n] = was_applied
        self._note(effects)
        if any(found) and claim is not None:
            claim.look_again()

    def _settle_one_by_one(self) -> list[bool]:
        """Two jobs of one unique key want to come back at the same time."""

        def work(tx: PostgresTx) -> list[bool]:
            applied, effects = one_by_one(tx, self._settlements)
            self._note(effects)
            return self._resolve_unconfirmed(tx)(applied)

        self._has_steps = False  # those are missed, and settled after the others
        return self._transactions.unpipelined(work, "exchange", topics=self._topics)

    def _note(self, effects: Effects) -> None:
        self._freed += effects.freed
        self._long += effects.long
        self._is_work |= effects.is_work

    def _resolve_unconfirmed(self, tx: PostgresTx) -> Callable[[list[bool]], list[bool]]:
        """Answer True for a settlement that an earlier call applied and whose answer was lost.

        Answers how to correct what is told of them all.
        """
        unconfirmed = self._unconfirmed
        doubtful = unconfirmed and [
            n for n, each in enumerate(self._settlements) if (each.key, each.fence) in unconfirmed
        ]
        if not doubtful:
            return lambda applied: applied
        answer = were_applied(tx, [self._settlements[n] for n in doubtful])

        def sure(applied: list[bool]) -> list[bool]:
            for place, key in answer.fetchall():
                n = doubtful[place - 1]
                if key is not None and not applied[n]:
                    self._freed[key] += 1  # its wake-up may have been lost with the answer
                applied[n] = True
            self._unconfirmed.difference_update(
                (each.key, each.fence) for each in self._settlements
            )
            return applied

        return sure

    def _follow(self, claim: PostgresClaim | None) -> None:
        """What settlements bring about that needs other locks than theirs."""
        memory = self._memory
        if memory.has_claimed:
            memory.owed += self._freed  # from here on until it is done, whatever happens
            self._freed = memory.owed
        if self._freed or self._long:
            memory.owed = self._transactions.pipelined(
                lambda tx: self._send_followers(tx, claim), "exchange"
            )
        if memory.owed and claim is not None:
            claim.ask_again_soon()
        elif memory.owed:
            self._is_work = True  # this process is notified, too, which brings the next claim
        self._freed, self._long = Counter(), []
        if self._is_work and Topic.WORK not in self._topics:
            self._transactions.notify({Topic.WORK})
        self._is_work = False

    def _wake_owed(self) -> None:
        """Wait for the keys, with no other lock held, and wake the jobs that wait for them."""
        owed = self._memory.owed

        def work(tx: PostgresTx) -> bool:
            lock_keys(tx, owed)
            return bool(wake(tx, owed).fetchall())

        is_work = self._transactions.stepwise(work, "exchange")
        self._memory.owed = Counter()
        if is_work:
            self._transactions.notify({Topic.WORK})

    def _send_followers(
        self, tx: PostgresTx, claim: PostgresClaim | None
    ) -> Callable[[], Counter[str]]:
        """Answers with the wake-ups that have to be repeated, as others held the keys."""
        shorten(tx, self._long)
        woken: StatementResult | None = None
        missed: Callable[[], Counter[str]] = Counter
        if self._freed:
            missed = self._lock_freed(tx)
            woken = wake(tx, self._freed)
        claimed = None if claim is None else claim.send(tx)

        def read() -> Counter[str]:
            self._is_work |= woken is not None and bool(woken.fetchall())
            if claimed is not None:
                claimed()
            return missed()

        return read

    def _lock_freed(self, tx: PostgresTx) -> Callable[[], Counter[str]]:
        """Answers how to learn of the keys that others hold. A worker comes back to those, and
        waits for none of them; a client that only settles may never come back.
        """
        if not self._memory.has_claimed:
            lock_keys(tx, self._freed)
            return Counter
        ours = try_keys(tx, self._freed)

        def missed() -> Counter[str]:
            held = self._freed.keys() - {key for (key,) in ours.fetchall()}
            return Counter({key: self._freed[key] for key in held})

        return missed
