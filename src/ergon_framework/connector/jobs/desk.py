"""How the connector talks to its store: it claims jobs, keeps them, and tells how they ended."""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from ergon_framework.connector.base import Delivered
from ergon_framework.connector.jobs.faults import JobsConnectorError, LeaseLostError
from ergon_framework.connector.jobs.holding import Holding
from ergon_framework.core.failure import Failure, Kind
from ergon_framework.core.job import Failed, Seen
from ergon_framework.engine.clocks import SYSTEM_CLOCK
from ergon_framework.errors import StoreError, describe
from ergon_framework.jobs.claims import Claim, Judgement
from ergon_framework.jobs.client import JobClient
from ergon_framework.jobs.settings import JobsSettings
from ergon_framework.jobs.stores.opening import open_store
from ergon_framework.jobs.worker import NOTICE_OF
from ergon_framework.ports.jobstore import Ask, Bell, FullJobStore, Settlement, Topic
from ergon_framework.ports.notice import Notice
from ergon_framework.storage.failpoints import declare, failpoint
from ergon_framework.telemetry.notices import FanOut, has_listeners

logger = logging.getLogger(__name__)

D = TypeVar("D", bound=Delivered)

declare("connector.jobs.charging.before", "connector.jobs.charging.after")
declare("connector.jobs.settling.before", "connector.jobs.settling.after")


class Desk:
    """One queue of one store, as one process works on it. Any thread may call."""

    def __init__(
        self, store: str | FullJobStore, settings: JobsSettings, queue: str, executor: str
    ) -> None:
        self.queue = queue
        self._given = store
        self._settings = settings
        self._executor = executor
        self._worker = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
        self.judgement = Judgement(settings, self._worker)
        self._sink = FanOut(None, (), ())
        self._lock = threading.Lock()
        self._client: JobClient | None = None
        self._holding: Holding | None = None
        self._bell: Bell | None = None
        self._is_closed = False
        self._stop_waiting = threading.Event()

    # ---- both ends of its life ----

    def client(self) -> JobClient:
        """A client of the store, which is opened now if it was not before."""
        with self._lock:
            if self._is_closed:
                raise JobsConnectorError(
                    "this JobsConnector is closed",
                    remedy="make a new one; close it after the last use",
                )
            if self._client is None:
                store = open_store(self._given) if isinstance(self._given, str) else self._given
                self._client = JobClient(store=store, settings=self._settings)
            return self._client

    def close(self) -> None:
        """Give back what is in hand and let go. Closing twice is fine."""
        with self._lock:
            is_first, self._is_closed = not self._is_closed, True
            client, holding, bell = self._client, self._holding, self._bell
        if not is_first or client is None:
            return
        if holding is not None:
            holding.stop()
            with suppress(StoreError):  # then their leases end
                holding.give_back(holding.all())
        if bell is not None:
            bell.ring()
            bell.close()
        if isinstance(self._given, str):
            client.close()

    # ---- claiming ----

    def claim(self, most: int, wait: float, gave_up: threading.Event) -> list[Claim]:
        """Up to so many jobs, kept from now on; none after ``wait`` seconds without any.

        Whoever gives up sets the event, and then calls :meth:`wake`.
        """
        try:
            return self._claim(most, wait, gave_up)
        finally:
            # Only now: a stop may be asked just before the fetch that the engine has decided on.
            self._stop_waiting.clear()

    def _claim(self, most: int, wait: float, gave_up: threading.Event) -> list[Claim]:
        store, holding = self._consuming()
        until = SYSTEM_CLOCK.now() + wait
        bell = self._listening(store) if wait else None
        while True:
            claimed = store.exchange([], self._ask(most))[1]
            left = until - SYSTEM_CLOCK.now()
            is_over = left <= 0 or gave_up.is_set() or self._stop_waiting.is_set()
            if claimed.jobs or bell is None or is_over:
                return self._charged(store, holding, [Claim(job) for job in claimed.jobs])
            if claimed.next_at is not None:
                left = min(left, max(0.0, claimed.next_at - store.now()))
            bell.wait(left)
            self.client()  # raises when it was closed meanwhile

    def _charged(self, store: FullJobStore, holding: Holding, claims: list[Claim]) -> list[Claim]:
        """The claims as they are handed out: the store knows that their attempts begin.

        Otherwise a job that is the death of its process would have begun for nothing each time.
        An outcome sets the count anew, so one that is given back keeps its attempts.
        """
        if not claims:
            return []
        for claim in claims:
            claim.is_written = True
        failpoint("connector.jobs.charging.before")
        kept = store.renew([claim.hold() for claim in claims], self._settings.claimed_for)
        failpoint("connector.jobs.charging.after")
        charged = [claim for claim, is_kept in zip(claims, kept, strict=True) if is_kept]
        holding.add(charged)
        return charged

    def hand_out(self, claims: list[Claim], make: Callable[[Claim], D]) -> list[D]:
        """What ``make`` makes of each. A job of which it can make nothing is a dead letter.

        One whose delivery is gone without having been settled goes back to its queue.
        """
        _, holding = self._consuming()
        handed: list[D] = []
        for claim in claims:
            try:
                delivery = make(claim)
            except Exception as error:  # its arguments are nested too deeply, for one
                self._refuse(claim, error)
            else:
                holding.forsaken.watch(delivery, claim)
                handed.append(delivery)
        return handed

    def _refuse(self, claim: Claim, error: Exception) -> None:
        told = f"its payload cannot be read: {describe(error)}"
        logger.error("job %s: %s", claim.job.id, told)
        with suppress(StoreError, LeaseLostError):  # then its lease ends, and it comes again
            self.settle(claim, Failed(Failure(Kind.REJECTED, "unreadable_payload", told)), 0.0)

    def wake(self) -> None:
        """Let a fetch that waits for work look round."""
        if self._bell is not None:
            self._bell.ring()

    def stop_waiting(self) -> None:
        """Let the fetch under way, or the next one, wait no longer."""
        self._stop_waiting.set()
        self.wake()

    def _consuming(self) -> tuple[FullJobStore, Holding]:
        store = self.client().store
        with self._lock:
            if self._holding is None:
                self._holding = Holding(
                    store,
                    self._settings,
                    self.judgement,
                    self._worker,
                    (self.queue, self._executor),
                    self._tell,
                )
            holding = self._holding
        holding.start()
        return store, holding

    def _listening(self, store: FullJobStore) -> Bell:
        with self._lock:
            if self._bell is None:
                self._bell = store.listen(Topic.WORK)
            return self._bell

    def _ask(self, most: int) -> Ask:
        ours = frozenset({self._executor})
        return Ask(
            worker=self._worker,
            lease=self._settings.claimed_for,
            slots={self._executor: most},
            default=self._executor,
            own=ours,
            queues=(self.queue,),
            asks_more=False,
        )

    # ---- settling ----

    def settle(self, claim: Claim, seen: Seen, took: float) -> None:
        """Record how a claim ended; raises when the job is somebody else's by now."""
        store, holding = self._consuming()
        # Renewed no longer, whatever comes: should the store be away now, the lease ends by itself.
        holding.let_go(claim)
        settlement = self.judgement.settled(claim, seen, store.now(), took, b"null")
        failpoint("connector.jobs.settling.before")
        (is_applied,), _ = store.exchange([settlement], None)
        failpoint("connector.jobs.settling.after")
        if not is_applied:
            self._tell("job.late", {"job_id": settlement.id})
            raise LeaseLostError(
                f"job {settlement.id}: its lease was lost, and its outcome is somebody else's",
                remedy="raise lease if something stops the whole process for longer than that",
                details={"job_id": settlement.id},
            )
        self._tell_of(settlement)

    def _tell_of(self, settlement: Settlement) -> None:
        move = settlement.move
        about = {
            "job_id": settlement.id,
            "attempt": move.attempts,
            "failure": move.failure,
            "delay": move.delay,
            "why": move.why,
        }
        self._tell(NOTICE_OF[move.status], about)

    def _tell(self, name: str, fields: dict[str, Any]) -> None:
        """A notice to whoever listens."""
        if has_listeners() and self._client is not None:
            self._sink.emit(Notice(name, self._client.store.now(), fields))
