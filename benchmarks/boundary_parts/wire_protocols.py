"""Three wire protocols, as far as a producer needs them: how to ask, and where an answer ends."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import count
from typing import NamedTuple, Protocol

from comparison import ContestantError

APPEND, APPENDS = "/bsfg.v1.Boundary/AppendFact", "/bsfg.v1.BoundaryAdmin/AppendFacts"
STREAM, SUBJECT = "BENCH", "facts"


class ParsedReply(NamedTuple):
    """What lies at the start of some bytes: how long it is, and whether it answers something."""

    size: int
    is_answer: bool = True


INCOMPLETE = ParsedReply(0, False)


class WireProtocol(Protocol):
    """How to talk to one kind of server over a connection."""

    greeting: bytes

    def encode_append(self, body: bytes) -> bytes:
        """The request that stores one fact."""
        ...

    def encode_appends(self, bodies: Sequence[bytes]) -> bytes:
        """The request, or several at once, that stores many."""
        ...

    def replies_to(self, count: int) -> int:
        """How many answers that has."""
        ...

    def parse_reply(self, data: bytes) -> ParsedReply:
        """Look at what has come; an answer that is an error raises ``ContestantError``."""
        ...


class HttpProtocol:
    """Our node."""

    greeting = b""

    def encode_append(self, body: bytes) -> bytes:
        """One ``AppendFact``."""
        return _post(APPEND, body)

    def encode_appends(self, bodies: Sequence[bytes]) -> bytes:
        """One ``AppendFacts``."""
        return _post(APPENDS, b'{"items":[%b]}' % b",".join(bodies))

    def replies_to(self, count: int) -> int:
        """A batch has one answer."""
        return 1

    def parse_reply(self, data: bytes) -> ParsedReply:
        """The length is in the head."""
        end = data.find(b"\r\n\r\n") + 4
        if end < 4:
            return INCOMPLETE
        at = data.index(b"content-length: ") + 16
        size = end + int(data[at : data.index(b"\r\n", at)])
        if len(data) < size:
            return INCOMPLETE
        if not data.startswith(b"HTTP/1.1 200") or b'"error"' in data[end:size]:
            raise ContestantError(f"the node answered {data[:size][-200:]!r}")
        return ParsedReply(size)


class RedisProtocol:
    """RESP."""

    greeting = b""

    def encode_append(self, body: bytes) -> bytes:
        """One ``XADD``."""
        return resp(b"XADD", STREAM.encode(), b"*", b"fact", body)

    def encode_appends(self, bodies: Sequence[bytes]) -> bytes:
        """A pipeline."""
        return b"".join(map(self.encode_append, bodies))

    def replies_to(self, count: int) -> int:
        """Each command has its own."""
        return count

    def parse_reply(self, data: bytes) -> ParsedReply:
        """``$length``, a line end, and so many bytes."""
        end = data.find(b"\r\n")
        if end < 0:
            return INCOMPLETE
        if data[:1] != b"$":
            raise ContestantError(f"Redis answered {data[:end]!r}")
        size = end + 2 + int(data[1:end]) + 2
        return ParsedReply(size) if len(data) >= size else INCOMPLETE


class NatsProtocol:
    """The text protocol; an acknowledgement comes as a message to an inbox."""

    _inboxes = count()

    def __init__(self) -> None:
        self._inbox = b"inbox.%d" % next(self._inboxes)
        self.greeting = b'CONNECT {"verbose":false,"pedantic":false}\r\nSUB %b 1\r\n' % self._inbox

    def encode_append(self, body: bytes) -> bytes:
        """One ``PUB`` with an inbox for the acknowledgement."""
        return b"PUB %b %b %d\r\n%b\r\n" % (SUBJECT.encode(), self._inbox, len(body), body)

    def encode_appends(self, bodies: Sequence[bytes]) -> bytes:
        """Many before the first acknowledgement."""
        return b"".join(map(self.encode_append, bodies))

    def replies_to(self, count: int) -> int:
        """Each message has its own."""
        return count

    def parse_reply(self, data: bytes) -> ParsedReply:
        """``MSG`` lines announce their bytes; the server also says other things."""
        end = data.find(b"\r\n") + 2
        if end < 2:
            return INCOMPLETE
        if data.startswith(b"-ERR"):
            raise ContestantError(f"NATS answered {data[:end]!r}")
        if not data.startswith(b"MSG "):
            return ParsedReply(end, False)
        size = end + int(data[data.rindex(b" ", 0, end) : end]) + 2
        if len(data) < size:
            return INCOMPLETE
        if b'"error"' in data[end:size]:
            raise ContestantError(f"NATS answered {data[end:size]!r}")
        return ParsedReply(size)


def resp(*arguments: bytes) -> bytes:
    """A command."""
    parts = (b"$%d\r\n%b\r\n" % (len(word), word) for word in arguments)
    return b"*%d\r\n" % len(arguments) + b"".join(parts)


def stream_settings() -> bytes:
    """A stream on disk."""
    return json.dumps({"name": STREAM, "subjects": [SUBJECT], "storage": "file"}).encode()


def _post(path: str, body: bytes) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body
