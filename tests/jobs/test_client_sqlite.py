"""The client on an SQLite file: the caller's own transaction, and results from another process."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ergon_framework.core.job import Succeeded
from ergon_framework.errors import (
    ConfigurationError,
    DuplicateJobError,
    ErgonError,
    JobError,
    JobNotFoundError,
)
from ergon_framework.jobs import Unique
from ergon_framework.jobs.client import JobClient
from ergon_framework.ports.jobstore import Search, Topic
from tests.jobs.manual_worker import Hand, NotedSubscription
from tests.storage.conftest import until

pytestmark = pytest.mark.req("JOBS:client")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The database file."""
    return tmp_path / "work.db"


@pytest.fixture
def client(file: Path) -> Iterator[JobClient]:
    """A client of that file."""
    with JobClient(f"sqlite:///{file}") as made:
        yield made


def ids(client: JobClient) -> set[str]:
    """The ids of all jobs."""
    return {job.id for job in client.store.search(Search())}


def test_a_job_comes_with_the_callers_own_transaction(client: JobClient, file: Path) -> None:
    """It is there with the caller's row, or not at all."""
    with closing(sqlite3.connect(file)) as own:
        own.execute("CREATE TABLE orders (id TEXT)")
        own.execute("INSERT INTO orders VALUES ('1')")
        job = client.enqueue("ship", ["1"], id="a", connection=own)
        assert job.is_new
        assert ids(client) == set()
        own.commit()
        assert ids(client) == {"a"}
        own.execute("INSERT INTO orders VALUES ('2')")
        client.enqueue_many([("ship", ["2"]), ("mail", ["2"])], connection=own)
        own.rollback()
        assert ids(client) == {"a"}
        assert own.execute("SELECT count(*) FROM orders").fetchone() == (1,)


def test_a_refused_job_leaves_the_callers_transaction_usable(client: JobClient, file: Path) -> None:
    """What the caller wrote before is still his to commit."""
    client.enqueue("h", id="a")
    with closing(sqlite3.connect(file)) as own:
        own.execute("CREATE TABLE orders (id TEXT)")
        own.execute("INSERT INTO orders VALUES ('1')")
        with pytest.raises(DuplicateJobError):
            client.enqueue("h", id="a", connection=own)
        client.enqueue("h", id="b", connection=own)
        own.commit()
        assert own.execute("SELECT count(*) FROM orders").fetchone() == (1,)
    assert ids(client) == {"a", "b"}


def test_a_connection_to_another_file_is_refused(client: JobClient, tmp_path: Path) -> None:
    """The job would be stored where no worker looks."""
    with closing(sqlite3.connect(tmp_path / "other.db")) as own, pytest.raises(ErgonError):
        client.enqueue("h", connection=own)
    assert ids(client) == set()


def test_announce_wakes_workers_after_ones_own_commit(client: JobClient, file: Path) -> None:
    """The store cannot see a foreign commit."""
    with JobClient(f"sqlite:///{file}") as other, closing(sqlite3.connect(file)) as own:
        subscription = other.store.subscribe(Topic.WORK)
        client.enqueue("h", connection=own)
        own.commit()
        client.announce()
        assert subscription.wait(30)
        subscription.close()


def test_a_result_from_another_connection_wakes_the_waiter(client: JobClient, file: Path) -> None:
    """The poll is longer than the test may take."""
    job = client.enqueue("h")
    got: list[Any] = []
    with JobClient(f"sqlite:///{file}") as worker:
        hand = Hand(worker.store)
        claimed = hand.claim()
        waiter = threading.Thread(target=lambda: got.append(client.result(job, poll=3600)))
        waiter.start()
        hand.settle(claimed, Succeeded(), {"n": 1})
        waiter.join(50)
    assert got == [{"n": 1}]


def test_many_waiters_need_few_descriptors(client: JobClient, file: Path) -> None:
    """One subscription serves all threads of a client."""
    job = client.enqueue("h")
    claimed = Hand(client.store).claim()
    folder = file.with_name("work.db-bells")
    with ThreadPoolExecutor(20) as threads:
        results = [threads.submit(client.result, job, poll=3600.0) for _ in range(20)]
        until(lambda: client.waiting == 20)
        assert len(list(folder.iterdir())) == 1
        Hand(client.store).settle(claimed, Succeeded(), 1)
        assert [each.result(30) for each in results] == [1] * 20
    assert list(folder.iterdir()) == []


@pytest.mark.slow
def test_a_forked_child_has_a_bell_of_its_own(client: JobClient) -> None:
    """Also when threads of its parent, which it does not have, were listening."""
    job = client.enqueue("h")
    claimed = Hand(client.store).claim()
    subscriptions: list[NotedSubscription] = []
    subscribe = client.store.subscribe

    def noted(topic: Topic) -> NotedSubscription:
        subscriptions.append(NotedSubscription(subscribe(topic)))
        return subscriptions[-1]

    client.store.subscribe = noted  # type: ignore[method-assign]
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(client.result, job, poll=3600.0)
        until(lambda: subscriptions and subscriptions[0].is_waited_on.is_set())
        child = os.fork()
        if child == 0:
            os._exit(0 if client.result(job, 30.0, poll=3600.0) == 7 else 1)
        Hand(client.store).settle(claimed, Succeeded(), 7)
        assert waiting.result(30) == 7
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_jobs_outlive_the_client(file: Path) -> None:
    """Everything comes back as it was."""
    with JobClient(f"sqlite:///{file}") as client:
        job = client.enqueue("h", ["😀\u2028", 10**20, 0.1], {"k": [None]}, unique="ü", priority=3)
        before = client.show(job)
    with JobClient(f"sqlite:///{file}") as client:
        assert client.show(job) == before
        assert before["args"] == ["😀\u2028", 10**20, 0.1]


@pytest.mark.req("JOBS:badinput")
@pytest.mark.parametrize("url", ["", "work.db", "sqlite://work.db", "ftp://x", "sqlite:///"])
def test_wrong_urls(url: str) -> None:
    """Each says how it is written."""
    with pytest.raises(ConfigurationError, match=r"sqlite:///work\.db"):
        JobClient(url)


def _any(value: object) -> Any:
    """A value that the types do not allow."""
    return value


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda c: c.enqueue_many(["h", "h"], chunk=1, progress=True), "progress"),
        (lambda c: c.enqueue_many(["h", "h"], chunk=-1), "chunk"),
        (lambda c: c.enqueue_many(["h", "h"], chunk=1.5), "chunk"),
        (lambda c: c.enqueue_many(["h", "h"], chunk="1"), "chunk"),
        (lambda c: list(c.jobs(limit="3")), "limit"),
        (lambda c: list(c.jobs(limit=-1)), "limit"),
        (lambda c: c.chain("h", name=0), "name"),
        (lambda c: c.group(["h"], name=[]), "name"),
        (lambda c: c.enqueue("h", unique=Unique(states=_any(5))), "states"),
        (lambda c: c.enqueue("h", unique=Unique(states=_any([["pending"]]))), "state"),
        (lambda c: c.schedules.put(b"x", "h", cron="@daily"), "name"),
        (lambda c: c.schedules.get(7), "name"),
        (lambda c: c.schedules.pause(None), "name"),
        (lambda c: c.schedules.delete(["x"]), "name"),
        (lambda c: c.schedules.run({}), "name"),
        (lambda c: c.schedules.fires(b"x"), "name"),
        (lambda c: c.flow(_gate(c)).signal(["ok"]), "signal"),
        (lambda c: c.flow(_gate(c)).signal("\ud800"), "signal"),
        (lambda c: c.flow(_gate(c)).signal(None), "signal"),
    ],
)
@pytest.mark.parametrize("kind", ["sqlite", "memory"])
def test_a_value_of_a_wrong_type_is_named(
    tmp_path: Path, kind: str, call: Callable[[Any], object], named: str
) -> None:
    """The error is one of ours, says what was wrong, and nothing was stored before it."""
    url = "memory://" if kind == "memory" else f"sqlite:///{tmp_path / 'jobs.db'}"
    with JobClient(url) as client:
        with pytest.raises(JobError, match=named) as raised:
            call(client)
        assert raised.value.remedy
        assert client.count(handler="h") == 0
        assert client.schedules.all() == []


def _gate(client: JobClient) -> str:
    return client.chain(client.wait_for_signal("ok")).enqueue()


def test_a_flow_without_a_name_may_say_so(tmp_path: Path) -> None:
    """``name=None`` is a name left out, as where a variable has none."""
    with JobClient(f"sqlite:///{tmp_path / 'jobs.db'}") as client:
        assert client.flow(client.chain("h", name=_any(None)).enqueue()).show().name == ""


@pytest.mark.parametrize("wanted", ["\ud800", "no-such-job"])
def test_an_id_that_no_store_can_hold_is_that_of_no_job(tmp_path: Path, wanted: str) -> None:
    """What is no UTF-8 is no id, so there is no such job or flow."""
    with JobClient(f"sqlite:///{tmp_path / 'jobs.db'}") as client:
        for call in (client.find, client.status, client.cancel, client.retry, client.flow):
            with pytest.raises(JobNotFoundError):
                call(wanted)
        with pytest.raises(JobNotFoundError):
            client.result(wanted, timeout=0.01)
        with pytest.raises(JobNotFoundError):
            client.enqueue("h", after=wanted)
