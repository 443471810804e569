"""The folder of blobs when processes die in it, and when several of them use it at once."""

from __future__ import annotations

import hashlib
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from threading import Barrier

import pytest

from ergon_framework.errors import ConfigurationError
from ergon_framework.storage.failpoints import NAMES
from ergon_framework.storage.objectstore.filesystem import FilesystemObjectStore
from tests.boundary.objects.processes import WAIT, flaws, raced, run, started
from tests.boundary.objects.programs import objects

pytestmark = [pytest.mark.slow, pytest.mark.req("BOUNDARY:objects")]

POINTS = sorted(name for name in NAMES if name.startswith("boundary.object."))
KILLS = [
    f"{point}=kill@{nth}" for point in POINTS for nth in ((1,) if "delete" in point else (1, 3))
]


def test_every_step_has_a_failpoint() -> None:
    """Before and after the bytes, the sync, the name and its sync, and the removal."""
    steps = {point.split(".")[2] for point in POINTS}
    assert steps == {"write", "sync", "rename", "folder", "delete"}


@pytest.mark.req("P11", "BOUNDARY:badinput")
@pytest.mark.parametrize("kill", KILLS)
def test_a_crash_leaves_whole_blobs_or_none(tmp_path: Path, kill: str) -> None:
    """Whatever was acknowledged is there, whatever is there is whole, and all can be put again."""
    folder = tmp_path / "objects"
    code, lines = run("crash", folder, kill)
    assert code == -signal.SIGKILL
    said = [line.split() for line in lines]
    acked = {digest for what, digest in said if what == "acked"}
    begun = {digest for what, digest in said if what == "began"}
    with closing(FilesystemObjectStore(folder)) as store:
        there = {digest.hex() for digest in store.digests()}
        assert acked - begun <= there
        assert flaws(store) == []
        for seed in range(4):
            objects.put(store, objects.noise(seed))
        assert len(list(store.digests())) == 4
        assert flaws(store) == []
        store.sweep(0.0)
        assert list((folder / "uploads").iterdir()) == []


@pytest.mark.parametrize("kill", ["write.after=kill@3", "sync.after=kill", "rename.after=kill"])
def test_a_cut_transfer_goes_on_in_another_process(tmp_path: Path, kill: str) -> None:
    """What the dead process had written is not sent again; the bytes are whole at the end."""
    folder, data = tmp_path / "objects", objects.noise(7, 6 << 20)
    digest = hashlib.sha256(data).digest()
    assert run("cut", folder, f"boundary.object.{kill}") == (-signal.SIGKILL, [])
    with closing(FilesystemObjectStore(folder)) as store:
        upload = store.partial(digest)
        is_placed = "rename" in kill
        assert upload.size == (0 if is_placed else 3 << 20 if "write" in kill else len(data))
        assert (store.stat(digest) is not None) is is_placed
        upload.pause()
        assert run("cut", folder) == (0, [f"acked {digest.hex()}"])
        assert store.verify(digest, len(data)) is None


def test_processes_put_the_same_bytes_at_once(tmp_path: Path) -> None:
    """All are answered the same, and every blob is whole."""
    folder = tmp_path / "objects"
    said = raced(folder)
    assert said[0] == said[1]
    assert len(said[0]) == 10
    with closing(FilesystemObjectStore(folder)) as store:
        assert {digest.hex() for digest in store.digests()} == set(said[0])
        assert flaws(store) == []
        assert list((folder / "uploads").iterdir()) == []


def test_a_sweep_tells_the_living_from_the_dead(tmp_path: Path) -> None:
    """The uploads of a process are its own until it is gone, however it goes."""
    folder = tmp_path / "objects"
    with closing(FilesystemObjectStore(folder)) as store, started("hold", folder) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        assert store.sweep(-1e6) == 0
        known = store.partial(hashlib.sha256(objects.noise(1)).digest())
        assert known.size == 0  # that part is in use
        known.abort()
        process.communicate("die\n", timeout=WAIT)
        assert process.returncode == -signal.SIGKILL
        assert store.sweep(3600.0) == 0
        assert store.sweep(-1e6) == 2


@pytest.mark.req("BOUNDARY:badinput")
def test_a_file_that_cannot_grow(tmp_path: Path) -> None:
    """The upload is refused as on a full disk, nothing is kept of it, and a small one goes on."""
    small = hashlib.sha256(objects.noise(1, 1000)).hexdigest()
    assert run("limit", tmp_path / "objects") == (0, ["store_full", small])
    with closing(FilesystemObjectStore(tmp_path / "objects")) as store:
        assert [digest.hex() for digest in store.digests()] == [small]
        assert list((tmp_path / "objects" / "uploads").iterdir()) == []


def test_a_forked_process_hashes_too(tmp_path: Path) -> None:
    """The threads that hash do not survive a fork; the child gets some of its own."""
    digests = [hashlib.sha256(objects.noise(seed)).hexdigest() for seed in (1, 2)]
    assert run("fork", tmp_path / "objects") == (0, [*digests, "0"])


def test_of_zones_that_claim_one_folder_at_once_one_has_it(tmp_path: Path) -> None:
    """The zone that got it opens it as often as it likes; the other one is told whose it is.

    Each open file has its own lock, so threads meet here as processes do.
    """
    together = Barrier(8)

    def claim(folder: Path, zone: str) -> str:
        together.wait()
        try:
            FilesystemObjectStore(folder, zone=zone).close()
        except ConfigurationError as error:
            return str(error).partition(" (")[0]
        return zone

    with ThreadPoolExecutor(8) as threads:
        for turn in range(20):
            folder = tmp_path / f"objects-{turn}"
            folder.mkdir(0o700)
            answers = [threads.submit(claim, folder, zone) for zone in ("east", "west") * 4]
            said = {answer.result() for answer in answers}
            holder = "east" if "east" in said else "west"
            other = "west" if holder == "east" else "east"
            refused = f"{folder} holds the objects of zone {holder!r}, and this is {other!r}"
            assert said == {holder, refused}
