"""A connection that is lost in the middle of a commit: nobody knows, and nothing happens twice."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from ergon_framework.core.job import JobStatus, LeaseExpired
from ergon_framework.errors import DuplicateJobError, ErgonError, StoreUnavailableError
from ergon_framework.jobs.stores.postgres import PostgresJobStore
from ergon_framework.ports.jobstore import OnDuplicate, Search
from ergon_framework.testing.suites.drivers import HandClock
from ergon_framework.testing.suites.jobstore.under_test import (
    FAILS_ONCE,
    LEASE,
    RELEASED,
    SUCCEEDED,
    JobStoreSubject,
    ask,
    new,
)
from tests.jobs.postgres.silent_proxy import SilentProxy
from tests.servers.postgres import PostgresServer, name_of

pytestmark = pytest.mark.req("SCALE:jobs-postgres", "SCALE:fleet-outage")
PATIENCE = 20.0


@pytest.fixture
def line(postgres_server: PostgresServer) -> Iterator[SilentProxy]:
    """A line that the store under test goes through."""
    with SilentProxy(postgres_server.folder) as line:
        yield line


@pytest.fixture
def clock() -> HandClock:
    """The time of both stores."""
    return HandClock()


@pytest.fixture
def far(line: SilentProxy, jobs_url: str, clock: HandClock) -> Iterator[PostgresJobStore]:
    """The store whose line can be lost."""
    store = PostgresJobStore(line.url(name_of(jobs_url)), clock=clock)
    yield store
    store.close()


@pytest.fixture
def near(jobs_url: str, clock: HandClock) -> Iterator[JobStoreSubject]:
    """Somebody with a good line to the same database."""
    store = PostgresJobStore(jobs_url, clock=clock)
    yield JobStoreSubject(store, clock, None, PATIENCE)
    store.close()


def losing(
    line: SilentProxy, call: Callable[[], object], is_done: Callable[[], bool]
) -> ErgonError | None:
    """Make a call whose answer is lost after the server has done what it was told."""
    errors: list[ErgonError] = []

    def run() -> None:
        try:
            call()
        except ErgonError as error:
            errors.append(error)

    line.is_deaf = True
    thread = threading.Thread(target=run)
    thread.start()
    done = threading.Event()
    for _ in range(int(PATIENCE / 0.01)):
        if is_done():
            break
        done.wait(0.01)
    line.cut()
    thread.join(PATIENCE)
    assert not thread.is_alive()
    return errors[0] if errors else None


@pytest.mark.parametrize(
    "seen", [SUCCEEDED, FAILS_ONCE, RELEASED], ids=lambda seen: type(seen).__name__
)
def test_a_settlement_that_was_applied_is_not_late(
    line: SilentProxy, far: PostgresJobStore, near: JobStoreSubject, seen: object
) -> None:
    """Sent again after its answer was lost, it is told as applied, and is not applied twice."""
    near.put("a", "b")
    jobs = far.settle_and_claim([], ask(2))[1].jobs
    told = [near.told(job, seen, result=b"1", keep=60.0) for job in jobs]  # type: ignore[arg-type]
    moved = lambda: near.status("a") is not JobStatus.ACTIVE  # noqa: E731
    error = losing(line, lambda: far.settle_and_claim(told, None), moved)
    assert isinstance(error, StoreUnavailableError)
    assert error.details["is_lost"]
    before = near.get("a")
    assert far.settle_and_claim(told, None)[0] == [True, True]
    assert near.get("a") == before
    assert len(before.history) == 1
    assert far.settle_and_claim(told, None)[0] == [False, False]  # what is known is not asked again


def test_a_settlement_that_was_applied_frees_its_limit_key(
    line: SilentProxy, far: PostgresJobStore, near: JobStoreSubject
) -> None:
    """Whoever waits for the key goes on when the truth is known, before any sweep."""
    near.put("a", limit_key="k")
    [job] = far.settle_and_claim([], ask(1))[1].jobs
    near.put("b", limit_key="k")
    assert near.claim(1) == []
    told = [near.told(job, SUCCEEDED)]
    moved = lambda: near.status("a") is not JobStatus.ACTIVE  # noqa: E731
    losing(line, lambda: far.settle_and_claim(told, None), moved)
    applied, claimed = far.settle_and_claim(told, ask(1))
    assert applied == [True]
    assert [each.id for each in claimed.jobs] == ["b"]


def test_who_is_unsure_twice_is_told_the_truth(
    line: SilentProxy, far: PostgresJobStore, near: JobStoreSubject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What became of an exchange is asked within the next one, and not after it: a look that
    fails cannot take away what that one settled and claimed.
    """
    near.put("a", "b", "c")
    first, second = far.settle_and_claim([], ask(2))[1].jobs
    told = [near.told(first, SUCCEEDED)]
    moved = lambda: near.status("a") is not JobStatus.ACTIVE  # noqa: E731
    losing(line, lambda: far.settle_and_claim(told, None), moved)

    def look(*_: object) -> object:
        raise StoreUnavailableError("gone again")

    monkeypatch.setattr(far.transactions, "read", look)
    applied, claimed = far.settle_and_claim([*told, near.told(second, SUCCEEDED)], ask(1))
    assert applied == [True, True]
    assert [each.id for each in claimed.jobs] == ["c"]


def test_a_settlement_that_was_not_applied_is_applied(
    line: SilentProxy, far: PostgresJobStore, near: JobStoreSubject
) -> None:
    """Lost before the server could act, it is applied when it is sent again."""
    near.put("a")
    [job] = far.settle_and_claim([], ask(1))[1].jobs
    told = [near.told(job, SUCCEEDED)]
    with psycopg.connect(far_url(near)) as other:
        other.execute("SELECT 1 FROM ergon_jobs WHERE id = 'a' FOR UPDATE")
        error = losing(line, lambda: far.settle_and_claim(told, None), lambda: is_waiting(near))
    assert isinstance(error, StoreUnavailableError)
    applied = far.settle_and_claim(told, None)[0]
    assert applied == [True]
    assert near.status("a") is JobStatus.COMPLETED


def test_a_settlement_that_came_too_late_is_late(
    line: SilentProxy, far: PostgresJobStore, near: JobStoreSubject
) -> None:
    """Whoever is unsure is told the truth also when somebody else took the job."""
    near.put("a")
    [job] = far.settle_and_claim([], ask(1))[1].jobs
    near.clock.forward(LEASE + 1.0)
    near.must(near.get("a"), LeaseExpired(), if_expired=True)
    told = [near.told(job, SUCCEEDED)]
    answered = lambda: line.swallowed > 0 and is_idle(near)  # noqa: E731
    error = losing(line, lambda: far.settle_and_claim(told, None), answered)
    assert isinstance(error, StoreUnavailableError)
    assert far.settle_and_claim(told, None)[0] == [False]


@pytest.mark.parametrize(
    "fields",
    [{}, *({"unique_key": "k", "on_duplicate": each} for each in OnDuplicate)],
    ids=str,
)
def test_a_client_whose_answer_was_lost_adds_nothing_twice(
    far: PostgresJobStore,
    near: JobStoreSubject,
    monkeypatch: pytest.MonkeyPatch,
    fields: dict[str, Any],
) -> None:
    """The store finds out by the ids that the jobs are there, and says so."""
    run = far.transactions.database.run

    def lossy(*args: Any) -> Any:
        monkeypatch.undo()
        run(*args)
        raise StoreUnavailableError("cut off", details={"is_lost": True})

    monkeypatch.setattr(far.transactions.database, "run", lossy)
    added = far.add([new("a", **fields), new("b")])
    assert [(each.id, each.is_new) for each in added] == [("a", True), ("b", True)]
    assert [job.id for job in near.store.search(Search())] == ["b", "a"]


def test_another_job_of_that_id_is_no_success(
    far: PostgresJobStore, near: JobStoreSubject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An id that somebody else took is refused, whatever became of the first answer."""
    near.put("a", handler="other")

    def lost(*_: object) -> None:
        monkeypatch.undo()
        raise StoreUnavailableError("cut off", details={"is_lost": True})

    monkeypatch.setattr(far.transactions.database, "run", lost)
    with pytest.raises(DuplicateJobError):
        far.add([new("a")])


def test_a_client_is_told_that_nobody_knows(
    line: SilentProxy,
    far: PostgresJobStore,
    near: JobStoreSubject,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where the store cannot be asked, the error has the ids that tell."""
    database = far.transactions.database
    run = database.run

    def once(*args: Any) -> Any:
        monkeypatch.setattr(database, "run", gone)
        return run(*args)

    def gone(*_: object) -> Any:
        raise StoreUnavailableError("gone")

    monkeypatch.setattr(database, "run", once)
    error = losing(line, lambda: far.add([new("a")]), lambda: near.store.find("a") is not None)
    assert isinstance(error, StoreUnavailableError)
    assert "nobody knows whether" in str(error)
    assert error.details["ids"] == ["a"]
    assert [job.id for job in near.store.search(Search())] == ["a"]


def test_reading_is_simply_done_again(
    line: SilentProxy, far: PostgresJobStore, near: JobStoreSubject
) -> None:
    """A lost connection is no error for who only reads."""
    near.put("a")
    assert far.find("a") is not None
    line.cut()
    assert far.find("a") is not None


def far_url(near: JobStoreSubject) -> str:
    """Where the database is."""
    store = near.store
    assert isinstance(store, PostgresJobStore)
    return store.name


def is_waiting(near: JobStoreSubject) -> bool:
    """Whether somebody waits for a lock."""
    return any(event == "Lock" for _, event in _others(near))


def is_idle(near: JobStoreSubject) -> bool:
    """Whether nobody is in the middle of anything."""
    return all(state == "idle" for state, _ in _others(near))


def _others(near: JobStoreSubject) -> list[tuple[str, str]]:
    statement = """
        SELECT state, wait_event_type FROM pg_stat_activity
        WHERE datname = current_database() AND backend_type = 'client backend'
            AND pid <> pg_backend_pid()
    """
    with psycopg.connect(far_url(near), autocommit=True) as connection:
        return connection.execute(statement).fetchall()


def test_a_client_that_reaches_nobody_knows(line: SilentProxy, far: PostgresJobStore) -> None:
    """Without a connection nothing was stored, and the error does not make anybody wonder."""
    far.close()
    with pytest.raises(StoreUnavailableError, match="closed") as caught:
        far.add([new("a")])
    assert "nobody knows" not in str(caught.value)


def test_what_was_claimed_is_told_when_the_rest_fails(
    far: PostgresJobStore, near: JobStoreSubject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exchange that is cut short answers with what is committed; the next one hears of it."""
    near.put("a", "b")
    near.put("key", limit_key="k")
    assert far.settle_and_claim([], ask(0))[1].jobs == []
    pipe, calls = far.transactions.pipelined, []

    def failing(*args: Any, **options: Any) -> Any:
        calls.append(args)
        if len(calls) > 1:
            raise StoreUnavailableError("gone")
        return pipe(*args, **options)

    monkeypatch.setattr(far.transactions, "pipelined", failing)
    assert [job.id for job in far.settle_and_claim([], ask(9))[1].jobs] == ["a", "b"]
    with pytest.raises(StoreUnavailableError):
        far.settle_and_claim([], ask(9))
    monkeypatch.undo()
    assert [job.id for job in far.settle_and_claim([], ask(9))[1].jobs] == ["key"]


def test_an_add_stays_unknown_when_the_server_lets_nobody_in(
    line: SilentProxy, far: PostgresJobStore, near: JobStoreSubject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who cannot look whether the jobs are there does not say that they are not."""

    def expired(*_: object, **__: object) -> None:
        raise psycopg.OperationalError("connection failed: SSL error: certificate has expired")

    monkeypatch.setattr(psycopg, "connect", expired)
    error = losing(line, lambda: far.add([new("a")]), lambda: near.store.count(Search()) == 1)
    assert isinstance(error, StoreUnavailableError)
    assert "nobody knows" in error.message
    assert error.details == {"is_lost": True, "ids": ["a"]}
