"""The object store in a bucket: what the suite does not ask, on a real S3 server."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import sys
import tracemalloc
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from pydantic import SecretStr

from ergon_framework.boundary.settings import ZoneSettings
from ergon_framework.boundary.zone import LocalZone
from ergon_framework.errors import (
    ConfigurationError,
    MissingExtraError,
    StoreError,
    StoreFullError,
    StoreUnavailableError,
)
from ergon_framework.ports.objectstore import Blob, ObjectStore
from ergon_framework.storage.objectstore import s3_client
from ergon_framework.storage.objectstore.s3 import S3ObjectStore, key_of
from ergon_framework.storage.objectstore.s3_client import (
    BucketClient,
    bucket_of,
    conditions,
    connect,
    observe,
    part_size,
    room,
    translated,
)
from ergon_framework.testing.suites.drivers import HandClock
from tests.boundary.node.cables import Cable
from tests.cli.boundary_node import message
from tests.servers.s3 import REGION, S3Server

pytestmark = [pytest.mark.slow, pytest.mark.req("SCALE:objects-s3")]

MIB = 1 << 20
LARGE = 20 * MIB + 3


@pytest.fixture
def store(s3_url: str) -> Iterator[S3ObjectStore]:
    """A store in an empty bucket."""
    with closing(S3ObjectStore(s3_url)) as opened:
        yield opened


def noise(size: int, seed: int = 0) -> bytes:
    """Bytes that do not repeat, the same ones each time."""
    return hashlib.shake_128(b"%d" % seed).digest(size)


def put(store: ObjectStore, data: bytes) -> bytes:
    """Upload them; their digest."""
    upload = store.upload()
    for at in range(0, len(data), MIB):
        upload.write(data[at : at + MIB])
    return upload.finish().digest


def counted(monkeypatch: pytest.MonkeyPatch, name: str) -> list[str]:
    """The keys with which a method of the client is called from now on."""
    calls: list[str] = []
    method = getattr(s3_client.BucketClient, name)

    def counting(self: s3_client.BucketClient, key: str, *rest: object) -> object:
        calls.append(key)
        return method(self, key, *rest)

    monkeypatch.setattr(s3_client.BucketClient, name, counting)
    return calls


# ---- large ones ---------------------------------------------------------------------------------


def test_a_large_blob_goes_in_parts(store: S3ObjectStore, s3_server: S3Server) -> None:
    """What is larger than one request is whole at the end, and its parts are not to be seen."""
    data = noise(LARGE)
    digest = put(store, data)
    assert store.stat(digest) == Blob(digest, LARGE)
    assert store.verify(digest, LARGE) is None
    assert list(store.digests()) == [digest]
    status, listed = s3_server.ask("GET", f"/{bucket_of(store.place).name}?uploads=")
    assert (status, b"<Upload>" in listed) == (200, False)


def test_a_large_blob_that_is_there_is_read_and_not_sent(
    store: S3ObjectStore, s3_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Putting the same bytes again sends nothing; a damaged blob is sent again."""
    data = noise(LARGE)
    digest = put(store, data)
    sent = counted(monkeypatch, "replace")
    put(store, data)
    assert sent == []
    connect(bucket_of(s3_url)).put(key_of(digest), b"\0" * LARGE)
    put(store, data)
    assert sent == [key_of(digest)]
    assert store.verify(digest, LARGE) is None


def test_memory_does_not_grow_with_the_blob(store: S3ObjectStore) -> None:
    """Taking in and giving out 64 MiB takes as much memory of Python's as 20 do."""
    peaks = []
    for size in (20 * MIB, 64 * MIB):
        upload = store.upload()
        tracemalloc.start()
        for seed in range(size // MIB):
            upload.write(noise(MIB, seed))
        digest = upload.finish().digest
        assert store.verify(digest, size) is None
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < peaks[0] + 8 * MIB


def test_an_upload_has_no_more_parts_than_servers_take() -> None:
    """The largest object that a zone takes fits into ten thousand parts."""
    assert part_size(LARGE) == s3_client.CHUNK
    assert (1 << 40) / part_size(1 << 40) <= 10_000


def test_a_server_that_keeps_less_is_not_believed(
    store: S3ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an upload in parts its size is asked for."""
    sizes = iter([None, 7])
    monkeypatch.setattr(s3_client.BucketClient, "size", lambda _self, _key: next(sizes))
    with pytest.raises(StoreUnavailableError, match=f"has kept 7 of {LARGE} bytes"):
        put(store, noise(LARGE))


def test_a_download_of_a_blob_that_went_away_says_so(store: S3ObjectStore) -> None:
    """What is gone before it was read is an error, not the end of the bytes."""
    digest = put(store, noise(LARGE))
    download = store.open(digest)
    assert download is not None
    assert len(download.read(10)) == 10
    store.delete(digest)
    download.seek(10 * MIB)
    with pytest.raises(StoreError, match="went away"):
        download.read(10)
    download.close()
    with pytest.raises(StoreError, match="has ended"):
        download.read(10)


# ---- removing -----------------------------------------------------------------------------------


def test_what_was_removed_can_be_brought_back(store: S3ObjectStore) -> None:
    """Removed bytes are not there, are known with their instant, and come back whole."""
    data = noise(MIB)
    digest = put(store, data)
    assert store.delete(digest)
    assert store.stat(digest) is None
    assert [each.digest for each in store.removed()] == [digest]
    assert store.restore(digest)
    assert store.verify(digest, MIB) is None
    assert list(store.removed()) == []
    assert not store.restore(digest)


def test_what_was_forgotten_is_gone(store: S3ObjectStore) -> None:
    """Nothing of it is left in the bucket."""
    digest = put(store, noise(10))
    store.delete(digest)
    store.forget(digest)
    assert list(store.removed()) == []
    assert not store.restore(digest)


def test_bytes_that_were_put_again_are_not_replaced_by_removed_ones(store: S3ObjectStore) -> None:
    """Bringing back finds them there, and only tidies up."""
    digest = put(store, noise(10))
    store.delete(digest)
    put(store, noise(10))
    assert store.restore(digest)
    assert store.verify(digest, 10) is None
    assert list(store.removed()) == []


@pytest.fixture
def carrying_store(s3_url: str) -> Iterator[S3ObjectStore]:
    """A store whose server copies no more than a mebibyte by itself."""
    client = BucketClient(s3_url, max_server_copy=MIB)
    with closing(S3ObjectStore(s3_url, client=client)) as opened:
        yield opened


def test_what_no_server_copies_at_once_is_carried(carrying_store: S3ObjectStore) -> None:
    """Larger blobs are removed and brought back piece by piece."""
    store = carrying_store
    digest = put(store, noise(LARGE))
    store.delete(digest)
    assert store.restore(digest)
    assert store.verify(digest, LARGE) is None


def test_a_copy_that_breaks_off_shows_nothing(
    carrying_store: S3ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is removed before all of it lies aside, and nothing comes back cut off."""
    store = carrying_store
    digest = put(store, noise(LARGE))
    read = s3_client.BucketClient.read

    def broken(self: s3_client.BucketClient, key: str, start: int, end: int) -> bytes:
        if start:
            raise StoreUnavailableError("the server went away")
        return read(self, key, start, end)

    with monkeypatch.context() as patched:
        patched.setattr(s3_client.BucketClient, "read", broken)
        with pytest.raises(StoreUnavailableError, match="went away"):
            store.delete(digest)
    assert list(store.removed()) == []
    assert store.verify(digest, LARGE) is None
    store.delete(digest)
    with monkeypatch.context() as patched:
        patched.setattr(s3_client.BucketClient, "read", broken)
        with pytest.raises(StoreUnavailableError, match="went away"):
            store.restore(digest)
    assert store.stat(digest) is None
    assert store.restore(digest)
    assert store.verify(digest, LARGE) is None


def test_the_young_are_told_from_the_old(store: S3ObjectStore, s3_url: str) -> None:
    """Blobs are listed by when they came to the bucket."""
    digest = put(store, noise(10))
    put_at = BucketClient(s3_url).put_at(key_of(digest)).timestamp()
    assert list(store.put_before(put_at)) == []
    assert list(store.put_before(put_at + 1)) == [digest]


# ---- trouble ------------------------------------------------------------------------------------


def test_an_endpoint_that_is_away(s3_server: S3Server) -> None:
    """Whoever opens it hears where nobody answers, and what to look at."""
    url = f"s3://some/where?endpoint=http://127.0.0.1:1&region={REGION}"
    with pytest.raises(StoreUnavailableError) as caught:
        S3ObjectStore(url)
    assert caught.value.message == "s3://some/where does not answer at http://127.0.0.1:1"
    assert "server runs" in caught.value.remedy
    assert caught.value.remedy.endswith("then start again")


def test_a_zone_starts_while_its_bucket_is_away(
    s3_server: S3Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Facts without artifacts need no bucket; what needs it says what is wrong, and alerts tell."""
    url = f"s3://some/where?endpoint=http://127.0.0.1:1&region={REGION}"
    settings = ZoneSettings(data=str(tmp_path / "data"), objects=SecretStr(url))
    with LocalZone.open("plant", settings) as zone:
        assert "zone plant starts without its objects" in caplog.text
        asked = json.loads(message("m-1", from_zone="plant"))
        assert zone.append(asked["envelope"], asked["fact"]).offset == 1
        with pytest.raises(StoreUnavailableError, match="does not answer"):
            zone.put("files", "a", b"abc")


def test_a_place_that_was_emptied_is_written_down_again(s3_url: str) -> None:
    """Whoever empties a bucket takes the zone's name away: another zone would have the place."""
    clock = HandClock()
    with closing(S3ObjectStore(s3_url, zone="plant", clock=clock)) as store:
        digest = put(store, noise(10))
        BucketClient(s3_url).delete("zone")
        clock.forward(61.0)
        put(store, noise(11))
        with pytest.raises(ConfigurationError, match="holds the objects of zone 'plant'"):
            S3ObjectStore(s3_url, zone="other")
        BucketClient(s3_url).delete("zone")
        S3ObjectStore(s3_url, zone="other").close()
        clock.forward(61.0)
        for use in (lambda: put(store, noise(12)), lambda: store.delete(digest)):
            with pytest.raises(StoreUnavailableError, match="holds the objects of zone 'other'"):
                use()


def test_a_bucket_that_is_missing(s3_server: S3Server) -> None:
    """It is a wrong setting when the store is opened."""
    with pytest.raises(ConfigurationError, match="there is no bucket for s3://nowhere"):
        S3ObjectStore(s3_server.url("nowhere"))


def test_a_bucket_that_goes_missing(store: S3ObjectStore, s3_server: S3Server) -> None:
    """It does not look like a bucket without blobs."""
    s3_server.ask("DELETE", f"/{bucket_of(store.place).name}")
    for call in (store.stat, store.open, store.delete):
        with pytest.raises(StoreUnavailableError, match="there is no bucket"):
            call(b"\0" * 32)
    with pytest.raises(StoreUnavailableError, match="there is no bucket"):
        put(store, b"abc")


def test_access_denied(store: S3ObjectStore, s3_server: S3Server) -> None:
    """Opening is a wrong setting, later it is trouble; no key is shown."""
    url = s3_server.url(bucket_of(store.place).name)
    s3_server.let_in(everybody=False)
    try:
        with pytest.raises(ConfigurationError, match=r"access to s3://.* is denied") as caught:
            S3ObjectStore(url)
        with pytest.raises(StoreUnavailableError, match="is denied"):
            put(store, b"abc")
    finally:
        s3_server.let_in(everybody=True)
    assert "ergon-secret" not in str(caught.value)


def test_no_obstore(s3_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the extra."""
    for name in [each for each in sys.modules if each.partition(".")[0] == "obstore"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(MissingExtraError, match=r"ergon-framework\[s3\]"):
        S3ObjectStore(s3_url)


@pytest.mark.parametrize(
    ("text", "kind", "told"),
    [
        ("error performing PUT http://s:1/b - status code: 507 x: <Error>", StoreFullError, "room"),
        ("status code: 400 Bad: <Error><Code>QuotaExceeded</Code>", StoreFullError, "room"),
        (
            "GET https://s:1/b - status code: 503 Slow Down: <x>",
            StoreUnavailableError,
            "answers 503",
        ),
        ("nobody knows", StoreUnavailableError, "does not answer"),
        ("GET http://169.254.169.254/x", StoreUnavailableError, "no credentials"),
    ],
)
def test_each_refusal_has_a_text_of_its_own(text: str, kind: type[StoreError], told: str) -> None:
    """What the server said is told in a line, and what to do about it."""
    error, _ = translated(RuntimeError(text), "s3://b")
    assert isinstance(error, kind)
    assert told in error.message
    assert error.remedy


def test_an_outage_passes(s3_server: S3Server) -> None:
    """While the server cannot be reached calls fail, and afterwards the same store goes on."""
    bucket = s3_server.bucket()
    cable = Cable(s3_server.port)
    try:
        url = f"s3://{bucket}?endpoint=http://127.0.0.1:{cable.port}&region={REGION}"
        with closing(S3ObjectStore(url)) as store:
            digest = put(store, noise(MIB))
            part = store.partial(hashlib.sha256(noise(MIB, 1)).digest())
            part.write(noise(MIB, 1))
            cable.cut()
            with pytest.raises(StoreUnavailableError, match="does not answer"):
                store.stat(digest)
            with pytest.raises(StoreUnavailableError, match="does not answer"):
                part.finish()
            cable.heal()
            assert store.verify(digest, MIB) is None
            again = store.partial(hashlib.sha256(noise(MIB, 1)).digest())
            assert again.size == MIB  # nothing has to be sent to the node again
            assert store.verify(again.finish().digest, MIB) is None
    finally:
        cable.close()


# ---- places -------------------------------------------------------------------------------------


def test_a_place_belongs_to_one_zone(s3_url: str) -> None:
    """A second zone is refused, and the same one again is let in."""
    S3ObjectStore(s3_url, zone="plant").close()
    S3ObjectStore(s3_url, zone="plant").close()
    with pytest.raises(ConfigurationError, match="holds the objects of zone 'plant'"):
        S3ObjectStore(s3_url, zone="office")


def test_prefixes_are_apart(s3_server: S3Server) -> None:
    """Two stores in one bucket do not see each other's blobs."""
    bucket = s3_server.bucket()
    with (
        closing(S3ObjectStore(s3_server.url(bucket, "a"))) as one,
        closing(S3ObjectStore(s3_server.url(bucket, "b"))) as two,
    ):
        digest = put(one, b"abc")
        assert two.stat(digest) is None
        assert list(two.digests()) == []


def test_uploads_under_way_are_nobody_elses(store: S3ObjectStore, tmp_path: Path) -> None:
    """They lie in a folder among the temporary files that only their user may enter."""
    upload = store.upload()
    upload.write(noise(2 * MIB))
    [folder] = tmp_path.glob("ergon-uploads-*")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert len(list((folder / "uploads").iterdir())) == 1
    upload.finish()
    assert list((folder / "uploads").iterdir()) == []


def test_a_folder_of_others_is_not_used(s3_url: str, tmp_path: Path) -> None:
    """A folder that everybody may enter is refused before a byte goes into it."""
    with closing(S3ObjectStore(s3_url)):
        [folder] = tmp_path.glob("ergon-uploads-*")
        folder.chmod(0o777)
        with pytest.raises(ConfigurationError, match="only this user may enter"):
            S3ObjectStore(s3_url)


def test_a_folder_for_uploads_goes_when_it_is_empty(s3_url: str, tmp_path: Path) -> None:
    """Also under another process that uses it; one that holds an upload under way stays."""
    with closing(S3ObjectStore(s3_url)) as other:
        S3ObjectStore(s3_url).close()
        assert list(tmp_path.glob("ergon-uploads-*")) == []
        assert other.verify(put(other, b"abc"), 3) is None
        cut = other.partial(hashlib.sha256(b"abcdef").digest())
        cut.write(b"abc")
        cut.pause()
    [folder] = tmp_path.glob("ergon-uploads-*")
    assert len(list((folder / "uploads").iterdir())) == 1
    with closing(S3ObjectStore(s3_url)) as again:
        rest = again.partial(hashlib.sha256(b"abcdef").digest())
        assert rest.size == 3
        rest.write(b"def")
        rest.finish()
    assert list(tmp_path.glob("ergon-uploads-*")) == []


def test_temporary_files_may_be_cleared_away(store: S3ObjectStore, tmp_path: Path) -> None:
    """A system that removes old folders does not keep a running node from taking bytes."""
    [folder] = tmp_path.glob("ergon-uploads-*")
    shutil.rmtree(folder)
    assert store.sweep(0.0) == 0
    shutil.rmtree(folder)
    assert store.verify(put(store, b"abc"), 3) is None
    shutil.rmtree(folder)
    folder.mkdir(0o777)
    folder.chmod(0o777)  # somebody else was faster
    with pytest.raises(ConfigurationError, match="only this user may enter"):
        put(store, b"xyz")


def test_a_profile_has_the_keys(
    s3_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without keys in the environment they come from the file of credentials."""
    file = tmp_path / "credentials"
    file.write_text("[work]\naws_access_key_id = a\naws_secret_access_key = b\n")
    for name in [each for each in os.environ if each.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    with pytest.raises(ConfigurationError, match="there are no credentials for s3://"):
        S3ObjectStore(s3_url)
    monkeypatch.setenv("AWS_PROFILE", "work")
    S3ObjectStore(s3_url).close()
    monkeypatch.setenv("AWS_PROFILE", "play")
    with pytest.raises(ConfigurationError, match="has no profile 'play'"):
        S3ObjectStore(s3_url)
    file.write_text("nonsense")
    with pytest.raises(ConfigurationError, match="cannot be read"):
        S3ObjectStore(s3_url)


# ---- looking ------------------------------------------------------------------------------------


@pytest.mark.req("SCALE:doctor")
def test_a_sound_bucket_is_told_as_such(s3_url: str) -> None:
    """Access, conditional puts, room, latency and clock; nothing of the look is left."""
    seen = {each.what: each for each in observe(s3_url)}
    assert list(seen) == ["access", "conditional put", "temporary files", "latency", "clock"]
    assert [each.what for each in seen.values() if each.is_grave] == []
    assert seen["conditional put"].remedy == seen["clock"].remedy == ""
    assert list(connect(bucket_of(s3_url)).list()) == []


@pytest.mark.req("SCALE:doctor")
def test_what_is_unsafe_about_a_bucket_is_explained(s3_server: S3Server) -> None:
    """A server that ignores conditions, too little room, and a bucket that is not there."""
    assert "If-None-Match" in conditions(is_kept=False).remedy
    assert "TMPDIR" in room(1000).remedy
    with pytest.raises(ConfigurationError, match="there is no bucket"):
        list(observe(s3_server.url("nowhere")))
