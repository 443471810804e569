"""Three wire protocols, as far as a producer needs them: how to ask, and where an answer ends."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import count
from typing import NamedTuple, Protocol

from comparison import FailedError

APPEND, APPENDS = "/bsfg.v1.Boundary/AppendFact", "/bsfg.v1.BoundaryAdmin/AppendFacts"
STREAM, SUBJECT = "BENCH", "facts"


class Heard(NamedTuple):
    """What lies at the start of some bytes: how long it is, and whether it answers something."""

    size: int
    is_answer: bool = True


NOTHING_YET = Heard(0, False)


class Speech(Protocol):
    """How to talk to one kind of server over a connection."""

    hello: bytes

    def ask(self, body: bytes) -> bytes:
        """The request that stores one fact."""
        ...

    def ask_all(self, bodies: Sequence[bytes]) -> bytes:
        """The request, or several at once, that stores many."""
        ...

    def answers_to_all(self, count: int) -> int:
        """How many answers that has."""
        ...

    def hear(self, data: bytes) -> Heard:
        """Look at what has come; an answer that is an error raises ``FailedError``."""
        ...


class Http:
    """Our node."""

    hello = b""

    def ask(self, body: bytes) -> bytes:
        """One ``AppendFact``."""
        return _post(APPEND, body)

    def ask_all(self, bodies: Sequence[bytes]) -> bytes:
        """One ``AppendFacts``."""
        return _post(APPENDS, b'{"items":[%b]}' % b",".join(bodies))

    def answers_to_all(self, count: int) -> int:
        """A batch has one answer."""
        return 1

    def hear(self, data: bytes) -> Heard:
        """The length is in the head."""
        end = data.find(b"\r\n\r\n") + 4
        if end < 4:
            return NOTHING_YET
        at = data.index(b"content-length: ") + 16
        size = end + int(data[at : data.index(b"\r\n", at)])
        if len(data) < size:
            return NOTHING_YET
        if not data.startswith(b"HTTP/1.1 200") or b'"error"' in data[end:size]:
            raise FailedError(f"the node answered {data[:size][-200:]!r}")
        return Heard(size)


class Redis:
    """RESP."""

    hello = b""

    def ask(self, body: bytes) -> bytes:
        """One ``XADD``."""
        return resp(b"XADD", STREAM.encode(), b"*", b"fact", body)

    def ask_all(self, bodies: Sequence[bytes]) -> bytes:
        """A pipeline."""
        return b"".join(map(self.ask, bodies))

    def answers_to_all(self, count: int) -> int:
        """Each command has its own."""
        return count

    def hear(self, data: bytes) -> Heard:
        """``$length``, a line end, and so many bytes."""
        end = data.find(b"\r\n")
        if end < 0:
            return NOTHING_YET
        if data[:1] != b"$":
            raise FailedError(f"Redis answered {data[:end]!r}")
        size = end + 2 + int(data[1:end]) + 2
        return Heard(size) if len(data) >= size else NOTHING_YET


class Nats:
    """The text protocol; an acknowledgement comes as a message to an inbox."""

    _inboxes = count()

    def __init__(self) -> None:
        self._inbox = b"inbox.%d" % next(self._inboxes)
        self.hello = b'CONNECT {"verbose":false,"pedantic":false}\r\nSUB %b 1\r\n' % self._inbox

    def ask(self, body: bytes) -> bytes:
        """One ``PUB`` with an inbox for the acknowledgement."""
        return b"PUB %b %b %d\r\n%b\r\n" % (SUBJECT.encode(), self._inbox, len(body), body)

    def ask_all(self, bodies: Sequence[bytes]) -> bytes:
        """Many before the first acknowledgement."""
        return b"".join(map(self.ask, bodies))

    def answers_to_all(self, count: int) -> int:
        """Each message has its own."""
        return count

    def hear(self, data: bytes) -> Heard:
        """``MSG`` lines announce their bytes; the server also says other things."""
        end = data.find(b"\r\n") + 2
        if end < 2:
            return NOTHING_YET
        if data.startswith(b"-ERR"):
            raise FailedError(f"NATS answered {data[:end]!r}")
        if not data.startswith(b"MSG "):
            return Heard(end, False)
        size = end + int(data[data.rindex(b" ", 0, end) : end]) + 2
        if len(data) < size:
            return NOTHING_YET
        if b'"error"' in data[end:size]:
            raise FailedError(f"NATS answered {data[end:size]!r}")
        return Heard(size)


def resp(*words: bytes) -> bytes:
    """A command."""
    parts = (b"$%d\r\n%b\r\n" % (len(word), word) for word in words)
    return b"*%d\r\n" % len(words) + b"".join(parts)


def stream_settings() -> bytes:
    """A stream on disk."""
    return json.dumps({"name": STREAM, "subjects": [SUBJECT], "storage": "file"}).encode()


def _post(path: str, body: bytes) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body
