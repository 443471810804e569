"""Streams of a real NATS server, made and read by somebody else than the connector."""

from __future__ import annotations

import json
from itertools import count
from typing import Any

from ergon_framework.connector.broker.message import reason_of
from ergon_framework.storage.nats import NatsClient, NatsStream, address_of

_numbers = count(1)


class Streams:
    """An operator of a server."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._client = NatsClient(address_of(url))

    def make(self, **config: Any) -> str:
        """A stream of its own for the subjects ``<name>.>``, and what fails; its name."""
        name = f"ORDERS{next(_numbers)}"
        self.ask(
            f"STREAM.CREATE.{name}",
            {"name": name, "subjects": [f"{name}.>"], "allow_direct": True, **config},
        )
        return name

    def ask(self, subject: str, request: dict[str, Any] | None = None) -> dict[str, Any]:
        """What the server answers."""
        data = b"" if request is None else json.dumps(request).encode()
        answer: dict[str, Any] = json.loads(self._client.request(f"$JS.API.{subject}", data).data)
        assert "error" not in answer, answer
        return answer

    def stored(self, stream: str, subject: str) -> list[tuple[bytes, dict[str, str]]]:
        """Content and headers of the messages under a subject."""
        opened = NatsStream(self._client, stream, subject)
        return [(each.data, dict(each.headers)) for each in opened.walk(subject)]

    def dead(self, stream: str) -> list[tuple[str, str]]:
        """The ids and reasons of what was set aside."""
        found = [headers for _, headers in self.stored(stream, f"{stream}.dead")]
        return [(each.get("ergon-transaction-id", ""), reason_of(each)) for each in found]

    def publish(self, subject: str, body: bytes, headers: dict[str, str] | None = None) -> None:
        """Store a message as another program does."""
        self._client.send([(subject, body, headers)])

    def close(self) -> None:
        """Let go of the server."""
        self._client.close()
