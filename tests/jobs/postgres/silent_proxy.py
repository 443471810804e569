"""A line to a server whose answers can be swallowed: the server acts, and nobody hears of it."""

from __future__ import annotations

import socket
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from shutil import rmtree
from typing import Self

SOCKET = ".s.PGSQL.5432"


class SilentProxy:
    """Stands between a client and the socket of a PostgreSQL server."""

    def __init__(self, server: Path) -> None:
        self._server = server / SOCKET
        self.folder = Path(tempfile.mkdtemp(prefix="ergon-line-"))
        self.is_deaf = False
        """Whether answers are swallowed; what is said goes through."""
        self.swallowed = 0
        """Bytes of answers that nobody heard."""
        self._ends: list[socket.socket] = []
        self._door = socket.socket(socket.AF_UNIX)
        self._door.bind(str(self.folder / SOCKET))
        self._door.listen()
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def url(self, database: str) -> str:
        """How to reach a database through it."""
        return f"postgresql://ergon@/{database}?host={self.folder}"

    def cut(self) -> None:
        """Break every connection there is, and hear well again."""
        ends, self._ends = self._ends, []
        for end in ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        self.is_deaf = False

    def leave(self) -> None:
        """Break every connection, and let nobody connect any more."""
        with suppress(OSError):
            self._door.shutdown(socket.SHUT_RDWR)
        self._door.close()
        self._thread.join()
        self.cut()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.leave()
        rmtree(self.folder, ignore_errors=True)

    def _listen(self) -> None:
        while True:
            try:
                near, _ = self._door.accept()
            except OSError:
                return
            threading.Thread(target=self._connect, args=(near,), daemon=True).start()

    def _connect(self, near: socket.socket) -> None:
        with near, socket.socket(socket.AF_UNIX) as far:
            far.connect(str(self._server))
            self._ends += [near, far]
            back = threading.Thread(target=self._answer, args=(far, near), daemon=True)
            back.start()
            with suppress(OSError):
                while data := near.recv(1 << 16):
                    far.sendall(data)
            with suppress(OSError):
                far.shutdown(socket.SHUT_RDWR)
            back.join()

    def _answer(self, far: socket.socket, near: socket.socket) -> None:
        with suppress(OSError):
            while data := far.recv(1 << 16):
                if self.is_deaf:
                    self.swallowed += len(data)
                else:
                    near.sendall(data)
        with suppress(OSError):
            near.shutdown(socket.SHUT_RDWR)
