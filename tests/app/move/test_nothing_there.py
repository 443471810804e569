"""A source in which nothing of ours is: refused, and neither side is touched."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ergon_framework.app.move.run import Asked, reopen
from ergon_framework.app.schema import zones_there
from ergon_framework.app.store_location import StoreLocation
from ergon_framework.boundary.factstore.nats.setup import zones_in_space
from ergon_framework.errors import ConfigurationError, ErgonError
from ergon_framework.jobs.store_urls import open_store
from tests.app.move.stock import ZONE, copied, moved, with_facts, with_jobs
from tests.servers.redis import RedisServer

pytestmark = [pytest.mark.slow, pytest.mark.req("SCALE:move")]

HOWS: list[dict[str, Any]] = [{}, {"is_trial": True}, {"shuts": True}, {"is_forced": True}]


@pytest.mark.parametrize("how", HOWS, ids=str)
def test_a_redis_database_without_a_store(
    how: dict[str, Any], redis_url: str, durable_redis: RedisServer, tmp_path: Path
) -> None:
    """Keys of others do not make it one; no mark is left that stands in the way of the true one."""
    target = f"sqlite:///{tmp_path}/new.db"
    with durable_redis.connect() as client:
        client.set("somebody", "else")
        with pytest.raises(ConfigurationError, match="nothing of Ergon is there") as caught:
            moved(redis_url, target, **how)
        assert client.keys() == ["somebody"]
    assert StoreLocation(redis_url).name in str(caught.value)
    assert "?prefix=NAME" in caught.value.remedy
    assert not (tmp_path / "new.db").exists()


def test_a_mistyped_redis_database(redis_url: str, tmp_path: Path) -> None:
    """The true one can be moved afterwards."""
    target = f"sqlite:///{tmp_path}/new.db"
    with_jobs(redis_url, lambda s: s.put("a"))
    with pytest.raises(ConfigurationError, match="nothing of Ergon is there"):
        moved(f"{redis_url}?prefix=elsewhere", target)
    assert copied(moved(redis_url, target)) == {"jobs": 1}


def test_an_empty_store_on_redis_may_be_moved(redis_url: str, tmp_path: Path) -> None:
    """Somebody has opened it: it is one of ours."""
    open_store(redis_url).close()
    assert copied(moved(redis_url, f"sqlite:///{tmp_path}/new.db")) == {}
    with closing(open_store(f"sqlite:///{tmp_path}/new.db")) as store:
        assert list(store.queues()) == []


def test_a_store_on_redis_whose_word_was_deleted(
    redis_url: str, durable_redis: RedisServer, tmp_path: Path
) -> None:
    """The jobs are ours, whatever else is missing."""
    with_jobs(redis_url, lambda s: s.put("a"))
    with durable_redis.connect() as client:
        client.delete("{ergon}:schema")
    assert copied(moved(redis_url, f"sqlite:///{tmp_path}/new.db")) == {"jobs": 1}


@pytest.mark.parametrize("url", ["postgres_url", "redis_url"])
def test_nothing_can_be_opened_again_where_nothing_is(
    url: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """To say that it was not shut would hide the mistake."""
    source = StoreLocation(request.getfixturevalue(url))
    asked = Asked(source, StoreLocation(f"sqlite:///{tmp_path}/new.db"))
    with pytest.raises(ConfigurationError, match="nothing of Ergon is there"):
        reopen(asked)
    with pytest.raises(ConfigurationError, match="nothing of Ergon is there"):
        moved(source.given, asked.target.given)


def test_a_database_of_facts_alone(postgres_url: str, tmp_path: Path) -> None:
    """What would move them is told."""
    with_facts(postgres_url, lambda s: s.put("a"))
    with pytest.raises(ConfigurationError, match=f"but the facts of zone {ZONE}") as caught:
        moved(postgres_url, f"sqlite:///{tmp_path}/new.db")
    assert caught.value.remedy == f"--zone {ZONE} moves them"


@pytest.mark.parametrize("how", HOWS, ids=str)
@pytest.mark.parametrize(
    ("url", "zones"), [("postgres_url", zones_there), ("nats_url", zones_in_space)]
)
def test_a_server_without_zones(
    url: str,
    zones: Callable[[str], list[str]],
    how: dict[str, Any],
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    """To open it for writing is no remedy: that would make the zone."""
    source = request.getfixturevalue(url)
    with pytest.raises(ConfigurationError, match=f"no zone '{ZONE}', nor any other") as caught:
        moved(source, tmp_path / "new", zone=ZONE, **how)
    assert "correct FROM" in caught.value.remedy
    assert zones(source) == []
    assert not (tmp_path / "new").exists()


def test_a_zone_that_a_space_of_nats_does_not_have(nats_url: str, tmp_path: Path) -> None:
    """Those that are there are told."""
    with_facts(nats_url, lambda s: s.put("a"))
    with pytest.raises(ErgonError, match="no zone 'plant-z'; did you mean 'plant-a'"):
        moved(nats_url, tmp_path / "new", zone="plant-z")
    assert zones_in_space(nats_url) == [ZONE]
