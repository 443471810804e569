"""Moving a zone: its facts, and the objects that they refer to."""

from __future__ import annotations

import signal
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from ergon_framework.app.schema import zones_there
from ergon_framework.boundary.data_folder import DataFolder, Unfinished, held
from ergon_framework.boundary.settings import ZoneSettings
from ergon_framework.boundary.store_urls import open_fact_store
from ergon_framework.boundary.zone import LocalZone
from ergon_framework.errors import ConfigurationError, DataLossError, ErgonError, StoreError
from ergon_framework.ports.factstore import OUTBOUND
from ergon_framework.storage.objectstore.urls import open_object_store
from ergon_framework.testing.suites.factstore.records import fill
from ergon_framework.testing.suites.factstore.under_test import FactStoreSubject, new
from tests.app.move.stock import (
    ZONE,
    copied,
    discarded,
    ergon,
    fact_sums,
    facts_in,
    moved,
    with_facts,
    with_jobs,
)
from tests.campaign.parameter_sample import sampled

pytestmark = pytest.mark.req("SCALE:move")


def tables_of(file: Path) -> list[str]:
    """What a file has, by name."""
    with closing(sqlite3.connect(file)) as connection:
        return [name for (name,) in connection.execute("SELECT name FROM sqlite_master ORDER BY 1")]


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Path]:
    """The folder of a zone with facts, and a new one."""
    (tmp_path / "old").mkdir()
    with_facts(facts_in(tmp_path / "old"))
    return tmp_path / "old", tmp_path / "new"


def test_a_restore_that_has_not_ended_is_ended_first(places: tuple[Path, Path]) -> None:
    """No node runs, so nobody is told to stop one; the hint is that of the restore."""
    with held(places[0]) as mark:
        mark.say(Unfinished(draft=str(places[0]), is_armed=True))
    with pytest.raises(ConfigurationError, match="has not ended") as caught:
        moved(facts_in(places[0]), facts_in(places[1]), zone=ZONE)
    assert caught.value.remedy == "run the same `ergon boundary restore` again"


def test_a_zone_arrives_whole(places: tuple[Path, Path]) -> None:
    """Facts, ids, gaps, consumers, quarantine, names, links and epoch, from file to file."""
    source, target = facts_in(places[0]), facts_in(places[1])
    places[1].mkdir()
    first = moved(source, target, zone=ZONE)
    assert fact_sums(target) == fact_sums(source)
    assert copied(first)["facts"] > 5
    again = moved(source, target, zone=ZONE)
    assert (copied(again), discarded(again)) == ({}, {})


def test_what_came_since_is_added(places: tuple[Path, Path]) -> None:
    """And what was dropped since is dropped."""
    source, target = facts_in(places[0]), facts_in(places[1])
    places[1].mkdir()
    moved(source, target, zone=ZONE)

    def more(s: FactStoreSubject) -> None:
        s.put("x", "y")
        s.store.truncate(OUTBOUND, 5, loss_reason="disk")
        s.store.delete_consumer("guest")

    with_facts(source, more)
    again = moved(source, target, zone=ZONE)
    assert copied(again)["facts"] == 2
    assert discarded(again)["consumers"] == 1
    assert fact_sums(target) == fact_sums(source)


def test_objects_go_along(zone: Path, tmp_path: Path) -> None:
    """Between two folders without a word about it; each bytes once, and again nothing."""
    first = moved(zone, tmp_path / "new")
    assert copied(first)["objects"] == 2
    again = moved(zone, tmp_path / "new")
    assert copied(again) == {}
    with LocalZone.open(ZONE, ZoneSettings(data=str(tmp_path / "new"))) as found:
        kept = found.store.object("files", "two")
        assert kept is not None
        assert found.objects.verify(kept.digest, kept.size) is None
        assert found.store.info().epoch
    assert fact_sums(facts_in(tmp_path / "new"))["FactRecord"].count == 1


def test_objects_may_go_elsewhere(zone: Path, tmp_path: Path) -> None:
    """Where --objects says; without it they stay, and that is said."""
    target = facts_in(tmp_path / "new")
    (tmp_path / "new").mkdir()
    left = moved(zone, target)
    assert left.notes == ["objects stay where they are: --objects FROM TO copies them"]
    elsewhere = tmp_path / "elsewhere"
    found = moved(zone, target, objects=(str(zone / "objects"), str(elsewhere)))
    assert copied(found) == {"objects": 2}
    with closing(open_object_store(elsewhere)) as objects:
        assert len(list(objects.digests())) == 2


def test_an_object_that_was_damaged_on_the_other_side(zone: Path, tmp_path: Path) -> None:
    """Bytes that are there already are read, and copied again when they are not what they were."""
    moved(zone, tmp_path / "new")
    blob = next((tmp_path / "new" / "objects").glob("sha256/*/*/*"))
    size = blob.stat().st_size
    blob.chmod(0o600)
    blob.write_bytes(b"?" * size)
    assert copied(moved(zone, tmp_path / "new")) == {"objects": 1}
    with LocalZone.open(ZONE, ZoneSettings(data=str(tmp_path / "new"))) as found:
        for kept in found.store.objects():
            assert found.objects.verify(kept.digest, kept.size) is None


def test_an_object_that_is_gone_is_told(zone: Path, tmp_path: Path) -> None:
    """A name whose bytes are missing stops the move before any fact is written."""
    for blob in (zone / "objects").glob("sha256/*/*/*"):
        blob.unlink()
    with pytest.raises(DataLossError, match="the bytes of files/also-one are not there"):
        moved(zone, tmp_path / "new")
    assert fact_sums(facts_in(tmp_path / "new"))["FactRecord"].count == 0


def test_a_zone_that_a_node_holds_is_refused(zone: Path, tmp_path: Path) -> None:
    """On either side; with --force the source is read nevertheless."""
    with closing(DataFolder.lock(zone)):
        with pytest.raises(ConfigurationError, match=r"in use by another node.*--force"):
            moved(zone, tmp_path / "new")
        moved(zone, tmp_path / "new", is_forced=True)
    with (
        closing(DataFolder.lock(tmp_path / "new")),
        pytest.raises(ConfigurationError, match="in use by another node") as caught,
    ):
        moved(zone, tmp_path / "new", is_forced=True)
    assert "--force" not in caught.value.remedy


def test_a_zone_with_other_facts_is_refused(places: tuple[Path, Path]) -> None:
    """Nothing of it is changed."""
    places[1].mkdir()
    with_facts(facts_in(places[1]), lambda s: s.put("mine"))
    before = fact_sums(facts_in(places[1]))
    with pytest.raises(StoreError, match="holds facts already"):
        moved(*places)
    assert fact_sums(facts_in(places[1])) == before


def test_a_zone_that_went_on_is_refused(places: tuple[Path, Path]) -> None:
    """What was appended to the copy would be lost."""
    places[1].mkdir()
    source, target = facts_in(places[0]), facts_in(places[1])
    moved(source, target)
    with_facts(target, lambda s: s.put("mine"))
    with pytest.raises(StoreError, match="has been in use since"):
        moved(source, target)


def test_a_damaged_fact_stops_the_move(places: tuple[Path, Path]) -> None:
    """It is named with the store it lies in, and the new store cannot be taken for a whole one."""
    places[1].mkdir()
    source, target = facts_in(places[0]), facts_in(places[1])
    with closing(sqlite3.connect(places[0] / "facts.db")) as connection:
        connection.execute("UPDATE ergon_boundary_facts SET fact = x'00' WHERE id & 255 = 5")
        connection.commit()
    with pytest.raises(DataLossError, match=rf"the fact at 5 of outbound in {places[0]}/facts\.db"):
        moved(source, target)
    with pytest.raises(StoreError, match="has not ended"):
        LocalZone.open(ZONE, ZoneSettings(data=str(places[1])))


def test_a_backup_begins_a_new_epoch_also_when_it_is_moved(
    places: tuple[Path, Path], tmp_path: Path
) -> None:
    """Peers must notice that it went back in time."""
    with closing(open_fact_store(facts_in(places[0]), zone=ZONE)) as store:
        epoch = store.info().epoch
        store.backup(str(tmp_path / "backup"))
    places[1].mkdir()
    moved(facts_in(tmp_path / "backup"), facts_in(places[1]))
    with closing(open_fact_store(facts_in(places[1]), zone=ZONE)) as store:
        assert store.info().epoch != epoch


def test_which_zone_must_be_known(tmp_path: Path) -> None:
    """A server does not say it by itself, and a zone has the same name on both sides."""
    with pytest.raises(ConfigurationError, match="which zone"):
        moved("nats://127.0.0.1:1", tmp_path / "new")


@pytest.mark.slow
@pytest.mark.parametrize("shuts", [False, True])
@pytest.mark.parametrize("url", ["postgres_url", "nats_url"])
def test_a_zone_that_a_server_does_not_have(
    url: str, tmp_path: Path, request: pytest.FixtureRequest, shuts: bool
) -> None:
    """It is not made by looking for it, nor is anything on the other side."""
    place = with_facts(request.getfixturevalue(url), lambda s: s.put("a"))
    with pytest.raises(ErgonError) as caught:
        moved(place, tmp_path / "new", zone="plant-z", shuts=shuts)
    if url == "postgres_url":
        assert "has no zone 'plant-z'; did you mean 'plant-a'?" in str(caught.value)
        assert zones_there(place) == [ZONE]
    assert not (tmp_path / "new").exists()
    with pytest.raises(ErgonError):
        open_fact_store(place, zone="plant-z", read_only=True)


@pytest.mark.parametrize("how", [{}, {"is_trial": True}, {"shuts": True}, {"is_forced": True}])
def test_a_zone_that_a_file_does_not_have(tmp_path: Path, how: dict[str, bool]) -> None:
    """A file of jobs does not become one of facts, and nothing is made on the other side."""
    file = tmp_path / "work.db"
    with_jobs(f"sqlite:///{file}", lambda s: s.put("a"))
    before = tables_of(file)
    with pytest.raises(ConfigurationError, match=r"work\.db has no zone 'plnt'; it keeps jobs"):
        moved(f"sqlite:///{file}", tmp_path / "new", zone="plnt", **how)
    assert tables_of(file) == before
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("is_trial", [False, True])
def test_a_file_that_is_another_zone(places: tuple[Path, Path], is_trial: bool) -> None:
    """Which one it is is told before anything is made."""
    with pytest.raises(ConfigurationError, match="no zone 'plant-z'; did you mean 'plant-a'"):
        moved(facts_in(places[0]), places[1], zone="plant-z", is_trial=is_trial)
    assert not places[1].exists()


def test_objects_come_from_a_folder_that_is_there(zone: Path, tmp_path: Path) -> None:
    """It is not made by looking for it."""
    with pytest.raises(ConfigurationError, match=r"no folder .*none to copy objects from"):
        moved(zone, tmp_path / "new", objects=(str(tmp_path / "none"), str(tmp_path / "to")))
    assert {each.name for each in tmp_path.iterdir()} == {"zone"}


@pytest.mark.parametrize("is_trial", [False, True])
def test_objects_go_to_a_folder_that_can_be_made(
    zone: Path, tmp_path: Path, is_trial: bool
) -> None:
    """Which folder is missing is told before anything is made, also by a trial."""
    (tmp_path / "file").write_text("mine", encoding="utf-8")
    source = str(zone / "objects")
    refused = {"none/to": f"there is no folder {tmp_path / 'none'}", "file": "is no folder"}
    for place, words in refused.items():
        objects = (source, str(tmp_path / place))
        with pytest.raises(ConfigurationError) as caught:
            moved(zone, tmp_path / "new", objects=objects, is_trial=is_trial)
        assert words in caught.value.message
        assert str(tmp_path / place) in caught.value.message
        assert "mount" not in str(caught.value.remedy)
    assert {each.name for each in tmp_path.iterdir()} == {"zone", "file"}


def test_objects_may_go_into_the_folder_of_the_new_facts(zone: Path, tmp_path: Path) -> None:
    """It is made for the facts, so that it need not be there."""
    objects = (str(zone / "objects"), str(tmp_path / "new" / "blobs"))
    assert copied(moved(zone, tmp_path / "new", objects=objects))["objects"]
    assert (tmp_path / "new" / "blobs").is_dir()


def test_damaged_objects_are_named(zone: Path, tmp_path: Path) -> None:
    """With the place they come from; put again there, the same move goes on."""
    with LocalZone.open(ZONE, ZoneSettings(data=str(zone))) as found:
        kept = found.store.object("files", "two")
        assert kept is not None
    name = kept.digest.hex()
    blob = zone / "objects" / "sha256" / name[:2] / name[2:4] / name
    blob.write_bytes(b"x" * kept.size)
    with pytest.raises(DataLossError) as caught:
        moved(zone, tmp_path / "new")
    assert "the bytes of files/two are damaged in" in caught.value.message
    assert str(zone / "objects") in caught.value.message
    with LocalZone.open(ZONE, ZoneSettings(data=str(zone))) as found:
        found.put("files", "two", b"two" * 500_000)
    moved(zone, tmp_path / "new")
    assert fact_sums(facts_in(tmp_path / "new")) == fact_sums(facts_in(zone))


def test_a_trial_writes_nothing(zone: Path, tmp_path: Path) -> None:
    """It tells what would be copied."""
    found = moved(zone, tmp_path / "new", is_trial=True)
    assert copied(found)["objects"] == 3
    assert copied(found)["facts"] == 1
    assert not (tmp_path / "new").exists()


def many(s: FactStoreSubject) -> None:
    """Enough facts for several commits, and many that were dropped."""
    fill(s)
    for start in range(0, 3000, 500):
        s.store.append(OUTBOUND, [new(f"n{number}") for number in range(start, start + 500)])
    s.store.truncate(OUTBOUND, 2000, loss_reason="disk")


@pytest.mark.slow
@pytest.mark.parametrize("point", ["boundary.move.before", "boundary.move.after"])
@pytest.mark.parametrize("nth", sampled([1, 2, 4, 8, 14], {2, 14}))
def test_a_move_that_is_killed_goes_on(point: str, nth: int, tmp_path: Path) -> None:
    """Wherever it was cut off, the same command again ends the same."""
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
    source = with_facts(facts_in(tmp_path / "old"), many)
    target = facts_in(tmp_path / "new")
    died = ergon("move", source, target, failpoints=f"{point}=kill@{nth}")
    assert died.returncode == -signal.SIGKILL, died.stderr
    moved(source, target)
    assert fact_sums(target) == fact_sums(source)


@pytest.mark.slow
@pytest.mark.parametrize("point", ["move.object.before", "move.object.after"])
def test_objects_that_are_cut_off_go_on(point: str, zone: Path, tmp_path: Path) -> None:
    """Bytes come before the names that stand for them."""
    died = ergon("move", str(zone), str(tmp_path / "new"), failpoints=f"{point}=kill@2")
    assert died.returncode == -signal.SIGKILL, died.stderr
    moved(zone, tmp_path / "new")
    assert fact_sums(facts_in(tmp_path / "new")) == fact_sums(facts_in(zone))
