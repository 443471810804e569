"""The queues of a connector: their names, their arguments, and where a parked message waits.

A queue that exists is used as it is: redeclaring it with other arguments would be refused. One that
does not exist is made as a quorum queue. Its dead letters and its parked messages have queues of
their own, which are made when they are first needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

PARKING_STEPS: tuple[int, ...] = tuple(1 << power for power in range(18))
"""Seconds, up to a day and a half, for which a parking queue keeps each of its messages.

A queue has one time for all, because RabbitMQ looks only at its first message: one that waits for
an hour would hold up those behind it that wait for a second.
"""
HELD_HERE = 1.0
"""A parked message waits in this process, unsettled, if it waits for fewer seconds than this."""
_SAFE_DEAD_LETTERING = {"x-overflow": "reject-publish", "x-dead-letter-strategy": "at-least-once"}
"""Without this argument the broker drops a dead letter that its new queue could not take."""


@dataclass(frozen=True, slots=True)
class QueuePlan:
    """A queue, and the arguments it gets if it has to be made."""

    name: str
    arguments: Mapping[str, str | int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Topology:
    """The names of everything that belongs to one queue."""

    queue: str
    dead_letter_exchange: str
    dead_letter_queue: str
    delivery_limit: int
    consumer_timeout: float | None

    @property
    def dead_letter_key(self) -> str:
        """The routing key of dead letters."""
        # The default exchange routes by the name of the queue. Another one is the user's, whose
        # bindings know where the messages came from.
        return self.queue if self.dead_letter_exchange else self.dead_letter_queue

    def source(self) -> QueuePlan:
        """The queue that is read and written."""
        arguments: dict[str, str | int] = {
            "x-queue-type": "quorum",
            "x-delivery-limit": self.delivery_limit,
            "x-dead-letter-exchange": self.dead_letter_exchange,
            "x-dead-letter-routing-key": self.dead_letter_key,
            **_SAFE_DEAD_LETTERING,
        }
        if self.consumer_timeout is not None:
            arguments["x-consumer-timeout"] = int(self.consumer_timeout * 1000)
        return QueuePlan(self.queue, arguments)

    def consumed(self) -> list[QueuePlan]:
        """The queues that must exist before messages arrive, because the broker dead-letters by
        itself, too.
        """
        dead_letters = self.dead_letters()
        return [self.source(), *([dead_letters] if dead_letters else [])]

    def dead_letters(self) -> QueuePlan | None:
        """The queue of dead letters. None when an exchange of the user takes them."""
        if self.dead_letter_exchange:
            return None
        return QueuePlan(self.dead_letter_queue, {"x-queue-type": "quorum"})

    def parking(self, step: int) -> QueuePlan:
        """The queue whose messages come back to the source after ``step`` seconds."""
        arguments: dict[str, str | int] = {
            "x-queue-type": "quorum",
            "x-message-ttl": step * 1000,
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": self.queue,
            **_SAFE_DEAD_LETTERING,
        }
        return QueuePlan(f"{self.queue}.parked.{step}", arguments)


def parking_step(seconds: float) -> int | None:
    """The longest step that ends before so many seconds have passed; None: wait in the process.

    The rest is waited for when the message has come back, in shorter steps.
    """
    if seconds < HELD_HERE:
        return None
    return max(step for step in PARKING_STEPS if step <= seconds)
