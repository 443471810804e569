"""The engines a fleet may work on, and how a test makes one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.differential.engines import ServerEngine, running
from tests.fleet.fleet import Fleet
from tests.servers.skip_loudly import MissingServerError, missing

MakeFleet = Callable[..., Fleet]


@pytest.fixture(scope="module", params=["postgres", "redis"])
def engine(request: pytest.FixtureRequest) -> Iterator[ServerEngine]:
    """A server that keeps what it acknowledged."""
    try:
        with running(request.param, is_durable=True) as engine:
            assert isinstance(engine, ServerEngine)
            yield engine
    except MissingServerError as error:
        missing(error)


@pytest.fixture
def make_fleet(engine: ServerEngine, tmp_path: Path) -> Iterator[MakeFleet]:
    """Makes fleets on an empty store."""
    made: list[Fleet] = []

    def make(**options: object) -> Fleet:
        made.append(Fleet(engine.place(), tmp_path, **options))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for fleet in made:
        fleet.close()
