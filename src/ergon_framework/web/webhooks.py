"""Webhooks beside the other routes: their senders show a signature, and no token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from starlette.types import ASGIApp, Receive, Scope, Send


class Receiver(Protocol):
    """Answers requests at one path, and lets in only what is signed."""

    path: str

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""


class ServedWebhook(Protocol):
    """A receiver that is closed when the server ends."""

    @property
    def receiver(self) -> Receiver:
        """What answers."""

    async def aclose(self) -> None:
        """Let go of where deliveries go."""


class WithWebhooks:
    """Hands requests for a webhook to its receiver, and others to the application.

    Receivers are asked before the gate and the limits of the application: they know by the
    signature who asks, and have bounds of their own.
    """

    def __init__(self, app: ASGIApp, webhooks: Sequence[ServedWebhook]) -> None:
        self._app = app
        self._receivers = {each.receiver.path: each.receiver for each in webhooks}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        found = self._receivers.get(scope["path"]) if scope["type"] == "http" else None
        await (self._app if found is None else found)(scope, receive, send)
