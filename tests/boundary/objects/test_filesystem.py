"""The folder of blobs: its layout, what is synced when, and what it says about trouble."""

from __future__ import annotations

import errno
import gc
import hashlib
import os
import shutil
import stat
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from ergon_framework.errors import (
    DataLossError,
    FactInvalidError,
    StoreBrokenError,
    StoreError,
    StoreFullError,
    StoreReadOnlyError,
    StoreUnavailableError,
)
from ergon_framework.storage.failpoints import armed
from ergon_framework.storage.fsync import sync_file
from ergon_framework.storage.objectstore import disk
from ergon_framework.storage.objectstore.filesystem import FilesystemObjectStore, FileUpload
from ergon_framework.storage.objectstore.memory import MemoryObjectStore

pytestmark = pytest.mark.req("BOUNDARY:objects")

MIB = 1 << 20
DATA = bytes(range(256)) * (3 * MIB // 256)
DIGEST = hashlib.sha256(DATA).digest()
NAME = DIGEST.hex()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the blobs are."""
    return tmp_path / "objects"


@pytest.fixture
def store(folder: Path) -> Iterator[FilesystemObjectStore]:
    """An empty store."""
    made = FilesystemObjectStore(folder)
    yield made
    made.close()


def put(store: FilesystemObjectStore, data: bytes = DATA) -> bytes:
    """Upload bytes; their digest."""
    upload = store.upload()
    upload.write(data)
    return upload.finish().digest


def take(upload: FileUpload) -> None:
    """Give an upload its bytes and its end."""
    upload.write(DATA)
    upload.finish()


def uploads(folder: Path) -> list[str]:
    """What is on its way in, or was left behind."""
    return sorted(path.suffix for path in (folder / "uploads").iterdir())


# ---- layout -------------------------------------------------------------------------------------


def test_a_blob_lies_under_its_digest(store: FilesystemObjectStore, folder: Path) -> None:
    """Its path follows from its bytes alone, and nothing else is left."""
    put(store)
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files == [folder / "sha256" / NAME[:2] / NAME[2:4] / NAME]
    assert files[0].read_bytes() == DATA


def test_only_the_owner_may_look(folder: Path) -> None:
    """Folders and files are private, whatever the process allows others elsewhere."""
    before = os.umask(0)
    try:
        store = FilesystemObjectStore(folder)
        put(store)
        store.close()
    finally:
        os.umask(before)
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (folder, *folder.rglob("*"))}
    assert modes == {0o700, 0o600}


def test_foreign_files_are_not_listed(store: FilesystemObjectStore, folder: Path) -> None:
    """What somebody else put into the folder is no blob, and no sweep takes a folder."""
    put(store)
    for name in ("readme", f"{NAME[:2]}/note", f"{NAME[:2]}/{NAME[2:4]}/{NAME}.bak"):
        (folder / "sha256" / name).write_text("?", encoding="ascii")
    (folder / "uploads" / "kept").mkdir()
    assert list(store.digests()) == [DIGEST]
    assert store.sweep(-1e6) == 0


def test_a_folder_in_the_place_of_a_blob_is_none(store: FilesystemObjectStore) -> None:
    """It is not taken for bytes, and an upload of them says what is in the way."""
    store.path_of(DIGEST).mkdir(parents=True)
    assert store.stat(DIGEST) is None
    with pytest.raises(StoreUnavailableError):
        put(store)


# ---- what is on disk, and when ------------------------------------------------------------------


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch, folder: Path) -> list[str]:
    """What happens to the disk, in order."""
    seen: list[str] = []
    sync_file, sync_folder, rename = disk.sync_file, disk.sync_folder, Path.rename

    def note_file(fd: int) -> None:
        sync_file(fd)
        seen.append(f"synced {os.fstat(fd).st_size}")

    def note_folder(path: Path) -> None:
        sync_folder(path)
        seen.append(f"synced {path.relative_to(folder.parent)}")

    def note_rename(path: Path, target: Path) -> Path:
        renamed = rename(path, target)
        seen.append("renamed")
        return renamed

    monkeypatch.setattr(disk, "sync_file", note_file)
    monkeypatch.setattr(disk, "sync_folder", note_folder)
    monkeypatch.setattr(Path, "rename", note_rename)
    return seen


@pytest.mark.req("P11")
def test_everything_is_synced_before_the_answer(steps: list[str], folder: Path) -> None:
    """The bytes before the name, then the folder of the name and each folder above it."""
    store = FilesystemObjectStore(folder)
    assert steps == ["synced objects", "synced ."]
    steps.clear()
    put(store)
    above = f"objects/sha256/{NAME[:2]}"
    assert steps == [
        f"synced {len(DATA)}",
        "renamed",
        f"synced {above}/{NAME[2:4]}",
        f"synced {above}",
        "synced objects/sha256",
    ]
    steps.clear()
    put(store)  # folders that are known to be there need no second sync
    assert steps == [f"synced {len(DATA)}", "renamed", f"synced {above}/{NAME[2:4]}"]
    store.close()


@pytest.mark.req("P11")
def test_a_blob_is_vouched_for_when_its_name_is_synced(steps: list[str], folder: Path) -> None:
    """Who named it may have died before the sync; so whoever asks for it syncs first."""
    first = FilesystemObjectStore(folder)
    put(first)
    first.close()
    second = FilesystemObjectStore(folder)
    steps.clear()
    assert second.stat(DIGEST) is not None
    assert steps[0] == f"synced objects/sha256/{NAME[:2]}/{NAME[2:4]}"
    assert len(steps) == 3
    second.close()


def test_a_reader_keeps_its_bytes(store: FilesystemObjectStore) -> None:
    """A download goes on undisturbed while the same bytes are put again."""
    put(store)
    download = store.open(DIGEST)
    assert download is not None
    assert download.read(10) == DATA[:10]
    put(store)
    download.seek(2 * MIB)
    assert download.read(2 * MIB) == DATA[2 * MIB :]
    download.close()


def test_a_download_that_ended_gives_nothing(store: FilesystemObjectStore) -> None:
    """Both stores refuse to read after the end, and to go before the beginning."""
    put(store)
    memory = MemoryObjectStore()
    upload = memory.upload()
    upload.write(DATA)
    upload.finish()
    for download in (store.open(DIGEST), memory.open(DIGEST)):
        assert download is not None
        with pytest.raises(ValueError, match="no byte -1"):
            download.seek(-1)
        download.close()
        with pytest.raises(StoreError, match="has ended"):
            download.read(1)


def test_a_large_blob_needs_little_memory(store: FilesystemObjectStore) -> None:
    """Bytes are hashed and written as they come, not gathered."""
    piece = bytes(MIB // 4)
    upload = store.upload()
    tracemalloc.start()
    try:
        for _ in range(160):
            upload.write(piece)
        blob = upload.finish(hashlib.sha256(bytes(40 * MIB)).digest())
        peak = tracemalloc.get_traced_memory()[1] - 40 * MIB  # the one that was compared with
    finally:
        tracemalloc.stop()
    assert blob.size == 40 * MIB
    assert peak < 6 * MIB


# ---- damage -------------------------------------------------------------------------------------


@pytest.mark.req("C7")
@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        (DATA[:-1] + b"\0", "is damaged: its bytes have the digest sha256:"),
        (DATA[:MIB], f"has {MIB} bytes and should have {3 * MIB}"),
        (b"", "has 0 bytes"),
        (None, "is not there"),
    ],
)
def test_a_damaged_blob_is_named(
    store: FilesystemObjectStore, wrong: bytes | None, what: str
) -> None:
    """Verifying says which blob has which flaw; putting it again repairs it."""
    path = store.path_of(put(store))
    if wrong is None:
        path.unlink()
    else:
        path.write_bytes(wrong)
    flaw = store.verify(DIGEST, len(DATA))
    assert flaw is not None
    assert flaw.startswith(f"sha256:{NAME} {what}")
    put(store)
    assert store.verify(DIGEST, len(DATA)) is None


@pytest.mark.req("C7")
def test_a_blob_that_cannot_be_read_is_a_flaw(
    store: FilesystemObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bad sector is found by verifying, which goes on with the next blob."""
    put(store)

    def fail(*_: object) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "pread", fail)
    flaw = store.verify(DIGEST, len(DATA))
    assert flaw is not None
    assert "cannot be read" in flaw


def test_a_refusal_tells_digests_and_no_bytes(store: FilesystemObjectStore) -> None:
    """Both digests are in the error, and nothing of the content."""
    upload = store.upload()
    upload.write(b"a secret recipe")
    with pytest.raises(FactInvalidError) as caught:
        upload.finish(DIGEST)
    shape = caught.value.to_dict()
    assert (shape["code"], shape["details"]["reason"]) == ("invalid_argument", "digest_mismatch")
    assert shape["details"]["expected"] == f"sha256:{NAME}"
    assert "recipe" not in str(shape)


def test_a_backup_refuses_damage(store: FilesystemObjectStore, tmp_path: Path) -> None:
    """An earlier good copy is not overwritten by a damaged blob."""
    put(store)
    copy = str(tmp_path / "copy")
    assert store.copy_to(copy, iter([DIGEST])) == len(DATA)
    store.path_of(DIGEST).write_bytes(DATA[:100])
    with pytest.raises(DataLossError, match=NAME):
        store.copy_to(copy, iter([DIGEST]))
    backup = FilesystemObjectStore(copy)
    assert backup.verify(DIGEST, len(DATA)) is None
    backup.close()


def test_memory_is_backed_up_in_the_same_layout(tmp_path: Path) -> None:
    """What the memory store copied can be opened as a folder."""
    memory = MemoryObjectStore()
    upload = memory.upload()
    upload.write(DATA)
    upload.finish()
    assert memory.copy_to(str(tmp_path / "copy"), memory.digests()) == len(DATA)
    copy = FilesystemObjectStore(tmp_path / "copy")
    assert copy.verify(DIGEST, len(DATA)) is None
    copy.close()


# ---- what is left behind ------------------------------------------------------------------------


def test_a_dropped_upload_leaves_nothing(store: FilesystemObjectStore, folder: Path) -> None:
    """An upload that nobody ended is gone with its object; one with a digest stays for another."""
    store.upload().write(DATA)
    store.partial(DIGEST).write(DATA)
    gc.collect()
    assert uploads(folder) == [".part"]


def test_an_upload_can_be_paused(store: FilesystemObjectStore, folder: Path) -> None:
    """Every byte it took is there for the next one, and pausing twice is fine."""
    upload = store.partial(DIGEST)
    upload.write(DATA[: MIB + 5])
    upload.pause()
    upload.pause()
    again = store.partial(DIGEST)
    assert again.size == MIB + 5
    again.write(DATA[MIB + 5 :])
    assert again.finish().digest == DIGEST
    plain = store.upload()
    plain.write(DATA)
    plain.pause()
    assert uploads(folder) == []


def test_remains_are_swept_by_age(folder: Path) -> None:
    """A file that a dead process left goes when its time has come, by the store's clock."""
    now = [0.0]
    store = FilesystemObjectStore(folder, clock=lambda: now[0])
    left = folder / "uploads" / "0123.new"
    left.write_bytes(b"left")
    os.utime(left, (1000.0, 1000.0))
    now[0] = 1500.0
    assert store.sweep(600.0) == 0
    now[0] = 1600.0
    assert store.sweep(600.0) == 1
    assert uploads(folder) == []
    store.close()


# ---- trouble ------------------------------------------------------------------------------------


def test_a_missing_folder_is_made_but_not_its_parents(tmp_path: Path) -> None:
    """A mistyped path, or a disk that is not mounted, is not filled in silently."""
    FilesystemObjectStore(tmp_path / "new").close()
    with pytest.raises(StoreUnavailableError, match="is not there") as caught:
        FilesystemObjectStore(tmp_path / "not" / "mounted")
    assert "mount" in caught.value.remedy


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    """A path that leads to a file is refused."""
    (tmp_path / "file").touch()
    with pytest.raises(StoreUnavailableError):
        FilesystemObjectStore(tmp_path / "file")


@pytest.mark.req("BOUNDARY:badinput")
def test_a_vanished_folder_is_not_an_empty_one(store: FilesystemObjectStore, folder: Path) -> None:
    """When the disk is gone, no blob is said to be missing."""
    put(store)
    shutil.rmtree(folder)
    for call in (
        lambda: store.stat(DIGEST),
        lambda: store.open(DIGEST),
        lambda: store.delete(DIGEST),
        lambda: store.verify(DIGEST, 3),
        lambda: list(store.digests()),
        lambda: store.sweep(0.0),
        store.upload,
        lambda: store.partial(DIGEST),
    ):
        with pytest.raises(StoreUnavailableError, match="is not there"):
            call()


@pytest.mark.req("BOUNDARY:badinput")
@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is read-only for root")
def test_a_folder_that_may_only_be_read(store: FilesystemObjectStore, folder: Path) -> None:
    """Uploads are refused with the reason, and what is there can be read."""
    put(store)
    (folder / "uploads").chmod(0o500)
    try:
        with pytest.raises(StoreReadOnlyError, match="may only be read"):
            store.upload()
        assert store.verify(DIGEST, len(DATA)) is None
    finally:
        (folder / "uploads").chmod(0o700)


PLACES = ["write_all", "sync_file", "make_folder", "sync_folder"]
TROUBLE = [
    (errno.ENOSPC, StoreFullError, "free some disk space"),
    (errno.EDQUOT, StoreFullError, "free some disk space"),
    (errno.EFBIG, StoreFullError, "free some disk space"),
    (errno.EROFS, StoreReadOnlyError, "writable"),
    (errno.EACCES, StoreReadOnlyError, "writable"),
    (errno.EMFILE, StoreUnavailableError, "look after its disk"),
]


@pytest.mark.req("BOUNDARY:badinput")
@pytest.mark.parametrize(("code", "kind", "remedy"), TROUBLE)
@pytest.mark.parametrize("place", PLACES)
def test_trouble_on_the_way_in(
    store: FilesystemObjectStore,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    place: str,
    code: int,
    kind: type[StoreError],
    remedy: str,
) -> None:
    """Each refusal of the disk has an error of its own with a remedy, and the next upload works."""

    def fail(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    upload = store.upload()
    with monkeypatch.context() as patch:
        patch.setattr(disk, place, fail)
        with pytest.raises(kind) as caught:
            take(upload)
    assert type(caught.value) is kind
    assert remedy in caught.value.remedy
    assert uploads(folder) == []
    with pytest.raises(StoreError, match="has ended"):  # never with a hole in it
        upload.finish()
    put(store)
    assert store.verify(DIGEST, len(DATA)) is None


@pytest.mark.req("BOUNDARY:badinput")
def test_trouble_does_not_cost_what_was_sent(
    store: FilesystemObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A partial upload that met a full disk goes on when there is room again."""

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    upload = store.partial(DIGEST)
    upload.write(DATA[:MIB])
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", fail)
        with pytest.raises(StoreFullError):
            upload.write(DATA[MIB:])
    again = store.partial(DIGEST)
    assert again.size == MIB
    again.write(DATA[MIB:])
    assert again.finish().digest == DIGEST


@pytest.mark.req("BOUNDARY:badinput")
def test_a_failed_sync_ends_all_uploads(store: FilesystemObjectStore, folder: Path) -> None:
    """Nobody knows what is on such a disk: nothing more is taken until a restart."""
    before = put(store, b"before")
    upload, other = store.upload(), store.upload()
    upload.write(DATA)
    with (
        armed("boundary.object.sync.before=error"),
        pytest.raises(StoreBrokenError, match="did not confirm") as caught,
    ):
        upload.finish()
    assert "start the process again" in caught.value.remedy
    for call in (store.upload, lambda: store.partial(DIGEST), lambda: other.write(b"x")):
        with pytest.raises(StoreBrokenError):
            call()
    with pytest.raises(StoreBrokenError):
        other.finish()
    other.abort()
    assert uploads(folder) == []
    assert store.verify(before, 6) is None
    store.close()
    again = FilesystemObjectStore(folder)
    assert again.stat(DIGEST) is None
    put(again)
    again.close()


@pytest.mark.req("BOUNDARY:badinput")
def test_a_folder_that_cannot_be_synced_ends_all_uploads(
    store: FilesystemObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name that may not be on disk is not acknowledged, now or later."""

    def fail(path: Path) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(disk, "sync_folder", fail)
        with pytest.raises(StoreBrokenError):
            put(store)
    for call in (lambda: put(store), lambda: store.stat(DIGEST)):
        with pytest.raises(StoreBrokenError):
            call()
    assert store.verify(DIGEST, len(DATA)) is None  # it is whole; whether it lasts is not known


def test_a_temporary_file_that_was_taken_away(store: FilesystemObjectStore, folder: Path) -> None:
    """An upload whose file somebody removed is refused, and nothing half comes of it."""
    upload = store.upload()
    upload.write(DATA)
    shutil.rmtree(folder / "uploads")
    with pytest.raises(StoreUnavailableError):
        upload.finish()
    assert store.stat(DIGEST) is None


def test_short_writes_are_completed(
    store: FilesystemObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system may take fewer bytes than it was given, in whole pages or not."""
    write = os.write
    for most in (700_001, 40 * 4096):
        monkeypatch.setattr(os, "write", lambda fd, data, most=most: write(fd, data[:most]))
        put(store)
        assert store.verify(DIGEST, len(DATA)) is None


# ---- other systems ------------------------------------------------------------------------------


@pytest.mark.parametrize(("code", "is_synced"), [(None, False), (errno.ENOTSUP, True)])
def test_macos_is_asked_for_a_full_sync(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: int | None, is_synced: bool
) -> None:
    """Where a plain sync stops at the drive's cache, the full one is used if there is one."""
    asked: list[int] = []
    synced: list[int] = []

    def fcntl(fd: int, command: int) -> int:
        asked.append(command)
        if code is not None:
            raise OSError(code, os.strerror(code))
        return 0

    monkeypatch.setattr("fcntl.fcntl", fcntl)
    monkeypatch.setattr(os, "fdatasync", synced.append, raising=False)
    with open(tmp_path / "file", "wb") as file:
        sync_file(file.fileno(), full_sync=51)
    assert (asked, bool(synced)) == ([51], is_synced)


def test_a_failed_full_sync_is_a_failure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An error of the drive is not taken for a missing feature."""

    def fcntl(fd: int, command: int) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr("fcntl.fcntl", fcntl)
    with open(tmp_path / "file", "wb") as file, pytest.raises(OSError, match="error"):
        sync_file(file.fileno(), full_sync=51)
