"""Writing past the system's cache, where the system can.

A blob is written once, and must be on the medium before anybody is answered. Copying it into the
cache first only costs time; from memory that is laid out in whole pages, the disk takes it at once.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from collections.abc import Sequence

from ergon_framework.boundary.objects.pieces import fill

PAGE = 4096
_ROOM = 1 << 20
_LEAST = 1 << 18  # below it, the cache is as fast
_DIRECT: int | None = getattr(os, "O_DIRECT", None)


class DirectWriter:
    """Writes large pieces from buffers that it keeps, as many as there are threads writing."""

    def __init__(self) -> None:
        self._spare: list[mmap.mmap] = []

    def write(self, fd: int, views: Sequence[memoryview]) -> int:
        """Write the whole pages these begin with; how many bytes, 0 where that cannot be done.

        The position of the file must be at a page. Whatever is left is for an ordinary write.
        """
        whole = sum(map(len, views)) // PAGE * PAGE
        if _DIRECT is None or whole < _LEAST:
            return 0
        buffer = self._take()
        flags = fcntl.fcntl(fd, fcntl.F_GETFL)
        done = 0
        try:
            fcntl.fcntl(fd, fcntl.F_SETFL, flags | _DIRECT)
            while done < whole and done % PAGE == 0:
                size = min(_ROOM, whole - done)
                with memoryview(buffer)[:size] as piece:
                    fill(piece, views, done)
                    done += os.write(fd, piece)
        except OSError as error:
            if error.errno != errno.EINVAL:  # it means that this file system has no such way
                raise
        finally:
            fcntl.fcntl(fd, fcntl.F_SETFL, flags)
            self._spare.append(buffer)
        return done

    def close(self) -> None:
        """Let go of the buffers."""
        self._spare.clear()

    def _take(self) -> mmap.mmap:
        try:
            return self._spare.pop()
        except IndexError:
            # Private: a forked process must not write into this one's buffers.
            return mmap.mmap(-1, _ROOM, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
