"""A Redis stream behind TLS: by the scheme of the URL, with files of certificates as options."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from ergon_framework import Transaction
from ergon_framework.connector import from_url
from ergon_framework.errors import ConfigurationError
from tests.servers.redis import RedisServer
from tests.servers.tls import Opened, Papers, doors

pytestmark = pytest.mark.slow


@pytest.fixture
def door(durable_redis: RedisServer, signed: Papers) -> Iterator[Opened]:
    """Opens doors with TLS to the server; nothing is left there afterwards."""
    with doors(("127.0.0.1", durable_redis.port), signed) as opened:
        yield opened
        with durable_redis.connect() as client:
            client.flushdb()


def orders(port: int, **options: object) -> Any:
    """A consumer through the door."""
    return from_url(f"rediss://127.0.0.1:{port}/0?stream=orders", **options)


def test_a_stream_over_tls(door: Opened, signed: Papers) -> None:
    """In both colours, with the authority that the settings name."""
    place = door().port
    with orders(place, ca=str(signed.ca)) as source:
        source.dispatch_transactions([Transaction("t1", 1), Transaction("t2", 2)])
        source.ack(source.fetch_transactions(1)[0])

    async def consume() -> list[str]:
        source = orders(place, ca=str(signed.ca))
        found = [each.transaction_id for each in await source.fetch_transactions_async(5)]
        await source.aclose()
        return found

    assert asyncio.run(consume()) == ["t2"]


def test_a_certificate_of_nobody_we_know_is_refused(door: Opened, strange: Papers) -> None:
    """No wait repairs it, so it is told at once."""
    with (
        orders(door().port, ca=str(strange.ca)) as source,
        pytest.raises(ConfigurationError, match="not trusted"),
    ):
        source.fetch_transactions(1)
