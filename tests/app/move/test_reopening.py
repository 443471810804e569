"""The way back from a move, and what stands in it."""

from __future__ import annotations

import re
import shlex
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from ergon_framework.app.move.fencing import FencedStore
from ergon_framework.app.move.run import Asked, reopen
from ergon_framework.app.move.transfer import refuse_elsewhere, shut
from ergon_framework.app.store_location import StoreLocation
from ergon_framework.boundary.data_folder import DataFolder
from ergon_framework.boundary.settings import ZoneSettings
from ergon_framework.boundary.store_urls import open_fact_store
from ergon_framework.boundary.zone import LocalZone
from ergon_framework.cli import invoke
from ergon_framework.errors import (
    ErgonError,
    StoreError,
    StoreReadOnlyError,
    StoreSchemaError,
    StoreUnavailableError,
)
from ergon_framework.jobs.store_urls import open_store
from ergon_framework.jobs.stores.memory import MemoryJobStore
from ergon_framework.ports.jobstore import Search, WorkerRecord
from ergon_framework.ports.transfer import WORK, Destination, ProgramMove, records_of
from tests.app.move.stock import ZONE, add, append, claim, ergon, moved, with_facts, with_jobs
from tests.app.move.test_providers import with_calls
from tests.servers.server import free_port

pytestmark = pytest.mark.req("SCALE:move")


def files(folder: Path, *names: str) -> list[str]:
    """Places for stores."""
    return [f"sqlite:///{folder}/{name}.db" for name in names]


def back(source: str | Path, target: str | Path, zone: str | None = None) -> list[str]:
    """What is opened again."""
    return reopen(Asked(StoreLocation(str(source)), StoreLocation(str(target)), zone))


def pasted(error: ErgonError) -> list[str]:
    """The command that an error names, as a shell reads it."""
    [command] = re.findall("`(ergon move [^`]*)`", str(error.remedy))
    return shlex.split(command)


def test_what_was_done_since_is_not_left_behind_by_mistake(jobs: str, tmp_path: Path) -> None:
    """The way back is shut when TO was worked with, or is gone, unless somebody insists."""
    target = f"sqlite:///{tmp_path}/new.db"
    back = Asked(StoreLocation(jobs), StoreLocation(target))
    moved(jobs, target, shuts=True)
    with closing(open_store(target)) as store:
        assert claim(store) == ["a", "b", "c"]
        add(store, "d")
    with pytest.raises(StoreError, match=r"new\.db does not hold .* others are 4 jobs") as caught:
        reopen(back)
    assert "--force" in (caught.value.remedy or "")
    with pytest.raises(StoreReadOnlyError):
        open_store(jobs)
    (tmp_path / "new.db").rename(tmp_path / "gone.db")
    with pytest.raises(StoreError, match=r"does not hold .* others are 3 jobs"):
        reopen(back)
    assert not (tmp_path / "new.db").exists()
    assert reopen(replace(back, is_forced=True)) == ["jobs"]
    with closing(open_store(jobs)) as store:
        assert claim(store) == ["a", "b", "c"]


def test_what_happened_to_facts_since_is_not_left_behind_by_mistake(
    facts: str, tmp_path: Path
) -> None:
    """A fact that only TO has would be missing for ever, and its offset be given to another."""
    (tmp_path / "new").mkdir()
    target = f"sqlite:///{tmp_path}/new/facts.db"
    back = Asked(StoreLocation(facts), StoreLocation(target), ZONE)
    moved(facts, target, zone=ZONE, shuts=True)
    with closing(open_fact_store(target, zone=ZONE)) as store:
        append(store, "e")
    with pytest.raises(StoreError, match=r"does not hold .*\b1 facts"):
        reopen(back)
    assert reopen(replace(back, is_forced=True)) == ["facts"]


def test_the_hint_of_a_copy_that_was_shut_opens_it_and_shuts_the_original(
    jobs: str, tmp_path: Path
) -> None:
    """Never are both open, whichever way the command is written."""
    target = f"sqlite:///{tmp_path}/new.db"
    moved(jobs, target, shuts=True)
    assert back(jobs, target) == ["jobs"]
    with closing(open_store(jobs)) as store:
        add(store, "d")
    with pytest.raises(StoreReadOnlyError, match="moved to") as told:
        open_store(target)
    hint = pasted(told.value)
    assert hint[3:] == [target, "--shut"]
    with pytest.raises(StoreError, match="others are 1 jobs") as told_more:
        back(target, jobs)
    assert pasted(told_more.value) == hint
    if jobs.startswith("sqlite"):  # other URLs have their password left out
        assert invoke(hint[1:]) == 0
    else:
        moved(jobs, target, shuts=True)
    with pytest.raises(StoreReadOnlyError, match="moved to"):
        open_store(jobs)
    with closing(open_store(target)) as store:
        assert store.count(Search()) == 4
    assert back(jobs, target) == ["jobs"]
    for source, other, force in (
        (target, jobs, False),
        (jobs, target, False),
        (target, jobs, True),
    ):
        if force:
            with closing(open_store(other)) as store:
                now = store.now()
                store.heartbeat(
                    WorkerRecord(id="w", host="h", pid=1, version="1", started_at=now, seen_at=now)
                )
        asked = Asked(StoreLocation(source), StoreLocation(other), is_forced=force)
        assert reopen(asked) == ["jobs"]
        open_store(source).close()
        with pytest.raises(StoreReadOnlyError, match="moved to"):
            open_store(other)


def test_the_hint_of_a_zone_that_was_shut_on_the_way_back(zone: Path, tmp_path: Path) -> None:
    """It brings objects along that came since, and the log does not fork."""
    target = tmp_path / "new"
    moved(zone, target, shuts=True)
    assert back(zone, target) == ["facts"]
    with LocalZone.open(ZONE, ZoneSettings(data=str(zone))) as node:
        node.put("files", "three", b"three")
    hint = ["ergon", "move", str(zone), str(target), "--zone", ZONE, "--shut"]
    with pytest.raises(StoreReadOnlyError, match="moved to") as told:
        LocalZone.open(ZONE, ZoneSettings(data=str(target)))
    assert pasted(told.value) == hint
    with closing(open_fact_store(f"sqlite:///{target}/facts.db", zone=ZONE)) as store:
        with pytest.raises(StoreReadOnlyError, match="moved to") as told:
            append(store, "e")
        assert pasted(told.value) == hint
    with pytest.raises(StoreError, match="1 names of objects") as refused:
        back(target, zone)
    assert pasted(refused.value) == hint
    assert invoke(hint[1:]) == 0
    kept = [{each.name for each in folder.rglob("objects/**/*")} for folder in (zone, target)]
    assert kept[0] == kept[1]
    LocalZone.open(ZONE, ZoneSettings(data=str(target))).close()
    assert back(zone, target) == ["facts"]
    assert back(target, zone) == ["facts"]
    with pytest.raises(StoreReadOnlyError, match="moved to"):
        LocalZone.open(ZONE, ZoneSettings(data=str(zone)))


def test_a_move_that_was_cut_off_can_be_taken_back(jobs: str, tmp_path: Path) -> None:
    """Nobody can have worked with a store that is not whole yet, so nothing is left behind."""
    target = f"sqlite:///{tmp_path}/new.db"
    ergon("move", jobs, target, failpoints="move.part.begun=kill")
    with closing(open_store(jobs, half_moved=True)) as store:
        shut(FencedStore(records_of(store), "old"), Destination(StoreLocation(target).name))
    assert reopen(Asked(StoreLocation(jobs), StoreLocation(target))) == ["jobs"]


def test_a_move_of_another_store_that_was_cut_off(tmp_path: Path) -> None:
    """That TO is not whole says nothing about us when it is to be a copy of another."""
    source, other, target = files(tmp_path, "old", "other", "new")
    for url in (source, other):
        with_jobs(url, lambda s: s.put("a"))
    moved(source, target, shuts=True)
    for file in tmp_path.glob("new.db*"):
        file.unlink()
    ergon("move", other, target, failpoints="move.part.begun=kill")
    with pytest.raises(StoreError, match="does not hold"):
        back(source, target)


def test_what_was_moved_on_goes_on_in_a_third_place(tmp_path: Path) -> None:
    """The two stores before it hold the same for ever, and that means nothing."""
    first, second, third = files(tmp_path, "one", "two", "three")
    with_jobs(first, lambda s: s.put("a"))
    moved(first, second, shuts=True)
    moved(second, third, shuts=True)
    with closing(open_store(third)) as store:
        assert claim(store) == ["a"]
    with pytest.raises(StoreReadOnlyError, match=r"two\.db held was moved to .*three\.db.*--force"):
        back(first, second)


def test_facts_that_were_moved_on(tmp_path: Path) -> None:
    """The same, for a zone."""
    for name in ("one", "two", "three"):
        (tmp_path / name).mkdir()
    first, second, third = (
        f"sqlite:///{tmp_path}/{name}/facts.db" for name in ("one", "two", "three")
    )
    with_facts(first, lambda s: s.put(*"ab"))
    moved(first, second, zone=ZONE, shuts=True)
    moved(second, third, zone=ZONE, shuts=True)
    with pytest.raises(StoreReadOnlyError, match="was moved to"):
        back(first, second, ZONE)


def test_a_node_that_runs_on_the_copy(tmp_path: Path) -> None:
    """It may not have been asked for anything yet; the zone would be in two places."""
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
    with_facts(f"sqlite:///{tmp_path}/old/facts.db", lambda s: s.put(*"ab"))
    moved(tmp_path / "old", tmp_path / "new", shuts=True)
    with closing(DataFolder.lock(tmp_path / "new")), pytest.raises(ErgonError, match="in use"):
        back(tmp_path / "old", tmp_path / "new")
    with closing(DataFolder.lock(tmp_path / "old")):  # a node that found out that it is shut
        assert back(tmp_path / "old", tmp_path / "new") == ["facts"]


def test_only_what_was_shut_is_compared(tmp_path: Path) -> None:
    """Jobs that came into the same file later were never moved, and may be worked on."""
    source, target = files(tmp_path, "old", "new")
    with_calls(source)
    moved(source, target, shuts=True)
    with closing(open_store(source)) as store:
        add(store, "a")
        assert claim(store) == ["a"]
        assert back(source, target) == ["provider calls"]


def test_a_worker_that_has_the_old_store_open(tmp_path: Path) -> None:
    """It can do nothing there, so nobody waits for it; one that works with TO is waited for."""
    source, target = files(tmp_path, "old", "new")
    with_jobs(source, lambda s: s.put("a"))
    for url in (source, target):
        moved(source, target, shuts=True, is_forced=True)
        with closing(open_store(url, half_moved=True)) as store:
            now = store.now()
            store.heartbeat(
                WorkerRecord(id="w", host="h", pid=1, version="1", started_at=now, seen_at=now)
            )
        if url == source:
            assert back(source, target) == ["jobs"]
        else:
            with pytest.raises(StoreError, match="workers use"):
                back(source, target)


@pytest.mark.slow
def test_a_place_that_cannot_be_reached(redis_url: str, tmp_path: Path) -> None:
    """What was done there cannot be known, and the error says how to go back all the same."""
    [source] = files(tmp_path, "old")
    with_jobs(source, lambda s: s.put("a"))
    moved(source, redis_url, shuts=True)
    away = f"redis://127.0.0.1:{free_port()}/0"
    with closing(open_store(source, half_moved=True)) as store:
        shut(FencedStore(records_of(store), "old"), Destination(StoreLocation(away).name))
    with pytest.raises(StoreUnavailableError) as caught:
        back(source, away)
    assert "--force" in (caught.value.remedy or "")
    told: list[str] = []
    forced = Asked(StoreLocation(source), StoreLocation(away), is_forced=True)
    assert reopen(forced, warn=told.append) == ["jobs"]
    assert [each.partition(":")[0] for each in told] == ["redis"]
    assert "was not shut: see that nobody works there" in told[0]


def test_force_does_not_go_on_beside_a_place_that_is_there(tmp_path: Path) -> None:
    """Only one that is gone or does not answer may stay open: somebody may work with this one."""
    jobs, target = with_jobs(f"sqlite:///{tmp_path}/old.db"), tmp_path / "new.db"
    moved(jobs, f"sqlite:///{target}", shuts=True)
    with closing(sqlite3.connect(target)) as file, file:
        file.execute("UPDATE ergon_schema SET version = 10000 WHERE part = 'jobs'")
    asked = Asked(StoreLocation(jobs), StoreLocation(f"sqlite:///{target}"), is_forced=True)
    with pytest.raises(StoreSchemaError):
        reopen(asked)
    with pytest.raises(StoreReadOnlyError):
        open_store(jobs)


@pytest.mark.parametrize(
    ("is_undone", "line", "when"),
    [
        (False, 'url = "sqlite:////new.db"', "while the old line is under [store]"),
        (True, 'url = "sqlite:////old.db"', "once that line is under [store]"),
    ],
)
def test_the_hint_of_a_program_that_is_elsewhere_says_which_line(
    is_undone: bool, line: str, when: str
) -> None:
    """The command works with one of the two lines only."""
    program = ProgramMove(
        "/p/ergon.toml", "sqlite:////new.db", (f"{WORK} of /old.db",), is_undone=is_undone
    )
    with closing(MemoryJobStore()) as store:
        shut(FencedStore(records_of(store), "one"), Destination("/there", "", program))
        with pytest.raises(StoreError, match="one held was moved to /there, not to /third") as told:
            refuse_elsewhere(store, "one", "/third")
    remedy = told.value.remedy or ""
    assert f"which is to have {line} under [store]" in remedy
    assert remedy.endswith(f"with all others, {when}")
    assert ("--reopen" in remedy) is not is_undone
