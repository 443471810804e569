"""A broker that accepts connections and says as little as a test wants."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

WELCOME = b"\x20\x03\x00\x00\x00"
"""CONNACK of MQTT 5: no session was kept, success, no properties."""
SUBSCRIBE = 0x82


class SilentBroker:
    """Answers a CONNECT when it is told to, a SUBSCRIBE, and nothing else; or hangs up at once."""

    def __init__(self, *, hangs_up: bool) -> None:
        self._door = socket.create_server(("127.0.0.1", 0))
        self._hangs_up = hangs_up
        self.port: int = self._door.getsockname()[1]
        self.welcomes = threading.Event()
        self.called = threading.Event()
        self.left = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Take it away."""
        self.welcomes.set()
        with suppress(OSError):
            self._door.shutdown(socket.SHUT_RDWR)
        self._door.close()
        self._thread.join()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                caller, _ = self._door.accept()
                if self._hangs_up:
                    caller.close()
                else:
                    threading.Thread(target=self._talk, args=(caller,), daemon=True).start()

    def _talk(self, caller: socket.socket) -> None:
        with caller, suppress(OSError):
            caller.recv(1000)
            self.called.set()
            self.welcomes.wait()
            caller.sendall(WELCOME)
            while said := caller.recv(1000):
                if said[0] == SUBSCRIBE:
                    caller.sendall(b"\x90\x04" + said[2:4] + b"\x00\x01")
        self.left.set()


@contextmanager
def silent_broker(*, hangs_up: bool = False) -> Iterator[SilentBroker]:
    """One that is taken away at the end."""
    broker = SilentBroker(hangs_up=hangs_up)
    try:
        yield broker
    finally:
        broker.close()
