"""Sending what an outbox keeps: the decisions, written once for threads and for event loops.

``Drain`` yields what is to be done, and is sent the result; ``drain`` and ``drain_async`` do it.
Facts are sent in the order of the queue. A fact leaves the outbox only after the node has answered;
whichever process dies in between, the same fact is sent again and the node answers with the same
offset.

An error about a fact is final, and the fact is set aside. An error about the node or the caller may
pass: an outage, a full log, a certificate that has expired. Then the queue waits for as long as it
takes.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Any, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import structs

from ergon_framework.boundary.client.effects import Stop
from ergon_framework.boundary.client.outbox_store import OutboxFile, OutboxItem, OutboxStore
from ergon_framework.boundary.facts.canonical import canonical
from ergon_framework.boundary.facts.schema import digest_text, identity_digest
from ergon_framework.boundary.model import Envelope, Fact, Receipt
from ergon_framework.core.drain import DRAIN_BACKOFF, DrainMachine
from ergon_framework.core.failure import Failure, Kind
from ergon_framework.core.retry import Backoff
from ergon_framework.errors import (
    ArtifactError,
    BoundaryError,
    DataLossError,
    FactInvalidError,
    NodeUnavailableError,
    describe,
)
from ergon_framework.storage.sqlite.notifier import FifoSubscription

_envelope = msgspec.json.Decoder(Envelope).decode
_fact = msgspec.json.Decoder(Fact).decode


@dataclass(frozen=True, slots=True)
class SendBatch:
    """Either several facts without artifacts, or one of any kind."""

    items: Sequence[OutboxItem]
    pairs: Sequence[tuple[Envelope, Fact]] = field(repr=False)
    problem: BoundaryError | None = None
    """Why its only fact cannot be sent: what is in the spool is not what was put in."""

    @property
    def key(self) -> tuple[str, str]:
        """Zone and message id of the first fact."""
        envelope = self.pairs[0][0]
        return envelope.from_zone, envelope.message_id

    def is_what_was_found(self, found: Receipt) -> bool:
        """Whether the node has this very content under the first fact's id."""
        return found.digest == digest_text(self.items[0].digest)


def packed(line: Sequence[OutboxItem], most: int) -> SendBatch:
    """The longest load from the front of the line."""
    items: list[OutboxItem] = []
    pairs: list[tuple[Envelope, Fact]] = []
    for item in line[:most]:
        # A fact with files goes alone: its files are put first, and a batch in front of it must not
        # wait for them.
        if items and item.files:
            break
        try:
            pair = _unpacked(item)
        except DataLossError as problem:
            # What stands before a damaged fact is sent; the damaged one is reported when it has
            # come to the front.
            return SendBatch(items, pairs) if items else SendBatch([item], [], problem)
        items.append(item)
        pairs.append(pair)
        if item.files:
            break
    return SendBatch(items, pairs)


def _unpacked(item: OutboxItem) -> tuple[Envelope, Fact]:
    try:
        envelope, fact = _envelope(item.envelope), _fact(item.fact)
        digest = identity_digest(envelope, fact, canonical(fact.object_json))
    except (msgspec.MsgspecError, UnicodeDecodeError, BoundaryError) as error:
        raise _corrupted() from error
    # The outbox is a file on the user's disk. A fact that changed there must not reach the node
    # under the id of the one that was added.
    if digest != item.digest:
        raise _corrupted()
    return envelope, fact


def _corrupted() -> DataLossError:
    return DataLossError(
        "the fact in the outbox is not the one that was added",
        code="failed_precondition",
        reason="spool_corrupted",
        remedy="add it again from its source, then discard this one",
    )


def changed(file: OutboxFile, place: object) -> ArtifactError:
    """The error of a fact whose file has other bytes than when it was added."""
    return ArtifactError(
        f"{place}, the file for {file.bucket}/{file.key}, has changed since it was added",
        reason="file_changed",
        remedy="bring the same bytes back and retry the fact, or discard it and add another",
        details={"bucket": file.bucket, "key": file.key, "digest": file.digest},
    )


def lost(file: OutboxFile) -> ArtifactError:
    """The error of a fact whose file is missing."""
    return ArtifactError(
        f"the file for {file.bucket}/{file.key} is gone, or has another size",
        reason="file_missing",
        remedy="bring it back and retry the fact, or discard it",
        details={"bucket": file.bucket, "key": file.key},
    )


_ABOUT_THE_FACT = frozenset(
    {"invalid_argument", "already_exists", "failed_precondition", "out_of_range"}
    | {"permission_denied"}
)
_ABOUT_THE_CALLER = frozenset({"unknown_identity"})
"""Reasons that no fact can help: an operator will fix the policy."""
_NO_SUCH_CALL = frozenset({"unimplemented", "not_found"})

OnRefusal: TypeAlias = Literal["set_aside", "stop"]
Recovery: TypeAlias = Literal["append", "lookup"]


@dataclass(frozen=True, slots=True)
class DrainRule:
    """How a spool is drained."""

    on_refusal: OnRefusal = "set_aside"
    """``stop``: nothing passes a refused fact, and facts go one by one."""
    recover: Recovery = "append"
    """``lookup``: ask first what the node has of the facts at the front, at each beginning."""
    backoff: Backoff = DRAIN_BACKOFF
    batch_items: int = 500
    batch_bytes: int = 1 << 20
    poll: float = 1.0
    """Seconds after which one looks without having been woken."""


class DrainEnd(StrEnum):
    """Why a drain came to its end."""

    EMPTY = "empty"
    STOPPED = "stopped"
    REFUSED = "refused"  # and nothing passes it


@dataclass(slots=True)
class DrainReport:
    """What a drain did."""

    sent: int = 0
    """Facts that the node has, duplicates included."""
    duplicates: int = 0
    """The sent facts that the node had before."""
    refused: int = 0
    failures: int = 0
    """Attempts that the node did not answer, or put off."""
    ended: DrainEnd = DrainEnd.STOPPED


@dataclass(frozen=True, slots=True)
class SpoolWork:
    """Work on the spool, which takes a moment."""

    work: Callable[[], Any]


@dataclass(frozen=True, slots=True)
class ProducerCall:
    """A call of the producer, of either colour."""

    call: Callable[[Any], Any] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Rest:
    """Wait so long, or until woken; but not shorter than ``least`` unless it is to stop."""

    seconds: float
    least: float = 0.0


DrainEffect: TypeAlias = SpoolWork | ProducerCall | Rest
R = TypeVar("R")
DrainSteps: TypeAlias = Generator[DrainEffect, Any, R]


class DrainObserver:
    """Callbacks of a drain; this base class ignores them."""

    def failed(self, error: Exception) -> None:
        """The node did not answer, or put us off."""

    def refused(self, spooled: OutboxItem, error: BoundaryError) -> None:
        """A fact was refused for good."""

    def answered(self) -> None:
        """The node took something."""


class Drain:
    """One drain of one outbox. It belongs to one driver."""

    def __init__(
        self,
        spool: OutboxStore,
        rule: DrainRule,
        *,
        is_stopped: Callable[[], bool],
        dice: Callable[[], float],
        until_empty: bool = False,
        observer: DrainObserver | None = None,
    ) -> None:
        self.report = DrainReport()
        self._spool = spool
        self._rule = rule
        self._is_stopped = is_stopped
        self._dice = dice
        self._until_empty = until_empty
        self._observer = observer or DrainObserver()
        self._is_strict = rule.on_refusal == "stop"
        self._machine = DrainMachine(
            rule.backoff, stops_at_refusal=self._is_strict, looks_up=rule.recover == "lookup"
        )

    def script(self) -> DrainSteps[DrainReport]:
        """Send until the outbox is empty, until stopped, or without end."""
        # First what a killed process left behind: copies of files whose fact was never added.
        yield SpoolWork(self._spool.sweep)
        yield SpoolWork(self._spool.forget_outlived)
        while not self._is_stopped():
            line: list[OutboxItem] = yield SpoolWork(self._look)
            # Only with ``stop``: otherwise refused facts are not in the line at all.
            if line and line[0].is_refused:
                return self._ended(DrainEnd.REFUSED)
            if not line and self._until_empty:
                return self._ended(DrainEnd.EMPTY)
            if not line:
                yield SpoolWork(self._spool.forget_outlived)
                yield Rest(self._rule.poll)
            while line and not line[0].is_refused and not self._is_stopped():
                # Nothing done means that the line is read again: the node may have taken a part of
                # it, or the size of a batch has changed.
                line = line[(yield from self._forward(line)) or len(line) :]
        return self._ended(DrainEnd.STOPPED)

    def _forward(self, line: list[OutboxItem]) -> DrainSteps[int]:
        """Send the oldest facts as one request; returns how many are done, or 0 to read the outbox
        again.
        """
        load = packed(line, self._machine.batch_size(self._rule.batch_items))
        try:
            answers = yield from self._answers(load)
        except BoundaryError as error:
            is_whole = self._machine.is_refused(_failure(error)) or error.code in _NO_SUCH_CALL
            # The refusal may be meant for one fact of the batch. They are sent one by one until the
            # culprit is found.
            if len(load.items) > 1 and is_whole:
                self._machine.split(len(load.items))  # it may be about one, or about batches
                return 0
            answers = [error] * len(load.items)
        except OSError as error:
            away = NodeUnavailableError(f"the node was not reached: {describe(error)}")
            answers = [away] * len(load.items)
        is_done = yield from self._settle(load.items, answers)
        return len(load.items) if is_done else 0

    def _answers(self, load: SendBatch) -> DrainSteps[Sequence[Receipt | BoundaryError]]:
        """What the node says to each of them; raises what it says to the whole."""
        if load.problem is not None:
            return [load.problem]
        # After a crash it is not known whether the last facts arrived. With ``lookup`` the node is
        # asked, instead of being sent them again.
        if self._machine.is_recovering:
            found = yield from self._look_up(load)
            if found is not None:
                return [found]
        if len(load.items) > 1:
            several: list[Receipt | BoundaryError] = yield ProducerCall(
                lambda producer: producer.append_facts(load.pairs)
            )
            return several
        for file in load.items[0].files:
            # Asked before sending: the reader of a missing file would fail in the middle of a
            # request.
            if not (yield SpoolWork(partial(self._spool.folder.is_there, file))):
                return [lost(file)]
            try:
                yield self._put(file)
            except FactInvalidError as error:
                # The node compares with the digest from when the fact was added: the file was
                # changed since.
                if error.reason != "digest_mismatch":
                    raise
                return [changed(file, self._spool.folder.place(file))]
        receipt: Receipt = yield ProducerCall(lambda producer: producer.append_fact(*load.pairs[0]))
        return [receipt]

    def _put(self, file: OutboxFile) -> ProducerCall:
        place = self._spool.folder.place(file)
        return ProducerCall(
            lambda producer: producer.put_object(file.bucket, file.key, place, digest=file.digest)
        )

    def _look_up(self, load: SendBatch) -> DrainSteps[Receipt | None]:
        """Ask the node whether it has the first fact. Not finding it does no harm: sending it again
        gives the same answer.
        """
        try:
            found: Receipt | None = yield ProducerCall(
                lambda producer: producer.lookup_fact(*load.key)
            )
        except BoundaryError as error:
            if not self._machine.is_refused(_failure(error)) and error.code not in _NO_SUCH_CALL:
                raise
            found = None
        if found is not None and load.is_what_was_found(found):
            return structs.replace(found, duplicate=True)
        self._machine.recovered()
        return None

    def _settle(
        self, items: Sequence[OutboxItem], answers: Sequence[Receipt | BoundaryError]
    ) -> DrainSteps[bool]:
        """Act upon the answers; whether the line goes on behind them."""
        pairs = list(zip(items, answers, strict=True))
        sent = [(item, said) for item, said in pairs if isinstance(said, Receipt)]
        errors = [(item, said) for item, said in pairs if isinstance(said, BoundaryError)]
        step = self._machine.answered(len(sent), [_failure(said) for _, said in errors])
        refused = [errors[number] for number in step.refused]
        if step.has_progress:
            # One commit for what was sent and what was refused: a crash between the two would send
            # refused facts again.
            yield SpoolWork(lambda: self._spool.settle([item for item, _ in sent], refused))
            self._observer.answered()
        self.report.sent += len(sent)
        self.report.duplicates += sum(said.duplicate for _, said in sent)
        self.report.refused += len(refused)
        for item, said in refused:
            self._observer.refused(item, said)
        # After the settlement: what the node has taken is forgotten before this waits.
        if step.put_off is not None:
            yield self._wait(errors[step.put_off][1])
        return step.goes_on

    def _wait(self, error: BoundaryError) -> Rest:
        self.report.failures += 1
        self._observer.failed(error)
        wait = self._machine.wait(_failure(error), self._dice())
        return Rest(wait.delay, wait.least)

    def _look(self) -> list[OutboxItem]:
        rule = self._rule
        return self._spool.first(rule.batch_items, rule.batch_bytes, with_refused=self._is_strict)

    def _ended(self, why: DrainEnd) -> DrainReport:
        self.report.ended = why
        return self.report


def _failure(error: BoundaryError) -> Failure:
    """An answer of the node, as the core reads it: rejected is what it says about the fact."""
    is_about_caller = error.reason in _ABOUT_THE_CALLER or "operation" in error.details
    kind = Kind.TRANSIENT if error.retry_after is None else Kind.THROTTLED
    if not (error.is_retryable or is_about_caller) and error.code in _ABOUT_THE_FACT:
        kind = Kind.REJECTED
    return Failure(kind, error.code, error.message, error.retry_after)


MakeScript: TypeAlias = Callable[[Callable[[], bool]], DrainSteps[DrainReport]]
"""Makes the script, given how to ask whether it is to stop."""
IsOver: TypeAlias = Callable[[], bool]
"""Whether the drain that holds the lock has left nothing to do for one that waits."""


def drain(
    spool: OutboxStore,
    make: MakeScript,
    producer: Any,
    *,
    stop: threading.Event,
    poll: float,
    waits: bool,
    is_over: IsOver,
) -> DrainReport:
    """Run a drain in this thread once no other drain runs, unless nothing is left by then."""
    with _listening(spool) as subscription:
        lock = spool.lock()
        # The process that drains may end or be killed at any time; its lock is a file lock and goes
        # with it.
        while not lock.try_acquire():
            if not waits:
                raise lock.refusal()
            if stop.is_set():
                return DrainReport()
            if is_over():
                return DrainReport(ended=DrainEnd.EMPTY)
            subscription.wait(poll)

        def perform(effect: DrainEffect) -> Any:
            if isinstance(effect, SpoolWork):
                return effect.work()
            if isinstance(effect, ProducerCall):
                return effect.call(producer)
            return _rest(subscription, effect, stop, poll)

        # One drain at a time, over all processes: two would send facts out of order.
        try:
            return drive(make(stop.is_set), perform)
        finally:
            lock.release()
            # After the release: a process that is woken must find the lock free.
            spool.notify()  # another drain may be waiting for the lock


def drive(script: DrainSteps[DrainReport], perform: Callable[[DrainEffect], Any]) -> DrainReport:
    """Perform the effects that a drain asks for, one after the other, until it ends."""
    try:
        effect = next(script)
        while True:
            try:
                result = perform(effect)
            except Exception as error:  # what it means is for the script to say
                effect = script.throw(error)
            else:
                effect = script.send(result)
    except StopIteration as end:
        report: DrainReport = end.value
        return report


def _rest(subscription: FifoSubscription, rest: Rest, stop: Stop, poll: float) -> None:
    began = time.monotonic()
    until = began + rest.seconds
    while not stop.is_set() and (left := until - time.monotonic()) > 0:
        # An event cannot wake it: the stop is looked at now and then.
        if subscription.wait(min(left, poll)):
            # New facts do not shorten the wait for a node that asked for a pause.
            until = min(until, max(began + rest.least, time.monotonic()))


async def drain_async(
    spool: OutboxStore,
    make: MakeScript,
    producer: Any,
    *,
    stop: asyncio.Event,
    poll: float,
    waits: bool,
    is_over: IsOver,
) -> DrainReport:
    """Run a drain in this task; work on the spool is done in threads."""
    with _listening(spool) as subscription, _hearing(subscription) as notified:
        lock = spool.lock()
        while not lock.try_acquire():
            if not waits:
                raise lock.refusal()
            if stop.is_set():
                return DrainReport()
            if await asyncio.to_thread(is_over):
                return DrainReport(ended=DrainEnd.EMPTY)
            await _first_of(notified, stop, poll)
            notified.clear()

        async def perform(effect: DrainEffect) -> Any:
            if isinstance(effect, SpoolWork):
                return await asyncio.to_thread(effect.work)
            if isinstance(effect, ProducerCall):
                return await effect.call(producer)
            return await _rest_async(notified, effect, stop)

        try:
            return await _drive_async(make(stop.is_set), perform)
        finally:
            lock.release()
            # Another process may wait for the lock, and is woken this way.
            spool.notify()


async def _drive_async(
    script: DrainSteps[DrainReport], perform: Callable[[DrainEffect], Any]
) -> DrainReport:
    try:
        effect = next(script)
        while True:
            try:
                result = await perform(effect)
            except Exception as error:  # what it means is for the script to say
                effect = script.throw(error)
            else:
                effect = script.send(result)
    except StopIteration as end:
        report: DrainReport = end.value
        return report


async def _rest_async(notified: asyncio.Event, rest: Rest, stop: asyncio.Event) -> None:
    now = asyncio.get_running_loop().time
    began = now()
    until = began + rest.seconds
    while not stop.is_set() and (left := until - now()) > 0:
        await _first_of(notified, stop, left)
        if notified.is_set():
            notified.clear()
            until = min(until, max(began + rest.least, now()))


async def _first_of(notified: asyncio.Event, stop: asyncio.Event, seconds: float) -> None:
    waits = [asyncio.ensure_future(event.wait()) for event in (notified, stop)]
    try:
        await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        # Cancelled, because a task left behind would take the next notification.
        for each in waits:
            each.cancel()


@contextmanager
def _listening(spool: OutboxStore) -> Iterator[FifoSubscription]:
    subscription = spool.subscribe()
    try:
        yield subscription
    finally:
        subscription.close()


@contextmanager
def _hearing(subscription: FifoSubscription) -> Iterator[asyncio.Event]:
    """The subscription as an event of the running loop."""
    notified, loop = asyncio.Event(), asyncio.get_running_loop()

    def heard() -> None:
        if subscription.wait(0):
            notified.set()

    loop.add_reader(subscription.fileno(), heard)
    try:
        yield notified
    finally:
        loop.remove_reader(subscription.fileno())
