"""The PostgreSQL fact store under the behaviour suite."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import pytest

from ergon_framework.boundary.factstore.hashchain import OFFSET_BITS
from ergon_framework.boundary.factstore.postgres import PostgresFactStore
from ergon_framework.ports.factstore import FactStore
from ergon_framework.testing.suites.factstore import FACT_STORE_CHECKS, exercise_fact_store
from tests.boundary.postgres.conftest import change

DAMAGE = """
UPDATE {zone}.facts SET fact = fact || 'x'
WHERE id = ((SELECT id::bigint FROM {zone}.logs WHERE name = %s) << %s) + %s
"""
NEEDED = {"reopen", "corrupt", "moving"}
CHECKS = [check.name for check in FACT_STORE_CHECKS if check.needs <= NEEDED]
_zones = count(1)


@pytest.mark.req("SCALE:boundary-postgres")
@pytest.mark.parametrize("check", CHECKS)
def test_the_postgres_store_keeps_its_promises(check: str, url: str) -> None:
    """Each check of the suite, also the recommended ones; none is skipped."""
    clocks: dict[str, Callable[[], float]] = {}

    def make(clock: Callable[[], float]) -> PostgresFactStore:
        zone = f"suite-{next(_zones)}"
        clocks[zone] = clock
        return PostgresFactStore(url, zone=zone, clock=clock)

    def reopen(store: FactStore) -> PostgresFactStore:
        store.close()
        zone = store.info().zone
        return PostgresFactStore(url, zone=zone, clock=clocks[zone])

    def damage(store: FactStore, log: str, offset: int) -> None:
        assert isinstance(store, PostgresFactStore)
        assert change(url, store, DAMAGE, log, OFFSET_BITS, offset) == 1

    report = exercise_fact_store(make, reopen=reopen, corrupt=damage, only={check})
    report.raise_for_failures(recommended=True)
    assert not report.skipped


def test_the_store_serves_the_port(url: str) -> None:
    """A type checker accepts it wherever the port is asked for."""
    store: FactStore = PostgresFactStore(url, zone="plant-a")
    assert "power cut" in store.acknowledgement
    store.close()
