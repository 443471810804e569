"""What a service does that sends webhooks: signs a body, and posts it."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
from collections.abc import Mapping
from typing import Any

import httpx

SECRET = "whsec_one"  # noqa: S105 of these tests only
NOW = 1_800_000_000.0

Headers = dict[str, str]


def encode(event: Any) -> bytes:
    """A body of JSON."""
    return json.dumps(event).encode()


def stripe(body: bytes, *secrets: str, at: float = NOW) -> Headers:
    """Stripe's header, with a signature for each secret."""
    signed = f"{at:.0f}.".encode() + body
    each = [hmac.new(one.encode(), signed, hashlib.sha256).hexdigest() for one in secrets]
    return {"Stripe-Signature": ",".join([f"t={at:.0f}", *(f"v1={one}" for one in each)])}


def github(body: bytes, secret: str = SECRET, delivery: str = "d-1", kind: str = "push") -> Headers:
    """GitHub's headers."""
    found = hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
    names = {"X-GitHub-Delivery": delivery, "X-GitHub-Event": kind}
    return {"X-Hub-Signature-256": f"sha256={found}", **names}


def standard(body: bytes, delivery: str, secret: bytes, at: float = NOW) -> Headers:
    """The headers of the Standard Webhooks specification."""
    signed = f"{delivery}.{at:.0f}.".encode() + body
    found = base64.b64encode(hmac.new(secret, signed, hashlib.sha256).digest()).decode()
    names = {"webhook-id": delivery, "webhook-timestamp": f"{at:.0f}"}
    return {**names, "webhook-signature": f"v1a,other v1,{found}"}


def post(
    app: Any, body: Any, headers: Mapping[str, str] | None = None, path: str = "/"
) -> httpx.Response:
    """The answer to one request."""
    return asyncio.run(apost(app, body, headers, path))


async def apost(
    app: Any, body: Any, headers: Mapping[str, str] | None = None, path: str = "/"
) -> httpx.Response:
    """The same inside of an event loop."""
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        return await client.post(path, content=body, headers=dict(headers or {}))
