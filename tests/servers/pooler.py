"""A pooler before PostgreSQL, as small as it can be: it lends connections of the server out."""

from __future__ import annotations

import secrets
import select
import socket
import struct
import threading
from collections import deque
from contextlib import suppress
from pathlib import Path

_SSL, _GSS, _CANCEL = 80877103, 80877104, 80877102
_ASKS = (b"Q", b"S", b"F")  # each is answered by one "ready"


class Pooler:
    """For a session each, or for a transaction each.

    ``is_fair``: whoever comes gets the connection that has been idle longest, not the latest one.
    ``is_away``: nobody answers at its port until :meth:`open`.
    """

    def __init__(
        self, folder: Path, *, is_session: bool, is_fair: bool = False, is_away: bool = False
    ) -> None:
        self._behind = str(folder / ".s.PGSQL.5432")
        self._is_session = is_session
        self._is_fair = is_fair
        self._idle: deque[socket.socket] = deque()
        self._greeting = b""
        self._lock = threading.Lock()
        self._listening = socket.socket()
        self._listening.bind(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        if not is_away:
            self.open()

    def open(self) -> None:
        """Let clients in."""
        self._listening.listen()
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        """Take no more clients, and let go of what is idle."""
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        with self._lock:
            while self._idle:
                self._idle.pop().close()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                threading.Thread(target=self._admit, args=(client,), daemon=True).start()

    def _admit(self, client: socket.socket) -> None:
        with suppress(OSError, struct.error), client:
            start = _start(client)
            if start:
                with self._lock:
                    self._idle.append(self._open(start))
                    greeting = self._greeting
                made_up = struct.pack(">cI", b"K", 12) + secrets.token_bytes(8)
                client.sendall(greeting + made_up + b"Z\0\0\0\5I")
                self._lend(client, start)

    def _open(self, start: bytes) -> socket.socket:
        server = socket.socket(socket.AF_UNIX)
        server.connect(self._behind)
        server.sendall(start)
        told, kind = b"", b""
        while kind != b"Z":
            kind, message = _message(server)
            told += message if kind in (b"R", b"S") else b""
        self._greeting = told
        return server

    def _take(self, start: bytes) -> socket.socket:
        with self._lock:
            if not self._idle:
                return self._open(start)
            return self._idle.popleft() if self._is_fair else self._idle.pop()

    def _lend(self, client: socket.socket, start: bytes) -> None:
        server: socket.socket | None = None
        asked = 0
        try:
            while True:
                lines = [client] if server is None else [client, server]
                ready, _, _ = select.select(lines, [], [])
                if client in ready:
                    kind, message = _message(client)
                    if kind == b"X":
                        return
                    server = server or self._take(start)
                    server.sendall(message)
                    asked += kind in _ASKS
                elif server is not None:
                    kind, message = _message(server)
                    client.sendall(message)
                    asked -= kind == b"Z"
                    if kind == b"Z" and not asked and message[-1:] == b"I" and not self._is_session:
                        with self._lock:
                            self._idle.append(server)
                        server = None
        finally:
            if server is not None:
                server.close()


def _start(client: socket.socket) -> bytes:
    """What a client begins with; nothing from one who wants something cancelled."""
    while True:
        head = _exactly(client, 8)
        length, code = struct.unpack(">II", head)
        if code not in (_SSL, _GSS):
            return b"" if code == _CANCEL else head + _exactly(client, length - 8)
        client.sendall(b"N")


def _message(line: socket.socket) -> tuple[bytes, bytes]:
    head = _exactly(line, 5)
    return head[:1], head + _exactly(line, struct.unpack(">I", head[1:])[0] - 4)


def _exactly(line: socket.socket, count: int) -> bytes:
    data = line.recv(count, socket.MSG_WAITALL) if count else b""
    if len(data) < count:
        raise OSError("hung up")
    return data
