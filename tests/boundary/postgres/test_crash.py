"""Processes, connections and servers that die: what was acknowledged is there, and only once."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import psycopg
import pytest

from ergon_framework.boundary.factstore.postgres import PostgresFactStore
from ergon_framework.boundary.factstore.postgres.append import PipelineExecutor
from ergon_framework.boundary.factstore.postgres.database import PostgresTuning
from ergon_framework.errors import StoreUnavailableError
from ergon_framework.ports.factstore import OUTBOUND, Appended, Corruption
from ergon_framework.storage.failpoints import NAMES
from ergon_framework.storage.postgres.pool import Connection
from ergon_framework.testing.suites.factstore.under_test import new
from tests.boundary.postgres.conftest import Open
from tests.boundary.sqlite.test_crash import CALLS, killed
from tests.campaign.parameter_sample import sampled
from tests.servers.postgres import PostgresServer

WAIT = 60.0
POINTS = [f"boundary.{call}.{moment}" for call in CALLS for moment in ("before", "after")]
KEPT = ["boundary.append.before", *(f"boundary.{call}.after" for call in CALLS)]
pytestmark = pytest.mark.req("SCALE:boundary-postgres", "P6", "P7", "P11", "P12")


@pytest.mark.slow
@pytest.mark.parametrize("point", sampled(POINTS, KEPT))
def test_killed_at_a_failpoint(postgres_url: str, point: str) -> None:
    """What was acknowledged is on the server, and nothing is there twice."""
    assert point in NAMES
    killed(postgres_url, point, 4 if "append" in point else 2)


# ---- answers that are lost ----------------------------------------------------------------------


def cut_once(monkeypatch: pytest.MonkeyPatch, *, before: bool) -> list[str]:
    """Lose the connection of the next append, before it is sent or after it was committed."""
    whole, cuts = PipelineExecutor.run, ["cut"]

    def run(self: PipelineExecutor, connection: Connection, *given: object, **more: bool) -> None:
        if not cuts:
            return whole(self, connection, *given, **more)  # type: ignore[arg-type]
        cuts.pop()
        if not before:
            whole(self, connection, *given, **more)  # type: ignore[arg-type]
        connection.close()
        raise psycopg.OperationalError("server closed the connection unexpectedly")

    monkeypatch.setattr(PipelineExecutor, "run", run)
    return cuts


@pytest.mark.parametrize("before", [True, False])
def test_a_lost_answer_is_asked_for_again(
    store: PostgresFactStore, monkeypatch: pytest.MonkeyPatch, before: bool
) -> None:
    """The append is repeated by the store itself, and is there once."""
    store.append(OUTBOUND, [new("a")])
    cuts = cut_once(monkeypatch, before=before)
    answer = store.append(OUTBOUND, [new("b")])
    assert cuts == []
    assert answer == [Appended(2) if before else Appended(2, True, new("b").envelope)]
    assert store.append(OUTBOUND, [new("c")]) == [Appended(3)]
    assert not [each for each in store.verify(OUTBOUND) if isinstance(each, Corruption)]


def test_an_answer_that_stays_lost(open_store: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says that nobody knows, and that the same again is safe."""
    store = open_store(tuning=PostgresTuning(lost_answer_timeout=0.0))
    store.append(OUTBOUND, [new("a")])
    cut_once(monkeypatch, before=False)
    with pytest.raises(StoreUnavailableError, match="not known") as refusal:
        store.append(OUTBOUND, [new("b")])
    assert "again" in refusal.value.remedy
    assert store.append(OUTBOUND, [new("b")]) == [Appended(2, True, new("b").envelope)]


# ---- servers that die ---------------------------------------------------------------------------


@pytest.fixture
def own_server() -> Iterator[PostgresServer]:
    """A server that may be killed."""
    server = PostgresServer()
    try:
        server.start()
        yield server
    finally:
        server.remove()


@pytest.mark.slow
@pytest.mark.req("SCALE:fleet-outage")
def test_a_server_that_is_killed_and_comes_back(own_server: PostgresServer) -> None:
    """Nothing acknowledged is lost or doubled; the same store goes on, and who waits is woken."""
    url = own_server.new_database()
    store, rival = PostgresFactStore(url, zone="plant-a"), PostgresFactStore(url, zone="plant-a")
    woken = threading.Event()
    acknowledged: dict[str, int] = {}
    stop = threading.Event()

    def write() -> None:
        number = 0
        while not stop.is_set():
            try:
                [answer] = store.append(OUTBOUND, [new(f"id-{number}")])
            except StoreUnavailableError:
                continue
            assert isinstance(answer, Appended)
            acknowledged[f"id-{number}"] = answer.offset
            number += 1

    writer = threading.Thread(target=write)
    try:
        store.subscribe(woken.set)
        writer.start()
        for _ in range(2):
            seen = len(acknowledged)
            while len(acknowledged) < seen + 20:
                assert writer.is_alive()
            own_server.kill()
            own_server.start()
        seen = len(acknowledged)
        while len(acknowledged) < seen + 5:
            assert writer.is_alive()
    finally:
        stop.set()
        writer.join(WAIT)
    woken.clear()
    rival.append(OUTBOUND, [new("last")])
    assert woken.wait(WAIT)
    facts = store.page(OUTBOUND, 0, 1 << 20, 1 << 30).facts
    assert {fact.message_id: fact.offset for fact in facts if fact.message_id != "last"} == (
        acknowledged
    )
    assert not [each for each in store.verify(OUTBOUND) if isinstance(each, Corruption)]
    store.close()
    rival.close()
