"""The ringing side of bells: the pipes of one topic, kept open and looked for when they change."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import time
from pathlib import Path

from ergon_framework.storage.secure_files import Folder

_KEPT = 128  # pipes kept open; further ones are opened for each ring
# A folder's time stamp can be this coarse: until it is older, a change may hide behind it.
_COARSE_NS = 2_000_000_000


def strike(rope: int) -> bool:
    """Ring; False when nobody is there any more. A full pipe has been rung already."""
    try:
        os.write(rope, b"!")
    except BlockingIOError:
        return True
    except OSError:
        return False
    return True


class Ropes:
    """Every pipe of one topic. Used by one thread at a time."""

    def __init__(self, folder: Path, topic: str) -> None:
        self._folder = str(folder)
        self._prefix = f"{topic}."
        self._seen = 0
        self._open: dict[str, int] = {}
        self._further: list[str] = []

    def pull(self) -> None:
        """Ring them all."""
        if not self._seen and not os.access(self._folder, os.F_OK):
            return  # nobody has ever listened
        try:
            changed = os.stat(self._folder).st_mtime_ns  # noqa: PTH116 - a third of Path's time
        except OSError:
            self.let_go()
            return
        if changed != self._seen:
            self._look(changed)
        stale = [name for name, rope in self._open.items() if not strike(rope)]
        if not stale and not self._further:
            return
        try:
            with Folder.open(Path(self._folder)) as folder:
                self._drop(folder, stale)
                self._pull_further(folder)
        except OSError:
            self.let_go()

    def _drop(self, folder: Folder, stale: list[str]) -> None:
        for name in stale:
            os.close(self._open.pop(name))
            _remove(folder, name)

    def _pull_further(self, folder: Folder) -> None:
        for name in self._further:
            rope = _reach(folder, name)
            if rope >= 0:
                strike(rope)
                os.close(rope)

    def let_go(self) -> None:
        """Close all pipes and know nothing of the folder."""
        for rope in self._open.values():
            os.close(rope)
        self._open.clear()
        self._further.clear()
        self._seen = 0

    def _look(self, changed: int) -> None:
        # Writing to a pipe whose reader has gone kills a process that left SIGPIPE to the system;
        # opening it tells the same without harm. So such a process keeps no pipe open.
        is_fragile = signal.getsignal(signal.SIGPIPE) == signal.SIG_DFL
        if is_fragile:
            self.let_go()
        try:
            with Folder.trusted(Path(self._folder)) as folder:
                self._find(folder)
        except OSError:  # gone, or of somebody else: whoever listens has been told
            self.let_go()
            return
        is_settled = time.time_ns() - changed > _COARSE_NS
        self._seen = changed if is_settled and not is_fragile else 0

    def _find(self, folder: Folder) -> None:
        names = {each for each in folder.names() if each.startswith(self._prefix)}
        for name in self._open.keys() - names:
            os.close(self._open.pop(name))
        fresh = sorted(names - self._open.keys())
        room = _KEPT - len(self._open)
        self._further = fresh[room:]
        for name in fresh[:room]:
            rope = _reach(folder, name)
            if rope >= 0:
                self._open[name] = rope
            else:
                self._further.append(name)  # gone, or there were no descriptors: tried again


def _reach(folder: Folder, name: str) -> int:
    try:
        return folder.open_pipe(name, os.O_WRONLY)
    except OSError as error:
        if error.errno == errno.ENXIO:
            _remove(folder, name)
        return -1


def _remove(folder: Folder, name: str) -> None:
    """Nobody reads it, and names are never used twice: its listener is gone for good."""
    with contextlib.suppress(OSError):
        folder.unlink(name)
