"""A server that answers with the very bytes a test wants, one function per connection."""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

from ergon_framework.boundary.http.async_client import AsyncHttpTransport
from ergon_framework.boundary.http.client import HttpTransport

Colour = Literal["threads", "tasks"]
Talk = Callable[["Peer"], None]
PATIENCE = 20.0


class Peer:
    """One connection as the server sees it."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.requests: list[tuple[str, bytes]] = []
        self._rest = b""
        self.gone = threading.Event()
        """Set when this side has closed the connection."""

    def take(self, *, with_body: bool = True) -> str:
        """Read one request; its head."""
        while b"\r\n\r\n" not in self._rest:
            data = self.sock.recv(65536)
            if not data:
                raise ConnectionError("the client has gone")
            self._rest += data
        head, _, self._rest = self._rest.partition(b"\r\n\r\n")
        text = head.decode()
        found = re.search(r"content-length: (\d+)", text, re.IGNORECASE)
        length = int(found[1]) if found and with_body else 0
        while len(self._rest) < length:
            data = self.sock.recv(65536)
            if not data:
                raise ConnectionError("the client has gone")
            self._rest += data
        body, self._rest = self._rest[:length], self._rest[length:]
        self.requests.append((text, body))
        return text

    def say(self, data: bytes) -> None:
        """Send bytes as they are."""
        self.sock.sendall(data)

    def answer(self, body: bytes = b"{}", status: str = "200 OK", *headers: str) -> None:
        """Send a sound answer."""
        lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers]
        self.say("\r\n".join(lines).encode() + b"\r\n\r\n" + body)


def echo(peer: Peer) -> None:
    """Answer every request with its own body."""
    while True:
        peer.take()
        peer.answer(peer.requests[-1][1] or b"{}")


class RawServer:
    """Accepts connections; the n-th is served by the n-th talk, further ones by the last."""

    def __init__(self, *talks: Talk, tls: ssl.SSLContext | None = None) -> None:
        self._talks = talks
        self._tls = tls
        self._listener = socket.create_server(("127.0.0.1", 0))
        scheme = "http" if tls is None else "https"
        self.url = f"{scheme}://127.0.0.1:{self._listener.getsockname()[1]}"
        self.peers: list[Peer] = []
        self.over = threading.Event()
        """For talks that wait until the test has ended."""
        self._threads: list[threading.Thread] = []
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    @property
    def requests(self) -> list[tuple[str, bytes]]:
        return [request for peer in self.peers for request in peer.requests]

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            if self.over.is_set():
                sock.close()
                return
            talk = self._talks[min(len(self.peers), len(self._talks) - 1)]
            peer = Peer(sock)
            self.peers.append(peer)
            thread = threading.Thread(target=self._serve, args=(peer, talk), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, peer: Peer, talk: Talk) -> None:
        with peer.sock:
            try:
                if self._tls is not None:
                    peer.sock = _greeted(self._tls, peer.sock)
                with peer.sock:
                    talk(peer)
            except OSError:
                return
            finally:
                peer.sock.close()
                peer.gone.set()

    def close(self) -> None:
        self.over.set()
        with socket.create_connection(self._listener.getsockname()):
            self._accepting.join(10)
        self._listener.close()
        for peer in self.peers:
            try:
                peer.sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue
        for thread in self._threads:
            thread.join(10)


def _greeted(tls: ssl.SSLContext, sock: socket.socket) -> ssl.SSLSocket:
    """The socket after the handshake; a client that is refused may read why, as at a node."""
    secure = tls.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
    try:
        secure.do_handshake()
    except ssl.SSLError:
        with secure:
            secure.shutdown(socket.SHUT_WR)
            while secure.recv(65536):
                pass
        raise
    return secure


@contextmanager
def serving(*talks: Talk, tls: ssl.SSLContext | None = None) -> Iterator[RawServer]:
    """A server for the time of a block."""
    server = RawServer(*talks, tls=tls)
    try:
        yield server
    finally:
        server.close()


def reach(
    colour: Colour, server: RawServer | str, *acts: Callable[[Any], Any], **options: Any
) -> list[Any]:
    """Let a transport of either colour do one thing after the other."""
    url = server if isinstance(server, str) else server.url
    if colour == "threads":
        with HttpTransport(url, **options) as transport:
            return [act(transport) for act in acts]

    async def main() -> list[Any]:
        async with AsyncHttpTransport(url, **options) as transport:
            return [await act(transport) for act in acts]

    return asyncio.run(main())


def once_gone(server: RawServer, act: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Do something when the server has closed its first connection; the loop saw none of it."""

    def waiting(transport: Any) -> Any:
        assert server.peers[0].gone.wait(PATIENCE)
        return act(transport)

    return waiting
