"""The calls a consumer makes, under its name and as its holder."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from ergon_framework.boundary.conversing.script import (
    Dice,
    Now,
    Script,
    Send,
    called,
    repeated,
    understood,
)
from ergon_framework.boundary.conversing.transport import ADMIN, BOUNDARY
from ergon_framework.boundary.model import Batch, Delivery
from ergon_framework.core.call import Call
from ergon_framework.core.retry import RetryRule
from ergon_framework.engine.atfork import renew_after_fork
from ergon_framework.errors import BoundaryError, BoundaryNotFoundError, ConsumerHeldError

MAX_BYTES = 4 << 20
"""Of one page."""


@dataclass(slots=True)
class Standing:
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
class Desk:
    """One consumer as one holder talks about it."""

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
    standing: Standing = field(default_factory=Standing)
    page: bytes = field(default=b"", repr=False)
    """The last page, as it came."""

    def __post_init__(self) -> None:
        renew_after_fork(self)

    def renew(self) -> None:
        """In a process that was just forked: the lease stays the parent's, and so does its run."""
        if self.holder is not None:
            self.holder = f"{self.holder[:200]}+{os.getpid()}"
        self.standing.lost = ConsumerHeldError(
            f"the process that holds the consumer {self.name!r} was forked, and this is the child",
            remedy="let a child that a handler forks end with os._exit, or start a program",
        )

    def fetch(self, limit: int, wait: float) -> Script[Batch]:
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
            rule = replace(rule, budget=rule.budget + wait)
        call = Call(rule, (yield Now()))
        try:
            answer: bytes = yield from repeated(send, call, self.dice)
        except BoundaryNotFoundError:
            if self.log is None:
                raise
            yield from self.create()
            answer = yield from repeated(send, call, self.dice)
        self.standing.lost = None
        self.standing.renewed_at = yield Now()
        self.page = answer
        return understood(answer, Batch)

    def anew(self, delivery: Delivery) -> Delivery:
        """A fact of the last page once more as it came: its handler may have changed its content
        before it failed.
        """
        facts = understood(self.page, Batch).facts
        return next((each for each in facts if each.offset == delivery.offset), delivery)

    def create(self) -> Script[None]:
        """Create the consumer; one that is there already and fits is fine."""
        fields = {
            "consumer_name": self.name,
            "log": self.log,
            "from": self.start,
            "to_zone": self.to_zone,
            "required": self.required,
        }
        yield from self._call(ADMIN + "CreateConsumer", _encoded(fields))

    def confirm(self, offset: int) -> Script[int]:
        """Everything at or below is handled; the cursor then."""
        self.standing.check()
        answer = yield from self._call(BOUNDARY + "ConfirmReceipt", self._body({"offset": offset}))
        self.standing.renewed_at = yield Now()
        return understood(answer, _Cursor).cursor

    def renew_lease(self) -> Script[None]:
        """Make sure that the name is still ours."""
        yield from self.confirm(0)

    def renewal(self) -> bytes:
        """A confirmation that confirms nothing: no fact has the offset 0.

        It must not be the cursor. Facts released from quarantine lie below that, and would be
        confirmed with it although nobody has handled them.
        """
        return self._body({"offset": 0})

    def set_aside(self, offset: int, reason: str, message: str, attempts: int) -> Script[None]:
        """Put a fact into quarantine and pass it."""
        self.standing.check()
        fields = {"offset": offset, "reason": reason, "message": message, "attempts": attempts}
        send = Send(ADMIN + "QuarantineFact", self._body(fields), self.timeout)
        call = Call(self.rule, (yield Now()))
        try:
            yield from repeated(send, call, self.dice)
        except BoundaryError as error:
            # An earlier attempt may have passed the fact, and only its answer was lost.
            if not (call.attempts and error.reason == "not_next"):
                raise
        self.standing.renewed_at = yield Now()

    def seek(self, offset: int, reason: str) -> Script[None]:
        """Set the cursor, also backwards."""
        fields = {"consumer_name": self.name, "offset": offset, "reason": reason}
        yield from self._call(ADMIN + "SeekConsumer", _encoded(fields))

    def release(self) -> Script[None]:
        """Let somebody else have the name, now rather than when the lease ends."""
        yield Send(ADMIN + "ReleaseLease", self._body({}), min(self.timeout, 5.0))

    def _call(self, method: str, body: bytes) -> Script[bytes]:
        return called(method, body, self.rule, self.dice, timeout=self.timeout)

    def _body(self, fields: dict[str, Any]) -> bytes:
        return _encoded({"consumer_name": self.name, **fields, "holder": self.holder})


def _encoded(fields: dict[str, Any]) -> bytes:
    return msgspec.json.encode({k: v for k, v in fields.items() if v is not None})
