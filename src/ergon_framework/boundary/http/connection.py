"""One connection of a client: requests in the order they came, one at a time, within limits.

``Peer`` is the client at the other end, and ``ResponseWriter`` writes as fast as the client reads.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine
from dataclasses import dataclass, field
from typing import Any

from ergon_framework.boundary.http import responses
from ergon_framework.boundary.http.exchange import Caller, HttpRequest
from ergon_framework.boundary.http.parser import RequestParser
from ergon_framework.boundary.http.responses import Headers
from ergon_framework.boundary.http.server_state import ServerState
from ergon_framework.errors import BoundaryError


@dataclass(frozen=True, slots=True)
class Peer:
    """What was found out about a client when it came."""

    caller: Caller = field(default_factory=Caller)
    context: ssl.SSLContext | None = None
    """What its certificate was checked with."""
    expires_at: float | None = None
    """When its certificate ends, in Unix seconds."""
    denial: BoundaryError | None = None
    """What everything it asks is answered with."""

    def has_stale_certificate(self, context: ssl.SSLContext | None, now: float) -> bool:
        """Whether its certificate is over, or would have to be checked with another context."""
        is_over = self.expires_at is not None and now > self.expires_at
        return is_over or self.context is not context


class ResponseWriter:
    """Writes answers to a transport, which may go away at any time, as fast as the client reads."""

    __slots__ = ("_drained", "_flowed_at", "_taken", "_transport", "_written", "is_paused")

    def __init__(self, transport: asyncio.Transport, now: float) -> None:
        self._transport: asyncio.Transport | None = transport
        self._drained: asyncio.Future[None] | None = None
        self._written = 0
        self._taken = 0
        self._flowed_at = now
        self.is_paused = False

    def write(self, data: bytes) -> None:
        """Send, or keep until the client reads. One that has gone is no error."""
        if self._transport is not None:
            self._written += len(data)
            self._transport.write(data)

    async def write_stream(
        self, request: HttpRequest, head: bytes, length: int, chunks: AsyncIterator[bytes]
    ) -> None:
        """Send head and pieces.

        The head is sent with the first piece: an error before it can still become the answer.
        """
        left = length
        async with contextlib.aclosing(_closing(chunks)) as pieces:
            async for piece in pieces:
                left -= len(piece)
                # More than was announced: the rest would be read as the next answer.
                if left < 0:
                    break
                self.write(head + piece)
                head, request.is_answered = b"", True
                await self._drain()
        if left:
            was = "more" if left < 0 else f"{length - left}"
            raise RuntimeError(f"the stream should have had {length} bytes and had {was}")
        if head:
            request.is_answered = True
            self.write(head)

    def resume(self) -> None:
        """The client has read enough for more to be written."""
        self.is_paused = False
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    def lose(self) -> None:
        """The client has gone."""
        self._transport = None
        if self._drained is not None and not self._drained.done():
            self._drained.set_exception(_gone())

    def is_stuck(self, now: float, timeout: float) -> bool:
        """Whether something waits to be read and nothing has been for so long; look regularly."""
        kept = self._transport.get_write_buffer_size() if self._transport else 0
        taken = self._written - kept
        # Progress is what the client took, not what was written: a buffer that stays full is no
        # progress.
        if not kept or taken != self._taken:
            self._taken, self._flowed_at = taken, now
        return now - self._flowed_at > timeout

    async def _drain(self) -> None:
        if self.is_paused and self._transport is not None:
            self._drained = asyncio.get_running_loop().create_future()
            await self._drained
        if self._transport is None:
            raise _gone()


async def discard(chunks: AsyncIterator[bytes]) -> None:
    """Close a stream that will not be read."""
    async with contextlib.aclosing(_closing(chunks)):
        pass


async def _closing(chunks: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    try:
        async for chunk in chunks:
            yield chunk
    finally:
        close = getattr(chunks, "aclose", None)
        if close is not None:
            await close()


def _gone() -> ConnectionResetError:
    return ConnectionResetError("the client has gone")


LINGER_TIME = 5.0
"""Seconds for which bytes are thrown away after a refusal, so that the client gets to read it."""


class ServerConnection(asyncio.Protocol):
    """Serves one client, once ``open`` has been called."""

    __slots__ = (
        "_current",
        "_early",
        "_guest",
        "_intake",
        "_is_advancing",
        "_is_at_end",
        "_is_reading",
        "_is_retired",
        "_limits",
        "_lingers_until",
        "_outflow",
        "_pending",
        "_rested_at",
        "_service",
        "_transport",
        "ip",
    )

    def __init__(self, service: ServerState, ip: str = "") -> None:
        self.ip = ip
        self._service = service
        self._limits = service.limits
        self._guest = Peer()
        self._transport: asyncio.Transport | None = None
        self._intake: RequestParser | None = None
        self._outflow: ResponseWriter | None = None
        self._early = b""
        self._current: HttpRequest | None = None
        self._pending: deque[HttpRequest] = deque()
        self._lingers_until: float | None = None
        self._is_advancing = False
        self._is_at_end = False
        self._is_reading = True
        self._is_retired = False
        self._rested_at = service.clock()

    def open(self, transport: asyncio.Transport, guest: Peer) -> None:
        """Serve the client at the other end."""
        self._guest = guest
        self._transport = transport
        self._outflow = ResponseWriter(transport, self._rested_at)
        self._intake = RequestParser(
            self._service, guest.caller, self, self._pending.append, self._pace
        )
        self._service.add(self)
        if self._early:
            self.data_received(self._early)
            self._early = b""

    # --- what the transport calls -----------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Parse received bytes, and answer complete requests."""
        intake = self._intake
        if intake is None:
            self._early += data  # TLS hands out the first bytes before it says that it is ready
            return
        if intake.is_deaf or self._lingers_until is not None:
            return
        intake.feed(data)
        self._advance()

    def eof_received(self) -> bool:
        """Answer what was asked: the client sends nothing more, but may still read."""
        self._is_at_end = True
        # TLS cannot be closed in one direction: there is no peer left to answer.
        if self._intake is None or self._transport is None or not self._transport.can_write_eof():
            return False
        if self._intake.is_receiving:
            self._intake.refuse(responses.malformed("it ends too early"))
            self._advance()
        return self.is_busy

    @property
    def is_gone(self) -> bool:
        """Whether the client has hung up, or has said that it sends nothing more."""
        return self._transport is None or self._is_at_end

    @property
    def is_reading(self) -> bool:
        """Whether bytes are taken from the socket; not while there is no room for them."""
        return self._is_reading

    @property
    def is_receiving(self) -> bool:
        """Whether a request has begun to arrive and is not complete."""
        return self._intake is not None and self._intake.is_receiving

    @property
    def last_received_at(self) -> float | None:
        """When bytes of a request came last, by the server's clock."""
        return None if self._intake is None else self._intake.last_received_at

    @property
    def is_writing_paused(self) -> bool:
        """Whether answers wait because the client reads more slowly than we write."""
        return self._outflow is not None and self._outflow.is_paused

    def pause_writing(self) -> None:
        """The client reads more slowly than we write."""
        if self._outflow is not None:
            self._outflow.is_paused = True

    def resume_writing(self) -> None:
        """Called by asyncio when the client has caught up."""
        if self._outflow is not None:
            self._outflow.resume()
            self._advance()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has gone, or was sent away."""
        incoming = self._intake.incoming if self._intake is not None else None
        if incoming is not None and incoming.upload is not None:
            incoming.upload.fail(ConnectionResetError("the client has gone"))
        for request in (incoming, self._current, *self._pending):
            # Room is given back at once; the answer may still be worked on.
            if request is not None and request.held:
                self._service.held_bytes -= request.held
                request.held = 0
        if self._outflow is not None:
            self._outflow.lose()
        self._transport = self._intake = None
        self._pending.clear()
        self._service.forget(self)

    # --- answering --------------------------------------------------------------------------------

    def answer(
        self, request: HttpRequest, status: int, body: bytes, content_type: str, headers: Headers
    ) -> None:
        """Write the whole answer, and go on to the next request."""
        sent = body if responses.has_body(request.method, status) else b""
        self._answer(request, status, len(body), sent, content_type, headers)

    async def answer_stream(
        self,
        request: HttpRequest,
        status: int,
        length: int,
        chunks: AsyncIterator[bytes],
        content_type: str,
        headers: Headers,
    ) -> None:
        """Write the answer piece by piece, and go on to the next request."""
        if not responses.has_body(request.method, status) or self._outflow is None:
            await discard(chunks)
            self._answer(request, status, length, b"", content_type, headers)
            return
        is_kept = self._is_kept(request)
        date = self._service.date
        head = responses.head(status, content_type, length, date, headers, is_kept=is_kept)
        await self._outflow.write_stream(request, head, length, chunks)
        self._finish(request, is_kept=is_kept)

    def fail(self, request: HttpRequest, error: BaseException) -> None:
        """Answer with an error, or cut an answer short that has begun."""
        is_gone = self._transport is None and isinstance(error, ConnectionError)
        told = error if isinstance(error, BoundaryError) else responses.internal()
        if not is_gone and (told is not error or request.is_answered):
            self._service.failed(request, error)
        if request.is_answered:
            self.abort()  # half an answer must not look like a whole one
            return
        status, headers = responses.status_of(told), responses.error_headers(told)
        self.answer(request, status, responses.error_body(told), responses.JSON, headers)

    def send_continue(self, request: HttpRequest) -> None:
        """Tell a client that waits for it to send the body."""
        request.expects_continue = False
        # Only while nothing of the body is there: a client that did not wait needs no permission.
        if self._outflow is not None and not request.received and not request.is_complete:
            self._outflow.write(responses.CONTINUE)

    def _answer(
        self,
        request: HttpRequest,
        status: int,
        length: int,
        body: bytes,
        content_type: str,
        headers: Headers,
    ) -> None:
        is_kept = self._is_kept(request)
        date = self._service.date
        head = responses.head(status, content_type, length, date, headers, is_kept=is_kept)
        request.is_answered = True
        if self._outflow is not None:
            self._outflow.write(head + body)
        self._finish(request, is_kept=is_kept)

    def _is_kept(self, request: HttpRequest) -> bool:
        # A request that is not complete leaves bytes on the line that would look like another one.
        if not (request.is_kept and request.is_complete) or self._is_retired:
            return False
        return not self._service.is_stopping and not (self._is_at_end and not self._pending)

    def _finish(self, request: HttpRequest, *, is_kept: bool) -> None:
        self._current = None
        if request.held:
            self._service.held_bytes -= request.held
            request.held = 0
        self._rested_at = self._service.clock()
        if self._service.is_stopping:
            self._service.changed.set()
        if is_kept:
            self._advance()
        elif request.is_complete or self._is_at_end:
            self.close()
        else:
            self._linger()

    # --- one after the other ----------------------------------------------------------------------

    @property
    def is_busy(self) -> bool:
        """Whether a request waits for its answer."""
        return self._current is not None or any(each.is_ready for each in self._pending)

    @property
    def body_bytes(self) -> int:
        """Bytes of a request that has begun to arrive and is not complete."""
        incoming = None if self._intake is None else self._intake.incoming
        return 0 if incoming is None else incoming.held

    @property
    def idle_since(self) -> float:
        """Since when nothing was answered to it."""
        return self._rested_at

    def shed(self) -> None:
        """Refuse the request that is arriving: there is no memory for it."""
        if self._intake is not None:
            self._intake.refuse(responses.no_room())
            # Later: this may be called while the parser of that very connection is running.
            asyncio.get_running_loop().call_soon(self._advance)

    def _advance(self) -> None:
        """Begin the next requests. Not reentrant: an answer given at once calls it again."""
        if self._is_advancing or self._outflow is None:
            return
        self._is_advancing = True
        # Not while the client does not read: answers would pile up in memory.
        while self._pending and self._current is None and not self._outflow.is_paused:
            request = self._pending[0]
            if not request.is_ready:
                if request.expects_continue:
                    self.send_continue(request)
                break
            self._current = self._pending.popleft()
            self._begin(request)
        self._is_advancing = False
        self._pace()

    def _begin(self, request: HttpRequest) -> None:
        refusal = request.refusal or self._guest.denial
        if refusal is None and self._service.is_stopping:
            refusal = responses.stopping()
        if refusal is not None:
            self.fail(request, refusal)
            return
        try:
            work = self._service.application.handle(request)
        except Exception as error:
            self.fail(request, error)
        else:
            # None: the application has answered already, or will do so by itself.
            if work is not None:
                self._service.spawn(self._run(request, work), work)

    async def _run(self, request: HttpRequest, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except asyncio.CancelledError:
            self.abort()
            raise
        except Exception as error:
            self.fail(request, error)
        else:
            if not request.is_answered:
                self.fail(request, RuntimeError("the application gave no answer"))

    def _pace(self) -> None:
        """Read from the socket only what there is room for."""
        if self._transport is None or self._intake is None or self._outflow is None:
            return
        incoming = self._intake.incoming
        is_full = incoming is not None and incoming.upload is not None and incoming.upload.is_full
        # A client may send many requests ahead; what is read of them waits in memory.
        is_behind = bool(self._pending) and (self._current is not None or self._outflow.is_paused)
        self._read(is_wanted=self._lingers_until is not None or not (is_full or is_behind))

    def _read(self, *, is_wanted: bool) -> None:
        if is_wanted is self._is_reading or self._transport is None:
            return
        self._is_reading = is_wanted
        if is_wanted:
            if self._intake is not None:
                # The pause was ours: it must not count as silence of the client.
                self._intake.last_received_at = self._service.clock()
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    # --- ending -----------------------------------------------------------------------------------

    def sweep(self, now: float) -> None:
        """Close the connection if it is overdue."""
        if self._transport is None or self._intake is None or self._outflow is None:
            return
        if self._outflow.is_stuck(now, self._limits.body_seconds):
            self._service.denied(self._guest.caller.address, "it did not read its answer")
            self.abort()
        elif self._lingers_until is not None and now > self._lingers_until:
            self.abort()
        elif self._lingers_until is not None or self._transport.is_closing():
            return
        elif self._intake.is_receiving:
            if self._is_reading and self._intake.is_too_slow(now):
                self._intake.refuse(responses.too_slow("the rest of the request"))
                self._advance()
        elif not self.is_busy and now - self._rested_at > self._limits.idle_seconds:
            self.close()
        elif self._guest.has_stale_certificate(self._service.context, self._service.wall()):
            # Not cut off: its request is answered first, and its next connection shows the new
            # certificate.
            self._is_retired = True
            if not self.is_busy:
                self.close()

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        """Close when what has been written is on its way."""
        self._pending.clear()
        # Early releases of Python 3.11 forget how to abort a TLS transport that is closed twice.
        if self._transport is not None and not self._transport.is_closing():
            self._transport.close()

    def _linger(self) -> None:
        """Close in a few seconds, and throw away what the client sends until then.

        Closing a socket with unread bytes sends a reset, and the client's kernel may drop the
        answer before the client has read it.
        """
        self._lingers_until = self._service.clock() + LINGER_TIME
        self._pending.clear()
        if self._transport is not None:
            if self._transport.can_write_eof():
                self._transport.write_eof()
            self._read(is_wanted=True)
