"""An operator hears of objects that cannot be had, before somebody asks for one."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ergon_framework.boundary.node.status import OBJECTS_TIMEOUT, status
from ergon_framework.boundary.settings import ZoneSettings
from ergon_framework.boundary.zone import LocalZone
from ergon_framework.ports.objectstore import Blob
from ergon_framework.storage.objectstore.memory import MemoryObjectStore

pytestmark = pytest.mark.req("BOUNDARY:operator", "BOUNDARY:objects")


@pytest.fixture
def zone(tmp_path: Path) -> Iterator[LocalZone]:
    """A zone in a folder."""
    with LocalZone.open("plant", ZoneSettings(data=str(tmp_path / "data"))) as found:
        yield found


def alerts(zone: LocalZone, timeout: float = OBJECTS_TIMEOUT) -> list[tuple[str, str]]:
    """Kind and text of each."""
    found = status(zone, objects_timeout=timeout)["alerts"]
    return [(each["kind"], each["text"]) for each in found]


def test_a_store_of_objects_that_is_away(zone: LocalZone, tmp_path: Path) -> None:
    """Whether there are objects in it or not."""
    assert alerts(zone) == []
    shutil.rmtree(tmp_path / "data" / "objects")
    [(kind, text)] = alerts(zone)
    assert kind == "objects"
    assert "is not there" in text


def test_a_store_of_objects_that_was_emptied(zone: LocalZone, tmp_path: Path) -> None:
    """A name stands for bytes that are not there: one of them is looked for."""
    zone.put("files", "a", b"abc")
    assert alerts(zone) == []
    shutil.rmtree(tmp_path / "data" / "objects" / "sha256")
    (tmp_path / "data" / "objects" / "sha256").mkdir()
    assert alerts(zone) == [
        ("objects", "objects cannot be had: the bytes of files/a are missing, and others may be")
    ]


def test_an_object_that_is_missing_behind_others(zone: LocalZone) -> None:
    """However many names there are: each look is at others, and comes round."""
    for n in range(20):
        zone.put("files", f"n{n:02}", f"bytes {n}".encode())
    [gone] = zone.store.objects("files", after=("files", "n14"), limit=1)
    zone.objects.delete(gone.digest)
    told = [alerts(zone) for _ in range(5)]
    text = "objects cannot be had: the bytes of files/n15 are missing, and others may be"
    assert [each for each in told if each] == [[("objects", text)]] * 2


def test_a_store_of_objects_that_does_not_answer(zone: LocalZone) -> None:
    """The status does not wait for it."""
    over = threading.Event()

    class Silent(MemoryObjectStore):
        def stat(self, digest: bytes) -> Blob | None:
            over.wait()
            return None

    kept, zone.objects = zone.objects, Silent()
    try:
        [(kind, text)] = alerts(zone, timeout=0.01)
    finally:
        over.set()
        zone.objects = kept
    assert kind == "objects"
    assert "does not answer" in text
