"""The bucket when processes die at it, and when several of them put the same at once."""

from __future__ import annotations

import hashlib
import signal
from contextlib import closing

import pytest

from ergon_framework.storage.failpoints import NAMES
from ergon_framework.storage.objectstore.s3 import S3ObjectStore
from ergon_framework.storage.objectstore.s3_client import BucketClient
from tests.boundary.objects.processes import flaws, raced, run
from tests.boundary.objects.programs import objects
from tests.servers.s3 import S3Server

pytestmark = [pytest.mark.slow, pytest.mark.req("SCALE:objects-s3")]

POINTS = sorted(name for name in NAMES if name.startswith("boundary.bucket_"))
KILLS = [
    *(f"{point}=kill@{nth}" for point in POINTS for nth in ((1,) if "delete" in point else (1, 3))),
    "boundary.object.write.after=kill@3",
    "boundary.object.sync.after=kill@2",
]


def test_every_step_has_a_failpoint() -> None:
    """Before and after a put, and before, within and after a removal."""
    assert [point.removeprefix("boundary.bucket_") for point in POINTS] == [
        "delete.after",
        "delete.aside",
        "delete.before",
        "put.after",
        "put.before",
    ]


@pytest.mark.parametrize("kill", KILLS)
def test_a_crash_leaves_whole_blobs_or_none(s3_url: str, kill: str) -> None:
    """Whatever was acknowledged is there, whatever is there is whole, and all can be put again."""
    code, lines = run("crash", s3_url, kill)
    assert code == -signal.SIGKILL
    said = [line.split() for line in lines]
    acked = {digest for what, digest in said if what == "acked"}
    begun = {digest for what, digest in said if what == "began"}
    with closing(S3ObjectStore(s3_url)) as store:
        there = {digest.hex() for digest in store.digests()}
        aside = {each.digest.hex() for each in store.removed()}
        assert acked - begun <= there
        assert acked <= there | aside  # what was being removed can still be brought back
        assert flaws(store) == []
        for seed in range(4):
            objects.put(store, objects.noise(seed))
        assert len(list(store.digests())) == 4
        assert flaws(store) == []
        store.sweep(0.0)
        assert list((store.staging.folder / "uploads").iterdir()) == []


@pytest.mark.parametrize("kill", ["object.write.after=kill@3", "bucket_put.after=kill"])
def test_a_cut_transfer_goes_on_in_another_process(s3_url: str, kill: str) -> None:
    """What the dead process had taken is not sent to the node again."""
    data = objects.noise(7, 6 << 20)
    digest = hashlib.sha256(data).digest()
    assert run("cut", s3_url, f"boundary.{kill}") == (-signal.SIGKILL, [])
    with closing(S3ObjectStore(s3_url)) as store:
        upload = store.partial(digest)
        assert upload.size == (3 << 20 if "write" in kill else len(data))
        upload.pause()
        assert run("cut", s3_url) == (0, [f"acked {digest.hex()}"])
        assert store.verify(digest, len(data)) is None


def test_processes_put_the_same_bytes_at_once(s3_url: str) -> None:
    """All are answered the same, and every blob is there once and whole."""
    answers = raced(s3_url)
    assert len(answers[0]) == 10
    assert answers[0] == answers[1]
    with closing(S3ObjectStore(s3_url)) as store:
        assert {digest.hex() for digest in store.digests()} == set(answers[0])
        assert flaws(store) == []


def test_only_one_of_many_puts_what_is_not_there(s3_server: S3Server) -> None:
    """The server itself holds to it: of two conditional puts of one key the second is refused."""
    url = s3_server.url(s3_server.bucket())
    with closing(S3ObjectStore(url)) as store:
        path = store.staging.folder / "sample"
        path.write_bytes(b"abc")
        answers = [BucketClient(url).create("sample", path, 3) for _ in range(3)]
    assert answers == [True, False, False]
