"""The bucket when processes die at it, and when several of them put the same at once."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from ergon_framework.boundary.objects.s3 import S3ObjectStore
from ergon_framework.storage.failpoints import NAMES, VARIABLE
from tests.boundary.objects.programs import objects
from tests.servers.s3 import S3Server

pytestmark = [pytest.mark.slow, pytest.mark.req("SCALE:objects-s3")]

WAIT = 50.0
POINTS = sorted(name for name in NAMES if name.startswith("boundary.bucket_"))
KILLS = [
    *(f"{point}=kill@{nth}" for point in POINTS for nth in ((1,) if "delete" in point else (1, 3))),
    "boundary.object.write.after=kill@3",
    "boundary.object.sync.after=kill@2",
]


@contextmanager
def started(action: str, url: str, points: str = "") -> Iterator[subprocess.Popen[str]]:
    """A process that does something with the bucket."""
    process = subprocess.Popen(  # noqa: S603 - our own interpreter
        [sys.executable, objects.__file__, action, url],
        env={**os.environ, VARIABLE: points},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def run(action: str, url: str, points: str = "") -> tuple[int, list[str]]:
    """Let such a process come to its end; its exit code and what it said."""
    with started(action, url, points) as process:
        output, errors = process.communicate(timeout=WAIT)
        if not points:
            assert process.returncode == 0, errors
        return process.returncode, output.splitlines()


def flaws(store: S3ObjectStore) -> list[str]:
    """What is wrong with anything that is visible."""
    found = []
    for digest in store.digests():
        blob = store.stat(digest)
        assert blob is not None
        found.append(store.verify(digest, blob.size))
    return [each for each in found if each]


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
        assert list((store._spool.folder / "uploads").iterdir()) == []


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
    with started("race", s3_url) as one, started("race", s3_url) as two:
        for each in (one, two):
            assert each.stdout is not None
            assert each.stdout.readline() == "ready\n"
        for each in (one, two):
            assert each.stdin is not None
            each.stdin.write("go\n")
            each.stdin.flush()
        answers = [each.communicate(timeout=WAIT)[0].splitlines() for each in (one, two)]
    assert len(answers[0]) == 10
    assert answers[0] == answers[1]
    with closing(S3ObjectStore(s3_url)) as store:
        assert {digest.hex() for digest in store.digests()} == set(answers[0])
        assert flaws(store) == []


def test_only_one_of_many_puts_what_is_not_there(s3_server: S3Server) -> None:
    """The server itself holds to it: of two conditional puts of one key the second is refused."""
    url = s3_server.url(s3_server.bucket())
    with closing(S3ObjectStore(url)) as store:
        path = store._spool.folder / "sample"
        path.write_bytes(b"abc")
        answers = [store._client.create("sample", path, 3) for _ in range(3)]
    assert answers == [True, False, False]
