"""Webhooks beside the other routes. Their senders show a signature instead of a token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from starlette.types import ASGIApp, Receive, Scope, Send


class Receiver(Protocol):
    """Handles requests at one path, and accepts only signed ones."""

    path: str

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""


class ServedWebhook(Protocol):
    """A receiver that is closed when the server ends."""

    @property
    def receiver(self) -> Receiver:
        """The handler of the webhook."""

    async def aclose(self) -> None:
        """Close the target of its deliveries."""


class WithWebhooks:
    """Passes requests for a webhook to its receiver, and others to the application.

    Receivers are called before authentication and limits of the application: they identify callers
    by the signature, and have limits of their own.
    """

    def __init__(self, app: ASGIApp, webhooks: Sequence[ServedWebhook]) -> None:
        self._app = app
        self._receivers = {each.receiver.path: each.receiver for each in webhooks}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        found = self._receivers.get(scope["path"]) if scope["type"] == "http" else None
        await (self._app if found is None else found)(scope, receive, send)
