"""TLS in front of a server that was built without it: a door that any server can stand behind."""

from __future__ import annotations

import select
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import pytest

Target: TypeAlias = "tuple[str, int] | str"
"""Host and port, or the path of a socket."""
_SSL_REQUEST = struct.pack(">II", 8, 80877103)


@dataclass(frozen=True, slots=True)
class Papers:
    """An authority, and what it signed for a server and for a client."""

    folder: Path

    @property
    def ca(self) -> Path:
        """The authority's certificate."""
        return self.folder / "ca.pem"

    def certificate(self, name: str) -> Path:
        """Of ``server``, of ``client``, or of ``elsewhere``, made out to another host."""
        return self.folder / f"{name}.pem"

    def key(self, name: str) -> Path:
        """The key that belongs to it."""
        return self.folder / f"{name}.key"


def papers(folder: Path) -> Papers:
    """Make them in a folder."""
    # Here and not above: every run of the tests loads this file, and few of them certificates.
    from ergon_framework.boundary.certs import issue, make_ca

    make_ca(folder)
    issue(folder, "server")
    issue(folder, "client")
    issue(folder, "elsewhere", hosts=("elsewhere.example",))
    return Papers(folder)


def locked(papers: Papers, folder: Path) -> Path:
    """The key of the client, with a passphrase."""
    from cryptography.hazmat.primitives.serialization import (
        BestAvailableEncryption,
        Encoding,
        PrivateFormat,
        load_pem_private_key,
    )

    key = load_pem_private_key(papers.key("client").read_bytes(), None)
    found = folder / "locked.key"
    found.write_bytes(
        key.private_bytes(
            Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"a passphrase")
        )
    )
    found.chmod(0o600)
    return found


@pytest.fixture(scope="session")
def signed(tmp_path_factory: pytest.TempPathFactory) -> Papers:
    """Papers that servers of the tests show."""
    return papers(tmp_path_factory.mktemp("signed"))


@pytest.fixture(scope="session")
def strange(tmp_path_factory: pytest.TempPathFactory) -> Papers:
    """Papers of an authority that nobody knows."""
    return papers(tmp_path_factory.mktemp("strange"))


class Door:
    """Takes TLS on loopback and passes on what is inside."""

    def __init__(
        self,
        target: Target,
        signed: Papers,
        *,
        name: str = "server",
        wants_client: bool = False,
        asks_first: bool = False,
    ) -> None:
        """``asks_first`` is for PostgreSQL, whose clients ask before they begin with TLS."""
        self._target = target
        self._asks_first = asks_first
        self._signed = signed
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.show(name)
        if wants_client:
            self._context.verify_mode = ssl.CERT_REQUIRED
            self._context.load_verify_locations(signed.ca)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def show(self, name: str) -> None:
        """Show the certificate of that name from the next connection on."""
        self._context.load_cert_chain(self._signed.certificate(name), self._signed.key(name))

    def close(self) -> None:
        """Take no more connections; those that are there end with their servers."""
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                threading.Thread(target=self._admit, args=(client,), daemon=True).start()

    def _admit(self, client: socket.socket) -> None:
        with suppress(OSError), client:
            if self._asks_first:
                if client.recv(8, socket.MSG_WAITALL) != _SSL_REQUEST:
                    return
                client.sendall(b"S")
            encrypted = self._context.wrap_socket(client, server_side=True)
            with encrypted as inside, self._connect() as behind:
                _relay(inside, behind)

    def _connect(self) -> socket.socket:
        if not isinstance(self._target, str):
            return socket.create_connection(self._target)
        found = socket.socket(socket.AF_UNIX)
        found.connect(self._target)
        return found


Opened = Callable[..., Door]


@contextmanager
def doors(target: Target, signed: Papers, *, asks_first: bool = False) -> Iterator[Opened]:
    """Opens doors to one server, each as it is asked for, and closes them all at the end."""
    with ExitStack() as stack:

        def opened(**how: Any) -> Door:
            door = Door(target, signed, asks_first=asks_first, **how)
            return stack.enter_context(closing(door))

        yield opened


def _relay(inside: ssl.SSLSocket, behind: socket.socket) -> None:
    """In one thread: two must not use an encrypted line at once."""
    others: dict[socket.socket, socket.socket] = {inside: behind, behind: inside}
    while True:
        ready = [inside] if inside.pending() else select.select([*others], [], [])[0]
        for each in ready:
            data = each.recv(1 << 16)
            if not data:
                return
            others[each].sendall(data)
