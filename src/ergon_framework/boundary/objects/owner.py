"""Whose folder of objects it is, and since when.

A node removes bytes that no name in its log stands for. In the folder of another zone, or beside a
log that was begun anew, that would be everything. So the folder says which zone it belongs to, and
which log; only bytes that came since that log has had the folder are the node's to remove.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from ergon_framework.boundary.objects.disk import sync_file, sync_folder
from ergon_framework.errors import ConfigurationError
from ergon_framework.storage.secure_files import open_file

FILE = "owner.json"
TICK = 10_000_000
"""Nanoseconds by which the instants of files may be behind."""


class Owner(msgspec.Struct, frozen=True):
    """What the file says; it was written when the log came to have the folder."""

    zone: str = ""
    epoch: str = ""


def claim(folder: Path, zone: str) -> None:
    """Make a folder that is nobody's the zone's own; refuse one of another zone."""
    found = _read(folder)
    if found.zone == zone:
        return
    if found.zone:
        raise ConfigurationError(
            f"{folder} holds the objects of zone {found.zone!r}, and this is {zone!r}",
            remedy="give each zone a folder of its own",
        )
    _write(folder, Owner(zone))


def owned_since(folder: Path, epoch: str) -> int:
    """Since when a log of that epoch has the folder, in nanoseconds by the clock of its files."""
    found = _read(folder)
    if found.epoch != epoch:
        _write(folder, msgspec.structs.replace(found, epoch=epoch))
    return (folder / FILE).stat().st_mtime_ns - TICK


def _read(folder: Path) -> Owner:
    try:
        return msgspec.json.decode((folder / FILE).read_bytes(), type=Owner)
    except (FileNotFoundError, msgspec.MsgspecError, UnicodeDecodeError):
        return Owner()  # nobody has said so yet, or it was torn: then nothing older is removed


def _write(folder: Path, owner: Owner) -> None:
    draft = folder / f"{FILE}.new"
    draft.unlink(missing_ok=True)
    with open(open_file(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as file:
        file.write(msgspec.json.encode(owner))
        file.flush()
        sync_file(file.fileno())
    draft.replace(folder / FILE)
    sync_folder(folder)
