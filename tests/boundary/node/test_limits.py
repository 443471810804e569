"""Too much, too slow, half open: a node holds its ground and harms nobody else."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from tests.boundary.node.cables import Cable
from tests.boundary.node.processes import ADMIN, CORE, PATIENCE, NodeProcess, fact, running
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.req("BOUNDARY:badinput", "BOUNDARY:http")]

SETTINGS = """
[zones.plant-a.limits]
body_bytes = 100000
object_bytes = 200000
connections = 20
header_bytes = 4096
idle_seconds = 60
body_seconds = 3
request_seconds = 3
page_items = 5
page_bytes = 3000
wait_seconds = 0.2
fact_bytes = 2000
batch_items = 10

[zones.plant-b.pull]
wait = 0.2
timeout = 0.5
"""
"""Seconds for a request: more than this process may stand still between a head and its body."""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    """A node with little patience."""
    settings = tmp_path / "ergon.toml"
    settings.write_text(SETTINGS, encoding="utf-8")
    with running("plant-a", tmp_path / "data", "--config", str(settings)) as node:
        yield node


def head(node: NodeProcess) -> int:
    """The last offset."""
    return int(node.ask(f"{ADMIN}GetStatus", {})["logs"][0]["head_offset"])


def answer_of(connection: socket.socket) -> tuple[int, dict[str, Any]]:
    """What came back on a raw connection, which the node closes."""
    raw = b""
    with suppress(ConnectionResetError):
        while data := connection.recv(4096):
            raw += data
    start, _, body = raw.partition(b"\r\n\r\n")
    return int(start.split()[1]), json.loads(body)


def connect(node: NodeProcess) -> socket.socket:
    """A raw connection."""
    return socket.create_connection(("127.0.0.1", node.port), timeout=PATIENCE)


def test_a_body_that_is_too_large(node: NodeProcess) -> None:
    """Announced or not, it is refused with 413, and nothing is stored."""
    body = json.dumps(fact("order:1:created", "x" * 150_000)).encode()
    answer = node.ask(f"{CORE}AppendFact", body)
    assert (answer.status, answer["code"]) == (413, "invalid_argument")
    assert answer["details"]["reason"] == "body_too_large"
    connection = HTTPConnection("127.0.0.1", node.port, timeout=PATIENCE)
    pieces = iter([body[:60_000], body[60_000:]])
    connection.request(
        "POST",
        f"{CORE}AppendFact",
        pieces,
        encode_chunked=True,
        headers={"Transfer-Encoding": "chunked"},
    )
    assert connection.getresponse().status == 413
    connection.close()
    assert head(node) == 0


def test_an_object_that_is_too_large(node: NodeProcess) -> None:
    """Announced or not, it is refused, and no bytes stay behind."""
    status, _headers, body = node.request("PUT", "/v1/objects/files/a", b"x" * 300_000)
    assert status in {400, 413}
    assert json.loads(body)["code"] == "invalid_argument"
    connection = HTTPConnection("127.0.0.1", node.port, timeout=PATIENCE)
    pieces = iter([b"x" * 50_000] * 6)
    with suppress(ConnectionResetError, BrokenPipeError):
        connection.request(
            "PUT",
            "/v1/objects/files/b",
            pieces,
            encode_chunked=True,
            headers={"Transfer-Encoding": "chunked"},
        )
    with suppress(ConnectionResetError):
        assert connection.getresponse().status in {400, 413}
    connection.close()
    for key in "ab":
        assert node.request("GET", f"/v1/objects/files/{key}")[0] == 404
    files = [path for path in (node.folder / "objects").rglob("*") if path.is_file()]
    assert not [path for path in files if path.stat().st_size >= 1000]


def test_a_fact_that_is_too_large(node: NodeProcess) -> None:
    """The limit is that of the canonical form; what is spelled with blanks may be longer."""
    refused = node.append("order:1:created", "x" * 2000)
    assert (refused.status, refused["details"]["reason"]) == (400, "too_large")
    assert refused["details"]["field"] == "fact.object_json"
    body = json.dumps(fact("order:2:created", ["x"] * 400), indent=4).encode()
    assert node.ask(f"{CORE}AppendFact", body)["offset"] == 1


def test_headers_that_are_too_large(node: NodeProcess) -> None:
    """431, and the connection ends."""
    status, _headers, body = node.request("GET", "/healthz", headers={"X": "y" * 5000})
    assert status == 431
    assert json.loads(body)["code"] == "invalid_argument"


def test_a_page_is_bounded(node: NodeProcess) -> None:
    """By facts and by bytes, whatever a consumer asks for; one large fact still goes out."""
    node.ask(f"{ADMIN}CreateConsumer", {"consumer_name": "c"})
    for number in range(8):
        node.append(f"order:{number}:created", "x" * (20 if number < 6 else 1900))
    asked = {"consumer_name": "c", "limit": 1000}
    first = node.ask(f"{CORE}FetchFacts", asked)["facts"]
    assert [each["offset"] for each in first] == [1, 2, 3, 4, 5]
    node.ask(f"{CORE}ConfirmReceipt", {"consumer_name": "c", "offset": 5})
    page = node.ask(f"{CORE}FetchFacts", {**asked, "max_bytes": 1})["facts"]
    assert [each["offset"] for each in page] == [6]
    node.ask(f"{CORE}ConfirmReceipt", {"consumer_name": "c", "offset": 6})
    page = node.ask(f"{CORE}FetchFacts", asked)["facts"]
    assert [each["offset"] for each in page] == [7]


@pytest.mark.parametrize(
    "bytes_sent",
    [
        b"POST /bsfg.v1.Boundary/AppendFact HTTP/1.1\r\nHost: [::1]\r\nContent-Le",
        b"POST /bsfg.v1.Boundary/AppendFact HTTP/1.1\r\nHost: [::1]\r\nContent-Length: 50\r\n\r\n{",
        b"PUT /v1/objects/files/slow HTTP/1.1\r\nHost: [::1]\r\nContent-Length: 50\r\n\r\nabc",
    ],
)
def test_a_slow_client(node: NodeProcess, bytes_sent: bytes) -> None:
    """Who does not go on is sent away; meanwhile others are served."""
    with connect(node) as slow:
        slow.sendall(bytes_sent)
        assert node.append("order:1:created").status == 200
        status, body = answer_of(slow)
        assert (status, body["code"]) == (408, "deadline_exceeded")
    assert node.request("GET", "/v1/objects/files/slow")[0] == 404
    assert head(node) == 1


def test_a_client_that_does_not_read(node: NodeProcess) -> None:
    """Somebody who takes no answer does not hold up the node, nor its end."""
    node.request("PUT", "/v1/objects/files/big", b"x" * 200_000)
    with ExitStack() as stack:
        for _ in range(5):
            deaf = stack.enter_context(socket.socket())
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            deaf.connect(("127.0.0.1", node.port))
            deaf.sendall(b"GET /v1/objects/files/big HTTP/1.1\r\nHost: [::1]\r\n\r\n" * 20)
        for number in range(20):
            assert node.append(f"order:{number}:created").status == 200
        assert node.stop() == 0


def test_too_many_connections(node: NodeProcess) -> None:
    """One more than there is room for is told so, and when the others go there is room again."""
    with ExitStack() as stack:
        for _ in range(20):
            open_one = stack.enter_context(connect(node))
            open_one.sendall(b"GET /healthz HTTP/1.1\r\nHost: [::1]\r\n\r\n")
            assert b"200 OK" in open_one.recv(4096)
        with connect(node) as late:
            with suppress(ConnectionResetError, BrokenPipeError):
                late.sendall(b"GET /healthz HTTP/1.1\r\nHost: [::1]\r\n\r\n")
            status, body = answer_of(late)
        assert (status, body["code"]) == (503, "unavailable")
        assert body["details"]["reason"] == "too_many_connections"
    until(lambda: _is_served(node), "room again")


def _is_served(node: NodeProcess) -> bool:
    return node.request("GET", "/healthz")[0] == 200


def test_a_client_that_goes_away_while_it_waits(node: NodeProcess) -> None:
    """Long polls that nobody waits for any more end, and take no fact with them."""
    node.ask(f"{ADMIN}CreateConsumer", {"consumer_name": "c"})
    body = json.dumps({"consumer_name": "c", "wait_ms": 60_000}).encode()
    request = b"POST %bFetchFacts HTTP/1.1\r\nHost: [::1]\r\nContent-Length: %d\r\n\r\n%b"
    for _ in range(10):
        with connect(node) as short:
            short.sendall(request % (CORE.encode(), len(body), body))
    node.append("order:1:created")
    page = node.ask(f"{CORE}FetchFacts", {"consumer_name": "c"})
    assert [each["offset"] for each in page["facts"]] == [1]


def test_a_wait_is_bounded(node: NodeProcess) -> None:
    """However long a consumer wants to wait, the node answers an empty page in its own time."""
    node.ask(f"{ADMIN}CreateConsumer", {"consumer_name": "c"})
    page = node.ask(f"{CORE}FetchFacts", {"consumer_name": "c", "wait_ms": 86_400_000})
    assert (page.status, page["facts"]) == (200, [])


def test_half_an_upload(node: NodeProcess) -> None:
    """A connection that breaks in the middle of an artifact leaves no artifact."""
    with connect(node) as broken:
        broken.sendall(
            b"PUT /v1/objects/files/half HTTP/1.1\r\nHost: [::1]\r\nContent-Length: 50000\r\n\r\n"
            + b"x" * 20_000
        )
    assert node.request("GET", "/v1/objects/files/half")[0] == 404
    assert node.request("PUT", "/v1/objects/files/half", b"x" * 50_000)[0] == 200


@pytest.mark.req("BOUNDARY:zones", "P13")
def test_a_half_open_link(node: NodeProcess, tmp_path: Path) -> None:
    """A link that swallows everything, without closing, is noticed, told, and made anew."""
    settings = str(tmp_path / "ergon.toml")
    with Cable(node.port) as cable:
        options = ("--config", settings, "--peer", f"plant-a=http://127.0.0.1:{cable.port}")
        with running("plant-b", tmp_path / "b", *options) as peer:
            peer.ask(f"{ADMIN}CreateConsumer", {"consumer_name": "c", "log": "inbound:plant-a"})
            node.append("order:0:created")
            until(lambda: received(peer) == [1], "the first fact")
            cable.stall()
            for number in range(1, 6):
                assert node.append(f"order:{number}:created").status == 200
            until(lambda: "link" in alerts(peer), "the alert")
            assert peer.append("reply:1:created").status == 200
            assert received(peer) == [1]
            cable.heal()
            until(lambda: received(peer) == [1, 2, 3, 4, 5, 6], "everything")
            until(lambda: alerts(peer) == set(), "peace")


@pytest.mark.req("BOUNDARY:zones", "P13")
def test_a_peer_that_is_paused(node: NodeProcess, tmp_path: Path) -> None:
    """A process that stands still is noticed; when it goes on, so does the link."""
    options = ("--config", str(tmp_path / "ergon.toml"), "--peer", f"plant-a={node.url}")
    with running("plant-b", tmp_path / "b", *options) as peer:
        peer.ask(f"{ADMIN}CreateConsumer", {"consumer_name": "c", "log": "inbound:plant-a"})
        node.append("order:0:created")
        until(lambda: received(peer) == [1], "the first fact")
        os.kill(node.pid, signal.SIGSTOP)
        try:
            until(lambda: "link" in alerts(peer), "the alert")
            assert peer.append("reply:1:created").status == 200
        finally:
            os.kill(node.pid, signal.SIGCONT)
        node.append("order:1:created")
        until(lambda: received(peer) == [1, 2], "the second fact")
        until(lambda: alerts(peer) == set(), "peace")


def received(peer: NodeProcess) -> list[int]:
    """What a zone has, by the other one's offsets."""
    page = peer.ask(f"{CORE}FetchFacts", {"consumer_name": "c"})
    return [each["source_offset"] for each in page["facts"]]


def alerts(node: NodeProcess) -> set[str]:
    """The kinds of a node's alerts."""
    return {alert["kind"] for alert in node.ask(f"{ADMIN}GetStatus", {})["alerts"]}
