from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import pytest

from ergon_framework.errors import BoundaryError
from ergon_framework.testing.clock import VirtualClock
from tests import fork_server
from tests.boundary.client import client_child
from tests.boundary.client.raw_server import Peer, RawServer, serving
from tests.boundary.client.scripted import MemoryNode

pytestmark = pytest.mark.slow


class HttpNode:
    """A memory node behind HTTP, which outlives its clients."""

    def __init__(self) -> None:
        self.node = MemoryNode(VirtualClock())
        self.objects: dict[str, bytes] = {}

    def talk(self, peer: Peer) -> None:
        """Serve one connection."""
        while True:
            head = peer.take()
            method, path = head.split(" ", 2)[:2]
            try:
                self._answer(peer, method, path)
            except BoundaryError as error:
                peer.answer(json.dumps(error.to_dict()).encode(), "400 No")

    def _answer(self, peer: Peer, method: str, path: str) -> None:
        body = peer.requests[-1][1]
        found = re.fullmatch(r"/v1/objects/([^/]+)/([^/?]+)(\?.*)?", path)
        if found is None:
            peer.answer(self.node.call(path[1:], body))
        elif method == "PUT":
            bucket, key = found[1], unquote(found[2])
            digest = hashlib.sha256(body)
            self.objects[found[2]] = body
            self.node.store.bind(bucket, key, digest.digest(), len(body))
            shape = {"bucket": bucket, "key": key, "size": len(body)}
            peer.answer(json.dumps({**shape, "digest": f"sha256:{digest.hexdigest()}"}).encode())
        else:
            peer.answer(self.objects[found[2]])


@pytest.fixture
def http_node() -> Iterator[tuple[HttpNode, RawServer]]:
    """A node and its server."""
    node = HttpNode()
    with serving(node.talk) as server:
        yield node, server


def child(what: str, server: RawServer, folder: Path, point: str = "") -> None:
    """Run a child to its end, and see that it died exactly when it was told to."""
    done = fork_server.run(
        [sys.executable, client_child.__file__, what, server.url, str(folder)],
        env=os.environ | {"ERGON_FAILPOINTS": f"{point}=kill" if point else ""},
        check=False,
        timeout=60,
    )
    assert done.returncode == (-signal.SIGKILL if point else 0)


@pytest.mark.req("P14", "P1", "BSFG:Errors")
@pytest.mark.parametrize("point", ["boundary.publishing.before", "boundary.publishing.after"])
def test_publisher_dies(point: str, http_node: tuple[HttpNode, RawServer], tmp_path: Path) -> None:
    """Whether it dies before or after the append, doing it all again ends in one fact."""
    node, server = http_node
    (tmp_path / "file.txt").write_bytes(b"content")
    child("publish", server, tmp_path, point)
    assert node.node.store.logs()[0].head == (point == "boundary.publishing.after")
    child("publish", server, tmp_path)
    assert node.node.store.logs()[0].head == 1
    assert len(node.objects) == 1


@pytest.mark.req("C3", "C1")
@pytest.mark.parametrize(
    ("point", "effects"),
    [
        ("boundary.confirming.before", [1, 2, 3, 1, 2, 3, 4, 5]),
        ("boundary.confirming.after", [1, 2, 3, 4, 5]),
    ],
)
def test_consumer_dies(
    point: str, effects: list[int], http_node: tuple[HttpNode, RawServer], tmp_path: Path
) -> None:
    """Effects precede their confirmation: what dies in between comes again, and none is lost."""
    node, server = http_node
    node.node.fill(5)
    child("consume", server, tmp_path, point)
    node.node.clock.advance(60.0)  # the lease of the dead one ends
    child("consume", server, tmp_path)
    seen = [int(line) for line in (tmp_path / "effects").read_text().split()]
    assert seen == effects
    assert node.node.store.consumer("c").cursor == 5


@pytest.mark.req("C7")
@pytest.mark.parametrize("point", ["boundary.saving.before", "boundary.saving.after"])
def test_saver_dies(point: str, http_node: tuple[HttpNode, RawServer], tmp_path: Path) -> None:
    """A file is there as a whole or not at all."""
    node, server = http_node
    (tmp_path / "file.txt").write_bytes(b"content")
    child("publish", server, tmp_path)
    child("save", server, tmp_path, point)
    saved = tmp_path / "saved.txt"
    assert saved.exists() == (point == "boundary.saving.after")
    node.node.clock.advance(60.0)
    child("save", server, tmp_path)
    assert saved.read_bytes() == b"content"
