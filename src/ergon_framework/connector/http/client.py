"""Requests for pages, within their bounds: bytes, seconds, redirects, and one host.

A request may be cut off at any moment: when its time is over, however slowly the server sends, and
when the connector is closed. So it runs in an event loop of its own, which a thread of the
connector drives for one request at a time.

Credentials go to one origin, that of the URL. Redirects and links that lead elsewhere are refused.
"""

from __future__ import annotations

import asyncio
import ssl
import threading
import zlib
from collections.abc import Coroutine, Mapping
from concurrent.futures import Future
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import Any

from ergon_framework.connector.base import OwnThreads
from ergon_framework.connector.broker.url import import_client
from ergon_framework.connector.http.page import PageError
from ergon_framework.connector.http.paging import MAX_POSITION
from ergon_framework.engine.atfork import renew_after_fork
from ergon_framework.errors import ConfigurationError, ConnectorError

MAX_REDIRECTS = 5
_MOVED = frozenset({301, 302, 303, 307, 308})
_inherited: list[Any] = []
"""Loops of a parent process. Closing one here would take its parent's watch on sockets away."""


class RequestError(ConnectorError):
    """A request got no answer."""

    code = "no_answer"
    failure_kind = "transient"


@dataclass(frozen=True, slots=True)
class Answer:
    """A complete answer."""

    status: int
    headers: Mapping[str, str] = field(repr=False)
    body: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class ClientRules:
    """How requests are made."""

    headers: Mapping[str, str] = field(repr=False)
    login: tuple[str, str] | None = field(repr=False)
    timeout: float
    max_bytes: int
    ca: str | None


class PageClient:
    """Makes requests to one origin, one after another. Any thread may call it."""

    def __init__(self, url: str, rules: ClientRules) -> None:
        self._httpx = import_client("httpx", extra="httpx", connector="http-poll")
        self._origin = self._origin_of(self._httpx.URL(url))
        self._rules = rules
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Forget the connections and the event loop in a forked child, because they are the
        parent's.
        """
        if getattr(self, "_loop", None) is not None:
            _inherited.append((self._loop, self._client))
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._client: Any = None
        self._task: asyncio.Task[Answer] | None = None
        self._is_closed = False
        self._threads = OwnThreads("ergon-poll")

    def ask(self, url: str, headers: Mapping[str, str]) -> Future[Answer]:
        """Start a request. It ends when its answer is complete, or its time is over."""
        return self._threads.submit(self._get, url, headers)

    def _get(self, url: str, headers: Mapping[str, str]) -> Answer:
        with self._lock:
            if self._is_closed:
                raise RequestError("the connector was closed")
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
            loop = self._loop
            self._task = loop.create_task(self._answer(url, headers))
            try:
                return loop.run_until_complete(self._task)
            except asyncio.CancelledError:
                raise RequestError("the connector was closed") from None
            finally:
                self._task = None

    def close(self) -> None:
        """Cancel a request under way, and close. Closing twice is fine."""
        self._is_closed = True
        while not self._lock.acquire(timeout=0.05):
            loop, task = self._loop, self._task
            if loop is not None and task is not None:
                with suppress(RuntimeError):  # it has ended meanwhile
                    loop.call_soon_threadsafe(task.cancel)
        try:
            # Not in this thread, which may have a running loop of its own.
            self._threads.submit(self._end).result()
        finally:
            self._lock.release()
            self._threads.end_idle()

    def resolve(self, base: str, link: str) -> str:
        """A link of a page as an absolute URL; one that leads to another host is refused."""
        if len(link) > MAX_POSITION:
            raise PageError(f"the link to the next page has more than {MAX_POSITION} characters")
        try:
            found = self._httpx.URL(base).join(link).copy_with(fragment=None)
        except (self._httpx.InvalidURL, ValueError, TypeError):
            raise PageError("the link to the next page is no URL") from None
        if found.userinfo or self._origin_of(found) != self._origin:
            raise PageError(
                "the link to the next page leads to another host or scheme, and is not followed",
                remedy="let url= name the host that the links have; behind a proxy, let the API"
                " know its public address",
            )
        return str(found)

    # ---- inside of the loop ---------------------------------------------------------------------

    async def _answer(self, url: str, headers: Mapping[str, str]) -> Answer:
        try:
            async with asyncio.timeout(self._rules.timeout):
                return await self._followed(url, headers)
        except TimeoutError:
            raise RequestError(
                f"no whole answer came within {self._rules.timeout:g} s", remedy="raise timeout="
            ) from None
        except self._httpx.ConnectError as error:
            raise RequestError(f"no connection: {error}") from error
        except (self._httpx.HTTPError, self._httpx.InvalidURL, self._httpx.StreamError) as error:
            raise RequestError(f"the request failed ({type(error).__name__})") from error

    async def _followed(self, url: str, headers: Mapping[str, str]) -> Answer:
        if self._client is None:
            self._client = self._made()
        for _ in range(MAX_REDIRECTS + 1):
            answer = await self._asked(url, headers)
            place = answer.headers.get("location")
            if answer.status not in _MOVED or place is None:
                return answer
            url = self._redirected(url, place)
        raise RequestError(f"the server redirects more than {MAX_REDIRECTS} times")

    def _redirected(self, url: str, place: str) -> str:
        try:
            return self.resolve(url, place)
        except PageError:
            raise ConfigurationError(
                "the API redirects to another host or scheme, which is not followed, so that"
                " credentials stay with the host they are for",
                remedy="let url= name the address that it redirects to",
            ) from None

    async def _asked(self, url: str, headers: Mapping[str, str]) -> Answer:
        async with self._client.stream("GET", url, headers=headers) as response:
            body = _Body(response.headers.get("content-encoding", ""), self._rules.max_bytes)
            async with aclosing(response.aiter_raw()) as coming:
                async for part in coming:
                    body.add(part)
            found = {name.lower(): value for name, value in response.headers.items()}
            return Answer(response.status_code, found, body.whole())

    def _made(self) -> Any:
        rules = self._rules
        verify: Any = True
        if rules.ca is not None:
            verify = ssl.create_default_context(cafile=rules.ca)
        elif self._origin[0] == "http":  # certificates take longer to load than a page
            verify = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        return self._httpx.AsyncClient(
            headers=rules.headers,
            auth=rules.login,
            timeout=rules.timeout,
            verify=verify,
            follow_redirects=False,
            limits=self._httpx.Limits(max_connections=1),
        )

    def _end(self) -> None:
        loop, self._loop = self._loop, None
        client, self._client = self._client, None
        if loop is None:
            return
        if client is not None:
            with suppress(Exception):
                loop.run_until_complete(_within(client.aclose(), 1.0))
        with suppress(Exception):
            loop.run_until_complete(_within(loop.shutdown_asyncgens(), 1.0))
        loop.close()

    def _origin_of(self, url: Any) -> tuple[str, str, int | None]:
        default = {"http": 80, "https": 443}.get(url.scheme)
        return url.scheme, url.host, url.port or default


class _Body:
    """A body within its bound. A compressed body is never decompressed beyond it."""

    def __init__(self, encoding: str, max_bytes: int) -> None:
        name = encoding.strip().lower()
        if name not in ("", "identity", "gzip", "x-gzip"):
            raise PageError(
                "the answer is compressed in a way that was not asked for",
                remedy="see what stands between here and the API: only gzip is asked for",
            )
        self._unpacking = zlib.decompressobj(31) if name.endswith("gzip") else None
        self._most = max_bytes
        self._size = 0
        self._parts: list[bytes] = []

    def add(self, part: bytes) -> None:
        """Add the next piece."""
        if self._unpacking is not None:
            try:
                part = self._unpacking.decompress(part, self._most - self._size + 1)
            except zlib.error:
                raise PageError("the answer is not compressed as it says") from None
        self._size += len(part)
        if self._size > self._most:
            raise PageError(
                f"an answer of more than {self._most} bytes",
                remedy="ask for smaller pages, or raise max_page_bytes=",
            )
        self._parts.append(part)

    def whole(self) -> bytes:
        """The whole body."""
        if self._unpacking is not None and self._parts and not self._unpacking.eof:
            raise PageError("the compressed answer ends too early")
        return b"".join(self._parts)


async def _within(work: Coroutine[Any, Any, None], seconds: float) -> None:
    async with asyncio.timeout(seconds):
        await work
