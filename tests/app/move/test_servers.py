"""Moving between stores of different kinds, on real servers, and back."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import pytest

from ergon_framework.boundary.store_urls import open_fact_store
from ergon_framework.jobs.store_urls import open_store
from ergon_framework.ports.factstore import OUTBOUND
from ergon_framework.testing.suites.factstore import records as fact_checks
from ergon_framework.testing.suites.factstore.under_test import FactStoreSubject as FactSubject
from ergon_framework.testing.suites.factstore.under_test import new as new_fact
from ergon_framework.testing.suites.jobstore import records as job_checks
from ergon_framework.testing.suites.jobstore.under_test import JobStoreSubject as JobSubject
from ergon_framework.testing.suites.jobstore.under_test import new as new_job
from tests.app.move.stock import (
    ZONE,
    copied,
    discarded,
    ergon,
    fact_sums,
    job_sums,
    moved,
    with_facts,
    with_jobs,
)

pytestmark = [pytest.mark.slow, pytest.mark.req("SCALE:move")]

Sums = Callable[[str], object]


def jobs(s: JobSubject) -> None:
    """Something of everything, and enough for several pages."""
    job_checks.fill(s)
    s.store.add([new_job(f"n{number}", priority=number % 3) for number in range(700)])


def facts(s: FactSubject) -> None:
    """Something of everything, and enough for several pages, half of it dropped."""
    fact_checks.fill(s)
    zones = ("plant-b", "plant-c", "plant-d")
    many = [new_fact(f"n{number}", to_zone=zones[number % 3]) for number in range(900)]
    s.store.append(OUTBOUND, many)
    s.store.truncate(OUTBOUND, 400, loss_reason="disk")


def travelled(way: list[str], sums: Sums, zone: str | None = None) -> None:
    """Move along a way, twice each; in the end all is as it was in the beginning."""
    whole = sums(way[0])
    for source, target in pairwise(way):
        moved(source, target, zone=zone)
        again = moved(source, target, zone=zone)
        assert (copied(again), discarded(again)) == ({}, {}), f"{source} to {target}"
    assert sums(way[-1]) == whole


def test_jobs_go_round(tmp_path: Path, postgres_url: str, redis_url: str) -> None:
    """From a file to PostgreSQL, to Redis and into a file again."""
    source = with_jobs(f"sqlite:///{tmp_path}/old.db", jobs)
    travelled([source, postgres_url, redis_url, f"sqlite:///{tmp_path}/new.db"], job_sums)


def test_jobs_go_round_the_other_way(tmp_path: Path, postgres_url: str, redis_url: str) -> None:
    """From a file to Redis, to PostgreSQL and into a file again."""
    source = with_jobs(f"sqlite:///{tmp_path}/old.db", jobs)
    travelled([source, redis_url, postgres_url, f"sqlite:///{tmp_path}/new.db"], job_sums)


@pytest.mark.parametrize("server", ["postgres_url", "redis_url"])
def test_moved_jobs_are_worked_off(
    server: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """A worker of the new store gets every job once, in order, and none of them is lost."""
    url = request.getfixturevalue(server)
    source = with_jobs(
        f"sqlite:///{tmp_path}/old.db",
        lambda s: s.store.add([new_job(f"n{number:03}") for number in range(300)]),
    )
    moved(source, url)
    seen: list[str] = []

    def work(s: JobSubject) -> None:
        while found := s.claim(50):
            seen.extend(job.id for job in found)

    with_jobs(url, work)
    assert seen == [f"n{number:03}" for number in range(300)]


def test_facts_go_round(tmp_path: Path, postgres_url: str, nats_url: str) -> None:
    """From a file to PostgreSQL, to NATS and into a file again."""
    source = with_facts(f"sqlite:///{tmp_path}/facts.db", facts)
    way = [source, postgres_url, nats_url, f"sqlite:///{tmp_path}/new.db"]
    (tmp_path / "elsewhere").mkdir()
    way[-1] = f"sqlite:///{tmp_path}/elsewhere/facts.db"
    travelled(way, fact_sums, ZONE)
    with closing(open_fact_store(way[-1], zone=ZONE)) as store:
        flaws = [each for each in store.verify(OUTBOUND) if not isinstance(each, int)]
    assert flaws == []


@pytest.mark.campaign
def test_facts_go_round_the_other_way(tmp_path: Path, postgres_url: str, nats_url: str) -> None:
    """From a file to NATS, to PostgreSQL and into a file again."""
    source = with_facts(f"sqlite:///{tmp_path}/facts.db", facts)
    (tmp_path / "elsewhere").mkdir()
    target = f"sqlite:///{tmp_path}/elsewhere/facts.db"
    travelled([source, nats_url, postgres_url, target], fact_sums, ZONE)


def test_words_that_a_server_cannot_keep(tmp_path: Path, postgres_url: str) -> None:
    """A NUL in what somebody said is replaced on the way, and does not make two stores differ."""

    def odd(s: FactSubject) -> None:
        s.put("a")
        s.store.create_consumer("c", OUTBOUND)
        s.store.serve("c", 1, 1 << 20)
        s.store.set_aside("c", 1, reason="failed", message="bad 'a\0b'", attempts=1)
        s.store.seal("p", "why\0not")

    source = with_facts(f"sqlite:///{tmp_path}/facts.db", odd)
    moved(source, postgres_url, zone=ZONE)
    assert copied(moved(source, postgres_url, zone=ZONE)) == {}
    assert fact_sums(postgres_url) == fact_sums(source)


def test_facts_beside_the_jobs_are_not_forgotten(tmp_path: Path, postgres_url: str) -> None:
    """Jobs are moved, and it is said that the facts in the same database or file were not."""
    told = [f"the facts of zone {ZONE} stay: --zone {ZONE} moves them"]
    file = f"sqlite:///{tmp_path}/both.db"
    for number, source in enumerate((file, postgres_url)):
        with_jobs(with_facts(source))
        assert moved(source, f"sqlite:///{tmp_path}/new-{number}.db").notes == told
    assert moved(f"sqlite:///{tmp_path}/new-1.db", f"sqlite:///{tmp_path}/last.db").notes == []


@pytest.mark.parametrize("server", ["postgres_url", "redis_url"])
def test_a_half_moved_server_is_not_worked_with(
    server: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """A move that was killed goes on, and until then nobody works there."""
    url = request.getfixturevalue(server)
    source = with_jobs(f"sqlite:///{tmp_path}/old.db", jobs)
    died = ergon("move", source, url, failpoints="move.jobs.after_commit=kill")
    assert died.returncode < 0, died.stderr
    with pytest.raises(Exception, match="a move into this store has not ended"):
        open_store(url)
    moved(source, url)
    assert job_sums(url) == job_sums(source)
    open_store(url).close()


@pytest.mark.parametrize("server", ["postgres_url", "nats_url"])
def test_a_zone_goes_on_where_it_was_cut_off(
    server: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Killed after some commits of a server, and moved again, it ends the same."""
    url = request.getfixturevalue(server)
    source = with_facts(f"sqlite:///{tmp_path}/facts.db", facts)
    way = ("move", source, url, "--zone", ZONE)
    died = ergon(*way, failpoints="boundary.move.after=kill@4")
    assert died.returncode < 0, died.stderr
    moved(source, url, zone=ZONE)
    assert fact_sums(url) == fact_sums(source)
