"""The NATS fact store under the behaviour suite."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ergon_framework.boundary.factstore.nats import NatsFactStore
from ergon_framework.ports.factstore import FactStore
from ergon_framework.testing.suites.factstore import FACT_STORE_CHECKS, exercise_fact_store
from tests.boundary.nats.damage import Disk
from tests.servers.nats import NatsServer

NEEDED = {"reopen", "corrupt", "moving"}
CHECKS = [check.name for check in FACT_STORE_CHECKS if check.needs <= NEEDED]


@pytest.mark.req("SCALE:boundary-nats")
@pytest.mark.parametrize("check", CHECKS)
def test_the_nats_store_keeps_its_promises(
    check: str, nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each check of the suite, also the recommended ones; none is skipped."""
    disk = Disk(monkeypatch)
    places: dict[int, tuple[str, Callable[[], float]]] = {}

    def opened(url: str, clock: Callable[[], float]) -> NatsFactStore:
        store = NatsFactStore(url, zone="plant-a", clock=clock)
        places[id(store)] = url, clock
        return store

    def make(clock: Callable[[], float]) -> NatsFactStore:
        return opened(nats_server.new_space(), clock)

    def reopen(store: FactStore) -> NatsFactStore:
        store.close()
        return opened(*places[id(store)])

    report = exercise_fact_store(make, reopen=reopen, corrupt=disk.damage, only={check})
    report.raise_for_failures(recommended=True)
    assert not report.skipped


def test_the_store_serves_the_port(nats_url: str) -> None:
    """A type checker accepts it wherever the port is asked for."""
    store: FactStore = NatsFactStore(nats_url, zone="plant-a")
    assert "NATS" in store.acknowledgement
    store.close()
