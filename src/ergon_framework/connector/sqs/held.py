"""Messages that SQS keeps invisible for us: renewed while they are held, lost when that fails."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ergon_framework.connector.broker.in_flight import InFlight
from ergon_framework.connector.sqs.queue import BATCH
from ergon_framework.engine.atfork import renew_after_fork
from ergon_framework.engine.clocks import SYSTEM_CLOCK
from ergon_framework.errors import describe

logger = logging.getLogger("ergon.connector")


@dataclass(slots=True, eq=False)
class HeldMessage:
    """One received message."""

    handle: str
    identity: str
    raw: Mapping[str, Any] = field(repr=False)
    size: int
    group: str | None
    received_at: float
    visible_at: float
    """When other consumers can receive it, unless it is renewed before."""
    holder: object = field(repr=False)
    """Among what it is held: in a forked child that is something else."""
    is_ours: bool = True


class HeldMessages:
    """What was received and has no outcome. Any thread may call.

    Of a FIFO queue one message of a group is handed out at a time, in the order of arrival.
    """

    def __init__(
        self,
        visibility: int,
        in_flight: InFlight,
        renew: Callable[[Sequence[tuple[str, int]]], Sequence[str | None]],
    ) -> None:
        self._visibility = visibility
        self._in_flight = in_flight
        self._renew = renew
        self._is_closed = False
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Forget what was received in a forked child, because the parent has it."""
        self._lock = threading.Lock()
        self._changed = SYSTEM_CLOCK.signal(self._lock)
        self._arrived: deque[HeldMessage] = deque()
        self._held: dict[int, HeldMessage] = {}
        self._busy: set[str] = set()
        self._thread: threading.Thread | None = None

    def __contains__(self, held: HeldMessage) -> bool:
        return held.holder is self._held

    def add(self, messages: Sequence[Mapping[str, Any]], asked_at: float) -> None:
        """Add messages that a request received which was made at an instant."""
        with self._lock:
            for raw in messages:
                held = HeldMessage(
                    raw["ReceiptHandle"],
                    raw["MessageId"],
                    raw,
                    len(raw["Body"]),
                    raw.get("Attributes", {}).get("MessageGroupId"),
                    asked_at,
                    asked_at + self._visibility,
                    self._held,
                )
                self._held[id(held)] = held
                self._arrived.append(held)
                self._in_flight.add(held.size)
            if self._thread is None and self._held:
                self._thread = SYSTEM_CLOCK.spawn("ergon-sqs-visibility", self._keep)

    @property
    def has_arrived(self) -> bool:
        """Whether a message waits here to be handed out, perhaps behind another of its group."""
        return bool(self._arrived)

    @property
    def can_take(self) -> bool:
        """Whether a message may be handed out."""
        with self._lock:
            return any(each.group not in self._busy for each in self._arrived)

    def take(self, most: int) -> list[HeldMessage]:
        """Hand out up to so many."""
        taken: list[HeldMessage] = []
        with self._lock:
            for held in list(self._arrived):
                if len(taken) == most:
                    break
                if held.group in self._busy:
                    continue
                self._arrived.remove(held)
                if held.is_ours:
                    taken.append(held)
                    if held.group is not None:
                        self._busy.add(held.group)
        return taken

    def is_ours(self, held: HeldMessage) -> bool:
        """Whether no other consumer can have received it by now."""
        return held.is_ours and SYSTEM_CLOCK.now() < held.visible_at

    def let_go(self, held: HeldMessage, *, with_group: bool = False) -> list[HeldMessage]:
        """Forget a message.

        With ``with_group``, also those behind it in its group, which are returned: they must go
        back to the queue, too, to keep their order.
        """
        with self._lock:
            behind = [
                each
                for each in self._arrived
                if with_group and each.group == held.group is not None
            ]
            for each in behind:
                self._arrived.remove(each)
            for each in (held, *behind):
                self._forget(each)
            if held.group is not None:
                self._busy.discard(held.group)
        return behind

    def close(self) -> list[HeldMessage]:
        """Stop renewing. Returns the messages that were never handed out."""
        with self._lock:
            self._is_closed = True
            left = list(self._arrived)
            for held in list(self._held.values()):
                self._forget(held)
            self._arrived.clear()
            self._changed.notify_all()
        return left

    def _forget(self, held: HeldMessage) -> None:
        held.is_ours = False
        if self._held.pop(id(held), None) is not None:
            self._in_flight.remove(held.size)

    # ---- the thread that keeps them invisible ----

    def _keep(self) -> None:
        while True:
            with self._lock:
                if self._is_closed:
                    return
                self._changed.wait(SYSTEM_CLOCK.now() + self._visibility / 6)
                due = SYSTEM_CLOCK.now() + self._visibility * 2 / 3
                found = [each for each in self._held.values() if each.visible_at <= due]
            for start in range(0, len(found), BATCH):
                self._renew_some(found[start : start + BATCH])

    def _renew_some(self, found: list[HeldMessage]) -> None:
        asked_at = SYSTEM_CLOCK.now()
        try:
            codes = self._renew([(each.handle, self._visibility) for each in found])
        except Exception as error:  # tried again in a moment, while there is time
            logger.warning("messages could not be kept invisible: %s", describe(error))
            return
        with self._lock:
            for held, code in zip(found, codes, strict=True):
                if code is None:
                    held.visible_at = max(held.visible_at, asked_at + self._visibility)
                elif held.is_ours:
                    logger.warning("a message is not ours any more (%s); it comes again", code)
                    self._forget(held)
