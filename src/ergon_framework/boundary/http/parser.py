"""From bytes to requests, within the limits. Knows no socket."""

from __future__ import annotations

from collections.abc import Callable

from httptools import HttpParserError, HttpParserInvalidMethodError, HttpParserUpgrade, parse_url
from httptools import HttpRequestParser as Parser

from ergon_framework.boundary.http import responses
from ergon_framework.boundary.http.exchange import Caller, HttpRequest, RequestBody, Responder
from ergon_framework.boundary.http.responses import HttpRefusal
from ergon_framework.boundary.http.server_state import Head, ServerState

_MAX_CHUNK_OVERHEAD = 16
"""Bytes that may carry one byte of a chunked body: a chunk of one byte takes six."""
_MIN_BODY_RATE = 1024
"""Bytes per second that a body must bring on average, once it has taken ``request_seconds``."""
_UNUSUAL = frozenset({b"expect", b"origin", b"upgrade"})
"""Headers whose meaning depends on more than the bytes of the head."""
_TLS_RECORD = b"\x16\x03"


class RequestParser:
    """Parses one connection's bytes. Its callbacks never raise, and after a refusal it is deaf."""

    __slots__ = (
        "_began_at",
        "_caller",
        "_enqueue",
        "_fed",
        "_first",
        "_headers",
        "_is_final",
        "_last",
        "_left",
        "_limits",
        "_line",
        "_parser",
        "_repace",
        "_service",
        "_span",
        "_url",
        "incoming",
        "is_deaf",
        "is_in_head",
        "last_received_at",
    )

    def __init__(
        self,
        service: ServerState,
        caller: Caller,
        line: Responder,
        enqueue: Callable[[HttpRequest], None],
        repace: Callable[[], None],
    ) -> None:
        self._service = service
        self._limits = service.limits
        self._caller = caller
        self._line = line
        self._enqueue = enqueue
        self._repace = repace
        self._headers: dict[bytes, bytes] = {}
        self._url = b""
        self._fed = self._first = self._span = self._left = 0
        self.last_received_at = self._began_at = service.clock()
        self._is_final = False  # nothing may follow what came last
        self._last: HttpRequest | None = None
        self.is_in_head = False
        """Whether a request has begun whose headers are not complete."""
        self.is_deaf = False
        self.incoming: HttpRequest | None = None
        """The request whose body is being received."""
        self._parser = Parser(self)

    @property
    def is_receiving(self) -> bool:
        """Whether a request has begun to arrive and is not complete."""
        return self.is_in_head or self.incoming is not None

    def feed(self, data: bytes) -> None:
        """Parse; what has complete headers goes to ``enqueue``."""
        was_in_head, before = self.is_in_head, self.incoming
        self.last_received_at = self._service.clock()
        is_fresh = not was_in_head and before is None
        if is_fresh:
            self._began_at = self.last_received_at
            if self._is_known(data):
                return
        elif self._left:
            data = self._taken(data)
        self._fed = len(data)
        self._span += self._fed
        try:
            if data:
                self._parser.feed_data(data)
        except HttpParserUpgrade:
            pass  # refused when its headers were complete
        except HttpParserError as error:
            self.refuse(_explained(error, data))
        if was_in_head and self.is_in_head:
            self._check_span()
        elif before is not None and before is self.incoming and before.is_chunked:
            self._count_wire(before, len(data))

        if self.incoming is not before and self.incoming is not None:
            self._left = self._unparsed_length(self.incoming)
        elif is_fresh and self._last is not None and not self.is_in_head:
            self._remember_head(data, self._last)
        self._last = None

    def _is_known(self, data: bytes) -> bool:
        """Whether this was a whole request whose head needed no parsing."""
        known = None if self._is_final else self._service.heads.known_request(data)
        if known is None:
            return False
        head, body = known
        request = HttpRequest(self._line, self._caller, head.method, head.url, head.headers)
        request.body, request.received = body, head.length
        request.is_kept = request.is_complete = True
        self._enqueue(request)
        return True

    def _remember_head(self, data: bytes, request: HttpRequest) -> None:
        """Remember the head of a request that may come again, if ``data`` is all there was."""
        is_usual = request.upload is None and not request.is_chunked and request.refusal is None
        if is_usual and not self._is_final and self._headers.keys().isdisjoint(_UNUSUAL):
            url = f"{request.path}?{request.query}" if request.query else request.path
            head = Head(request.method, url, self._headers, request.received)
            self._service.heads.remember(data, head)

    def _unparsed_length(self, request: HttpRequest) -> int:
        """How many bytes of a blob follow that need no parser: it would only copy them."""
        if request.upload is None or request.is_chunked or not request.is_kept:
            return 0
        return int(request.header("content-length") or 0) - request.received

    def _taken(self, data: bytes) -> bytes:
        """Pass on bytes of a blob unparsed; returns bytes that follow it, for another parser."""
        piece, rest = (data, b"") if len(data) <= self._left else _split(data, self._left)
        self._left -= len(piece)
        self.on_body(piece)
        if not self._left:
            self._parser = Parser(self)  # the one before still waits for these bytes
            self.on_message_complete()
        return rest

    def refuse(self, refusal: HttpRefusal) -> None:
        """Answer the request that is being received with an error, and ignore further bytes."""
        if self.is_deaf:
            return
        self.is_deaf = True
        request, self.incoming, self.is_in_head = self.incoming, None, False
        if request is None:
            request = HttpRequest(self._line, self._caller, "", "", {})
            self._enqueue(request)
        request.refusal, request.is_kept = refusal, False
        request.parts = []
        self.let_go(request)
        if request.upload is not None:
            request.upload.fail(refusal)

    def let_go(self, request: HttpRequest) -> None:
        """The bytes of a request are no longer needed."""
        self._service.held_bytes -= request.held
        request.held = 0

    def is_too_slow(self, now: float) -> bool:
        """Whether the rest of what is being received should have come by now."""
        if now - self.last_received_at > self._limits.body_seconds:
            return True
        request, late = self.incoming, now - self._began_at - self._limits.request_seconds
        if request is None:
            return late > 0
        # A blob takes as long as its bytes flow; anything else must at least not trickle.
        return request.upload is None and late > request.received / _MIN_BODY_RATE

    # --- what the parser calls --------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        self.is_in_head = not self.is_deaf
        self._first = self._span = self._fed
        self._url = b""
        self._headers = {}

    def on_url(self, part: bytes) -> None:
        """A piece of the request line."""
        self._url = self._url + part if self._url else part

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add one header. Trailers are ignored."""
        if self.incoming is not None:
            return
        name = name.lower()
        # Joined as HTTP wants it; two Host headers become one with a comma, which is refused.
        if name in self._headers:
            value = self._headers[name] + b", " + value
        self._headers[name] = value

    def on_headers_complete(self) -> None:
        """All headers are here, and the body follows."""
        if self.is_deaf:
            return
        self.is_in_head = False
        method, headers = self._parser.get_method().decode(), self._headers
        url = self._url if self._url.startswith(b"/") else _origin_form(self._url)
        request = HttpRequest(self._line, self._caller, method, url.decode("latin-1"), headers)
        self.incoming = self._last = request
        request.is_kept = self._parser.should_keep_alive()
        request.is_chunked = b"transfer-encoding" in headers
        if self._service.application.is_streamed(method, request.path):
            request.upload = RequestBody(self._repace)
        # Queued before it is judged: a refusal is an answer, too, and has its place in the order.
        self._enqueue(request)
        refusal = self._head_problem(request, headers)
        if refusal is not None:
            self.refuse(refusal)
        self._is_final = not request.is_kept

    def on_body(self, data: bytes) -> None:
        """A piece of the body."""
        request = self.incoming
        if request is None:
            return
        request.received += len(data)
        # Counted as it comes: a length that was announced, or left out, proves nothing.
        if request.received > self._body_limit(request):
            self.refuse(self._too_large(request))
        elif request.upload is not None:
            request.upload.feed(data)
        else:
            request.parts.append(data)
            request.held += len(data)
            self._service.held_bytes += len(data)
            if self._service.held_bytes > self._limits.bodies_bytes:
                self._service.refuse_largest_request()

    def on_message_complete(self) -> None:
        """The request is complete."""
        request, self.incoming = self.incoming, None
        if request is None:
            return
        request.is_complete = True
        if request.upload is not None:
            request.upload.end()
        elif request.parts:
            parts = request.parts
            request.body = parts[0] if len(parts) == 1 else b"".join(parts)
            request.parts = []

    # --- limits -----------------------------------------------------------------------------------

    def _head_problem(
        self, request: HttpRequest, headers: dict[bytes, bytes]
    ) -> HttpRefusal | None:
        if self._is_head_too_large(headers):
            return responses.head_too_large(self._limits.header_bytes)
        # Browsers send it: a page of another site must not reach a node without authentication on
        # this machine.
        if b"origin" in headers and not self._caller.is_secure:
            return responses.from_a_browser()
        if b"upgrade" in headers or request.method == "CONNECT":
            return responses.no_upgrade() if self._parser.should_upgrade() else None
        host, version = headers.get(b"host"), "1.1"
        if host is None or b"connection" in headers:
            version = self._parser.get_http_version()
        # 1.0 has no way to say where an answer ends but closing.
        if version == "1.0":
            request.is_kept = False
        elif host is None or host.find(b",") >= 0:  # quicker here than ``in``
            return responses.malformed("it needs exactly one Host header")
        # A name that is not ours: a browser that was led here by a foreign DNS entry.
        if host is not None and not self._service.is_asked_for(host):
            return responses.foreign_host()
        if not request.path or "#" in request.path + request.query:
            return responses.malformed("its target is no path")
        return self._body_problem(request, headers, version)

    def _body_problem(
        self, request: HttpRequest, headers: dict[bytes, bytes], version: str
    ) -> HttpRefusal | None:
        # One coding only: a proxy and this server must not read the same bytes as two different
        # requests.
        if request.is_chunked and headers[b"transfer-encoding"].strip().lower() != b"chunked":
            return responses.unknown_coding()
        length = headers.get(b"content-length")  # the parser has seen to it that it is a number
        if length is not None and int(length) > self._body_limit(request):
            return self._too_large(request)
        expectation = headers.get(b"expect")
        if expectation is None or version == "1.0":
            return None
        if expectation.lower() != b"100-continue":
            return responses.unmet_expectation()
        request.expects_continue = length != b"0"
        return None

    def _check_span(self) -> None:
        """The parser keeps an unfinished header to itself, and would do so without end."""
        if self._span - self._first > self._limits.header_bytes:  # the first had other things too
            self.refuse(responses.head_too_large(self._limits.header_bytes))

    def _is_head_too_large(self, headers: dict[bytes, bytes]) -> bool:
        if self._span <= self._limits.header_bytes:
            return False  # and no need to count
        size = len(self._url) + sum(len(name) + len(headers[name]) + 4 for name in headers)
        return size > self._limits.header_bytes

    def _count_wire(self, request: HttpRequest, size: int) -> None:
        """Chunk extensions and trailers are thrown away, but not without end."""
        request.wire_bytes += size
        if request.wire_bytes > self._limits.header_bytes + _MAX_CHUNK_OVERHEAD * request.received:
            self.refuse(responses.malformed("its chunks carry too little"))

    def _body_limit(self, request: HttpRequest) -> int:
        is_blob = request.upload is not None
        return self._limits.object_bytes if is_blob else self._limits.body_bytes

    def _too_large(self, request: HttpRequest) -> HttpRefusal:
        setting = "body_bytes" if request.upload is None else "object_bytes"
        return responses.body_too_large(self._body_limit(request), setting)


def _split(data: bytes, at: int) -> tuple[bytes, bytes]:
    return data[:at], data[at:]


def _origin_form(url: bytes) -> bytes:
    """The path and query of ``http://host/path?query``; empty when there is none."""
    try:
        parts = parse_url(url)
    except HttpParserError:
        return b""
    if not parts.schema:
        return b""
    query = b"?" + parts.query if parts.query else b""
    return (parts.path or b"/") + query


def _explained(error: HttpParserError, data: bytes) -> HttpRefusal:
    if data.startswith(_TLS_RECORD):
        return responses.tls_expected_elsewhere()
    if isinstance(error, HttpParserInvalidMethodError):
        return responses.unknown_method()
    return responses.malformed(str(error) or type(error).__name__)
