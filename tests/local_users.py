"""Acting as another user of the same machine, for tests of what such a user can do.

It takes root. Without root these tests are skipped, and say so.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

NOBODY = 65534
WORKER, WEB, GROUP = 64001, 64002, 64010

needs_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="NOT SHOWN HERE: acting as another local user takes root"
)


@contextmanager
def acting_as(uid: int, gid: int = NOBODY) -> Iterator[None]:
    """Let this process have the rights of an unprivileged user for a while."""
    groups, own_group = os.getgroups(), os.getegid()
    os.setgroups([])
    os.setegid(gid)
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(own_group)
        os.setgroups(groups)


@contextmanager
def shared_folder(mode: int = 0o1777, gid: int = -1) -> Iterator[Path]:
    """A new folder that other users can reach; pytest's own are private."""
    folder = Path(tempfile.mkdtemp(prefix="ergon-users-", dir="/tmp"))
    os.chown(folder, -1, gid)
    folder.chmod(mode)
    try:
        yield folder.resolve()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def mode_of(path: Path) -> int:
    """The permission bits of a file or a folder itself."""
    return path.lstat().st_mode & 0o777
