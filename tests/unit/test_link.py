"""The link that tests and examples put between two processes."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from ergon_framework.testing.link import CuttableLink

PATIENCE = 20.0


@pytest.fixture
def door() -> Iterator[socket.socket]:
    """Where the link leads."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(PATIENCE)
        yield server


def called(link: CuttableLink, door: socket.socket) -> tuple[socket.socket, socket.socket]:
    """Both ends of a connection through the link."""
    near = socket.create_connection(("127.0.0.1", link.port), timeout=PATIENCE)
    far, _ = door.accept()
    far.settimeout(PATIENCE)
    return near, far


def test_bytes_pass_both_ways(door: socket.socket) -> None:
    """Whatever they are."""
    with CuttableLink(door.getsockname()[1]) as link:
        near, far = called(link, door)
        with near, far:
            near.sendall(b"ping\x00")
            assert far.recv(5) == b"ping\x00"
            far.sendall(b"pong")
            assert near.recv(4) == b"pong"


def test_a_cut_ends_what_is_open_and_healing_lets_the_next_one_pass(door: socket.socket) -> None:
    """Both ends see it, and nothing passes until it heals."""
    with CuttableLink(door.getsockname()[1]) as link:
        near, far = called(link, door)
        with near, far:
            near.sendall(b"a")
            assert far.recv(1) == b"a"
            link.cut()
            assert (near.recv(1), far.recv(1), link.is_cut) == (b"", b"", True)
        link.heal()
        near, far = called(link, door)
        with near, far:
            near.sendall(b"b")
            assert far.recv(1) == b"b"


def test_nobody_behind_it_is_a_connection_that_ends(door: socket.socket) -> None:
    """As if the other side had hung up."""
    port = door.getsockname()[1]
    door.close()
    with (
        CuttableLink(port) as link,
        socket.create_connection(("127.0.0.1", link.port), timeout=PATIENCE) as near,
    ):
        assert near.recv(1) == b""
