"""The exceptions of known packages, by name: none of these packages is imported.

An exception is looked up under its own name first, then under those of its bases, so that the
nearest name wins. *Never sent* is claimed only for what fails before a request leaves; under a
client's own retries or redirects that holds for the last request alone, so switch them off.
"""

from __future__ import annotations

import errno
from collections.abc import Callable

from ergon_framework.providers.mapping.findings import (
    BROKEN,
    DEFECT,
    DENIED,
    DOWN,
    INVALID,
    REFUSED,
    REFUSED_UNSENT,
    TIMEOUT,
    TIMEOUT_UNSENT,
    UNREACHED,
    Finding,
    Look,
    attribute,
)
from ergon_framework.providers.mapping.http import by_answer, by_content, by_spent_retries
from ergon_framework.providers.mapping.sql import by_psycopg, by_sqlalchemy, by_sqlite

_NETWORK_ERRNOS = frozenset(
    {
        errno.ECONNRESET,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
        errno.ENETDOWN,
        errno.ENETRESET,
        errno.ENETUNREACH,
        errno.ENOTCONN,
        errno.EPIPE,
    }
)


def _by_errno(error: Exception, _now: Callable[[], float]) -> Finding | None:
    """A plain OSError: one of the network's, or a file's, which is a bug like any other."""
    return BROKEN if attribute(error, "errno") in _NETWORK_ERRNOS else None


def _by_url_reason(error: Exception, _now: Callable[[], float]) -> Finding | None:
    """A URLError whose reason is only a text: urllib does not know such URLs."""
    return REFUSED_UNSENT if isinstance(attribute(error, "reason"), str) else BROKEN


def _for(package: str, names: dict[str, Finding | Look]) -> dict[str, Finding | Look]:
    return {f"{package}.{name}": found for name, found in names.items()}


_HTTPX: dict[str, Finding | Look] = {
    "HTTPStatusError": by_answer,
    "ConnectTimeout": TIMEOUT_UNSENT,
    "PoolTimeout": TIMEOUT_UNSENT,
    "TimeoutException": TIMEOUT,
    "ConnectError": UNREACHED,
    "ProxyError": UNREACHED,
    "UnsupportedProtocol": REFUSED_UNSENT,
    "InvalidURL": REFUSED_UNSENT,
    "LocalProtocolError": REFUSED,
    "ProtocolError": BROKEN,
    "NetworkError": BROKEN,
    "DecodingError": INVALID,
    "TooManyRedirects": INVALID,
    "RequestError": BROKEN,
}

_REQUESTS: dict[str, Finding | Look] = {
    "HTTPError": by_answer,
    "ConnectTimeout": TIMEOUT_UNSENT,
    "Timeout": TIMEOUT,
    "ConnectionError": BROKEN,
    "ProxyError": UNREACHED,
    "ChunkedEncodingError": BROKEN,
    "RetryError": DOWN,
    "JSONDecodeError": INVALID,
    "InvalidJSONError": REFUSED_UNSENT,  # the request's own body
    "ContentDecodingError": INVALID,
    "TooManyRedirects": INVALID,
    "MissingSchema": REFUSED_UNSENT,
    "URLRequired": REFUSED_UNSENT,
    "InvalidHeader": REFUSED_UNSENT,
    "InvalidProxyURL": REFUSED_UNSENT,
    "InvalidURL": REFUSED,  # or the target of a redirect
    "InvalidSchema": REFUSED,
}

_URLLIB3: dict[str, Finding | Look] = {
    "NewConnectionError": UNREACHED,
    "ConnectTimeoutError": TIMEOUT_UNSENT,
    "EmptyPoolError": TIMEOUT_UNSENT,
    "TimeoutError": TIMEOUT,
    "ProxyError": UNREACHED,
    "DecodeError": INVALID,
    "LocationValueError": REFUSED_UNSENT,
    "ResponseError": by_spent_retries,
    "HTTPError": BROKEN,
}

_AIOHTTP: dict[str, Finding | Look] = {
    "ContentTypeError": by_content,
    "TooManyRedirects": by_content,
    "WSServerHandshakeError": by_content,
    "ClientResponseError": by_answer,
    "ConnectionTimeoutError": TIMEOUT_UNSENT,
    "ServerTimeoutError": TIMEOUT,
    "ClientConnectorError": UNREACHED,
    "ServerFingerprintMismatch": UNREACHED,
    "InvalidUrlRedirectClientError": INVALID,
    "RedirectClientError": INVALID,
    "InvalidURL": REFUSED_UNSENT,
    "NonHttpUrlClientError": REFUSED_UNSENT,
    "NonHttpUrlRedirectClientError": INVALID,
    "ClientError": BROKEN,
}

_REDIS: dict[str, Finding | Look] = {
    "AuthenticationError": DENIED,
    "AuthenticationWrongNumberOfArgsError": DENIED,
    "AuthorizationError": DENIED,
    "NoPermissionError": DENIED,
    "BusyLoadingError": DOWN,
    "ClusterError": DOWN,
    "ClusterDownError": DOWN,
    "OutOfMemoryError": DOWN,
    "ReadOnlyError": DOWN,  # a replica that is about to take over
    "SlotNotCoveredError": DOWN,
    "TryAgainError": DOWN,
    "WatchError": DOWN,  # somebody else was faster
    "ConnectionError": BROKEN,  # the client tries again by itself, so it may have been sent
    "TimeoutError": TIMEOUT,
    "InvalidResponse": INVALID,
    "DataError": REFUSED_UNSENT,
    "ResponseError": REFUSED,
}

_STANDARD: dict[str, Finding | Look] = {
    "builtins.TimeoutError": TIMEOUT,  # also of asyncio, concurrent.futures and sockets
    "multiprocessing.context.TimeoutError": TIMEOUT,
    "subprocess.TimeoutExpired": TIMEOUT,
    "builtins.ConnectionRefusedError": UNREACHED,
    "builtins.ConnectionError": BROKEN,
    "builtins.OSError": _by_errno,
    "socket.gaierror": UNREACHED,
    "socket.herror": UNREACHED,
    "ssl.SSLCertVerificationError": UNREACHED,
    "ssl.SSLError": BROKEN,
    "asyncio.exceptions.IncompleteReadError": BROKEN,
    "urllib.error.HTTPError": by_answer,
    "urllib.error.ContentTooShortError": BROKEN,
    "urllib.error.URLError": _by_url_reason,
    "http.client.BadStatusLine": BROKEN,  # what an earlier answer left on the connection
    "http.client.IncompleteRead": BROKEN,
    "http.client.InvalidURL": REFUSED_UNSENT,
    "http.client.ImproperConnectionState": DEFECT,
    "http.client.HTTPException": INVALID,
    "json.decoder.JSONDecodeError": INVALID,
    "builtins.UnicodeDecodeError": INVALID,  # json.loads of bytes that are no text
    "xml.etree.ElementTree.ParseError": INVALID,
    "sqlite3.Error": by_sqlite,
}

NAMED: dict[str, Finding | Look] = {
    **_for("httpx", _HTTPX),
    **_for("httpcore", _HTTPX),
    **_for("requests.exceptions", _REQUESTS),
    **_for("urllib3.exceptions", _URLLIB3),
    **_for("aiohttp.client_exceptions", _AIOHTTP),
    **_for("redis.exceptions", _REDIS),
    "sqlalchemy.exc.TimeoutError": TIMEOUT_UNSENT,  # no free connection in the pool
    "sqlalchemy.exc.DisconnectionError": BROKEN,
    "sqlalchemy.exc.DBAPIError": by_sqlalchemy,
    "psycopg.errors.ConnectionTimeout": TIMEOUT_UNSENT,
    "psycopg.errors.CancellationTimeout": TIMEOUT,
    "psycopg.Error": by_psycopg,
    "msgspec.DecodeError": INVALID,
    "billiard.exceptions.SoftTimeLimitExceeded": TIMEOUT,  # a Celery task's time is up
    **_STANDARD,
}
"""What each name stands for, or who can tell."""


TIME_UP = frozenset({"billiard.exceptions.SoftTimeLimitExceeded"})
"""What says that the whole task has to end now, and not that one attempt took too long."""


def _argument(index: int) -> Callable[[Exception], object]:
    return lambda error: error.args[index] if len(error.args) > index else None


WRAPPERS: dict[str, Callable[[Exception], object]] = {
    "requests.exceptions.RequestException": _argument(0),
    "urllib3.exceptions.MaxRetryError": lambda error: attribute(error, "reason"),
    "urllib3.exceptions.ProtocolError": _argument(1),
    "urllib3.exceptions.SSLError": _argument(0),
    "urllib.error.URLError": lambda error: attribute(error, "reason"),
    "sqlalchemy.exc.DBAPIError": lambda error: attribute(error, "orig"),
}
"""What wraps another exception that knows more: that one is asked first."""
