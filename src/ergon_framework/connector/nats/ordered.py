"""A stream read in order, from a place on, without acknowledgements: to build something up from it.

The consumer at the server is made anew whenever something is missing: after a connection was lost,
or when the server has dropped it. It then begins behind the last message that was handed out.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

from ergon_framework.connector.nats.jetstream import JetStream
from ergon_framework.storage.nats.pull import NO_MESSAGES, place_of

if TYPE_CHECKING:
    from nats.aio.msg import Msg

_INACTIVE = 300 * 1_000_000_000
"""Nanoseconds without a pull after which the server drops the consumer."""


class OrderedReader:
    """Hands out the messages of a stream in order, each once. One thread at a time."""

    def __init__(self, stream: str, filter_subject: str | None, start: int) -> None:
        self._stream = stream
        self._filter = filter_subject
        self._next = start
        """The first sequence of the stream that was not handed out."""
        self._consumer = ""
        self._session: object = None
        self._place = 0

    def read(
        self, jetstream: JetStream, session: object, most: int, wait: float, room: int
    ) -> list[Msg]:
        """The next messages, as they are there or as the first of them comes."""
        if session is not self._session or not self._consumer:
            self._begin(jetstream, session)
        pulled = jetstream.pull(self._stream, self._consumer, most, wait, room)
        if pulled.status and pulled.status not in NO_MESSAGES:
            self._consumer = ""  # it is gone: the next read makes another one
        found: list[Msg] = []
        for message in pulled.messages:
            place = place_of(message.reply)
            if place.place != self._place + 1:
                self._consumer = ""  # one before it did not arrive
                break
            self._place, self._next = place.place, place.sequence + 1
            found.append(message)
        return found

    def _begin(self, jetstream: JetStream, session: object) -> None:
        config: dict[str, Any] = {
            "ack_policy": "none",
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": max(self._next, 1),
            "max_deliver": 1,
            "mem_storage": True,
            "num_replicas": 1,
            "inactive_threshold": _INACTIVE,
        }
        if self._filter:
            config["filter_subject"] = self._filter
        name = f"ergon-{secrets.token_hex(6)}"
        jetstream.create_consumer(self._stream, name, config)
        self._consumer, self._session, self._place = name, session, 0
