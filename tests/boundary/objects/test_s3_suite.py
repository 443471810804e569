"""The object store in a bucket, under the behaviour suite and on a real S3 server."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from ergon_framework.ports.objectstore import ObjectStore
from ergon_framework.storage.objectstore.s3 import S3ObjectStore, key_of
from ergon_framework.storage.objectstore.s3_client import bucket_of, connect
from ergon_framework.testing.suites.objectstore import OBJECT_STORE_CHECKS, exercise_object_store
from tests.servers.s3 import S3Server

pytestmark = [pytest.mark.slow, pytest.mark.req("SCALE:objects-s3")]

NAMES = [check.name for check in OBJECT_STORE_CHECKS]


@pytest.mark.parametrize("check", NAMES)
def test_the_bucket_keeps_its_promises(s3_server: S3Server, tmp_path: Path, check: str) -> None:
    """Each check of the suite, also the recommended ones; none is left out."""
    numbers = itertools.count()
    opened: dict[int, tuple[str, Path, Callable[[], float]]] = {}

    def opening(url: str, folder: Path, clock: Callable[[], float]) -> S3ObjectStore:
        store = S3ObjectStore(url, clock=clock, folder=folder)
        opened[id(store)] = (url, folder, clock)
        return store

    def make(clock: Callable[[], float]) -> S3ObjectStore:
        folder = tmp_path / str(next(numbers))
        return opening(s3_server.url(s3_server.bucket(), "zone/objects"), folder, clock)

    def reopen(store: ObjectStore) -> ObjectStore:
        store.close()
        return opening(*opened[id(store)])

    def damage(store: ObjectStore, digest: bytes, data: bytes) -> None:
        connect(bucket_of(opened[id(store)][0])).put(key_of(digest), data)

    report = exercise_object_store(make, reopen=reopen, damage=damage, only={check})
    report.raise_for_failures(recommended=True)
    assert report.passed == (check,)
