"""Our own connectors in the settings: what a table need not repeat, and what is refused."""

from __future__ import annotations

import socket
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ergon_framework.app.factories import Factory, connector_factory
from ergon_framework.app.settings import load_settings
from ergon_framework.app.wiring import check_connectors, kind_of
from ergon_framework.connector.boundary import BoundaryConnector
from ergon_framework.connector.jobs import JobsConnector
from ergon_framework.core.job import JobStatus
from ergon_framework.errors import WiringError
from ergon_framework.jobs.client import JobClient
from ergon_framework.jobs.settings import JobsSettings
from ergon_framework.jobs.stores.memory import MemoryJobStore
from ergon_framework.ports.transaction import Transaction
from ergon_framework.task.mixins.policies import ConsumerPolicy
from ergon_framework.task.ready import ConsumerTask
from tests.connectors.zone_node import told

pytestmark = pytest.mark.req("ONE:connector-jobs", "ONE:connector-boundary", "ONE:settings")


def maker(folder: Path, text: str, name: str = "x") -> Factory:
    """The maker of a connector that a settings file describes."""
    file = folder / "ergon.toml"
    file.write_text(text)
    settings = load_settings(file, {})
    made = connector_factory(name, settings.connectors[name], settings)
    made.check()
    return made


def test_jobs_use_the_store_and_the_rules_of_the_settings(tmp_path: Path) -> None:
    """``[store]`` and ``[jobs]`` count for the connector too; its file lies beside the settings."""
    text = """
    [store]
    url = "sqlite:///work.db"
    [jobs]
    lease = 7.0
    [connectors.x]
    type = "jobs"
    queue = "orders"
    handler = "ship"
    """
    with maker(tmp_path, text).make() as connector:
        assert isinstance(connector, JobsConnector)
        connector.dispatch_transactions([Transaction("a")])
        assert connector.fetch_transactions(1)
        with JobClient(f"sqlite:///{tmp_path}/work.db") as client:
            job = client.find("a")
        assert job.lease_expires_at is not None
        left = job.lease_expires_at - time.time()
        assert left == pytest.approx(JobsSettings(lease=7.0).claimed_for, abs=2.0)


def test_a_store_of_its_own_counts(tmp_path: Path) -> None:
    """What a table says itself counts, and is relative to the file."""
    text = """
    [store]
    url = "sqlite:///work.db"
    [connectors.x]
    type = "jobs"
    store = "sqlite:///own.db"
    lease = 9.0
    """
    with maker(tmp_path, text).make() as connector:
        connector.open()
    assert (tmp_path / "own.db").exists()
    assert not (tmp_path / "work.db").exists()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('[connectors.x]\ntype = "jobs"', r"no store for its jobs.*under \[store\]"),
        ('[connectors.x]\ntype = "jobs"\nstore = "memory://"\nqueu = "a"', "did you mean 'queue'"),
        ('[connectors.x]\ntype = "boundary"\nconsumer = "c"', "neither zone nor node"),
        ('[connectors.x]\ntype = "boundary"\nnode = "http://h"\nconsumr = "c"', "'consumer'"),
        (
            '[zones.plant]\ndata = "d"\n[connectors.x]\ntype = "boundary"\nzone = "plnt"',
            "no zone 'plnt'",
        ),
        ('[connectors.x]\ntype = "job"', "did you mean 'jobs'"),
    ],
)
def test_mistakes_are_found_without_connecting(tmp_path: Path, text: str, told: str) -> None:
    """A missing store, a misspelt option or zone is told before anything is made."""
    with pytest.raises(WiringError, match=told):
        maker(tmp_path, text)


def test_a_zone_of_the_settings_is_a_node(tmp_path: Path) -> None:
    """The only zone, or the one that is named: its address, its name, and paths beside the file."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(30)
        text = f"""
        [zones.plant]
        data = "plant"
        listen = "127.0.0.1:{listener.getsockname()[1]}"
        [connectors.x]
        type = "boundary"
        to_zone = "office"
        outbox = "out.db"
        drain = 0.0
        """
        with maker(tmp_path, text).make() as connector:
            assert isinstance(connector, BoundaryConnector)
            connector.dispatch_transactions([told(1)])
            assert (tmp_path / "out.db").exists()
            sent, _ = listener.accept()
            with sent:
                sent.settimeout(30)
                request = b""
                while b'"office"' not in request:
                    more = sent.recv(1 << 16)
                    assert more, request
                    request += more
        assert b'"plant"' in request


def test_one_process_at_a_time_has_a_consumer(tmp_path: Path) -> None:
    """Several workers may share a queue and produce facts, but not consume under one name."""
    node = '[connectors.x]\ntype = "boundary"\nnode = "http://127.0.0.1:1"\n'
    assert maker(tmp_path, f'{node}consumer = "c"').is_exclusive
    assert not maker(tmp_path, f'{node}from_zone = "a"').is_exclusive
    assert not maker(tmp_path, '[connectors.x]\ntype = "jobs"\nstore = "memory://"').is_exclusive


class Ship(ConsumerTask):
    """Fails for good, or loses its job."""

    def process_transaction(self, transaction: Transaction) -> None:
        """Whatever the payload asks for."""
        store: Any = self.services["store"]
        if transaction.payload == "lose":
            store.clock_at += 3600
            for worker in store.workers():  # not seen for as long
                store.heartbeat(msgspec.structs.replace(worker, state="gone"))
            with JobsConnector(store) as other:
                found = {each.transaction_id: each for each in other.fetch_transactions(9)}
                other.ack(found["a"])


@pytest.mark.req("ONE:patience")
def test_a_task_does_not_repeat_what_its_connector_repeats() -> None:
    """Attempts of the task would multiply with those of the job; facts have no other attempts."""
    policy = ConsumerPolicy.model_validate({"steps": {"process": {"retry": {"max_attempts": 3}}}})
    jobs, facts = JobsConnector("memory://"), BoundaryConnector("http://127.0.0.1:1", consumer="c")
    with pytest.raises(WiringError, match="would multiply"):
        check_connectors(Ship(connectors={"x": jobs}), kind_of(Ship), policy)
    check_connectors(Ship(connectors={"x": facts}), kind_of(Ship), policy)


class Moved(MemoryJobStore):
    """A store whose time is moved by hand."""

    clock_at = 1_700_000_000.0

    def __init__(self) -> None:
        super().__init__(lambda: self.clock_at)


def test_a_lost_lease_is_a_failed_settlement() -> None:
    """The engine reports it, and the job's outcome is that of whoever took it over."""
    store = Moved()
    with JobsConnector(store, handler="ship") as connector:
        connector.dispatch_transactions([Transaction("a", "lose"), Transaction("b", "keep")])
        task = Ship(connectors={"x": connector}, services={"store": store})
        loop = {"streaming": False, "batch": {"size": 1}}
        report = task.consume_transactions({"loop": loop})
    assert (report.succeeded, report.settlement_failures) == (2, 1)
    found = [store_job for each in "ab" if (store_job := store.find(each)) is not None]
    assert [(job.status, job.deliveries) for job in found] == [
        (JobStatus.COMPLETED, 2),
        (JobStatus.COMPLETED, 2),  # it was given back once
    ]
    store.close()
