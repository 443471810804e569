"""A unique key that many replace at once, in transactions of their own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import psycopg
import pytest

from ergon_framework.jobs.stores.postgres import PostgresJobStore
from ergon_framework.ports.jobstore import NewJob, OnDuplicate, Search
from ergon_framework.testing.suites.jobstore.under_test import new

pytestmark = pytest.mark.req("SCALE:transaction", "SCALE:jobs-postgres")
_WAITING = (
    "SELECT count(*) FROM pg_stat_activity"
    " WHERE datname = current_database() AND wait_event_type = 'Lock'"
)


@pytest.fixture
def store(jobs_url: str) -> Iterator[PostgresJobStore]:
    """An empty store."""
    store = PostgresJobStore(jobs_url)
    yield store
    store.close()


@pytest.fixture
def replace_first(store: PostgresJobStore, jobs_url: str) -> Iterator[Callable[[str], None]]:
    """Replaces the job of the key in a transaction that is committed when somebody waits for it."""
    with ExitStack() as ends:

        def replace(name: str) -> None:
            other = ends.enter_context(psycopg.connect(jobs_url))
            store.add_in(other, [replacing(name)])
            thread = threading.Thread(target=commit, args=(other,))
            thread.start()
            ends.callback(thread.join)

        def commit(other: psycopg.Connection) -> None:
            with psycopg.connect(jobs_url, autocommit=True) as third:
                for _ in range(10_000):
                    if third.execute(_WAITING).fetchone() != (0,):
                        break
            other.commit()

        yield replace


def replacing(name: str) -> NewJob:
    """A job that takes the place of the one that has the key."""
    return new(name, unique_key="k", on_duplicate=OnDuplicate.REPLACE)


def test_a_key_that_is_replaced_while_it_is_waited_for(
    store: PostgresJobStore,
    jobs_url: str,
    replace_first: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Again and again: a transaction that sees what others commit gets its turn."""
    names = iter("bcd")
    holder = store.holder

    def overtaken(key: str) -> str | None:
        found = holder(key)
        for name in names:
            replace_first(name)
            break
        return found

    store.add([new("a", unique_key="k")])
    with psycopg.connect(jobs_url) as mine:
        replace_first(next(names))
        monkeypatch.setattr(store, "holder", overtaken)
        [added] = store.add_in(mine, [replacing("mine")])
    assert (added.id, added.is_new, added.replaced) == ("mine", True, "d")
    waiting = [job.id for job in store.search(Search()) if not job.status.is_final]
    assert waiting == ["mine"]
