"""Servers, time and stores that the tests of this folder share."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ergon_framework.ports.providerstore import ProviderStore
from ergon_framework.testing import VirtualClock
from tests.providers.scripted import new_store


@pytest.fixture
def clock() -> Iterator[VirtualClock]:
    """Time for one test: it passes when everybody waits for it."""
    with VirtualClock() as clock:
        yield clock


@pytest.fixture
def own_place(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls are held where no other process of this machine holds calls of these names."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("held")))


@pytest.fixture(params=["memory", "sqlite"])
def store(
    request: pytest.FixtureRequest, clock: VirtualClock, tmp_path: Path
) -> Iterator[ProviderStore]:
    """Both kinds of store: one answers at once, the other is asked on a thread."""
    with new_store(request.param, clock, tmp_path) as store:
        yield store
