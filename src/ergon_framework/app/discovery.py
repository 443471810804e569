"""Finds the project that a command is about: ``ergon.toml`` or ``ergon.db``, here or above.

As git finds ``.git``: the nearest folder counts. A folder with only the zones of a script counts
where neither file is found, for a script that publishes and has no job keeps nothing else. The
search ends at the root of a file system and at the home directory. A settings file names code to
import, so above the working directory only a file of the user who asks, or of root, is taken.

Nothing heavy is imported here: shell completion asks, too.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SETTINGS_FILE = "ergon.toml"
STORE_FILE = "ergon.db"
"""The store that a script with ``App()`` makes beside itself."""
ZONES_FOLDER = "ergon.zones"
"""The folder with the zones of a script, beside the file of its jobs."""


@dataclass(frozen=True, slots=True)
class FoundProject:
    """A folder with a settings file, or else with the store or the zones of a script."""

    folder: Path
    has_settings: bool

    @property
    def place(self) -> Path:
        """The settings file, or the folder where there is none."""
        return self.folder / SETTINGS_FILE if self.has_settings else self.folder

    @property
    def found(self) -> Path:
        """The file or folder by which the project was found."""
        if self.has_settings:
            return self.folder / SETTINGS_FILE
        store = self.folder / STORE_FILE
        return store if os.path.lexists(store) else self.folder / ZONES_FOLDER


def find_project(start: Path | None = None) -> FoundProject | None:
    """The nearest project from a folder upwards, by default from the working directory."""
    here = Path.cwd() if start is None else start.absolute()
    for names in ((SETTINGS_FILE, STORE_FILE), (ZONES_FOLDER,)):
        for folder in _upwards(here):
            for name in names:
                if _is_taken(folder / name, is_here=folder == here):
                    return FoundProject(folder, has_settings=name == SETTINGS_FILE)
    return None


def nowhere(start: Path | None = None) -> str:
    """What to say where no project was found, and why one that is there does not count."""
    here = Path.cwd() if start is None else start.absolute()
    others = [
        folder / name
        for folder in _upwards(here)
        for name in (SETTINGS_FILE, STORE_FILE)
        if os.path.lexists(folder / name)
    ]
    text = f"there is no settings file and no {STORE_FILE} in {here} or above"
    if not others:
        return text
    why = "belongs to another user" if others[0].exists() else "leads nowhere"
    return f"{text} but {others[0]}, which {why}"


def _upwards(here: Path) -> Iterator[Path]:
    """The folder and those above it, as far as a project may be."""
    home, device = _home(), _device(here)
    for folder in (here, *here.parents):
        if _device(folder) != device:
            return
        yield folder
        if folder == home:
            return


def _home() -> Path | None:
    try:
        return Path.home()
    except RuntimeError:  # a user whom the system does not know
        return None


def _device(folder: Path) -> int | None:
    try:
        return folder.stat().st_dev
    except OSError:
        return None


def _is_taken(file: Path, *, is_here: bool) -> bool:
    try:
        owner = file.lstat().st_uid  # a link that leads nowhere was meant, too
    except OSError:
        return False
    return is_here or owner in (os.geteuid(), 0)
