from __future__ import annotations

import hashlib
from operator import methodcaller
from pathlib import Path
from typing import Any

import pytest

from ergon_framework.errors import (
    BoundaryNotFoundError,
    ConfigurationError,
    DataLossError,
    FactInvalidError,
    NodeUnavailableError,
)
from ergon_framework.ports.factstore import Reference
from ergon_framework.testing.clock import VirtualClock
from tests.boundary.client.scripted import Bytes, Colour, MemoryNode, consume, unavailable

BOTH = pytest.mark.parametrize("colour", ["threads", "tasks"])
DATA = b"0123456789abcdef" * 3


def reference(data: bytes = DATA) -> dict[str, Any]:
    """How a fact refers to the bytes."""
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    return {"bucket": "b", "key": "k", "digest": digest, "size": len(data), "media_type": "a/b"}


def node_with(data: bytes) -> MemoryNode:
    """A node whose object has these bytes."""
    node = MemoryNode(VirtualClock())
    node.blobs["k"] = lambda start: Bytes(data[start:], len(data))
    return node


@BOTH
@pytest.mark.req("C7", "BSFG:Artifact")
def test_artifact(colour: Colour, tmp_path: Path) -> None:
    """An artifact comes as bytes, as an open file or into a file, each verified."""
    node = node_with(DATA)
    assert consume(colour, node, lambda c: c.get_object(reference())) == DATA
    raw = Reference("b", "k", hashlib.sha256(DATA).digest(), len(DATA))
    assert consume(colour, node, lambda c: c.get_object(raw)) == DATA
    with consume(colour, node, lambda c: c.open_object(reference())) as file:
        assert file.read() == DATA
    target = tmp_path / "file.pdf"
    assert consume(colour, node, lambda c: c.save_object(reference(), target)) == target
    assert target.read_bytes() == DATA
    assert list(tmp_path.iterdir()) == [target]
    assert all(stream.is_closed for stream in node.streams)


@BOTH
@pytest.mark.req("C7")
def test_empty_artifact(colour: Colour) -> None:
    """An artifact without a byte is an artifact."""
    assert consume(colour, node_with(b""), lambda c: c.get_object(reference(b""))) == b""


@BOTH
@pytest.mark.req("C7", "BOUNDARY:badinput")
@pytest.mark.parametrize(
    "data",
    [DATA[:-1] + b"X", DATA[:-1], DATA + b"X", b"X" + DATA[1:], b""],
    ids=["last byte", "short", "long", "first byte", "empty"],
)
def test_damaged_artifact(colour: Colour, data: bytes, tmp_path: Path) -> None:
    """One wrong byte means data loss; nobody sees the rest, and no file appears."""
    node = node_with(data)
    for act in (
        lambda c: c.get_object(reference()),
        lambda c: c.open_object(reference()),
        lambda c: c.save_object(reference(), tmp_path / "file"),
    ):
        with pytest.raises(DataLossError) as caught:
            consume(colour, node, act)
        assert caught.value.details["key"] == "k"
    assert list(tmp_path.iterdir()) == []
    assert all(stream.is_closed for stream in node.streams)


@BOTH
@pytest.mark.req("C7")
def test_transfer_goes_on_where_it_was_cut(colour: Colour) -> None:
    """A cut transfer asks for the rest only, and has all its patience after each step forward."""
    node = MemoryNode(VirtualClock())
    step = 4

    def cutting(start: int) -> Bytes:
        error = unavailable() if start + step < len(DATA) else None
        return Bytes(DATA[start : start + step], len(DATA), error)

    node.blobs["k"] = cutting
    assert consume(colour, node, lambda c: c.get_object(reference())) == DATA
    starts = [int(body) for _, method, body in node.calls if method.startswith("GET")]
    assert starts == list(range(0, len(DATA), step))


@BOTH
def test_transfer_that_does_not_get_on(colour: Colour) -> None:
    """A transfer that brings nothing is given up after the usual attempts."""
    node = MemoryNode(VirtualClock())
    node.blobs["k"] = lambda start: Bytes(DATA[:8][start:], len(DATA), unavailable())
    with pytest.raises(NodeUnavailableError):
        consume(colour, node, lambda c: c.get_object(reference()))
    assert [int(body) for _, method, body in node.calls if method.startswith("GET")] == [0, 8, 8, 8]


@BOTH
def test_missing_artifact_and_wrong_reference(colour: Colour, tmp_path: Path) -> None:
    """What is not there, not a reference, or cannot be written is said clearly."""
    node = MemoryNode(VirtualClock())
    with pytest.raises(BoundaryNotFoundError):
        consume(colour, node, lambda c: c.get_object(reference()))
    wrongs: list[dict[str, Any]] = [{"bucket": "b"}, {**reference(), "digest": "md5:0"}, {}]
    for wrong in wrongs:
        with pytest.raises(FactInvalidError):
            consume(colour, node, methodcaller("get_object", wrong))
    with pytest.raises(ConfigurationError):
        consume(colour, node, lambda c: c.save_object(reference(), tmp_path / "no" / "file"))
