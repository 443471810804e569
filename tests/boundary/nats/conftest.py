"""Stores on a server that all tests share."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from ergon_framework.boundary.factstore.nats import NatsFactStore

ZONE = "plant-a"

Open = Callable[..., NatsFactStore]


@pytest.fixture
def open_store(nats_url: str) -> Iterator[Open]:
    """Opens the same store as often as one likes, as other processes would."""
    stores: list[NatsFactStore] = []

    def opened(url: str = nats_url, **options: object) -> NatsFactStore:
        stores.append(NatsFactStore(url, zone=ZONE, **options))  # type: ignore[arg-type]
        return stores[-1]

    yield opened
    for store in stores:
        store.close()
