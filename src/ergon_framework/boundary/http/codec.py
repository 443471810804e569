"""HTTP/1.1 as a client speaks it, without a socket: requests as bytes, bytes as answers.

Both colours of the client feed what they receive to an :class:`AnswerReader` and ask it how things
stand. Whatever a peer sends, memory is bounded, and nothing but a ``BoundaryError`` is raised.
"""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import quote

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from ergon_framework.errors import BoundaryError, FactInvalidError, NodeUnavailableError

HEAD_LIMIT = 64 << 10
"""Bytes of status line and headers."""
BODY_LIMIT = 64 << 20
"""Bytes of an answer that is kept in memory as a whole."""


def request_head(
    method: str, target: str, host: str, headers: Iterable[tuple[str, str]] = ()
) -> bytes:
    """Request line and headers, with the empty line after them."""
    lines = [f"{method} {target} HTTP/1.1", f"Host: {host}"]
    lines += [f"{name}: {value}" for name, value in headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("ascii")


def call_prefix(target: str, host: str) -> bytes:
    """What comes before the length of the body in every unary call to ``target``."""
    head = request_head("POST", target, host, [("Content-Type", "application/json")])
    return head[:-2] + b"Content-Length: "


def object_target(prefix: str, bucket: str, key: str) -> str:
    """The path of an object. A slash in a key belongs to the key, so it is encoded too."""
    return f"{prefix}/v1/objects/{_segment(bucket)}/{_segment(key)}"


def _segment(name: str) -> str:
    try:
        quoted = quote(name, safe="")
    except UnicodeEncodeError:
        raise FactInvalidError(
            "the name of an object has half a character, which UTF-8 cannot say",
            reason="encoding",
            remedy="name it with whole characters",
            details={"field": "key"},
        ) from None
    # A proxy would resolve these two as folders.
    return quoted.replace(".", "%2E") if quoted in {".", ".."} else quoted


class AnswerReader:
    """One answer on its way in; after ``is_done`` it is there as a whole.

    ``take()`` gives out the body as it arrives; who does not call it gets it in one piece with
    ``body()``, and then it may not be longer than ``limit``.
    """

    __slots__ = (
        "_chunks",
        "_head_bytes",
        "_is_bodyless",
        "_limit",
        "_parser",
        "headers",
        "held",
        "is_begun",
        "is_done",
        "is_headed",
        "is_streamed",
        "keeps_alive",
        "received",
        "status",
    )

    def __init__(self, *, is_head: bool = False, limit: int | None = BODY_LIMIT) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.is_begun = False  # the peer has sent something
        self.is_headed = False  # status and headers are complete
        self.is_done = False
        self.keeps_alive = False
        self.held = 0  # bytes of the body that nobody has taken yet
        self.received = 0
        self._is_bodyless = is_head
        self.is_streamed = limit is None
        self._limit = limit
        self._chunks: list[bytes] = []
        self._head_bytes = 0
        self._parser = HttpResponseParser(self)

    # ---- what the driver does ----

    def feed(self, data: bytes) -> None:
        """Take what came in."""
        self.is_begun = True
        if not self.is_headed:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except HttpParserUpgrade:
            raise _garbage("it switched to another protocol") from None
        except HttpParserError as error:
            if not self.is_done:
                raise _garbage(str(error)) from None
            self.keeps_alive = False  # what follows a complete answer only costs the connection
        if not self.is_headed and self._head_bytes > HEAD_LIMIT:
            raise _garbage(f"its headers are longer than {HEAD_LIMIT} bytes")
        if self._limit is not None and self.received > self._limit:
            raise BoundaryError(
                f"the node's answer is longer than {self._limit} bytes",
                reason="answer_too_large",
                remedy="ask for less at once",
            )

    def end(self) -> None:
        """The peer has closed: fine when that is how the answer ends, otherwise it was cut."""
        self.keeps_alive = False
        is_framed = "content-length" in self.headers or "transfer-encoding" in self.headers
        if self.is_headed and not is_framed:
            self.is_done = True
        if not self.is_done:
            raise cut(is_begun=self.is_begun)

    def take(self) -> bytes:
        """The bytes of the body that have come since."""
        chunks, self._chunks, self.held = self._chunks, [], 0
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    body = take

    # ---- what the parser tells ----

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header. The last of a name wins; none of those we read may come twice."""
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """An interim answer is passed over; the final one is kept."""
        status = self._parser.get_status_code()
        if status < 200:
            self.headers = {}
            return
        self.status = status
        self.is_headed = True
        self.keeps_alive = self._parser.should_keep_alive()
        if self.is_streamed and status >= 300:  # a refusal is read as a whole
            self.is_streamed, self._limit = False, HEAD_LIMIT * 16
        if self._is_bodyless:
            # The parser cannot know that this one's length announces a body that will not come.
            self.is_done = True

    def on_body(self, data: bytes) -> None:
        """A piece of the body."""
        if self.is_done:  # a body after an answer that has none: never use this connection again
            self.keeps_alive = False
            return
        self.received += len(data)
        self.held += len(data)
        self._chunks.append(data)

    def on_message_complete(self) -> None:
        """The end of an answer, unless it was an interim one."""
        if self.is_headed:
            self.is_done = True

    def on_message_begin(self) -> None:
        """Something follows an answer that is complete: nobody has asked for it."""
        if self.is_done:
            self.keeps_alive = False


def cut(*, is_begun: bool) -> NodeUnavailableError:
    """The connection ended before the answer did."""
    what = "in the middle of its answer" if is_begun else "without an answer"
    return NodeUnavailableError(
        f"the node closed the connection {what}",
        reason="connection_lost",
        remedy="the outcome is unknown: repeat the call with the same id and content",
    )


def _garbage(why: str) -> NodeUnavailableError:
    return NodeUnavailableError(
        f"what answered does not speak HTTP as a node does: {why}",
        reason="bad_answer",
        remedy="check the URL: the port may belong to something else, or speak TLS",
    )
