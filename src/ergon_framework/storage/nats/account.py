"""What a server says about JetStream as a whole."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ergon_framework.errors import ConfigurationError, StoreUnavailableError
from ergon_framework.storage.nats.faults import NO_JETSTREAM, no_jetstream, translate
from ergon_framework.storage.nats.instants import instant
from ergon_framework.storage.nats.line import Line, is_lost

LEVEL = 2
"""What the server can do at least: atomic batches, from 2.12 on."""

USER_INFO = "$SYS.REQ.USER.INFO"
"""What a server tells any user about itself, its time among it, when there is no stream yet."""


class Account:
    """The streams that one user of a server has."""

    def __init__(self, line: Line) -> None:
        self._line = line

    def info(self) -> dict[str, Any]:
        """Room and limits."""
        return self._ask("INFO")

    def refuse_unfit(self) -> None:
        """Refuse a server that keeps nothing, or that cannot write several messages at once."""
        if int(self.info()["api"].get("level", 0)) < LEVEL:
            raise ConfigurationError(
                f"{self._line.address.name} runs nats-server {self._line.version()}, which has no"
                " atomic batches",
                remedy="upgrade it to 2.12 or newer",
            )

    def streams(self) -> list[dict[str, Any]]:
        """The streams of this address."""
        found = self._ask("STREAM.NAMES", {"subject": f"{self._line.address.space}.>"})
        return [self._ask(f"STREAM.INFO.{name}") for name in found.get("streams") or ()]

    def time_at(self, stream: str) -> float:
        """What time it is where a stream is served."""
        return instant(self._ask(f"STREAM.INFO.{stream}")["ts"])

    def time(self) -> float | None:
        """What time it is at the server; None when it does not tell this user."""
        try:
            answer = json.loads(self._line.ask(USER_INFO, b"").data or b"{}")
        except StoreUnavailableError as error:
            if not is_lost(error):
                raise
            return None  # whoever may not ask is not answered
        told = answer.get("server", {}).get("time")
        return None if told is None else instant(told)

    def _ask(self, subject: str, request: Mapping[str, Any] | None = None) -> dict[str, Any]:
        data = json.dumps(request).encode() if request else b""
        reply = self._line.ask(f"$JS.API.{subject}", data)
        if reply.status:
            raise no_jetstream(self._line.address.name)
        answer: dict[str, Any] = json.loads(reply.data)
        error = answer.get("error")
        if error and error.get("err_code") in NO_JETSTREAM:
            raise no_jetstream(self._line.address.name)
        if error:
            raise translate(self._line.address.name, error)
        return answer
