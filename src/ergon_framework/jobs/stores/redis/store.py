"""The Redis job store: what clients and workers need."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from ergon_framework.errors import StoreError
from ergon_framework.jobs.stores.redis import rows
from ergon_framework.jobs.stores.redis.moves import EXCHANGE, Answer, answer_in, odd_claim
from ergon_framework.jobs.stores.redis.moving import RedisMoving
from ergon_framework.jobs.stores.redis.names import script
from ergon_framework.jobs.stores.unreadable import MISREAD, unreadable_job
from ergon_framework.ports.jobstore import (
    Added,
    Ask,
    Claimed,
    Hold,
    Job,
    Leased,
    NewJob,
    Settlement,
    Unreadable,
)

logger = logging.getLogger("ergon.jobs")

AT_ONCE = 500
BYTES_AT_ONCE = 8 << 20
"""Settlements or renewals of one script, and bytes of results: nobody else is served meanwhile."""

_SHORTEN = script("bar", "rows", "moves", "shorten")
_RENEW = script("bar", "rows", "moves", "renew")
_answers = msgspec.msgpack.Decoder(list[bool]).decode


class RedisJobStore(RedisMoving):
    """Jobs in one Redis database, which any number of processes on any machine may share."""

    def __init__(
        self,
        url: str,
        *,
        clock: Callable[[], float] | None = None,
        read_only: bool = False,
        prefix: str | None = None,
    ) -> None:
        super().__init__(url, clock=clock, read_only=read_only, prefix=prefix)
        self._turns: dict[str, str] = {}  # by executor: the queue that was first the last time

    def add(self, jobs: Sequence[NewJob]) -> list[Added]:
        """Store all of them or none; raises DuplicateJobError."""
        return self._add_once(jobs) if jobs else []

    def exchange(
        self, settlements: Sequence[Settlement], ask: Ask | None
    ) -> tuple[list[bool], Claimed]:
        """Apply what happened, then claim; very many settlements are applied in several steps.

        One that was applied before, and whose answer was lost, is answered with True again.
        """
        applied: list[bool] = []
        while settlements and (ask is None or _share(settlements) < len(settlements)):
            share = _share(settlements)
            applied += self._apply(settlements[:share], "exchange")
            settlements = settlements[share:]
        if ask is None:
            return applied, Claimed([])
        blobs = rows.Blobs()
        wire = [rows.wire_settlement(settlement, blobs) for settlement in settlements]
        # A claim whose answer was lost is not made again: the lease of the first would hold on.
        head, data, bodies, late = self._write(
            EXCHANGE, "exchange", wire, self._wire_ask(ask), blobs=blobs, is_repeatable=False
        )
        answer = answer_in(head)
        return applied + answer.applied, self._claimed(answer, data, bodies, late)

    def renew(self, holds: Sequence[Hold], lease: float) -> list[bool]:
        """Prolong leases and charge attempts; False for a job this holder has lost."""
        answers: list[bool] = []
        for first in range(0, len(holds), AT_ONCE):
            wire = [rows.wire_hold(hold) for hold in holds[first : first + AT_ONCE]]
            answers += _answers(self._write(_RENEW, "renew", wire, lease))
        return answers

    def shorten(self, leases: Mapping[str, float], others: float) -> int:
        """Cut leases that end later than they could if they were renewed now."""
        latest = self.now() + min((*leases.values(), others))
        if not self._link.call("ZCOUNT", self._key("leases"), f"({latest!r}", "+inf"):
            return 0
        least = min((*leases.values(), others))
        number: int = self._write(_SHORTEN, "renew", dict(leases), others, least)
        return number

    def overdue(self, limit: int) -> list[Job]:
        """Running jobs whose lease has expired, the oldest first."""
        found, odd, _ = self._look("overdue", None, limit, None)
        while odd and not self._is_read_only:
            self._set_aside(odd)
            found, odd, _ = self._look("overdue", None, limit, None)
        return [job for _, job in found]

    def find(self, job_id: str) -> Job | None:
        """One job."""
        found, odd, _ = self._look("ids", [job_id], 0, None)
        if odd:
            raise unreadable_job(job_id, odd[0].problem)
        return found[0][1] if found else None

    def holder(self, unique_key: str) -> str | None:
        """The id of the job that holds a unique key."""
        found = self._link.call("HGET", self._key("unique"), unique_key)
        return None if found is None else str(found.decode())

    # ---- claiming -------------------------------------------------------------------------------

    def _wire_ask(self, ask: Ask) -> tuple[Any, ...]:
        """What a worker asks, as ``claim.lua`` wants it."""
        return (
            ask.worker,
            ask.lease,
            list(ask.slots.items()),
            ask.default,
            dict(ask.routes),
            list(ask.own),
            None if ask.queues is None else list(ask.queues),
            ask.asks_more,
            self._turns,
        )

    def _claimed(self, answer: Answer, data: bytes, bodies: bytes, late: bytes) -> Claimed:
        self._turns.update(zip(answer.turns[::2], answer.turns[1::2], strict=True))
        texts = rows.parts_in(bodies, answer.lengths)
        found = zip(answer.ids, rows.rows_in(data), texts, strict=True)
        jobs = self._leased(found)
        next_at = None if answer.next_at is False else float(answer.next_at)
        return Claimed(jobs, next_at, answer.is_left, self._outdated(answer.outdated, late))

    def _leased(self, found: Iterable[tuple[str, rows.Row, memoryview]]) -> list[Leased]:
        """The jobs that were claimed; rows that cannot be read are set aside."""
        jobs: list[Leased] = []
        odd: list[Unreadable] = []
        for each in found:
            try:
                jobs.append(rows.leased(*each))
            except MISREAD as error:
                odd.append(odd_claim(each[0], each[1], error))
        if odd:
            try:
                self._set_aside(odd, is_claimed=True)
            except StoreError as error:  # what was claimed must not be lost for it
                logger.warning("rows that cannot be read are set aside later: %s", error)
        return jobs

    def _outdated(self, ids: Sequence[str], data: bytes) -> int:
        try:
            return self._end_outdated(ids, data, "exchange")
        except StoreError as error:
            # What was claimed must not be lost for it: a sweep finds those jobs, too.
            logger.warning("outdated jobs are ended later: %s", error)
            return 0


def _share(settlements: Sequence[Settlement]) -> int:
    """How many settlements go into one script: the first of them, at least one."""
    size = 0
    for n, settlement in enumerate(settlements[:AT_ONCE]):
        size += len(settlement.result or b"")
        if n and size > BYTES_AT_ONCE:
            return n
    return min(len(settlements), AT_ONCE)
