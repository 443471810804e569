"""Webhooks: what other services send over HTTP, checked, and in a queue before it is answered.

Where to look first: ``receiver`` is the class, an ASGI application that reads a body within its
bounds and writes answers. ``signatures`` says who sent a request. ``targets`` hands a delivery to a
connector or to a handler of an App.
"""

from __future__ import annotations

from ergon_framework.connector.webhook.receiver import WebhookReceiver
from ergon_framework.connector.webhook.signatures import (
    HmacSignature,
    SignatureError,
    StripeSignature,
    github_signature,
    standard_signature,
)

__all__ = [
    "HmacSignature",
    "SignatureError",
    "StripeSignature",
    "WebhookReceiver",
    "github_signature",
    "standard_signature",
]
