"""Responses of a Redis server that get lost after it has carried out a script."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from redis.connection import AbstractConnection
from redis.exceptions import ConnectionError as ConnectionLostError


def lose_responses(
    monkeypatch: pytest.MonkeyPatch, times: int = 1, *, on_lost: Callable[[], None] | None = None
) -> None:
    """Lose the responses to the next scripts of this process; what connecting needs arrives.

    ``on_lost`` is called when a script was carried out, before its caller hears that the connection
    broke.
    """
    send: Any = AbstractConnection.send_packed_command
    read: Any = AbstractConnection.read_response
    carrying: set[int] = set()
    left = [times]

    def sending(self: Any, command: Any, **options: Any) -> Any:
        words = command if isinstance(command, list) else [command]
        sent = send(self, command, **options)  # which may connect first
        if any(b"EVAL" in bytes(part[:40]) for part in words):
            carrying.add(id(self))
        return sent

    def reading(self: Any, *args: Any, **options: Any) -> Any:
        response = read(self, *args, **options)
        if id(self) in carrying and left[0]:
            carrying.discard(id(self))
            left[0] -= 1
            if on_lost is not None:
                on_lost()
            raise ConnectionLostError("gone")
        return response

    monkeypatch.setattr(AbstractConnection, "send_packed_command", sending)
    monkeypatch.setattr(AbstractConnection, "read_response", reading)
