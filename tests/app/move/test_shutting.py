"""Shutting the store that was moved, for those who have it open and those who come later."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from ergon_framework.app.move.fencing import FencedStore
from ergon_framework.app.move.lock import alone
from ergon_framework.app.move.run import Asked, MoveReport, reopen, run
from ergon_framework.app.move.transfer import Tell, TransferProgress, shut
from ergon_framework.app.move.transfer import reopen as reopen_store
from ergon_framework.app.store_location import StoreLocation
from ergon_framework.boundary.data_folder import DataFolder
from ergon_framework.boundary.factstore.nats import database
from ergon_framework.boundary.node.local_node import LocalNode
from ergon_framework.boundary.settings import ZoneSettings
from ergon_framework.boundary.store_urls import open_fact_store
from ergon_framework.boundary.zone import LocalZone
from ergon_framework.cli import invoke
from ergon_framework.connector.boundary.zone import FactItem, Zone
from ergon_framework.errors import (
    ConfigurationError,
    StoreError,
    StoreReadOnlyError,
    ZoneMovedError,
)
from ergon_framework.jobs.store_urls import open_store
from ergon_framework.jobs.stores.redis import transactions as redis_transactions
from ergon_framework.ports.factstore import OUTBOUND
from ergon_framework.ports.transfer import (
    Destination,
    MoveLease,
    OvertakenMoveError,
    is_incomplete,
    records_of,
)
from ergon_framework.storage.failpoints import failpoint
from ergon_framework.storage.objectstore.memory import MemoryObjectStore
from ergon_framework.testing.suites.jobstore.under_test import new as new_job
from tests.app.move.stock import (
    ZONE,
    add,
    append,
    claim,
    copied,
    fact_sums,
    job_sums,
    moved,
    with_facts,
    with_jobs,
)
from tests.cli.boundary_node import message
from tests.servers.server import free_port

pytestmark = pytest.mark.req("SCALE:move")

SERVERS = pytest.mark.slow
STOPS = {"move.jobs.before_commit", "boundary.move.before"}
"""Right before a write of a move is sent to a server."""


def test_forgotten_workers_and_producers_are_refused(jobs: str, tmp_path: Path) -> None:
    """Those that have the store open, and those that open it; all hear where the jobs are."""
    target = f"sqlite:///{tmp_path}/new.db"
    with closing(open_store(jobs)) as forgotten:
        moved(jobs, target, shuts=True)
        for act in (lambda: add(forgotten, "d"), lambda: claim(forgotten)):
            with pytest.raises(StoreReadOnlyError, match=r"was moved to .*new\.db") as refused:
                act()
            assert ("FROM" in refused.value.remedy) == jobs.startswith("redis")
        with pytest.raises(StoreReadOnlyError, match=r"was moved to .*new\.db"):
            forgotten.add([new_job("e", unique_key="u"), new_job("f")])
        with pytest.raises(StoreReadOnlyError, match="moved to"):
            forgotten.set_queue("default", is_paused=True)
    with pytest.raises(StoreReadOnlyError, match=r"was moved to .*new\.db") as caught:
        open_store(jobs)
    command = re.search("`ergon (move [^`]*)`", caught.value.remedy or "")
    assert command is not None
    if jobs.startswith("sqlite"):
        assert shlex.split(command[1]) == ["move", jobs, target, "--reopen"]
    open_store(jobs, read_only=True).close()
    with closing(open_store(target)) as store:
        assert claim(store) == ["a", "b", "c"]


def test_a_shut_store_can_be_moved_again_and_opened_again(jobs: str, tmp_path: Path) -> None:
    """It can be read as before; and there is a way back, from the place that it was moved to."""
    target = f"sqlite:///{tmp_path}/new.db"
    moved(jobs, target, shuts=True)
    for shuts in (False, True):
        assert copied(moved(jobs, target, shuts=shuts)) == {}
    with pytest.raises(StoreReadOnlyError):
        open_store(jobs)
    other = f"sqlite:///{tmp_path}/other.db"
    with pytest.raises(StoreError, match=r"was moved to .*new\.db, not to .*other\.db"):
        reopen(Asked(StoreLocation(jobs), StoreLocation(other)))
    with pytest.raises(StoreError, match=r"was moved to .*new\.db, not to .*other\.db"):
        moved(jobs, other, shuts=True)
    assert reopen(Asked(StoreLocation(jobs), StoreLocation(target))) == ["jobs"]
    assert reopen(Asked(StoreLocation(jobs), StoreLocation(target))) == []
    with closing(open_store(jobs)) as store:
        add(store, "d")
    assert copied(moved(jobs, target)) == {"jobs": 1}
    assert job_sums(target) == job_sums(jobs)


def test_forgotten_producers_of_facts_are_refused(facts: str, tmp_path: Path) -> None:
    """Also those that append straight to the store, and consumers that would be given facts."""
    (tmp_path / "new").mkdir()
    target = f"sqlite:///{tmp_path}/new/facts.db"
    with closing(open_fact_store(facts, zone=ZONE)) as forgotten:
        forgotten.create_consumer("c", OUTBOUND)
        append(forgotten, "d")
        moved(facts, target, zone=ZONE, shuts=True, is_forced=True)
        with pytest.raises(StoreReadOnlyError, match=r"was moved to .*facts\.db"):
            append(forgotten, "e")
        with pytest.raises(StoreReadOnlyError, match=r"was moved to .*facts\.db"):
            forgotten.serve("c", 10, 1000, holder="h", lease=30.0)
        assert len(forgotten.page(OUTBOUND, 0, 10, 1 << 20).facts) == 4
        settings = ZoneSettings(store=SecretStr(facts))
        asked = json.loads(message("m-1"))
        with (
            LocalZone(ZONE, forgotten, MemoryObjectStore(), settings) as node,
            pytest.raises(ZoneMovedError) as caught,
        ):
            node.append(asked["envelope"], asked["fact"])
        assert (
            shlex.join(["move", facts, target, "--zone", ZONE, "--reopen"]) in caught.value.remedy
        )
    assert copied(moved(facts, target, zone=ZONE)) == {}
    assert fact_sums(target) == fact_sums(facts)
    assert reopen(Asked(StoreLocation(facts), StoreLocation(target), ZONE)) == ["facts"]
    with closing(open_fact_store(facts, zone=ZONE)) as store:
        append(store, "e")
    assert copied(moved(facts, target, zone=ZONE))["facts"] == 1


def test_a_node_does_not_start_on_a_zone_that_was_moved(tmp_path: Path) -> None:
    """The folder says where its facts went."""
    (tmp_path / "old").mkdir()
    with_facts(f"sqlite:///{tmp_path}/old/facts.db", lambda s: s.put("a"))
    moved(tmp_path / "old", tmp_path / "new", shuts=True)
    with pytest.raises(StoreError, match=r"was moved to .*new/facts\.db"):
        LocalZone.open(ZONE, ZoneSettings(data=str(tmp_path / "old")))
    LocalZone.open(ZONE, ZoneSettings(data=str(tmp_path / "new"))).close()


def test_a_program_that_has_a_moved_zone_open_is_told_at_once(tmp_path: Path) -> None:
    """Nothing is stored there any more; the error names the new place and the way back works."""
    old, new = tmp_path / "old", tmp_path / "new"
    address = f"127.0.0.1:{free_port()}"
    settings = ZoneSettings(data=str(old), listen=address, insecure=True)
    node = LocalNode(ZONE, settings)
    node.start()
    commands: list[str] = []
    with (
        Zone(ZONE, settings, timeout=2.0) as here,
        Zone(ZONE, f"http://{address}", timeout=2.0) as far,
    ):
        assert published(here, 1) == 1
        moved(old, new, shuts=True, is_forced=True)
        for zone in (here, far):
            for use in (
                lambda zone=zone: published(zone, 2),
                lambda zone=zone: zone.publish_many([fact(2)], to="hq"),
                lambda zone=zone: list(zone.read("all")),
            ):
                with pytest.raises(ZoneMovedError, match=f"was moved to {new}") as caught:
                    use()
                assert caught.value.details["moved_to"] == str(new / "facts.db")
                assert f'write data = "{new}" under [zones.{ZONE}]' in caught.value.remedy
                commands += re.findall("`ergon (move [^`]*)`", caught.value.remedy)
            found = zone.find("f1")
            assert found is not None
        with Zone(ZONE, new) as there:
            assert published(there, 1) == 1  # known by its id
        [command] = set(commands)
        assert invoke(shlex.split(command)) == 0
        assert published(far, 2) == 2
    node.stop()


@pytest.mark.slow
def test_a_zone_whose_folder_the_move_still_has_is_known_to_be_moved(tmp_path: Path) -> None:
    """It holds the lock until all other parts of the program are moved, which may take long."""
    old, new = tmp_path / "old", tmp_path / "new"
    with Zone(ZONE, old) as zone:
        assert published(zone, 1) == 1
    moved(old, new, shuts=True)
    with (
        closing(DataFolder.lock(old)),
        Zone(ZONE, old) as zone,
        pytest.raises(ZoneMovedError, match="was moved to"),
    ):
        published(zone, 2)


def fact(n: int) -> FactItem:
    """One of many."""
    return {"subject": "order:1", "predicate": "counted", "object": {"n": n}, "id": f"f{n}"}


def published(zone: Zone, n: int) -> int:
    """Publish a fact; its offset."""
    return zone.publish("order:1", "counted", {"n": n}, to="hq", id=f"f{n}").offset


def test_without_a_word_the_store_stays_open(jobs: str, tmp_path: Path) -> None:
    """A move copies; what was added since is brought by the next one."""
    target = f"sqlite:///{tmp_path}/new.db"
    moved(jobs, target)
    with closing(open_store(jobs)) as store:
        add(store, "d")
    assert copied(moved(jobs, target)) == {"jobs": 1}


def test_a_move_that_fails_leaves_the_store_open(jobs: str, tmp_path: Path) -> None:
    """Somebody has to be able to work; one that was shut before stays shut."""
    target = f"sqlite:///{tmp_path}/new.db"

    def spoil(told: TransferProgress) -> None:
        if told.what == "verifying jobs":
            raise StoreError("the disk is gone")

    with pytest.raises(StoreError, match="the disk is gone"):
        watched_run(jobs, target, spoil)
    with closing(open_store(jobs)) as store:
        add(store, "d")
    moved(jobs, target, shuts=True)
    with pytest.raises(StoreError, match="the disk is gone"):
        watched_run(jobs, target, spoil)
    with pytest.raises(StoreReadOnlyError):
        open_store(jobs)


def watched_run(source: str, target: str, tell: Tell) -> None:
    """Move and shut, watched."""
    run(Asked(StoreLocation(source), StoreLocation(target), shuts=True), tell)


@SERVERS
def test_no_password_is_told(tmp_path: Path, postgres_url: str) -> None:
    """Whoever is refused hears where the jobs are, and nothing secret."""
    source = with_jobs(f"sqlite:///{tmp_path}/old.db", lambda s: s.put("a"))
    secret = postgres_url + ("&" if "?" in postgres_url else "?") + "password=hunter2"
    moved(source, secret, shuts=True)
    with pytest.raises(StoreReadOnlyError) as caught:
        open_store(source)
    assert "hunter2" not in str(caught.value.to_dict())
    assert caught.value.details["moved_to"] == StoreLocation(secret).name


def test_the_command_shuts_and_opens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It recommends to shut, says when that was done, and how to undo it."""
    source = with_jobs(f"sqlite:///{tmp_path}/old.db", lambda s: s.put("a"))
    places = [source, f"sqlite:///{tmp_path}/new.db"]
    assert invoke(["move", *places]) == 0
    assert "old.db is still open" in capsys.readouterr().err
    assert invoke(["move", *places, "--shut"]) == 0
    assert "old.db is shut: whoever works with it is told to use" in capsys.readouterr().err
    assert invoke(["move", *places]) == 0
    assert "old.db is shut" in capsys.readouterr().err
    assert invoke(["enqueue", "greet", "--store", source]) != 0
    assert "--reopen" in capsys.readouterr().err
    assert invoke(["move", *places, "--reopen", "--shut"]) == 2
    assert invoke(["move", *places, "--reopen"]) == 0
    assert "old.db can be used again: jobs" in capsys.readouterr().out
    assert invoke(["enqueue", "greet", "--store", source]) == 0


def test_a_copy_that_is_moved_on_remembers_both(tmp_path: Path) -> None:
    """A store may be a copy of one and be moved to another; nothing is moved back into it."""
    first, second, third = (f"sqlite:///{tmp_path}/{name}.db" for name in ("one", "two", "three"))
    with_jobs(first, lambda s: s.put("a"))
    moved(first, second, shuts=True)
    moved(second, third, shuts=True)
    with pytest.raises(StoreReadOnlyError, match=r"two\.db held was moved to .*three\.db"):
        moved(first, second)
    reopen(Asked(StoreLocation(second), StoreLocation(third)))
    assert copied(moved(first, second)) == {}
    with pytest.raises(ConfigurationError, match="into itself"):
        moved(first, first, shuts=True)


@pytest.mark.slow
def test_a_confirmation_on_its_way_is_not_taken_by_a_store_that_was_shut(
    nats_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was decided before the move and is written after it: nobody would find it in the copy."""
    with_facts(nats_url, lambda s: s.put(*"abc"))
    target = f"sqlite:///{tmp_path}/new/facts.db"
    (tmp_path / "new").mkdir()
    outcomes: list[MoveReport] = []

    def shut_first(name: str) -> None:
        if name == "boundary.confirm.before" and not outcomes:
            outcomes.append(moved(nats_url, target, zone=ZONE, shuts=True))
        failpoint(name)

    with closing(open_fact_store(nats_url, zone=ZONE)) as store:
        store.create_consumer("c", OUTBOUND)
        store.serve("c", 10, 1 << 20)
        monkeypatch.setattr(database, "failpoint", shut_first)
        with pytest.raises(StoreReadOnlyError):
            store.confirm("c", 3)
        assert outcomes[0].is_shut
    with closing(open_fact_store(target, zone=ZONE)) as copy:
        assert [fact.offset for fact in copy.serve("c", 10, 1 << 20).page.facts] == [1, 2, 3]


@pytest.mark.parametrize("password", ["hunt?er=2", "hunt#er2"])
def test_a_password_that_ends_a_url_is_not_taken_for_the_rest_of_it(password: str) -> None:
    """Two stores would have one name, and the name would show a part of the password."""
    for scheme in ("postgresql", "redis", "nats"):
        with pytest.raises(ConfigurationError, match="%23") as caught:
            StoreLocation(f"{scheme}://ergon:{password}@127.0.0.1/work")
        assert password not in str(caught.value)
    assert (
        StoreLocation("postgresql://ergon:a%23b@127.0.0.1/work").name
        == "postgresql://ergon@127.0.0.1/work"
    )


@pytest.mark.slow
def test_two_moves_of_one_store_do_not_undo_each_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second would open what the first one has shut, when it fails; so would the way back."""
    source = with_jobs(f"sqlite:///{tmp_path}/old.db", lambda s: s.put("a"))
    target = f"sqlite:///{tmp_path}/new.db"
    words = [sys.executable, "-m", "ergon_framework.cli", "move", source, target, "--shut"]
    environ = os.environ | {"ERGON_FAILPOINTS": "move.part.shut=pause"}
    with subprocess.Popen(words, env=environ) as first:  # noqa: S603 - our own interpreter
        os.waitid(os.P_PID, first.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        for second in ("--shut", "--reopen"):
            assert invoke(["move", source, target, second]) == 1
            assert "is under way" in capsys.readouterr().err
        with pytest.raises(StoreReadOnlyError):
            open_store(source)
        first.send_signal(signal.SIGCONT)
    assert first.returncode == 0
    assert [each.name for each in tmp_path.glob("*.moving")] == []
    assert invoke(["move", source, target, "--reopen"]) == 0


def test_one_move_at_a_time_has_a_store(jobs: str, tmp_path: Path) -> None:
    """On whatever server it is; when the first has ended, the next one may begin."""
    asked = Asked(StoreLocation(jobs), StoreLocation(f"sqlite:///{tmp_path}/new.db"), shuts=True)
    with alone([asked]) as first:
        for second in (lambda: run(asked, lambda _: None), lambda: reopen(asked)):
            with pytest.raises(StoreError, match="is under way"):
                second()
        first.refuse_lost()
    run(asked, lambda _: None)
    assert reopen(asked) == ["jobs"]


def test_one_move_at_a_time_has_a_zone(facts: str, tmp_path: Path) -> None:
    """The same for facts; another zone of the same server is another matter."""
    (tmp_path / "new").mkdir()
    target = StoreLocation(f"sqlite:///{tmp_path}/new/facts.db")
    asked = Asked(StoreLocation(facts), target, ZONE, shuts=True)
    with alone([asked]), pytest.raises(StoreError, match="is under way"):
        reopen(asked)
    assert reopen(asked) == []


@SERVERS
@pytest.mark.parametrize("server", ["redis_url", "nats_url"])
def test_a_lease_that_ran_out_is_lost(server: str, request: pytest.FixtureRequest) -> None:
    """A move that was stopped for too long finds that another one has begun, or has come and gone.

    One that was killed renews its lease no more.
    """
    url = request.getfixturevalue(server)
    opened = open_store(url) if server == "redis_url" else open_fact_store(url, zone=ZONE)
    with closing(opened) as store:
        records = records_of(store)
        assert isinstance(records, MoveLease)
        assert records.lease_move("first", 0.001)
        assert any(records.lease_move("second", 60.0) for _ in range(10_000))
        assert not records.lease_move("first", 60.0, renews=True)
        assert not records.lease_move("third", 60.0)
        assert records.lease_move("second", 0.0, renews=True)
        assert not records.lease_move("first", 60.0, renews=True)
        assert records.lease_move("third", 60.0)


def test_a_move_that_was_overtaken_writes_nothing_more(jobs: str, tmp_path: Path) -> None:
    """It was stopped while it copied; the copy is in use since, and old records would undo that."""
    target = f"sqlite:///{tmp_path}/new.db"
    outcomes: list[MoveReport] = []

    def stopped(told: TransferProgress) -> None:
        if told.what == "copying jobs" and not outcomes:
            outcomes.append(moved(jobs, target))
            with closing(open_store(target)) as store:
                assert claim(store) == ["a", "b", "c"]

    with pytest.raises(StoreError, match=r"another move wrote into .*new\.db while this one"):
        run(Asked(StoreLocation(jobs), StoreLocation(target)), stopped)
    with closing(open_store(target)) as store:
        assert claim(store) == []


@SERVERS
@pytest.mark.parametrize("server", ["redis_url", "nats_url"])
def test_a_move_that_was_stopped_right_before_a_write_is_refused_by_the_store(
    server: str,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No check that comes before the write can tell what others do until the server has it."""
    target = request.getfixturevalue(server)
    is_zone = server == "nats_url"
    (tmp_path / "old").mkdir()
    if is_zone:
        source = with_facts(f"sqlite:///{tmp_path}/old/facts.db", lambda s: s.put(*"abc"))
    else:
        source = with_jobs(f"sqlite:///{tmp_path}/old.db", lambda s: s.put(*"abc"))
    zone = ZONE if is_zone else None
    overtaken: list[MoveReport] = []

    def opened() -> Any:
        return open_fact_store(target, zone=ZONE) if is_zone else open_store(target)

    def stopped(name: str) -> None:
        if name in STOPS and not overtaken and begun():
            overtaken.append(MoveReport())
            overtaken[0] = moved(source, target, zone=zone, is_forced=True)
            with closing(opened()) as store:
                append(store, "d") if is_zone else claim(store)
        failpoint(name)

    def begun() -> bool:
        look = partial(open_fact_store, zone=ZONE) if is_zone else open_store
        with closing(look(target, read_only=True)) as store:
            return is_incomplete(store)

    monkeypatch.setattr(database if is_zone else redis_transactions, "failpoint", stopped)
    asked = Asked(StoreLocation(source), StoreLocation(target), zone, is_forced=True)
    with pytest.raises(OvertakenMoveError, match="this one writes nothing more"):
        run(asked, lambda _: None)
    assert overtaken[0].moved
    with closing(opened()) as store:
        if is_zone:
            assert [log.head for log in store.logs() if log.name == OUTBOUND] == [4]
        else:
            assert claim(store) == []


def test_neither_way_of_a_move_goes_on_after_another_run(jobs: str, tmp_path: Path) -> None:
    """Wherever it was stopped: shutting the old store or opening it again is refused there."""
    target = f"sqlite:///{tmp_path}/new.db"
    with closing(open_store(jobs, half_moved=True)) as store:
        shutting = FencedStore(records_of(store), "old")
        moved(jobs, target, shuts=True)
        opening = FencedStore(records_of(store), "old")
        moved(jobs, target, shuts=True)
        with pytest.raises(OvertakenMoveError):
            reopen_store(opening)
        with pytest.raises(StoreReadOnlyError):
            add(store, "lost")
        assert reopen(Asked(StoreLocation(jobs), StoreLocation(target))) == ["jobs"]
        with pytest.raises(OvertakenMoveError):
            shut(shutting, Destination("elsewhere"))
        add(store, "d")
