"""A disk that forgets: from what a process did to it, what is left after a power cut.

Bytes are safe when their file was synced after they were written, names when their folder was
synced after they were given. Everything else may be there or not, and a write may be there in part.
No file system forgets more than that, and most forget less.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any, TypeAlias

from tests.boundary.powercut.recorder import Event, Kind

SECTOR = 512
"""Bytes that a disk writes as a whole."""


@dataclass(frozen=True, slots=True)
class Write:
    """Bytes at a place in a file."""

    at: int
    offset: int
    data: bytes

    def apply(self, content: bytearray) -> None:
        """Put them there; a hole before them is filled with zeros."""
        content.extend(bytes(max(0, self.offset - len(content))))
        content[self.offset : self.offset + len(self.data)] = self.data


@dataclass(frozen=True, slots=True)
class Resize:
    """A new length for a file."""

    at: int
    size: int

    def apply(self, content: bytearray) -> None:
        """Cut it, or fill it up with zeros."""
        del content[self.size :]
        content.extend(bytes(self.size - len(content)))


@dataclass(frozen=True, slots=True)
class Naming:
    """A name given, or with ``entry`` None taken away; a rename is one of each, at one moment."""

    at: int
    name: str
    entry: Entry | None

    def apply(self, names: dict[str, Entry]) -> None:
        """Give it or take it away."""
        if self.entry is None:
            names.pop(self.name, None)
        else:
            names[self.name] = self.entry


Change: TypeAlias = Write | Resize | Naming
Fate: TypeAlias = Callable[[Change], Change | None]
"""What is left of a change that nobody synced."""


@dataclass(slots=True)
class File:
    """A file: what of it is safe, and what was done to it since."""

    safe: bytearray = field(default_factory=bytearray)
    changes: list[Change] = field(default_factory=list)

    def left(self, fate: Fate) -> bytearray:
        """What is left of it."""
        content = bytearray(self.safe)
        _apply(self.changes, content, fate)
        return content


@dataclass(slots=True)
class Folder:
    """A folder: which names in it are safe, and what was done to them since."""

    safe: dict[str, Entry] = field(default_factory=dict)
    changes: list[Change] = field(default_factory=list)

    def left(self, fate: Fate) -> dict[str, Entry]:
        """The names that are left in it."""
        names = dict(self.safe)
        _apply(self.changes, names, fate)
        return names


Entry: TypeAlias = File | Folder


def nothing(_change: Change) -> None:
    """The fate of all changes on the worst of disks."""


def everything(change: Change) -> Change:
    """The fate of all changes when the power stays on."""
    return change


class Luck:
    """A fate that keeps some changes, and some in part."""

    def __init__(self, seed: int) -> None:
        self._chance = Random(seed)  # noqa: S311 - it must be the same each time
        self._odds = self._chance.choice((0.1, 0.5, 0.9))
        self._renames: dict[int, bool] = {}

    def __call__(self, change: Change) -> Change | None:
        is_kept = self._chance.random() < self._odds
        if isinstance(change, Naming):
            is_kept = self._renames.setdefault(change.at, is_kept)  # both halves, or none
        elif is_kept and isinstance(change, Write) and self._chance.random() < 0.3:
            sectors = self._chance.randrange(0, len(change.data) + SECTOR, SECTOR)
            return replace(change, data=change.data[:sectors])
        return change if is_kept else None


class Disk:
    """What a process has done below one folder so far."""

    def __init__(self, root: Path, existing: Iterable[str] = ()) -> None:
        self._top = Folder()
        self._names: dict[str, Entry] = {str(root): self._top}
        self._inodes: dict[int, Entry] = {}
        self._syncs: dict[int, tuple[int, Entry]] = {}
        for name in existing:
            self._top.safe[name] = self._names[f"{root}/{name}"] = Folder()

    def happen(self, event: Event) -> None:
        """Take note of the next event."""
        if event.kind is Kind.OPEN:
            self._open(event)
        elif event.kind is Kind.MKDIR:
            self._give(event.at, event.path, Folder())
        elif event.kind is Kind.LINK:
            self._give(event.at, event.other, self._names[event.path])
        elif event.kind is Kind.RENAME:
            self._give(event.at, event.other, self._take(event.at, event.path))
        elif event.kind is Kind.UNLINK:
            self._take(event.at, event.path)
        elif event.inode:
            self._change(event, self._inodes[event.inode])

    def build(self, target: Path, fate: Fate) -> None:
        """Write what is left after a power cut now."""
        _build(target, self._top, fate)

    def _change(self, event: Event, entry: Entry) -> None:
        if event.kind is Kind.SYNC_BEGIN:
            self._syncs[event.thread] = event.at, entry
        elif event.kind is Kind.SYNC_END:
            _sync(*self._syncs.pop(event.thread))
        elif event.kind is Kind.WRITE:
            entry.changes.append(Write(event.at, event.offset, event.data))
        else:
            assert event.kind is Kind.TRUNCATE
            entry.changes.append(Resize(event.at, event.offset))

    def _open(self, event: Event) -> None:
        entry = self._names.get(event.path)
        if entry is None:
            assert event.flags & os.O_CREAT, f"{event.path} was opened, and nobody created it"
            entry = self._give(event.at, event.path, File())
        elif event.flags & os.O_TRUNC:
            entry.changes.append(Resize(event.at, 0))
        self._inodes[event.inode] = entry

    def _give(self, at: int, path: str, entry: Entry) -> Entry:
        self._names[path] = entry
        above, name = os.path.split(path)
        self._names[above].changes.append(Naming(at, name, entry))
        return entry

    def _take(self, at: int, path: str) -> Entry:
        above, name = os.path.split(path)
        self._names[above].changes.append(Naming(at, name, None))
        return self._names.pop(path)


def _sync(before: int, entry: Entry) -> None:
    """Make safe what was done before the sync began."""
    _apply([change for change in entry.changes if change.at < before], entry.safe, everything)
    entry.changes = [change for change in entry.changes if change.at >= before]


def _apply(changes: Iterable[Change], content: Any, fate: Fate) -> None:
    for change in changes:
        kept = fate(change)
        if kept is not None:
            kept.apply(content)


def _build(target: Path, folder: Folder, fate: Fate) -> None:
    target.mkdir()
    for name, entry in folder.left(fate).items():
        if isinstance(entry, Folder):
            _build(target / name, entry, fate)
        else:
            (target / name).write_bytes(entry.left(fate))
