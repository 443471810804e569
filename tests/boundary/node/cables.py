"""A cable between two sites: a TCP proxy that can be cut, and left hanging."""

from __future__ import annotations

import selectors
import socket
import threading
from typing import Self

_LOOK = 0.1  # seconds between two looks at what was carried
_QUIET_LOOKS = 5  # of which nothing new was seen


class Cable:
    """Carries connections to ``port`` until it is cut."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._pairs: dict[socket.socket, socket.socket] = {}
        self._is_cut = self._is_stalled = self._is_closed = False
        self._selector = selectors.DefaultSelector()
        self._waker, self._woken = socket.socketpair()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self.carried = 0

    def cut(self) -> None:
        """Break every connection and accept none."""
        with self._lock:
            self._is_cut = True
            for sock in list(self._pairs):
                self._drop(sock)
        self._waker.send(b".")

    def wait_until_quiet(self) -> None:
        """Let arrive what was sent and is never answered, as an acknowledgement of AMQP or MQTT."""
        carried, looks, never = -1, 0, threading.Event()
        while looks < _QUIET_LOOKS:
            looks = looks + 1 if carried == self.carried else 0
            carried = self.carried
            never.wait(_LOOK)

    def stall(self) -> None:
        """Keep the connections, but carry nothing: half-open, as after a lost route."""
        with self._lock:
            self._is_stalled = True

    def heal(self) -> None:
        """Carry again; what was stalled is gone."""
        with self._lock:
            if self._is_stalled:
                for sock in list(self._pairs):
                    self._drop(sock)
            self._is_cut = self._is_stalled = False
        self._waker.send(b".")

    def close(self) -> None:
        """Take it away."""
        self._is_closed = True
        self._waker.send(b".")
        self._thread.join()
        for sock in [*self._pairs, self._listener, self._waker, self._woken]:
            sock.close()
        self._selector.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _run(self) -> None:
        while not self._is_closed:
            for key, _events in self._selector.select():
                sock = key.fileobj
                assert isinstance(sock, socket.socket)
                if sock is self._woken:
                    sock.recv(64)
                    continue
                with self._lock:
                    if sock is self._listener:
                        self._accept()
                    elif sock in self._pairs:
                        self._carry(sock)

    def _accept(self) -> None:
        near, _address = self._listener.accept()
        if self._is_cut:
            near.close()
            return
        try:
            far = socket.create_connection(("127.0.0.1", self._target), timeout=5)
        except OSError:
            near.close()
            return
        far.settimeout(None)
        for one, other in ((near, far), (far, near)):
            self._pairs[one] = other
            self._selector.register(one, selectors.EVENT_READ)

    def _carry(self, sock: socket.socket) -> None:
        try:
            data = sock.recv(1 << 16)
            if data and not self._is_stalled:
                self._pairs[sock].sendall(data)
                self.carried += len(data)
        except OSError:
            data = b""
        if not data:
            self._drop(sock)

    def _drop(self, sock: socket.socket) -> None:
        other = self._pairs.pop(sock, None)
        for each in (sock, other):
            if each is None:
                continue
            self._pairs.pop(each, None)
            try:
                self._selector.unregister(each)
            except (KeyError, ValueError):
                continue
            finally:
                each.close()
