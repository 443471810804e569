"""The producing half of the connector: publishes transactions as the producer contract requires."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
from typing import Any

from ergon_framework.boundary.client.effects import ClientEffects
from ergon_framework.boundary.client.options import ProducerBase
from ergon_framework.boundary.client.outbox import Outbox
from ergon_framework.boundary.client.producer import Producer
from ergon_framework.boundary.client.publish_effects import appending_many, publishing
from ergon_framework.connector.boundary.link import NodeLink
from ergon_framework.connector.boundary.transactions import Message, message_of
from ergon_framework.engine.clocks import SYSTEM_CLOCK
from ergon_framework.errors import BoundaryError, ConfigurationError
from ergon_framework.ports.transaction import Transaction

logger = logging.getLogger("ergon_framework.connector.boundary.writing")

POLL_INTERVAL = 0.02
"""Seconds between two reads of an outbox that is about to be closed."""
MAX_REMEMBERED = 10_000
"""How many dispatches with unknown outcome are remembered with their trace."""


class FactPublisher:
    """Publishes facts to a node, or to an outbox that is sent to the node later."""

    def __init__(
        self,
        link: NodeLink,
        producer: ProducerBase,
        zones: tuple[str | None, str | None],
        outbox: str | Path | None,
        drain: float,
    ) -> None:
        self._link = link
        self._producer = producer
        self._zones = zones
        self._path = outbox
        self._drain = drain
        self._outbox: Outbox | None = None
        self._opening = threading.Lock()
        self._traces: dict[str, dict[str, str]] = {}

    @property
    def spools(self) -> bool:
        """Whether facts are written to disk here first."""
        return self._path is not None

    def messages(self, transactions: Iterable[Transaction]) -> list[Message]:
        """The messages to publish. If one cannot be published, none is."""
        if self._zones[0] is None:
            raise ConfigurationError(
                "this BoundaryConnector has no from_zone, so it cannot produce",
                remedy='give it the zone that speaks: from_zone="plant-a"',
            )
        is_strict = self._producer.config.strict_ids
        return [
            message_of(each, self._zones, self._traces.get(_id_of(each)), strict_ids=is_strict)
            for each in transactions
        ]

    def publish(self, messages: list[Message]) -> ClientEffects[None]:
        """Publish all messages in order. Those without files are committed some
        hundreds at a time.
        """
        # Another attempt must have the same envelopes, and with them the same trace.
        self._remember(messages)
        for has_files, group in groupby(messages, key=lambda each: bool(each.files)):
            if has_files:
                for message in group:
                    yield from self._publish(message)
            else:
                yield from self._append(list(group))
        for message in messages:
            self._traces.pop(message.id, None)

    def _publish(self, message: Message) -> ClientEffects[None]:
        try:
            yield from publishing(
                message.fact, message.envelope, message.files, self._producer.config, False
            )
        except BoundaryError as error:
            raise _named(message, error) from None

    def _append(self, messages: list[Message]) -> ClientEffects[None]:
        items = [(each.envelope, each.fact) for each in messages]
        outcomes = yield from appending_many(items, self._producer.config)
        for message, outcome in zip(messages, outcomes, strict=True):
            if isinstance(outcome, BoundaryError):
                raise _named(message, outcome)

    def _remember(self, messages: list[Message]) -> None:
        for message in messages:
            labels = message.envelope.get("labels") or {}
            trace = {k: labels[k] for k in ("traceparent", "tracestate") if k in labels}
            # A message that does not fit gets another trace when it is dispatched again, which does
            # not make it another fact.
            if trace and len(self._traces) < MAX_REMEMBERED:
                self._traces[message.id] = trace

    # ---- through the outbox ----

    def spool(self, messages: list[Message]) -> None:
        """Write facts to the outbox. They are on disk when this returns; a thread sends them to the
        node.
        """
        outbox = self.outbox()
        for message in messages:
            try:
                outbox.add(message.envelope, message.fact, message.files)
            except BoundaryError as error:
                raise _named(message, error) from None

    def resume(self) -> None:
        """Continue sending what an earlier process has left in the outbox."""
        if self._path is not None and self._outbox is None and Path(self._path).exists():
            self.outbox()

    def outbox(self) -> Outbox:
        """The outbox, opened, with its sending thread running."""
        with self._opening:
            if self._outbox is None:
                if self._path is None:
                    raise ConfigurationError("this BoundaryConnector has no outbox")
                config = self._producer.config
                producer = Producer(self._link.threads(), retry=config.rule)
                self._outbox = Outbox(self._path, producer, strict_ids=config.strict_ids)
                self._outbox.start()
            return self._outbox

    def close(self) -> None:
        """Stop sending after a while. What is in the outbox then stays there."""
        with self._opening:
            outbox, self._outbox = self._outbox, None
        if outbox is None:
            return
        left = self._drained(outbox)
        outbox.close()
        if left:
            logger.warning(
                "%d facts are left in the outbox %s, for the next time", left, self._path
            )

    def _drained(self, outbox: Outbox) -> int:
        """Wait until the outbox is empty, while the node answers. Returns how many
        facts are left.
        """
        until, never = SYSTEM_CLOCK.now() + self._drain, threading.Event()
        while left := outbox.pending():
            if outbox.last_error is not None or SYSTEM_CLOCK.now() >= until:
                break
            never.wait(POLL_INTERVAL)
        return left


def _id_of(transaction: Any) -> str:
    return str(getattr(transaction, "transaction_id", ""))


def _named(message: Message, error: BoundaryError) -> BoundaryError:
    """The error with the id of the transaction in its text and details."""
    error.message = f"transaction {message.id!r}: {error.message}"
    error.details.setdefault("transaction_id", message.id)
    return error
