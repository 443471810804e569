"""Moving the objects of a zone into buckets, and what becomes of its facts when that fails."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from ergon_framework.boundary.settings import ZoneSettings
from ergon_framework.boundary.store_urls import open_fact_store
from ergon_framework.boundary.zone import LocalZone
from ergon_framework.errors import ConfigurationError, ErgonError, StoreError
from ergon_framework.ports.transfer import MoveState, encode_move_state
from ergon_framework.storage.objectstore.urls import open_object_store
from tests.app.move.stock import ZONE, copied, facts_in, moved, with_facts
from tests.servers.server import free_port

pytestmark = pytest.mark.req("SCALE:move")


@pytest.mark.slow
def test_objects_go_to_a_bucket_and_back(zone: Path, tmp_path: Path, s3_url: str) -> None:
    """Each is hashed on its way, and the same again copies none."""
    for name in ("new", "last"):
        (tmp_path / name).mkdir()
    away = (str(zone / "objects"), s3_url)
    back = (s3_url, str(tmp_path / "last" / "objects"))
    first = facts_in(tmp_path / "new")
    assert copied(moved(zone, first, objects=away))["objects"] == 2
    assert copied(moved(zone, first, objects=away)) == {}
    assert copied(moved(first, facts_in(tmp_path / "last"), objects=back))["objects"] == 2
    with LocalZone.open(ZONE, ZoneSettings(data=str(tmp_path / "last"))) as found:
        for kept in found.store.objects():
            assert found.objects.verify(kept.digest, kept.size) is None


def test_a_trial_leaves_a_bucket_alone(zone: Path, tmp_path: Path, s3_url: str) -> None:
    """It does not even become the zone's; that of another zone is refused all the same."""
    target = facts_in(tmp_path)
    places = (str(zone / "objects"), s3_url)
    found = moved(zone, target, objects=places, is_trial=True)
    assert copied(found)["objects"] == 3
    open_object_store(s3_url, zone="another").close()
    with pytest.raises(ConfigurationError, match="holds the objects of zone 'another'"):
        moved(zone, target, objects=places, is_trial=True)


@pytest.mark.parametrize("is_trial", [False, True])
@pytest.mark.parametrize("is_source", [False, True])
@pytest.mark.parametrize(
    ("bucket", "words"),
    [
        ("absent", "no bucket"),
        ("silent", "does not answer"),
        ("s3://", "bucket"),
        ("s4://bucket/plant", "s4"),
    ],
)
def test_a_bucket_that_cannot_be_used(
    bucket: str,
    words: str,
    is_source: bool,
    is_trial: bool,
    zone: Path,
    tmp_path: Path,
    s3_url: str,
) -> None:
    """It is refused before anything is made: an empty zone would be one that nodes start on."""
    absent = s3_url.replace("s3://", "s3://absent-", 1)
    silent = f"s3://plant?endpoint=http://127.0.0.1:{free_port()}"
    url = {"absent": absent, "silent": silent}.get(bucket, bucket)
    objects = (url, str(tmp_path / "objects")) if is_source else (str(zone / "objects"), url)
    with pytest.raises(ErgonError, match=words):
        moved(zone, tmp_path / "new", objects=objects, is_trial=is_trial)
    assert {each.name for each in tmp_path.iterdir()} == {"zone"}


def test_a_bucket_of_another_zone(zone: Path, tmp_path: Path, s3_url: str) -> None:
    """It is refused before anything is made."""
    open_object_store(s3_url, zone="another").close()
    with pytest.raises(ConfigurationError, match="holds the objects of zone 'another'"):
        moved(zone, tmp_path / "new", objects=(str(zone / "objects"), s3_url))
    assert not (tmp_path / "new").exists()


def test_a_bucket_stays_free_when_the_facts_are_refused(
    zone: Path, tmp_path: Path, s3_url: str
) -> None:
    """It becomes the zone's when the move has begun, and not before."""
    (tmp_path / "new").mkdir()
    with_facts(facts_in(tmp_path / "new"), lambda s: s.put("mine"))
    with pytest.raises(StoreError, match="holds facts already"):
        moved(zone, tmp_path / "new", objects=(str(zone / "objects"), s3_url))
    open_object_store(s3_url, zone="another").close()


def test_a_place_for_objects_that_fails_later(zone: Path, tmp_path: Path) -> None:
    """No node starts on the new facts until the same move has ended."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "sha256").write_text("mine", encoding="utf-8")
    objects = (str(zone / "objects"), str(folder))
    with pytest.raises(StoreError):
        moved(zone, tmp_path / "new", objects=objects)
    with pytest.raises(StoreError, match="has not ended"):
        LocalZone.open(ZONE, ZoneSettings(data=str(tmp_path / "new")))
    (folder / "sha256").unlink()
    moved(zone, tmp_path / "new", objects=objects)
    LocalZone.open(ZONE, ZoneSettings(data=str(tmp_path / "new"))).close()


def test_a_copy_that_is_not_whole_is_not_moved_on(zone: Path, tmp_path: Path) -> None:
    """And no empty zone is left where it was to go."""
    with closing(open_fact_store(facts_in(zone), zone=ZONE)) as store:
        store.records.set_move_state(encode_move_state(MoveState("facts of another")))  # type: ignore[attr-defined]
    with pytest.raises(StoreError, match=r"into FROM has not ended: .* a copy of facts of another"):
        moved(zone, tmp_path / "new")
    assert not (tmp_path / "new").exists()
