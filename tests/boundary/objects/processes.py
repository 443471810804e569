"""Processes that work on an object store, and what they leave behind."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ergon_framework.ports.objectstore import ObjectStore
from ergon_framework.storage.failpoints import VARIABLE
from tests import fork_server
from tests.boundary.objects.programs import objects

WAIT = 50.0


@contextmanager
def started(action: str, store: str | Path, points: str = "") -> Iterator[subprocess.Popen[str]]:
    """A process that does something with the folder or the bucket."""
    process = fork_server.start(
        [sys.executable, objects.__file__, action, str(store)],
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


def run(action: str, store: str | Path, points: str = "") -> tuple[int, list[str]]:
    """Let such a process come to its end; its exit code and what it said."""
    with started(action, store, points) as process:
        output, errors = process.communicate(timeout=WAIT)
        if not points:
            assert process.returncode == 0, errors
        return process.returncode, output.splitlines()


def flaws(store: ObjectStore) -> list[str]:
    """What is wrong with anything that is visible."""
    found = []
    for digest in store.digests():
        blob = store.stat(digest)
        assert blob is not None
        found.append(store.verify(digest, blob.size))
    return [each for each in found if each]


def raced(store: str | Path) -> list[list[str]]:
    """Two processes put the same at once; what each was answered."""
    with started("race", store) as one, started("race", store) as two:
        for each in (one, two):
            assert each.stdout is not None
            assert each.stdout.readline() == "ready\n"
        for each in (one, two):
            assert each.stdin is not None
            each.stdin.write("go\n")
            each.stdin.flush()
        return [each.communicate(timeout=WAIT)[0].split() for each in (one, two)]
