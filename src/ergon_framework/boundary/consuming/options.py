"""What both consumers are told when they are made."""

from __future__ import annotations

import logging
import os
import random
import secrets
import socket
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal, Protocol

from ergon_framework.boundary.arguments import (
    A_BACKOFF,
    COUNT,
    COUNT_OR_NO_END,
    FLAG,
    FUNCTION,
    NAME,
    SECONDS,
    SECONDS_OR_ZERO,
    TEXT,
    one_of,
)
from ergon_framework.boundary.consuming.calls import Desk
from ergon_framework.boundary.consuming.conversations import ConsumeReport, Run
from ergon_framework.boundary.conversing.script import RETRIED, Dice
from ergon_framework.boundary.model import Delivery, Loss
from ergon_framework.boundary.producing.options import (
    REACHING,
    TIMEOUT,
    TlsOptions,
    bounded,
    check_options,
)
from ergon_framework.core.failure import Kind
from ergon_framework.core.retry import Backoff, RetryRule
from ergon_framework.engine.atfork import renew_after_fork

logger = logging.getLogger(__name__)

NO_END = 1 << 60
PATIENCE = RetryRule(
    attempts=NO_END,
    backoff=Backoff(base=0.1, factor=2.0, cap=5.0, low=0.5, high=1.0),
    on=RETRIED,
    max_retry_after=30.0,
)
"""How a run waits for a node that is away: until it is back or somebody says stop."""

BACKOFF = Backoff(base=0.5, factor=2.0, cap=30.0)
"""Between two attempts at one fact."""


class Stop(Protocol):
    """A flag such as ``threading.Event`` or ``asyncio.Event``."""

    def is_set(self) -> bool:
        """Whether it is time to go."""


class ConsumerOptions(TlsOptions, total=False):
    """``Consumer(node, name, ...)``."""

    log: str | None
    """Create the consumer on this log, when there is none."""
    start: Literal["start", "end"]
    """Where one that is created begins."""
    to_zone: str | None
    """The view of one that is created."""
    required: bool
    """Whether retention waits for one that is created."""
    holder: str | None
    """Under which name the lease is taken; by default one that no other process has."""
    lease: float
    """Seconds after which another process may go on when this one has died."""
    limit: int
    """Facts in one page."""
    max_attempts: float
    """At one fact, before it is set aside; a whole number, or ``math.inf``."""
    backoff: Backoff
    """Between them."""
    retry: RetryRule
    """For calls; by default the producer's schedule, and in a run patience without end."""
    timeout: float
    """Seconds for a whole call with all its attempts, beyond what a fetch waits for facts."""
    expected_zone: str | None
    connections: int
    dice: Dice
    on_gap: Callable[[Loss], Any] | None
    """Is told of facts that were given up on purpose; by default they are logged."""


CONSUMER = REACHING | {
    "log": TEXT.or_none,
    "start": one_of("start", "end"),
    "to_zone": TEXT.or_none,
    "required": FLAG,
    "holder": TEXT.or_none,
    "lease": SECONDS,
    "limit": COUNT,
    "max_attempts": COUNT_OR_NO_END,
    "backoff": A_BACKOFF,
    "on_gap": FUNCTION.or_none,
}
"""What each of the options has to be."""


def warn_of_gap(loss: Loss) -> None:
    """Log a loss."""
    first, last, where = loss.first_offset, loss.last_offset, ""
    if loss.source_first_offset is not None and loss.source_last_offset is not None:
        first, last, where = loss.source_first_offset, loss.source_last_offset, " of the peer"
    logger.warning(
        "facts %d to %d%s were given up before they were read: %s", first, last, where, loss.reason
    )


class Reading:
    """The half of a consumer that does not wait."""

    def __init__(self, name: str, options: ConsumerOptions) -> None:
        check_options(type(self).__name__, options, CONSUMER)
        NAME.check("consumer_name", name)
        self.name = name
        self.limit = options.get("limit", 100)
        self.rule = bounded(options.get("retry"), options.get("timeout"))
        self.dice = options.get("dice", random.random)
        self.connecting: dict[str, Any] = {
            name: options[name]
            for name in ("expected_zone", "timeout", "connections")
            if name in options
        }
        self._options = options
        self.desk = Desk(
            name=name,
            holder=_holder(options.get("holder")),
            lease=options.get("lease", 30.0),
            rule=self.rule,
            dice=self.dice,
            log=options.get("log"),
            start=options.get("start", "start"),
            to_zone=options.get("to_zone"),
            required=options.get("required", True),
            timeout=options.get("timeout", TIMEOUT),
        )
        self._is_holder = False
        renew_after_fork(self)

    def renew(self) -> None:
        """In a process that was just forked: the lease is the parent's, and stays so."""
        self._is_holder = False

    @property
    def holder(self) -> str | None:
        """Under which name it holds its lease."""
        return self.desk.holder

    @property
    def max_attempts(self) -> int:
        """At one fact, before it is set aside."""
        return int(min(self._options.get("max_attempts", 5), NO_END))

    def new_run(
        self,
        handler: Callable[[Delivery], Any],
        is_stopped: Callable[[], bool],
        *,
        until_empty: bool,
        wait: float,
    ) -> Run:
        """One run, ready to be driven.

        What cannot be called would look like a handler that fails, and have facts set aside.
        """
        FUNCTION.check("handler", handler)
        SECONDS_OR_ZERO.check("wait", wait)
        patience = self.rule if until_empty else PATIENCE
        desk = replace(self.desk, rule=self._options.get("retry", patience))
        return Run(
            desk=desk,
            handler=handler,
            on_gap=self._options.get("on_gap") or warn_of_gap,
            is_stopped=is_stopped,
            item_rule=RetryRule(
                attempts=self.max_attempts,
                backoff=self._options.get("backoff", BACKOFF),
                on=frozenset(Kind) - {Kind.REJECTED},
            ),
            dice=self.dice,
            until_empty=until_empty,
            wait=0.0 if until_empty else min(wait, desk.lease / 3),
            limit=self.limit,
        )


def _holder(given: str | None) -> str:
    """A name for this reader alone: two that are called the same must not both run."""
    host = "".join(c for c in socket.gethostname() if (c.isascii() and c.isalnum()) or c in "-.")
    name = given or f"{host[:64] or 'host'}:{os.getpid()}"
    return f"{name}:{secrets.token_hex(6)}"


__all__ = ["ConsumeReport", "ConsumerOptions", "Reading", "Stop"]
