"""Both object stores under the behaviour suite, and the suite itself."""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from ergon_framework.errors import WiringError
from ergon_framework.ports.objectstore import Blob, ObjectStore
from ergon_framework.storage.objectstore.filesystem import FilesystemObjectStore
from ergon_framework.storage.objectstore.memory import MemoryObjectStore
from ergon_framework.testing.suites.framework import SuiteReport
from ergon_framework.testing.suites.objectstore import (
    OBJECT_STORE_CHECKS,
    ObjectStoreSuiteError,
    exercise_object_store,
)
from tests.boundary.objects import planted_objects as planted

NAMES = [check.name for check in OBJECT_STORE_CHECKS]


def make_memory(clock: Callable[[], float]) -> MemoryObjectStore:
    """A store as the suite wants it."""
    return MemoryObjectStore(clock=clock)


def exercise_filesystem(folder: Path, check: str) -> SuiteReport:
    """Run one check on stores in that folder."""
    numbers = itertools.count()
    clocks: list[Callable[[], float]] = []

    def make(clock: Callable[[], float]) -> FilesystemObjectStore:
        clocks.append(clock)
        return FilesystemObjectStore(folder / str(next(numbers)), clock=clock)

    def reopen(store: ObjectStore) -> ObjectStore:
        assert isinstance(store, FilesystemObjectStore)
        store.close()
        return FilesystemObjectStore(store.folder, clock=clocks[-1])

    def damage(store: ObjectStore, digest: bytes, data: bytes) -> None:
        assert isinstance(store, FilesystemObjectStore)
        store.path_of(digest).write_bytes(data)

    return exercise_object_store(make, reopen=reopen, damage=damage, only={check})


@pytest.mark.req("BOUNDARY:objects")
@pytest.mark.parametrize("check", NAMES)
def test_the_folder_keeps_its_promises(tmp_path: Path, check: str) -> None:
    """Each check of the suite, also the recommended ones; none is left out."""
    report = exercise_filesystem(tmp_path, check)
    report.raise_for_failures(recommended=True)
    assert report.passed == (check,)


@pytest.mark.req("BOUNDARY:objects")
@pytest.mark.parametrize("check", NAMES)
def test_the_memory_store_keeps_its_promises(check: str) -> None:
    """Each check of the suite, also the recommended ones."""
    report = exercise_object_store(make_memory, damage=planted.damage, only={check})
    report.raise_for_failures(recommended=True)


def test_only_durability_is_left_out() -> None:
    """The memory store is exempt from surviving its process, and from nothing else."""
    report = exercise_object_store(make_memory, damage=planted.damage)
    assert report.skipped == ("cut_upload_goes_on_elsewhere", "blobs_survive", "deletions_survive")
    assert report.subject == "MemoryObjectStore"


def test_there_are_enough_checks() -> None:
    """The suite has at least fifty required checks, each with a sentence and a name of its own."""
    assert sum(check.required for check in OBJECT_STORE_CHECKS) >= 50
    assert len(set(NAMES)) == len(NAMES)
    assert all(check.sentence.endswith(".") for check in OBJECT_STORE_CHECKS)


def test_both_stores_serve_the_port(tmp_path: Path) -> None:
    """A type checker accepts them wherever the port is asked for."""
    ports: list[ObjectStore] = [MemoryObjectStore(), FilesystemObjectStore(tmp_path / "objects")]
    for port in ports:
        upload = port.upload()
        upload.write(b"abc")
        assert upload.finish().size == 3
        port.close()


def test_unknown_checks_are_refused() -> None:
    """A misspelt name does not silently run nothing."""
    with pytest.raises(WiringError, match="did you mean 'closes_twice'"):
        exercise_object_store(make_memory, only={"closes_twise"})
    with pytest.raises(WiringError, match="no check 'xyzzy'"):
        exercise_object_store(make_memory, skip={"xyzzy"})


def test_checks_can_be_waived() -> None:
    """A check that was left out is in the report, and not among those that passed."""
    report = exercise_object_store(make_memory, only={"closes_twice"}, skip={"closes_twice"})
    assert (report.skipped, report.passed, report.ok) == (("closes_twice",), (), True)


def test_a_store_that_hangs_is_rejected() -> None:
    """The suite does not wait for ever, nor hang with its subject."""
    woken = threading.Event()

    class Hangs(planted.Honest):
        def stat(self, digest: bytes) -> Blob | None:
            woken.wait(60.0)
            return super().stat(digest)

    try:
        with pytest.raises(ObjectStoreSuiteError, match="did not return within"):
            exercise_object_store(Hangs, only={"absent_blob_is_not_there"}, patience=0.05)
    finally:
        woken.set()


@pytest.mark.slow
def test_the_suite_needs_no_test_framework() -> None:
    """The suite is importable where pytest is not installed."""
    program = (
        "import sys; sys.modules['pytest'] = None; "
        "from ergon_framework.testing.suites.objectstore import exercise_object_store; "
        "from ergon_framework.storage.objectstore.memory import MemoryObjectStore; "
        "print(exercise_object_store(lambda clock: MemoryObjectStore(clock=clock)).ok)"
    )
    done = subprocess.run(  # noqa: S603 - our own interpreter
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "True"
