"""The steps of a consumer: fetch, handle in order, confirm what is done, set poison aside.

A page is handled in order, and confirmed when all of it is done. When an item fails, everything
before it is confirmed and nothing at or above it. The item is retried here, and set aside after so
many attempts, so that the items behind it can pass. A page that was delivered before and never
confirmed is handled item by item: one of its items may have killed the last reader.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from ergon_framework.boundary.client.effects import (
    ClientEffects,
    Dice,
    Handle,
    Now,
    Pause,
    Send,
    UnrunHandlerError,
    called,
    record_of_answer,
    repeated,
)
from ergon_framework.boundary.client.transport import ADMIN, BOUNDARY
from ergon_framework.boundary.model import Batch, Delivery, Loss
from ergon_framework.core.failure import Failure, Kind
from ergon_framework.core.retry import RetriedCall, RetryAfter, RetryRule
from ergon_framework.engine.atfork import renew_after_fork
from ergon_framework.engine.classify import fetch_failure
from ergon_framework.errors import (
    BoundaryError,
    BoundaryNotFoundError,
    ConsumerHeldError,
    NonRetryableException,
    WiringError,
    describe,
)
from ergon_framework.storage.failpoints import declare, failpoint

MAX_BYTES = 4 << 20
"""The most bytes in one page."""
RELEASE_TIMEOUT = 5.0
"""Seconds that letting go of a name may take at most."""
INTERRUPTS = (KeyboardInterrupt, asyncio.CancelledError, GeneratorExit)
"""What ends a handler and says nothing about its fact: an operator's Ctrl-C, a cancelled task."""


@dataclass(slots=True)
class LeaseState:
    """Whether this process is still the one that runs under the consumer's name."""

    lost: ConsumerHeldError | None = None
    renewed_at: float = 0.0

    def check(self) -> None:
        """Raise when the name is another's."""
        if self.lost is not None:
            raise self.lost


class _Cursor(msgspec.Struct):
    cursor: int


@dataclass(slots=True, weakref_slot=True, eq=False)
class ConsumerSession:
    """One holder of one consumer: what its requests to the node carry, and its lease."""

    name: str
    holder: str | None
    lease: float
    rule: RetryRule
    dice: Dice
    log: str | None = None
    start: str = "start"
    to_zone: str | None = None
    required: bool = True
    timeout: float = 30.0
    standing: LeaseState = field(default_factory=LeaseState)
    page: bytes = field(default=b"", repr=False)
    """The last page, as it came."""

    def __post_init__(self) -> None:
        renew_after_fork(self)

    def renew(self) -> None:
        """Run in a forked child: the lease and the run stay the parent's."""
        if self.holder is not None:
            # Another name for the holder: the node would take the child for the parent, and give
            # both the same facts.
            self.holder = f"{self.holder[:200]}+{os.getpid()}"
        self.standing.lost = ConsumerHeldError(
            f"the process that holds the consumer {self.name!r} was forked, and this is the child",
            remedy="let a child that a handler forks end with os._exit, or start a program",
        )

    def fetch(self, limit: int, wait: float) -> ClientEffects[Batch]:
        """A page; a consumer that is not there is created."""
        asked = {
            "limit": limit,
            "wait_ms": round(wait * 1000),
            "lease_ms": round(self.lease * 1000),
            "max_bytes": MAX_BYTES,
        }
        send = Send(BOUNDARY + "FetchFacts", self._body(asked), wait + self.timeout)
        rule = self.rule
        if rule.budget is not None:
            # The node holds the request for so long when there is nothing: that is no failure.
            rule = replace(rule, budget=rule.budget + wait)
        call = RetriedCall(rule, (yield Now()))
        try:
            answer: bytes = yield from repeated(send, call, self.dice)
        except BoundaryNotFoundError:
            if self.log is None:
                raise
            yield from self.create()
            answer = yield from repeated(send, call, self.dice)
        # Answered under our name: it is ours again, whatever was believed before.
        self.standing.lost = None
        self.standing.renewed_at = yield Now()
        self.page = answer
        return record_of_answer(answer, Batch)

    def anew(self, delivery: Delivery) -> Delivery:
        """A fact of the last page once more as it came: its handler may have changed its content
        before it failed.
        """
        facts = record_of_answer(self.page, Batch).facts
        return next((each for each in facts if each.offset == delivery.offset), delivery)

    def create(self) -> ClientEffects[None]:
        """Create the consumer, unless there is one with the same settings."""
        fields = {
            "consumer_name": self.name,
            "log": self.log,
            "from": self.start,
            "to_zone": self.to_zone,
            "required": self.required,
        }
        yield from self._call(ADMIN + "CreateConsumer", _encoded(fields))

    def confirm(self, offset: int) -> ClientEffects[int]:
        """Confirm all facts up to ``offset``; returns the cursor."""
        self.standing.check()
        answer = yield from self._call(BOUNDARY + "ConfirmReceipt", self._body({"offset": offset}))
        self.standing.renewed_at = yield Now()
        return record_of_answer(answer, _Cursor).cursor

    def renew_lease(self) -> ClientEffects[None]:
        """Make sure that the name is still ours."""
        yield from self.confirm(0)

    def renewal(self) -> bytes:
        """A confirmation that confirms nothing: no fact has the offset 0.

        It must not be the cursor. Facts released from quarantine lie below that, and would be
        confirmed with it although they were not handled.
        """
        return self._body({"offset": 0})

    def set_aside(
        self, offset: int, reason: str, message: str, attempts: int
    ) -> ClientEffects[None]:
        """Quarantine a fact, and go on behind it."""
        self.standing.check()
        fields = {"offset": offset, "reason": reason, "message": message, "attempts": attempts}
        send = Send(ADMIN + "QuarantineFact", self._body(fields), self.timeout)
        call = RetriedCall(self.rule, (yield Now()))
        try:
            yield from repeated(send, call, self.dice)
        except BoundaryError as error:
            # An earlier attempt may have passed the fact, and only its answer was lost.
            if not (call.attempts and error.reason == "not_next"):
                raise
        self.standing.renewed_at = yield Now()

    def seek(self, offset: int, reason: str) -> ClientEffects[None]:
        """Set the cursor, also backwards."""
        fields = {"consumer_name": self.name, "offset": offset, "reason": reason}
        yield from self._call(ADMIN + "SeekConsumer", _encoded(fields))

    def release(self) -> ClientEffects[None]:
        """Release the lease now, so that another process need not wait until it expires."""
        yield Send(ADMIN + "ReleaseLease", self._body({}), min(self.timeout, RELEASE_TIMEOUT))

    def release_counted(self) -> ClientEffects[None]:
        """The same, while the node goes on counting how often the next fact was given out.

        ReleaseLease excuses whatever was fetched. A page of one fact under the shortest lease does
        not: it is counted, and the name is free again at once.
        """
        asked = {"limit": 1, "lease_ms": 1, "max_bytes": 1}
        yield Send(BOUNDARY + "FetchFacts", self._body(asked), min(self.timeout, RELEASE_TIMEOUT))

    def _call(self, method: str, body: bytes) -> ClientEffects[bytes]:
        return called(method, body, self.rule, self.dice, timeout=self.timeout)

    def _body(self, fields: dict[str, Any]) -> bytes:
        return _encoded({"consumer_name": self.name, **fields, "holder": self.holder})


def _encoded(fields: dict[str, Any]) -> bytes:
    return msgspec.json.encode({k: v for k, v in fields.items() if v is not None})


HANDLER_FAILED = "handler_failed"
CRASH_LOOP = "crash_loop"
MAX_MESSAGE = 1000
declare("boundary.confirming.before", "boundary.confirming.after")
MIN_POLL_INTERVAL = 0.25
"""Seconds between two looks into an empty log at least."""


@dataclass(slots=True)
class ConsumeReport:
    """What a run did."""

    handled: int = 0
    quarantined: int = 0
    lost: int = 0
    """Facts that were given up before this consumer had them, as reported by gaps."""
    cursor: int = 0
    """The last offset known to be confirmed."""


@dataclass(slots=True)
class ConsumeLoop:
    """The loop of one running consumer. It belongs to one driver."""

    session: ConsumerSession
    handler: Callable[[Delivery], Any]
    on_gap: Callable[[Loss], Any]
    is_stopped: Callable[[], bool]
    item_rule: RetryRule
    dice: Dice
    until_empty: bool
    wait: float
    limit: int
    report: ConsumeReport = field(default_factory=ConsumeReport)
    done: int = 0
    """Everything up to here is handled, though perhaps not confirmed."""
    confirmed_at: float = 0.0
    is_ended_by_handler: bool = False
    """The handler has raised what ends a process, such as SystemExit: its fact is not excused."""

    # ---- the whole ----

    def script(self) -> ClientEffects[ConsumeReport]:
        """Pages until the run is stopped, or until there are none."""
        try:
            yield from self._pages()
        except ConsumerHeldError as error:
            self.session.standing.lost = error  # the name is another's: not a word more
            raise
        except GeneratorExit:
            raise
        except BaseException as error:
            # What is done is confirmed even though the run failed: it would be handled a second
            # time.
            yield from self._leave()
            is_outage = isinstance(error, BoundaryError) and error.is_retryable
            # Stopped during an outage: the run ends as it was asked to, and nothing is lost.
            if not (is_outage and self.is_stopped()):
                raise
        else:
            yield from self._leave()
        return self.report

    def release(self) -> ClientEffects[None]:
        """Release the consumer's lease at the end of the run, if this holder still has it."""
        if self.session.standing.lost is None:
            if self.is_ended_by_handler:
                yield from self.session.release_counted()
            else:
                yield from self.session.release()

    def _leave(self) -> ClientEffects[None]:
        """Confirm what is done, if the node can be reached."""
        if self.session.standing.lost is None:
            try:
                yield from self._confirm()
            except BoundaryError:
                return  # it will be delivered again

    def _pages(self) -> ClientEffects[None]:
        while not self.is_stopped():
            # Measured, since a node may answer an empty page at once.
            began_at = yield Now()
            batch = yield from self.session.fetch(self.limit, self.wait)
            self.report.cursor = self.done = batch.cursor
            self.confirmed_at = yield Now()
            try:
                yield from self._page(batch, max(0, batch.deliveries - 1))
            except ConsumerHeldError as error:
                if not _was_sought(error):
                    raise
                continue  # what follows the new cursor comes with the next page
            if not batch.facts and self.done == batch.cursor:
                if self.until_empty:
                    return
                yield from self._pace((yield Now()) - began_at)

    def _pace(self, waited: float) -> ClientEffects[None]:
        """Fetch a page; the node waits for facts. If it did not wait, pause here."""
        pause = max(self.wait, MIN_POLL_INTERVAL)
        if waited < pause / 2:
            yield Pause(pause - waited)

    # ---- a page ----

    def _page(self, batch: Batch, earlier: int) -> ClientEffects[None]:
        facts = batch.facts
        is_released = bool(facts) and facts[0].released
        if facts and not is_released and earlier >= self.item_rule.attempts:
            # Losses before the fact are reported first: they lie before it in the log, too.
            for gap in batch.gaps:
                if gap.first_offset < facts[0].offset:
                    yield from self._gap(gap)
            text = f"given to {earlier} processes before, none of which came back"
            yield from self._set_aside(facts[0], CRASH_LOOP, text, earlier)
            return
        gaps = iter(batch.gaps)
        pending = next(gaps, None)
        for delivery in facts:
            while pending is not None and pending.first_offset < delivery.offset:
                yield from self._gap(pending)
                pending = next(gaps, None)
            if self.is_stopped():
                return
            # A page that was given out before: confirmed one by one, it shows which fact kills its
            # reader.
            is_alone = is_released or earlier > 0
            if not (yield from self._item(delivery, is_alone=is_alone)):
                return
        yield from self._rest(pending, gaps)
        # A released fact lies below the cursor; the page says nothing about those above it.
        if not is_released:
            self.done = max(self.done, batch.through_offset)
            yield from self._confirm()

    def _rest(self, pending: Loss | None, gaps: Iterator[Loss]) -> ClientEffects[None]:
        if pending is not None:
            yield from self._gap(pending)
        for loss in gaps:
            yield from self._gap(loss)

    def _gap(self, loss: Loss) -> ClientEffects[None]:
        self.report.lost += loss.count
        yield Handle(self.on_gap, loss)
        # Everything before the loss is handled: it is reported once.
        self.done = max(self.done, loss.last_offset)

    def _item(self, delivery: Delivery, *, is_alone: bool) -> ClientEffects[bool]:
        """Handle one fact, or set it aside; False when it has to wait for another run."""
        yield from self._stay_holder()
        call = RetriedCall(self.item_rule, (yield Now()))
        while True:
            try:
                yield Handle(self.handler, delivery)
                break
            except UnrunHandlerError:
                raise  # it would be the same with every fact: none is set aside for that
            except Exception as error:
                # The handler may have taken longer than the lease: then another process has the
                # fact, and decides about it.
                self.session.standing.check()
                # Before the wait: the good facts before it need not be handled again if this
                # process dies now.
                yield from self._confirm()
                verdict = call.failed(failure_of_handler(error), (yield Now()), self.dice())
                if not isinstance(verdict, RetryAfter):
                    text = describe(error)
                    yield from self._set_aside(delivery, HANDLER_FAILED, text, call.attempts)
                    return True
            except INTERRUPTS:
                raise
            except BaseException:
                self.is_ended_by_handler = True
                raise
            if (yield Pause(verdict.delay)):
                return False
            delivery = self.session.anew(delivery)
        self.session.standing.check()
        self.report.handled += 1
        if delivery.released:
            yield from self.session.confirm(delivery.offset)
        else:
            self.done = delivery.offset
            if is_alone:
                yield from self._confirm()
        return True

    def _set_aside(
        self, delivery: Delivery, reason: str, message: str, attempts: int
    ) -> ClientEffects[None]:
        yield from self.session.set_aside(delivery.offset, reason, message[:MAX_MESSAGE], attempts)
        self.report.quarantined += 1
        if not delivery.released:
            self.done = delivery.offset
            self.report.cursor = max(self.report.cursor, delivery.offset)

    # ---- standing ----

    def _stay_holder(self) -> ClientEffects[None]:
        """Renew the lease if needed; raise if another holder may have it by now."""
        standing, now = self.session.standing, (yield Now())
        standing.check()
        third = self.session.lease / 3
        # The renewal may have stood still with this process: no fact is begun without asking.
        if now - standing.renewed_at >= self.session.lease:
            yield from self.session.renew_lease()
        if now - self.confirmed_at >= third:
            yield from self._confirm()

    def _confirm(self) -> ClientEffects[None]:
        """Confirm the good prefix."""
        if self.done > self.report.cursor:
            failpoint("boundary.confirming.before")
            self.report.cursor = yield from self.session.confirm(self.done)
            failpoint("boundary.confirming.after")
        self.confirmed_at = yield Now()


def _was_sought(error: ConsumerHeldError) -> bool:
    """Whether the name is not another's: an operator has set the cursor, which frees the name."""
    return "holder" in error.details and error.details["holder"] is None


def renew_lease(session: ConsumerSession, is_over: Callable[[], bool]) -> ClientEffects[None]:
    """Renew the lease now and then, and note when it is lost."""
    standing: LeaseState = session.standing
    while not is_over():
        yield Pause(session.lease / 3)
        if is_over():
            return
        try:
            # Shorter than the lease: a request that hangs must not keep the next one from being
            # sent in time.
            yield Send(BOUNDARY + "ConfirmReceipt", session.renewal(), session.lease / 3)
            standing.renewed_at = yield Now()
        except ConsumerHeldError as error:
            standing.lost = error
        except BoundaryError:
            continue  # the node is away; the lease is checked before the next fact begins


def failure_of_handler(error: Exception) -> Failure:
    """What an exception of the user's code means: a refusal is not repeated, all else is."""
    if isinstance(error, NonRetryableException | WiringError):
        return Failure(Kind.REJECTED, type(error).__name__)
    return fetch_failure(error)
