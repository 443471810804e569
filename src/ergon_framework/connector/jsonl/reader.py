"""Decides which lines of a folder are delivered next, and settles them."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO, Generic, TypeVar

from ergon_framework.connector.jsonl.append_file import AppendFile, DirectoryLock
from ergon_framework.connector.jsonl.codec import (
    JsonlConnectorError,
    LineTooLongError,
    MalformedLineError,
    letter,
    long_letter,
    shown,
)
from ergon_framework.connector.jsonl.drop_folder import DropFolder
from ergon_framework.connector.jsonl.offsets import (
    CommittedOffsets,
    FileProgress,
    InboxLine,
    JournalLimits,
    Stamp,
    fingerprint,
    pieces,
    scan,
)
from ergon_framework.engine.atfork import renew_after_fork
from ergon_framework.errors import describe
from ergon_framework.storage.secure_files import Folder, UnsafeFileError, make_folder

_log = logging.getLogger("ergon.connector.jsonl")
# A program that has set up no logging hears of malformed lines in its report, not on its standard
# error stream.
_log.addHandler(logging.NullHandler())

STATE = ".ergon"
_MAX_LETTERS = 256  # malformed lines set aside with one fsync

T = TypeVar("T")


@dataclass(slots=True)
class _Gathered(Generic[T]):
    """What one reading of one file gave."""

    file: FileProgress
    items: list[tuple[InboxLine, T]] = field(default_factory=list)
    malformed: list[tuple[InboxLine, MalformedLineError]] = field(default_factory=list)
    is_exhausted: bool = False
    error: JsonlConnectorError | None = None


class DirectoryReader(Generic[T]):
    """The lines of a directory, each delivered until it is settled.

    ``parse`` makes of a line what is delivered, or raises :class:`MalformedLineError`.
    """

    def __init__(
        self,
        directory: Path,
        parse: Callable[[InboxLine], T],
        *,
        dead_letters: Path | None,
        strict: bool,
        fsync: bool,
        max_line_bytes: int,
        limits: JournalLimits,
    ) -> None:
        self._directory = directory
        self._parse = parse
        self._strict = strict
        self._limit = max_line_bytes
        self._lock = threading.RLock()
        self._names: deque[str] = deque()  # files still to be looked into in this round
        self._released: list[tuple[str, int, int, InboxLine]] = []
        self._tie = itertools.count()
        self.malformed = 0
        self._told = 0  # how many of them the log has told
        self.dead_path = dead_letters or directory / STATE / "dead_letters.jsonl"
        with contextlib.ExitStack() as opened:
            # The folder first, then its lock: whoever fails on the way gives everything back in the
            # reverse order.
            self._drop = opened.enter_context(DropFolder(directory))
            state = opened.enter_context(_opened_state(directory.absolute() / STATE))
            if fsync:
                self._drop.sync()
            guard = DirectoryLock(state, "lock", directory)
            opened.callback(guard.close)
            letters = state
            if dead_letters is not None:
                make_folder(dead_letters.absolute().parent, parents=True)
                place = dead_letters.absolute().parent
                letters = opened.enter_context(Folder.open(place, follow=True))
            self._letters = letters
            self._dead = AppendFile(
                letters, self.dead_path.name, "dead_letters", fsync=fsync, lock=True
            )
            opened.callback(self._dead.close)
            self._progress = CommittedOffsets(
                self._drop, state, "progress.jsonl", fsync=fsync, lock=guard, limits=limits
            )
            self._opened = opened.pop_all()  # nothing failed: they stay open until close()
            self._opened.callback(self._progress.close)
        renew_after_fork(self)

    def renew(self) -> None:
        """Make new locks in a forked child. What is in the files is the parent's to record."""
        self._lock = threading.RLock()

    @property
    def is_writable(self) -> bool:
        """Whether settlements can still be written down."""
        return self._dead.is_writable and self._progress.is_writable

    def take(self, count: int) -> list[tuple[InboxLine, T]]:
        """Up to ``count`` items in order: what was given back first, then by file and line.

        Nothing is handed out whose end could not be written down.
        """
        self._progress.check()
        self._dead.check()
        with self._lock:
            items: list[tuple[InboxLine, T]] = []
            try:
                while self._released and len(items) < count:
                    line = heapq.heappop(self._released)[3]
                    items.append((line, self._parse(line)))
                self._take_new(items, count)
            except BaseException:
                # Whatever failed, nothing that was taken may be forgotten: its lines come again
                # with the next fetch.
                self.give_back(line for line, _ in items)
                raise
            return items

    def settle(self, line: InboxLine) -> None:
        """Settle a line. The record is on disk when this returns."""
        with self._lock:
            # Recorded under the lock, synced outside of it: several settlements share one sync.
            ticket = self._progress.record([line])
        self._progress.sync(ticket)

    def set_aside(self, line: InboxLine, transaction_id: str, reason: str) -> None:
        """Write a dead letter, then settle: dying in between repeats it, but never loses it."""
        where = _place(line) | {"transaction_id": transaction_id}
        self._dead.append(lambda: [letter(reason, where, line.data or b"")])
        self.settle(line)

    def give_back(self, lines: Iterable[InboxLine]) -> None:
        """Deliver the lines again, before all later lines."""
        with self._lock:
            for line in lines:
                # The counter decides between equal places: lines themselves cannot be compared.
                entry = (line.file.name, line.number, next(self._tie), line)
                heapq.heappush(self._released, entry)

    def count(self) -> int:
        """How many lines wait, counted by reading the rest of every file."""
        with self._lock:
            unread = sum(1 for name in self._listed() for _ in self._unread(name))
            return len(self._released) + unread

    def lines(self) -> Iterator[InboxLine]:
        """Every line that can be read, settled or not."""
        for name in self._listed():
            # It may have been removed since it was listed: then nothing of it is left to read.
            with contextlib.suppress(FileNotFoundError), self._drop.open(name) as file:
                yield from scan(file, FileProgress(name), self._limit)

    def read_letters(self) -> BinaryIO:
        """The dead letters, opened for reading."""
        return open(self._letters.open_file(self.dead_path.name, os.O_RDONLY), "rb")

    def close(self) -> None:
        """Close the files and let the next connector in."""
        with self._lock:
            self._tell_sum()
            self._opened.close()

    def _take_new(self, items: list[tuple[InboxLine, T]], count: int) -> None:
        is_new_round = False
        while len(items) < count:
            if not self._names:
                # One round over all files per fetch: an empty folder must not be read in a circle.
                if is_new_round:
                    return
                is_new_round = True
                self._names.extend(self._listed())
                continue
            seen = self._look_into(self._names[0], count - len(items))
            items += seen.items
            self._set_aside_malformed(seen.malformed)
            self._progress.fold(seen.file)
            if seen.is_exhausted:
                self._names.popleft()
            if seen.error is not None:
                if items:
                    return  # deliver these first; the next fetch meets the error again
                raise seen.error

    def _look_into(self, name: str, room: int) -> _Gathered[T]:
        """Continue reading one file until ``room`` items are found, many are malformed,
        or it ends.
        """
        seen: _Gathered[T] = _Gathered(self._progress.of(name))
        try:
            if seen.file.is_done_with(Stamp.of(self._drop.look(name))):
                seen.is_exhausted = True
                return seen
            with self._drop.open(name) as file:
                seen.file = self._progress.verified(name, file)
                try:
                    self._gather(seen, file, room)
                finally:
                    size = os.fstat(file.fileno()).st_size
                    # Also after an error: what was read so far is known, and is not read again.
                    seen.file.came_to(size, fingerprint(file, seen.file.next_offset))
        except FileNotFoundError:
            seen.is_exhausted = True  # the file was removed since it was listed
        except OSError as error:
            seen.error = JsonlConnectorError(
                f"cannot read {self._directory / shown(name)}: {error.strerror}",
                remedy="make the file readable, or move it away",
            )
        return seen

    def _gather(self, seen: _Gathered[T], file: BufferedReader, room: int) -> None:
        known = seen.file
        known.is_stalled = False
        for line in scan(file, known, self._limit):
            if not line.is_ready:
                known.is_stalled = True  # its writer has not finished the line: look again later
                break
            if _is_done(line):
                known.read(line)
                known.settle(line)
                continue
            try:
                seen.items.append((line, self._parsed(line)))
            except MalformedLineError as error:
                if self._strict:
                    seen.error = error
                    return
                seen.malformed.append((line, error))
            known.read(line)
            if len(seen.items) == room or len(seen.malformed) == _MAX_LETTERS:
                return
        seen.is_exhausted = True

    def _parsed(self, line: InboxLine) -> T:
        place = f"{shown(line.file.name)}, line {line.number}"
        if line.data is None:
            raise LineTooLongError(
                f"{place}: {line.end - line.start} bytes long; at most {self._limit} are allowed",
                remedy="split the work, or raise max_line_bytes",
            )
        try:
            return self._parse(line)
        except MalformedLineError as error:
            raise MalformedLineError(
                f"{place}: {error.message}", remedy="fix the line and put it into a new file"
            ) from error

    def _set_aside_malformed(self, malformed: list[tuple[InboxLine, MalformedLineError]]) -> None:
        if not malformed:
            return
        # Letters first, then the journal: dying in between repeats a letter, and loses none.
        self._dead.append(
            lambda: (piece for line, error in malformed for piece in self._letter(line, error))
        )
        self._progress.sync(self._progress.record([line for line, _ in malformed]))
        self.malformed += len(malformed)
        if not self._told:
            _log.warning(
                "set aside a malformed line, kept in %s: %s",
                self.dead_path,
                malformed[0][1].message,
            )
            self._told = 1
        elif self.malformed >= 2 * self._told:  # at 2, 4, 8 …: a bad file must not fill the log
            self._tell_sum()

    def _tell_sum(self) -> None:
        """Log how many malformed lines were set aside since this inbox was opened."""
        if self.malformed > self._told:
            self._told = self.malformed
            _log.warning("set aside %d malformed lines, kept in %s", self._told, self.dead_path)

    def _letter(self, line: InboxLine, error: MalformedLineError) -> Iterable[bytes]:
        if line.data is not None:
            return [letter(describe(error), _place(line), line.data)]
        content = pieces(self._drop, line.file.name, line.start, line.end)
        return long_letter(describe(error), _place(line), content)

    def _listed(self) -> list[str]:
        """The names of the inbox files, in order. Other files are forgotten."""
        names = self._drop.names()
        with self._lock:
            self._progress.forget_missing(set(names))
        return names

    def _unread(self, name: str) -> Iterator[InboxLine]:
        # It may have been removed since it was listed: then nothing of it is left to read.
        with contextlib.suppress(FileNotFoundError), self._drop.open(name) as file:
            known = self._progress.verified(name, file)
            for line in scan(file, known, self._limit):
                if line.is_ready and not _is_done(line):
                    yield line


def _opened_state(path: Path) -> Folder:
    try:
        return Folder.ensure_private(path)
    except UnsafeFileError as error:
        raise JsonlConnectorError(
            f"{path} cannot keep the state of this inbox: {error.strerror}",
            remedy="an inbox that others fill belongs to this user or to root, as does its state",
        ) from error


def _is_done(line: InboxLine) -> bool:
    return line.is_blank or line.file.remembered.get(line.number) == line.check


def _place(line: InboxLine) -> dict[str, Any]:
    return {"file": shown(line.file.name), "line": line.number}
