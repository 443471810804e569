from __future__ import annotations

import asyncio
import http.client
import io
import socket
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from email.message import Message
from typing import Any
from unittest.mock import Mock

import aiohttp
import httpcore
import httpx
import pytest
import requests
import urllib3.exceptions as u3
from aiohttp import client_exceptions as aio
from multidict import CIMultiDict, CIMultiDictProxy
from requests import exceptions as req

from ergon_framework.providers.errors import ProviderError
from ergon_framework.providers.mapping import canonical, unmapped_types


def told(raw: Exception) -> tuple[str, bool]:
    """What the mapping says, and that there was a rule for it."""
    before = sum(unmapped_types().values())
    error = canonical(raw)
    assert sum(unmapped_types().values()) == before, f"no rule for {type(raw)}"
    assert error.__cause__ is raw
    return error.reason_code, error.never_sent


# -- made by hand ----------------------------------------------------------------------------------

UNSENT = True
MAYBE = False


HTTPX = [
    ("ConnectTimeout", "timeout", UNSENT),
    ("PoolTimeout", "timeout", UNSENT),
    ("ReadTimeout", "timeout", MAYBE),
    ("WriteTimeout", "timeout", MAYBE),
    ("TimeoutException", "timeout", MAYBE),
    ("ConnectError", "connection_error", UNSENT),
    ("ProxyError", "connection_error", UNSENT),
    ("ReadError", "connection_error", MAYBE),
    ("WriteError", "connection_error", MAYBE),
    ("CloseError", "connection_error", MAYBE),
    ("NetworkError", "connection_error", MAYBE),
    ("RemoteProtocolError", "connection_error", MAYBE),
    ("ProtocolError", "connection_error", MAYBE),
    ("TransportError", "connection_error", MAYBE),
    ("RequestError", "connection_error", MAYBE),
    ("LocalProtocolError", "bad_request", MAYBE),
    ("UnsupportedProtocol", "bad_request", UNSENT),
    ("InvalidURL", "bad_request", UNSENT),
    ("DecodingError", "response_invalid", MAYBE),
    ("TooManyRedirects", "response_invalid", MAYBE),
]


@pytest.mark.req("PEF:E-13", "PEF:E-14")
@pytest.mark.parametrize(
    ("kind", "code", "never_sent"),
    [
        (getattr(package, name), code, never_sent)
        for package in (httpx, httpcore)
        for name, code, never_sent in HTTPX
        if hasattr(package, name)  # httpcore has fewer
    ],
)
def test_httpx(kind: type[Exception], code: str, never_sent: bool) -> None:
    """Every exception of httpx, and of httpcore below it."""
    assert told(kind("x")) == (code, never_sent)


def _read_timeout() -> u3.ReadTimeoutError:
    return u3.ReadTimeoutError(Mock(), "/", "Read timed out.")


def _wrapped(reason: Exception) -> u3.MaxRetryError:
    return u3.MaxRetryError(Mock(), "/p?token=S3CRET", reason)


@pytest.mark.req("PEF:E-13", "PEF:E-14")
@pytest.mark.parametrize(
    ("raw", "code", "never_sent"),
    [
        (req.ConnectTimeout(), "timeout", UNSENT),
        (req.ReadTimeout(), "timeout", MAYBE),
        (req.Timeout(), "timeout", MAYBE),
        (req.ConnectionError(_read_timeout()), "timeout", MAYBE),
        (req.ConnectionError(_wrapped(u3.NewConnectionError(Mock(), "x"))), None, UNSENT),
        (req.ConnectionError(_wrapped(u3.NameResolutionError("h", Mock(), Mock()))), None, UNSENT),
        (
            req.ConnectionError(u3.ProtocolError("x", http.client.RemoteDisconnected("y"))),
            None,
            MAYBE,
        ),
        (req.ConnectionError(u3.ProtocolError("x")), "connection_error", MAYBE),
        (req.ConnectionError("x"), "connection_error", MAYBE),
        (req.SSLError(_wrapped(u3.SSLError(ssl.SSLCertVerificationError(1, "x")))), None, UNSENT),
        (req.SSLError("x"), "connection_error", MAYBE),
        (req.ProxyError(_wrapped(u3.ProxyError("x", OSError("y")))), "connection_error", UNSENT),
        (req.ChunkedEncodingError(u3.ProtocolError("x")), "connection_error", MAYBE),
        (req.RetryError(_wrapped(u3.ResponseError("too many 503 error responses"))), "dep", MAYBE),
        (req.RetryError(_wrapped(u3.ResponseError("too many 429 error responses"))), "rate", MAYBE),
        (req.RetryError(_wrapped(u3.ResponseError("too many error responses"))), "dep", MAYBE),
        (req.RetryError(), "dependency_unavailable", MAYBE),
        (req.JSONDecodeError("x", "", 0), "response_invalid", MAYBE),
        (req.InvalidJSONError(ValueError("x")), "bad_request", UNSENT),
        (req.ContentDecodingError(u3.DecodeError("x")), "response_invalid", MAYBE),
        (req.TooManyRedirects(), "response_invalid", MAYBE),
        (req.MissingSchema("x"), "bad_request", UNSENT),
        (req.URLRequired(), "bad_request", UNSENT),
        (req.InvalidHeader("x"), "bad_request", UNSENT),
        (req.InvalidProxyURL("x"), "bad_request", UNSENT),
        (req.InvalidURL("x"), "bad_request", MAYBE),
        (req.InvalidSchema("x"), "bad_request", MAYBE),
        (u3.ConnectTimeoutError("x"), "timeout", UNSENT),
        (u3.EmptyPoolError(Mock(), "x"), "timeout", UNSENT),
        (u3.LocationParseError("x"), "bad_request", UNSENT),
        (u3.IncompleteRead(1, 2), "connection_error", MAYBE),
    ],
)
def test_requests(raw: Exception, code: str | None, never_sent: bool) -> None:
    """Every exception of requests, told by what urllib3 put into it."""
    found, was_unsent = told(raw)
    assert found.startswith(code or "connection_error")
    assert was_unsent == never_sent
    assert "S3CRET" not in canonical(raw).message


def _key() -> Any:
    return aiohttp.client_reqrep.ConnectionKey("h", 1, False, True, None, None, None)


def _response_error(kind: type[aio.ClientResponseError], status: int, **headers: str) -> Exception:
    proxy = CIMultiDictProxy(CIMultiDict(headers))
    return kind(Mock(real_url="http://h/?t=S3CRET"), (), status=status, headers=proxy)


@pytest.mark.req("PEF:E-13", "PEF:E-14")
@pytest.mark.parametrize(
    ("raw", "code", "never_sent"),
    [
        (aio.ClientConnectorError(_key(), OSError(1, "x")), "connection_error", UNSENT),
        (aio.ClientConnectorDNSError(_key(), OSError(1, "x")), "connection_error", UNSENT),
        (aio.ClientProxyConnectionError(_key(), OSError(1, "x")), "connection_error", UNSENT),
        (aio.ClientConnectorSSLError(_key(), OSError(1, "x")), "connection_error", UNSENT),
        (aio.ClientConnectorCertificateError(_key(), ValueError()), "connection_error", UNSENT),
        (aio.ServerFingerprintMismatch(b"", b"", "h", 1), "connection_error", UNSENT),
        (aio.ClientOSError(104, "x"), "connection_error", MAYBE),
        (aio.ClientConnectionResetError("x"), "connection_error", MAYBE),
        (aio.ServerDisconnectedError(), "connection_error", MAYBE),
        (aio.ClientPayloadError("x"), "connection_error", MAYBE),
        (aio.ClientError("x"), "connection_error", MAYBE),
        (aio.ConnectionTimeoutError("x"), "timeout", UNSENT),
        (aio.SocketTimeoutError("x"), "timeout", MAYBE),
        (aio.ServerTimeoutError("x"), "timeout", MAYBE),
        (aio.InvalidURL("x"), "bad_request", UNSENT),
        (aio.InvalidUrlClientError("x"), "bad_request", UNSENT),
        (aio.NonHttpUrlClientError("x"), "bad_request", UNSENT),
        (aio.InvalidUrlRedirectClientError("x"), "response_invalid", MAYBE),
        (aio.NonHttpUrlRedirectClientError("x"), "response_invalid", MAYBE),
        (_response_error(aio.ClientResponseError, 404), "bad_request", MAYBE),
        (_response_error(aio.ContentTypeError, 200), "response_invalid", MAYBE),
        (_response_error(aio.ContentTypeError, 0), "response_invalid", MAYBE),
        (_response_error(aio.ContentTypeError, 503), "dependency_unavailable", MAYBE),
        (_response_error(aio.TooManyRedirects, 302), "response_invalid", MAYBE),
        (_response_error(aio.WSServerHandshakeError, 101), "response_invalid", MAYBE),
        (_response_error(aio.WSServerHandshakeError, 401), "auth_failed", MAYBE),
        (_response_error(aio.ClientHttpProxyError, 407), "auth_failed", MAYBE),
    ],
)
def test_aiohttp(raw: Exception, code: str, never_sent: bool) -> None:
    """Every exception of aiohttp's client."""
    assert told(raw) == (code, never_sent)
    assert "S3CRET" not in canonical(raw).message


@pytest.mark.req("PEF:E-13", "PEF:E-14")
@pytest.mark.parametrize(
    ("raw", "code", "never_sent"),
    [
        (ConnectionRefusedError(111, "x"), "connection_error", UNSENT),
        (socket.gaierror(-2, "x"), "connection_error", UNSENT),
        (socket.herror(1, "x"), "connection_error", UNSENT),
        (ConnectionResetError(104, "x"), "connection_error", MAYBE),
        (ConnectionAbortedError(), "connection_error", MAYBE),
        (BrokenPipeError(), "connection_error", MAYBE),
        (OSError(113, "No route to host"), "connection_error", MAYBE),
        (OSError(101, "Network is unreachable"), "connection_error", MAYBE),
        (OSError(110, "Connection timed out"), "timeout", MAYBE),
        (ssl.SSLCertVerificationError(1, "x"), "connection_error", UNSENT),
        (ssl.SSLEOFError(8, "x"), "connection_error", MAYBE),
        (http.client.RemoteDisconnected("x"), "connection_error", MAYBE),
        (http.client.BadStatusLine("x"), "connection_error", MAYBE),
        (http.client.IncompleteRead(b""), "connection_error", MAYBE),
        (http.client.UnknownProtocol("x"), "response_invalid", MAYBE),
        (http.client.InvalidURL("x"), "bad_request", UNSENT),
        (http.client.CannotSendRequest(), "internal_error", MAYBE),
        (urllib.error.URLError(socket.gaierror(-2, "x")), "connection_error", UNSENT),
        (urllib.error.URLError(TimeoutError()), "timeout", MAYBE),
        (urllib.error.URLError("unknown url type: x"), "bad_request", UNSENT),
        (urllib.error.URLError(OSError("x")), "connection_error", MAYBE),
        (urllib.error.ContentTooShortError("x", None), "connection_error", MAYBE),  # type: ignore[arg-type]
    ],
    ids=lambda each: type(each).__name__ if isinstance(each, Exception) else "",
)
def test_sockets_and_urllib(raw: Exception, code: str, never_sent: bool) -> None:
    """What the standard library raises for a connection."""
    assert told(raw) == (code, never_sent)


@pytest.mark.parametrize("raw", [FileNotFoundError(2, "x"), PermissionError(13, "x"), OSError()])
def test_an_error_of_a_file_is_not_the_providers(raw: OSError) -> None:
    """It is a bug like any other, and nothing to retry."""
    assert canonical(raw).reason_code == "internal_error"


# -- answers -------------------------------------------------------------------------------------


def _of_httpx(status: int, headers: dict[str, str]) -> Exception:
    request = httpx.Request("GET", "https://u:S3CRET@h/?t=S3CRET")
    answer = httpx.Response(status, headers=headers, request=request)
    return httpx.HTTPStatusError("x", request=request, response=answer)


def _of_requests(status: int, headers: dict[str, str]) -> Exception:
    answer = requests.Response()
    answer.status_code = status
    answer.headers.update(headers)
    return req.HTTPError(f"{status} for https://h/?t=S3CRET", response=answer)


def _of_aiohttp(status: int, headers: dict[str, str]) -> Exception:
    return _response_error(aio.ClientResponseError, status, **headers)


def _of_urllib(status: int, headers: dict[str, str]) -> Exception:
    message = Message()
    for name, value in headers.items():
        message[name] = value
    return urllib.error.HTTPError("https://h/?t=S3CRET", status, "x", message, io.BytesIO())


@pytest.mark.req("PEF:E-14", "PEF:A-9", "PEF:M-4")
@pytest.mark.parametrize("made", [_of_httpx, _of_requests, _of_aiohttp, _of_urllib])
@pytest.mark.parametrize(
    ("status", "code"),
    [(401, "auth_failed"), (404, "bad_request"), (429, "rate_limited"), (503, "dependency")],
)
def test_each_client_tells_the_status_and_the_pause(
    made: Callable[[int, dict[str, str]], Exception], status: int, code: str
) -> None:
    """The same for all of them; and no URL is in the words."""
    error = canonical(made(status, {"Retry-After": "2"}))
    assert error.reason_code.startswith(code)
    assert (error.http_status, error.retry_after_seconds) == (status, 2.0)
    assert "S3CRET" not in str(error)


def test_a_redirect_that_was_raised_is_not_what_was_agreed() -> None:
    """Httpx raises for a 302 that it may not follow."""
    error = canonical(_of_httpx(302, {}))
    assert (error.reason_code, error.http_status) == ("response_invalid", 302)


def test_an_http_error_without_an_answer_is_unknown() -> None:
    """Nobody knows what it means."""
    assert canonical(req.HTTPError("x")).reason_code == "internal_error"


# -- as they really come --------------------------------------------------------------------------


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port on which nobody listens, and nobody else can."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


@pytest.fixture
def rude_port() -> Iterator[int]:
    """A server that accepts and hangs up without a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    peer, _ = server.accept()
                except OSError:
                    return
                with peer:
                    peer.recv(65536)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
        thread.join(30)


def _by_httpx(url: str) -> None:
    httpx.get(url, timeout=30, trust_env=False)


def _by_requests(url: str) -> None:
    with requests.Session() as session:
        session.trust_env = False
        session.get(url, timeout=30)


def _by_urllib(url: str) -> None:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    opener.open(url, timeout=30)


def _by_aiohttp(url: str) -> None:
    async def get() -> None:
        async with aiohttp.ClientSession() as session:
            await session.get(url)

    asyncio.run(get())


def _failure(get: Callable[[str], None], port: int) -> ProviderError:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - which one is what differs
        get(f"http://127.0.0.1:{port}/path?token=S3CRET")
    return canonical(caught.value)


CLIENTS = [_by_httpx, _by_requests, _by_urllib, _by_aiohttp]


@pytest.mark.req("PEF:E-3")
@pytest.mark.parametrize("get", CLIENTS)
def test_a_refused_connection_was_never_sent(get: Callable[[str], None], closed_port: int) -> None:
    """As each client raises it, from a real socket."""
    error = _failure(get, closed_port)
    assert (error.reason_code, error.never_sent) == ("connection_error", True)
    assert "S3CRET" not in str(error)


@pytest.mark.req("PEF:E-3")
@pytest.mark.parametrize("get", CLIENTS)
def test_a_broken_connection_may_have_been_served(
    get: Callable[[str], None], rude_port: int
) -> None:
    """The server heard the request and hung up: nobody knows what it did."""
    error = _failure(get, rude_port)
    assert (error.reason_code, error.never_sent) == ("connection_error", False)
    assert "S3CRET" not in str(error)
