"""A node that runs under the recorder, and what the recorder wrote down about it."""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from tests.boundary.node.processes import NodeProcess

SOURCE = Path(__file__).with_name("recorder.c")
ZONE = "plant-a"

_HEADER = struct.Struct("<IIiIQqIIII")
_MAGIC = 0x43525750


class Kind(IntEnum):
    """What happened; the numbers are those of the recorder."""

    OPEN = 1
    WRITE = 2
    TRUNCATE = 3
    SYNC_BEGIN = 4
    SYNC_END = 5
    RENAME = 6
    LINK = 7
    UNLINK = 8
    MKDIR = 9
    RECEIVE = 10
    SEND = 11


@dataclass(frozen=True, slots=True)
class Event:
    """One call of the process, or one half of it."""

    at: int
    """Its place in the order of all of them."""
    kind: Kind
    fd: int = -1
    thread: int = 0
    inode: int = 0
    offset: int = 0
    flags: int = 0
    path: str = ""
    """What it was done to, by the name under which it was opened."""
    other: str = ""
    """The new name."""
    data: bytes = b""


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request, and the reply to it as it was about to leave."""

    arrived: int
    answered: int
    path: str
    body: bytes
    status: int
    reply: bytes

    @property
    def operation(self) -> str:
        """What was asked for."""
        return "PutObject" if self.path.startswith("/v1/objects/") else self.path.split("/")[-1]

    @property
    def asked(self) -> Any:
        """The request's JSON."""
        return json.loads(self.body)

    @property
    def answer(self) -> Any:
        """The reply's JSON."""
        return json.loads(self.reply)


class Recording:
    """Everything that was recorded of one process, and the folder it was watched in."""

    def __init__(self, root: Path, events: Sequence[Event], existing: tuple[str, ...] = ()) -> None:
        self.root = root
        self.events = events
        self.existing = existing
        """Folders below the root that were there, and safe, before it began."""

    @cached_property
    def confirmations(self) -> list[tuple[int, int]]:
        """When it was about to tell a peer that it has everything up to an offset, and which."""
        found = []
        for event in self.events:
            if event.kind is Kind.SEND and b"/ConfirmReceipt HTTP" in event.data[:80]:
                body = event.data.partition(b"\r\n\r\n")[2]
                found.append((event.at, int(json.loads(body)["offset"])))
        return found

    @cached_property
    def exchanges(self) -> list[Exchange]:
        """Requests and replies in the order of the replies; each had a connection of its own."""
        heard: dict[int, list[Event]] = {}
        found = []
        for event in self.events:
            if event.kind is Kind.RECEIVE:
                is_first = event.data.startswith((b"POST /", b"PUT /"))
                heard[event.fd] = [*(() if is_first else heard.get(event.fd, ())), event]
            elif event.kind is Kind.SEND and event.data.startswith(b"HTTP/1.1 "):
                found.append(_exchange(heard.pop(event.fd), event))
        return found

    def without(self, *dropped: Event) -> Recording:
        """The same, as if some things had never happened."""
        places = {event.at for event in dropped}
        left = [each for each in self.events if each.at not in places]
        return Recording(self.root, left, self.existing)


def read(record: Path) -> Iterator[Event]:
    """The events of a record."""
    data, place, at = memoryview(record.read_bytes()), 0, 0
    opened: dict[int, str] = {}
    while place < len(data):
        magic, kind, fd, thread, inode, offset, flags, *sizes = _HEADER.unpack_from(data, place)
        assert magic == _MAGIC, f"{record} is damaged at {place}"
        place += _HEADER.size
        texts = []
        for size in sizes:
            texts.append(bytes(data[place : place + size]))
            place += size
        path, other = map(os.fsdecode, texts[:2])
        if inode:
            opened[inode] = path = path or opened[inode]
        yield Event(at, Kind(kind), fd, thread, inode, offset, flags, path, other, texts[2])
        at += 1


def compiled(folder: Path) -> Path:
    """The recorder, ready to be loaded; skips the test, loudly, where it cannot be had."""
    if not sys.platform.startswith("linux"):
        pytest.skip("the recorder knows Linux only: no power cut was tried")
    compiler = shutil.which("cc")
    if compiler is None:
        why = "there is no C compiler (cc) for the recorder: no power cut was tried"
        if os.environ.get("CI", "").lower() in {"1", "true"}:
            pytest.fail(why)
        pytest.skip(why)
    library = folder / "recorder.so"
    done = subprocess.run(  # noqa: S603 - the compiler, on our own source
        [compiler, "-O2", "-shared", "-fPIC", "-U_FORTIFY_SOURCE", "-o", library, SOURCE],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return library


@contextmanager
def watched(
    library: Path, root: Path, record: Path, *options: str, zone: str = ZONE
) -> Iterator[NodeProcess]:
    """A node whose data folder lies below ``root``, recorded from its first moment to its last.

    It is stopped in the end, unless it was killed before.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LD_PRELOAD", str(library))
        patch.setenv("POWERCUT_FOLDER", str(root))
        patch.setenv("POWERCUT_RECORD", str(record))
        node = NodeProcess(zone, root / zone, *options)
    try:
        yield node
        node.stop()
    finally:
        node.kill()


def _exchange(request: Sequence[Event], reply: Event) -> Exchange:
    head, _, body = b"".join(each.data for each in request).partition(b"\r\n\r\n")
    told, _, answer = reply.data.partition(b"\r\n\r\n")
    return Exchange(
        arrived=request[0].at,
        answered=reply.at,
        path=head.split(b" ", 2)[1].decode(),
        body=body,
        status=int(told.split(b" ", 2)[1]),
        reply=answer,
    )
