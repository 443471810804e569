"""One exchange: settle, then claim, in as few words as it takes.

The first pipeline settles, claims from the lanes that the last look showed, looks around and
commits. In most cases that is all. What follows are transactions of their own: waking jobs whose
limit key was freed, and claiming on while there are slots left and something to be had.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence

from ergon_framework.errors import StoreError, StoreUnavailableError
from ergon_framework.jobs.stores.postgres.ground import Ground
from ergon_framework.jobs.stores.postgres.settling import (
    Settling,
    lock_keys,
    one_by_one,
    shorten,
    wake,
    were_applied,
)
from ergon_framework.jobs.stores.postgres.taking import Claim, Memory
from ergon_framework.jobs.stores.postgres.words import Words, is_conflict
from ergon_framework.ports.jobstore import Ask, Claimed, Settlement, Topic

logger = logging.getLogger("ergon.jobs")

Unsure = set[tuple[int, int]]
"""Jobs and fences of settlements whose commit may have happened, and nobody knows."""


class Exchange:
    """One call of one worker, or of whoever only settles."""

    def __init__(self, ground: Ground, settlements: Sequence[Settlement], unsure: Unsure) -> None:
        self._ground = ground
        self._settlements = settlements
        self._unsure = unsure
        self._topics = {
            Topic.DONE if each.move.status.is_final else Topic.WORK for each in settlements
        }
        self._freed: Counter[str] = Counter()
        self._long: list[tuple[int, str]] = []
        self._is_work = False  # others may go on because of what has stopped

    def run(self, ask: Ask | None, memory: Memory) -> tuple[list[bool], Claimed]:
        """Settle and claim."""
        claim = None if ask is None else Claim(self._ground, ask, memory)
        keyed = {each.key for each in self._settlements} & memory.keyed
        memory.keyed -= keyed
        # Who waits for a key that is freed here stands in line when this claim begins.
        applied = self._settle(None if keyed else claim)
        try:
            self._follow(claim)
            if claim is not None:
                claim.go_on()
        except StoreError as error:
            # What is committed has to be told. Whoever asks next hears the error.
            if not applied and (claim is None or claim.is_empty):
                raise
            logger.warning("an exchange was cut short: %s", error)
        return applied, Claimed([]) if claim is None else claim.result()

    def _settle(self, claim: Claim | None) -> list[bool]:
        def send(words: Words) -> Callable[[], list[bool]]:
            settling = Settling(words, self._settlements)
            sure = self._ask_doubts(words)
            claimed = None if claim is None else claim.send(words)

            def read() -> list[bool]:
                applied = sure(settling.read())
                self._note(settling)
                if claimed is not None:
                    claimed()
                return applied

            return read

        try:
            return self._ground.pipe(send, "exchange", topics=self._topics)
        except StoreUnavailableError as error:
            if error.details.get("is_lost"):
                self._unsure |= {(each.key, each.fence) for each in self._settlements}
            raise
        except StoreError as error:
            if not is_conflict(error):
                raise
            return self._settle_one_by_one()

    def _settle_one_by_one(self) -> list[bool]:
        """Two jobs of one unique key want to come back at the same time."""

        def work(words: Words) -> list[bool]:
            applied, settlings = one_by_one(words, self._settlements)
            for settling in settlings:
                self._note(settling)
            return self._ask_doubts(words)(applied)

        return self._ground.alone(work, "exchange", topics=self._topics)

    def _note(self, settling: Settling) -> None:
        self._freed += settling.freed
        self._long += settling.long
        self._is_work |= settling.is_work

    def _ask_doubts(self, words: Words) -> Callable[[list[bool]], list[bool]]:
        """A settlement that is refused because it was applied, when nobody knew, was applied.

        Answers how to correct what is told of them all.
        """
        doubts = [
            n for n, each in enumerate(self._settlements) if (each.key, each.fence) in self._unsure
        ]
        if not doubts:
            return lambda applied: applied
        answer = were_applied(words, [self._settlements[n] for n in doubts])

        def sure(applied: list[bool]) -> list[bool]:
            for place, key in answer.fetchall():
                n = doubts[place - 1]
                if key is not None and not applied[n]:
                    self._freed[key] += 1  # whoever applied it may not have told those who wait
                applied[n] = True
            self._unsure.difference_update((each.key, each.fence) for each in self._settlements)
            return applied

        return sure

    def _follow(self, claim: Claim | None) -> None:
        """What settlements bring about that needs other locks than theirs."""
        if self._freed or self._long:
            self._ground.pipe(lambda words: self._send_followers(words, claim), "exchange")
        if self._is_work and Topic.WORK not in self._topics:
            self._ground.ring({Topic.WORK})

    def _send_followers(self, words: Words, claim: Claim | None) -> Callable[[], None]:
        shorten(words, self._long)
        woken = None
        if self._freed:
            lock_keys(words, self._freed)
            woken = wake(words, self._freed)
        claimed = None if claim is None else claim.send(words)

        def read() -> None:
            self._is_work |= woken is not None and bool(woken.fetchall())
            if claimed is not None:
                claimed()

        return read
