"""A TCP proxy whose connections a test can cut. It passes bytes on without reading them."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import Self


class CuttableLink:
    """Listens on a loopback port of its own, and forwards everything to another port.

    Put it between two processes, and :meth:`cut` it while they talk.
    """

    def __init__(self, port: int) -> None:
        self._target = ("127.0.0.1", port)
        self._ends: set[socket.socket] = set()
        self._lock = threading.Lock()
        self.is_cut = False
        self._door = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._door.getsockname()[1]
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def cut(self) -> None:
        """Break every connection, and accept none."""
        self.is_cut = True
        self._break_all()

    def heal(self) -> None:
        """Allow connections again."""
        self.is_cut = False

    def redirect(self, port: int) -> None:
        """Forward new connections to another port."""
        self._target = ("127.0.0.1", port)

    def close(self) -> None:
        """Close the link and its connections."""
        self.cut()
        with suppress(OSError):
            self._door.shutdown(socket.SHUT_RDWR)
        self._door.close()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _listen(self) -> None:
        while True:
            try:
                near, _ = self._door.accept()
            except OSError:
                return
            threading.Thread(target=self._connect, args=(near,), daemon=True).start()

    def _connect(self, near: socket.socket) -> None:
        with near:
            try:
                far = socket.create_connection(self._target, timeout=5)
            except OSError:
                return
            far.settimeout(None)
            with far:
                with self._lock:
                    self._ends |= {near, far}
                # Without it, a cut between the connecting and the line above would miss this
                # connection.
                if self.is_cut:
                    self._break_all()
                back = threading.Thread(target=_pass_on, args=(far, near), daemon=True)
                back.start()
                _pass_on(near, far)
                back.join()
                with self._lock:
                    self._ends -= {near, far}

    def _break_all(self) -> None:
        with self._lock:
            for end in self._ends:
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    for end in (source, target):  # one way broken is a broken link
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
