from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.server_programs import installed_postgres
from tests.servers.server import free_port

IS_ROOT = os.geteuid() == 0
ROOT = Path(__file__).parents[2]


@pytest.fixture
def private_folder() -> Iterator[Path]:
    """A folder that only its owner can enter, as root's home is on most machines."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)  # made with mode 0700


def _copy_for_owner_only(source: str, target: str) -> None:
    """What an installation under the umask 077 leaves."""
    shutil.copy2(source, target)
    copy = Path(target)
    copy.chmod(copy.stat().st_mode & 0o711)


@pytest.mark.slow
@pytest.mark.skipif(not IS_ROOT, reason="only root runs PostgreSQL as somebody else")
def test_postgresql_runs_from_a_private_folder(private_folder: Path) -> None:
    """Root's clone and virtual environment may be closed to the user who runs the server."""
    installation = installed_postgres().parent
    package = installation.parent
    for folder in (installation, package.with_name(f"{package.name}.libs")):
        if folder.is_dir():
            target = private_folder / folder.relative_to(package.parent)
            shutil.copytree(folder, target, copy_function=_copy_for_owner_only)
    (private_folder / package.name / "__init__.py").touch()
    program = (
        "import subprocess\n"
        "from benchmarks.server_programs import *\n"
        "data, programs = server_folder(), postgres_programs()\n"
        "words = [str(programs / 'initdb'), '-D', str(data / 'd'), '-A', 'trust', '-N']\n"
        "subprocess.run(words, check=True, stdout=subprocess.DEVNULL, **server_user())\n"
        "print(data, programs.parents[2], sep='\\n')\n"
    )
    environment = {"PYTHONPATH": f"{private_folder}:{ROOT}", "TMPDIR": str(private_folder)}
    done = subprocess.run(  # noqa: S603 - our own interpreter
        [sys.executable, "-c", program],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        umask=0o077,
    )
    assert (done.returncode, done.stderr) == (0, "")
    made = [Path(line) for line in done.stdout.splitlines()]
    assert [each for each in made if each.is_relative_to(private_folder)] == []
    for folder in made:
        shutil.rmtree(folder)


def test_a_port_is_given_to_one_test_only() -> None:
    """A server needs seconds to take its port; a test in another process may choose meanwhile."""
    taken, other = free_port(), free_port() + 1
    program = (
        "import random\n"
        f"given = iter([{taken}, {other}, {taken}, {other + 1}])\n"
        "random.randrange = lambda *_: next(given)\n"
        "from tests.servers.server import free_port\n"
        "print(free_port())\n"
    )
    done = subprocess.run(  # noqa: S603 - our own interpreter
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert int(done.stdout) in (other, other + 1)
