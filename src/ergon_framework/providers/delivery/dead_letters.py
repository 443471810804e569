"""Dead letters of tasks: how one is written, and the relay that publishes them to a queue.

A letter is published at least once, under an id that never changes; then it is marked as published
in the store. Any number of relays may look at one store, since every worker process has one: a
lease in the store lets one of them publish at a time. A letter that is sent twice because a relay
died has the same id both times.

Several apps, and tasks with queues of their own, may share a store: a relay carries the letters of
the tasks whose queue it serves, and leaves the others to theirs.
"""

from __future__ import annotations

import random
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from ergon_framework.core.retry import Backoff
from ergon_framework.core.rfc3339 import format_rfc3339
from ergon_framework.engine.clocks import current_clock, sleep_until
from ergon_framework.errors import StoreError
from ergon_framework.ports.providerstore import (
    ALL_TENANTS,
    ClaimState,
    DeadLetter,
    LaneKey,
    LetterStatus,
    ProviderStore,
    StoredLetter,
)
from ergon_framework.providers.redaction import describe_safely, strip_secrets
from ergon_framework.providers.tasks import FinalFailure, TaskCall
from ergon_framework.providers.telemetry import emit
from ergon_framework.storage.failpoints import declare, failpoint

SCHEMA_VERSION = 1
"""The schema version of messages on the dead-letter queue."""

_ID_NAMESPACE = uuid.UUID("5f0c1f8e-9c0b-5f3e-8a51-1d6f3b1f7c52")
_MAX_TRACEPARENT = 255  # characters that the table of letters takes


def dead_letter_id(call_id: str, redrive_count: int) -> str:
    """The id of a call's dead letter: the same at every attempt to bury the call."""
    return str(uuid.uuid5(_ID_NAMESPACE, f"{call_id}\n{redrive_count}"))


def sent_id(letter_id: str, redrive_count: int) -> str:
    """Under which a call is sent again, by however many relays."""
    return str(uuid.uuid5(_ID_NAMESPACE, f"sent again\n{letter_id}\n{redrive_count}"))


def kept_payload(
    payload: dict[str, Any], largest: int, secret_names: frozenset[str]
) -> tuple[dict[str, Any] | None, bool]:
    """What a letter keeps of a payload in plain JSON, and whether secrets were left out.

    None when it is too large.
    """
    kept, has_secrets = strip_secrets(payload, secret_names)
    return (kept if len(msgspec.json.encode(kept)) <= largest else None), has_secrets


def new_letter(
    call: TaskCall,
    lane: LaneKey,
    names: LetterIdentity,
    end: FinalFailure,
    kept: tuple[dict[str, Any] | None, bool],
) -> DeadLetter:
    """The letter of a call that is given up."""
    trace = call.traceparent
    return DeadLetter(
        dead_letter_id=dead_letter_id(names.call_id, call.carried.redrive_count),
        tenant_id=lane.tenant_id,
        campaign_id=call.campaign_id,
        task_name=names.task_name,
        provider_name=lane.provider_name,
        capability=lane.capability,
        operation=call.operation,
        idempotency_key=names.idempotency_key,
        correlation_id=names.correlation_id,
        reason_code=end.reason_code,
        error_type=end.error_type,
        error_message=end.message,
        attempts=end.attempts,
        occurred_at=end.occurred_at,
        http_status=end.http_status,
        retryable=end.retryable,
        traceparent=trace if trace is not None and len(trace) <= _MAX_TRACEPARENT else None,
        redrive_count=call.carried.redrive_count,
        payload=kept[0],
        has_secrets=kept[1],
    )


class LetterIdentity(msgspec.Struct, frozen=True):
    """Under which names a call goes."""

    task_name: str
    call_id: str
    idempotency_key: str
    correlation_id: str


def letter_message(letter: DeadLetter) -> dict[str, Any]:
    """A letter as the dead-letter queue carries it: no payload, and the instant as text."""
    return {
        "dead_letter_id": letter.dead_letter_id,
        "schema_version": SCHEMA_VERSION,
        "tenant_id": letter.tenant_id,
        "campaign_id": letter.campaign_id,
        "task_name": letter.task_name,
        "provider_name": letter.provider_name,
        "capability": letter.capability,
        "operation": letter.operation,
        "idempotency_key": letter.idempotency_key,
        "correlation_id": letter.correlation_id,
        "reason_code": letter.reason_code,
        "error_type": letter.error_type,
        "error_message": letter.error_message,
        "attempts": letter.attempts,
        "occurred_at": format_rfc3339(letter.occurred_at),
        "http_status": letter.http_status,
        "retryable": letter.retryable,
        "traceparent": letter.traceparent,
        "redrive_count": letter.redrive_count,
    }


def redrive_refusal(letter: DeadLetter) -> str | None:
    """Why a letter cannot be made into a call again; None when it can."""
    if letter.payload is None:
        return "its payload was too large to be kept"
    if letter.has_secrets:
        return "its payload had secrets, which are not kept"
    return None


RELAY_BATCH = 100
MAX_FOREIGN = 10_000
"""Letters of other apps that a relay skips at most to find its own."""

POLL_INTERVAL = 2.0
"""Seconds between two polls of a store in which nothing was waiting."""

SEND_LEASE = 60.0
"""Seconds for which one relay holds a letter that it sends again."""

RELAY_LEASE = 10.0
"""Seconds for which one relay alone carries the letters of a store; renewed while it does."""

_LEASE_NAME = "relay of dead letters"
"""The key under which the lease is held. It belongs to no tenant."""

_LEASE_RETRY_DELAY = 0.25
"""Seconds after which ``drain`` asks again for a lease that another relay holds."""

RETRY_BACKOFF = Backoff(base=1.0, factor=2.0, cap=60.0, low=0.8, high=1.2)
"""Between two polls when the store or the queue fails."""

declare(
    "providers.publish.before",
    "providers.publish.after",
    "providers.redrive.before",
    "providers.redrive.after",
    "providers.relay.release",
)


class QueueSession(Protocol):
    """A queue, open for a while."""

    def publish(self, message: dict[str, Any]) -> None:
        """Publish a dead letter; returns when the queue has accepted it."""

    def knows(self, letter: DeadLetter) -> bool:
        """Whether this process knows the task of the letter."""

    def send(self, letter: DeadLetter) -> None:
        """Send its call again, counted; twice sent, it has the same id."""


Post = Callable[[], AbstractContextManager[QueueSession]]
"""Opens a queue."""


@dataclass(frozen=True, slots=True)
class RelayCounts:
    """What one pass of the relay did."""

    published: int = 0
    redriven: int = 0
    has_more: bool = False
    """Whether it looked only at letters that others have to send, and there may be more behind."""

    is_busy: bool = False
    """Whether another relay carries the letters just now."""

    left: int = 0
    """Letters that are still to be sent, because another relay has begun to send them."""

    def __bool__(self) -> bool:
        return bool(self.published or self.redriven or self.has_more)


class _Lease:
    """The lease by which one relay at a time carries the letters of a store."""

    def __init__(self, store: ProviderStore, ticks: Callable[[], float]) -> None:
        self._store = store
        self._ticks = ticks
        self._owner = str(uuid.uuid4())
        self._renew_at = self._ends_at = 0.0

    def take(self) -> bool:
        """Acquire or renew the lease; whether it is ours."""
        # Before the store is asked: the lease counts from there, so this relay stops believing in
        # it first.
        asked_at = self._ticks()
        claim = self._store.claim(
            ALL_TENANTS, _LEASE_NAME, _LEASE_NAME, self._owner, RELAY_LEASE, RELAY_LEASE
        )
        self._renew_at, self._ends_at = asked_at + RELAY_LEASE / 2, claim.lease_expires_at
        return claim.state is ClaimState.MINE

    def holds(self) -> bool:
        """Whether the lease is still ours without a gap; renewed when half of it is over."""
        if self._ticks() < self._renew_at:
            return True
        # By both clocks: one that was set, or a machine that slept, must not make a lost lease look
        # held.
        is_over = (
            self._ticks() >= self._renew_at + RELAY_LEASE / 2 or self._store.now() >= self._ends_at
        )
        # After its end another relay may have held the lease, and carried the same letters.
        return not is_over and self.take()

    def release(self) -> None:
        """Release the lease. If the store does not answer, it ends by itself a little later."""
        try:
            failpoint("providers.relay.release")
            self._store.finish(
                ALL_TENANTS, _LEASE_NAME, self._owner, None, None, may_run_again=True
            )
        except (OSError, StoreError):
            pass


class DeadLetterRelay:
    """Carries the letters of one store to one queue. It belongs to one thread."""

    def __init__(
        self,
        store: ProviderStore,
        post: Post,
        *,
        tasks: Callable[[], Collection[str]] | None = None,
        batch: int = RELAY_BATCH,
        ticks: Callable[[], float] = time.monotonic,
    ) -> None:
        """``tasks`` names the tasks whose letters it carries, at each poll; None: all tasks."""
        self._store = store
        self._tasks = tasks
        self._lease = _Lease(store, ticks)
        self._post = post
        self._batch = batch
        self._foreign = 0
        """Letters at the head that only a relay of another app can send."""
        self._refused = 0
        """Letters at the head that the queue does not take."""
        self._claimed = 0
        """Letters of the last look that another relay has begun to send."""
        self._owner = str(uuid.uuid4())

    def pump(self) -> RelayCounts:
        """Carry what waits now. Raises what the store or the queue raises; the rest waits on.

        A letter that the queue refuses is raised after those behind it were published.
        """
        done, refusal = self._look()
        if refusal is not None:
            raise refusal
        return done

    def drain(self) -> RelayCounts:
        """Carry until nothing waits that this queue can take; wait for a relay that is at it."""
        published = redriven = 0
        first: Exception | None = None
        while True:
            done, refusal = self._look()
            published += done.published
            redriven += done.redriven
            first = first or refusal
            if done.is_busy:
                # Not a failure: the other relay carries the same letters, and the caller wants to
                # hear when they are gone.
                clock = current_clock()
                sleep_until(clock, clock.now() + _LEASE_RETRY_DELAY)
            elif not done:
                break
        if first is not None:
            raise first
        return RelayCounts(published, redriven, left=self._claimed)

    def _look(self) -> tuple[RelayCounts, Exception | None]:
        """Carry what waits. Asks without the lease first: most of the time nothing waits."""
        self._claimed = 0
        if not any(self._waiting()[:2]):
            return RelayCounts(), None
        if not self._lease.take():
            return RelayCounts(is_busy=True), None
        try:
            return self._carry()
        finally:
            self._lease.release()

    def _waiting(self) -> tuple[list[StoredLetter], list[StoredLetter], int]:
        names = None if self._tasks is None else sorted(self._tasks())
        # Letters that only another app can send stay at the head for ever: without skipping them,
        # this relay would never see its own behind them.
        limit = self._batch + min(self._foreign, MAX_FOREIGN)
        due = self._store.due_letters
        pending = due(LetterStatus.PENDING, self._batch + self._refused, task_names=names)
        return pending, due(LetterStatus.REDRIVE, limit, task_names=names), limit

    def _carry(self) -> tuple[RelayCounts, Exception | None]:
        pending, redrive, limit = self._waiting()
        if not pending and not redrive:
            return RelayCounts(), None
        refusals: list[Exception] = []
        with self._post() as session:
            published = [self._try(self._publish, session, each, refusals) for each in pending]
            self._refused = min(len(refusals), MAX_FOREIGN)
            sendable = self._sendable(redrive)
            sent = [self._try(self._redrive, session, each, refusals) for each in sendable]
        known, self._foreign = self._foreign, len(sent) - sum(sent)
        # Looked at again only while the number of foreign letters grows: else two relays would poll
        # without a pause.
        has_more = len(redrive) == limit and known < self._foreign < MAX_FOREIGN
        done = RelayCounts(sum(published), sum(sent), has_more)
        return done, refusals[0] if refusals else None

    def _try(
        self,
        carry: Callable[[QueueSession, StoredLetter], bool],
        session: QueueSession,
        stored: StoredLetter,
        refusals: list[Exception],
    ) -> bool:
        """Carry one letter. A letter that the queue refuses must not hold up those behind it."""
        try:
            # A process that was stopped for a while may have lost the lease to another one.
            return self._lease.holds() and carry(session, stored)
        except (OSError, StoreError):  # the queue or the store is away: the next letter would fail
            raise
        except Exception as error:
            refusals.append(error)
            return False

    def _publish(self, session: QueueSession, stored: StoredLetter) -> bool:
        failpoint("providers.publish.before")
        session.publish(letter_message(stored.letter))
        # If the process dies here, the letter is published again, under the same id.
        failpoint("providers.publish.after")
        return self._move(stored, LetterStatus.PUBLISHED, LetterStatus.PENDING)

    def _redrive(self, session: QueueSession, stored: StoredLetter) -> bool:
        failpoint("providers.redrive.before")
        if not session.knows(stored.letter):
            return False
        if not self._is_mine(stored.letter):
            self._claimed += 1
            return False
        session.send(stored.letter)
        failpoint("providers.redrive.after")
        if stored.published_at is None:  # redriven before it was ever published
            session.publish(letter_message(stored.letter))
        return self._move(stored, LetterStatus.REDRIVEN, LetterStatus.REDRIVE)

    def _is_mine(self, letter: DeadLetter) -> bool:
        """Whether no other relay is sending it, or was until a moment ago."""
        name = f"redrive {letter.redrive_count} of {letter.dead_letter_id}"
        # A lease of its own for each letter: the relay's own lease may have ended while the queue
        # was slow.
        claim = self._store.claim(letter.tenant_id, name, name, self._owner, SEND_LEASE, SEND_LEASE)
        return claim.state is ClaimState.MINE

    def _sendable(self, letters: list[StoredLetter]) -> Iterator[StoredLetter]:
        for stored in letters:
            if redrive_refusal(stored.letter) is None:
                yield stored
            else:  # it can never be sent: back to published, or it would be found at each poll
                self._move(stored, LetterStatus.PUBLISHED, LetterStatus.REDRIVE)

    def _move(self, stored: StoredLetter, status: LetterStatus, when: LetterStatus) -> bool:
        return self._store.move_letter(stored.letter.dead_letter_id, status, when=[when])


class RelayThread:
    """Polls the relays of this process, on a thread of its own."""

    def __init__(
        self,
        relays: Callable[[], Iterable[DeadLetterRelay]],
        *,
        idle: float = POLL_INTERVAL,
        dice: Callable[[], float] = random.random,
    ) -> None:
        """``relays`` is called at every poll, on the thread: it may be slow, and may fail."""
        self._relays = relays
        self._idle = idle
        self._dice = dice
        self._wakeup = threading.Event()
        self._is_stopped = False
        self._failures = 0
        self._thread = threading.Thread(target=self._run, name="ergon-relay", daemon=True)

    def start(self) -> None:
        """Start the relay thread."""
        self._thread.start()

    def wake(self) -> None:
        """Poll at once: there is a letter to carry."""
        self._wakeup.set()

    def stop(self, timeout: float = 5.0) -> None:
        """Poll once more, and end. Letters that were not carried wait in their store."""
        # Before the wake-up: the thread looks at it after one more round.
        self._is_stopped = True
        self._wakeup.set()
        self._thread.join(timeout)

    def _run(self) -> None:
        while True:
            # Cleared before the poll: a letter that comes during it wakes the thread at once.
            self._wakeup.clear()
            wait = self.poll()
            if self._is_stopped:
                return
            if wait > 0.0:
                self._wakeup.wait(wait)

    def poll(self) -> float:
        """Pump every relay once; the seconds until the next poll."""
        moved, failure = False, None
        try:
            for relay in self._relays():
                try:
                    moved = bool(relay.pump()) or moved
                except Exception as error:  # the next one may have another store, or another queue
                    failure = error
        except Exception as error:
            failure = error
        if failure is None:
            self._failures = 0
            return 0.0 if moved else self._idle
        self._failures += 1
        emit("relay.failed", error=describe_safely(failure), failures=self._failures)
        return RETRY_BACKOFF.delay(self._failures - 1, self._dice())
