"""The mark that a move leaves beside SQLite files before it marks the first of their stores.

The parts of a program go to several files, and no commit spans them: a move that dies after the
first mark would leave the other files usable for any program that opens them, while the old stores
are still in use. So each file first gets a note beside it that refers to the mark of one of them,
which does not exist yet. The moment in which that one is written, all of the files are refused.

A file that is not there yet is announced before it is made. Its tables and its mark are two
commits: a move that dies between them would leave an empty store that takes work.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from ergon_framework.errors import StoreUnavailableError
from ergon_framework.ports.transfer import (
    MoveState,
    encode_move_state,
    incomplete,
    read_move_state,
)
from ergon_framework.storage.failpoints import declare, failpoint
from ergon_framework.storage.fsync import sync_file, sync_folder
from ergon_framework.storage.secure_files import open_file

SUFFIX = ".incoming"

declare("move.incoming.noted", "move.incoming.marked")


class _Note(msgspec.Struct, frozen=True, omit_defaults=True):
    """The note that is written beside an announced file."""

    token: str
    """The run that wrote the note: a leftover note must not refer to the mark of a later run."""
    mark: str = ""
    """The path of the mark relative to the note's folder; empty in the mark itself."""
    state: MoveState | None = None
    """The state of the move, which the error names when a program opens the store."""


_decode = msgspec.json.Decoder(_Note).decode


class Announcement:
    """What one run of a move leaves beside the files that it is about to fill."""

    def __init__(self, state: MoveState) -> None:
        self._state = state
        self._made: list[Path] = []

    def announce_new(self, files: Sequence[Path]) -> None:
        """Announce the files that do not exist yet, before they are made.

        A file without a folder is left out: making it fails anyway.
        """
        new = [each for each in files if not each.exists() and _beside(each).parent.is_dir()]
        if new:
            self.announce(new)

    def announce(self, files: Sequence[Path]) -> None:
        """Have all these files refused from one moment on, although none of them is marked yet.

        Dying before that moment leaves all of them as they were.
        """
        # A mark that is there already stays in force, and keeps its place, while notes are written.
        first, *others = sorted(files, key=lambda each: _mark_at(_beside(each)) is None)
        mark = _beside(first)
        there = _mark_at(mark)
        token = self._state.token if there is None else there.token
        self._made += [each for each in files if _read(_beside(each)) is None]
        for each in others:
            note = _beside(each)
            _write(note, _Note(token, os.path.relpath(mark, note.parent)))
        failpoint("move.incoming.noted")
        _write(mark, _Note(token, state=self._state))
        failpoint("move.incoming.marked")

    def settle(self) -> None:
        """Have everything stay until it is withdrawn: from now on stores are marked."""
        self._made = []

    def withdraw(self, files: Sequence[Path]) -> None:
        """Remove the mark and all notes: each store has a mark of its own by now."""
        for each in files:
            _beside(each).unlink(missing_ok=True)

    def cancel(self) -> None:
        """Remove what this run has written: the move was refused, and has marked nothing.

        What an earlier run has left stays, for that one may have made the file.
        """
        self.withdraw(self._made)
        self._made = []


def state_of(file: Path, found: bytes | None) -> bytes | None:
    """The move state that counts for a file: its own, or that of a move which has marked others.

    ``found`` is what the store itself has written down; once a move has marked it, only that
    counts.
    """
    if found is not None and read_move_state(found).source:
        return found
    marked = _marked(_beside(file))
    return found if marked is None else encode_move_state(marked)


def refuse_incoming(file: Path, state: MoveState) -> None:
    """Refuse a store that is to be filled by a move which has not marked it yet."""
    marked = None if state.source else _marked(_beside(file))
    if marked is not None:
        raise incomplete(marked)


def refuse_to_make(file: Path) -> None:
    """Refuse to make a file that a move is going to make."""
    if not file.exists():
        refuse_incoming(file, MoveState())


def _mark_at(path: Path) -> _Note | None:
    note = _read(path)
    return note if note is not None and note.state is not None else None


def _marked(path: Path) -> MoveState | None:
    note = _read(path)
    if note is None or note.state is not None:
        return None if note is None else note.state
    mark = _read(path.parent / note.mark)
    return mark.state if mark is not None and mark.token == note.token else None


def _beside(file: Path) -> Path:
    """The path of the note, with links resolved: the file may be opened through a link."""
    real = file.resolve()
    return real.with_name(real.name + SUFFIX)


def _read(path: Path) -> _Note | None:
    try:
        return _decode(path.read_bytes())
    # Not written by us: our drafts get this name only when they are complete.
    except (OSError, msgspec.MsgspecError):
        return None


def _write(path: Path, note: _Note) -> None:
    """Write the whole of it, or nothing, also in a power cut."""
    draft = path.with_name(path.name + ".new")
    try:
        draft.unlink(missing_ok=True)
        descriptor = open_file(draft, os.O_WRONLY | os.O_CREAT)
        try:
            os.write(descriptor, msgspec.json.encode(note))
            sync_file(descriptor)
        finally:
            os.close(descriptor)
        draft.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        raise StoreUnavailableError(
            f"{path} cannot be written: {error.strerror or error}",
            remedy="see that this user may write to the folder of TO, and that its disk has room",
        ) from error
