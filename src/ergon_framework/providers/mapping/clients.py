"""What the exceptions, HTTP statuses and SQLSTATEs of known clients mean for a provider call.

None of these packages is imported: an exception is looked up under its own name first, then under
those of its bases, so that the nearest name wins. *Never sent* is claimed only for what fails
before a request leaves; under a client's own retries or redirects that holds for the last request
alone, so switch them off.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from http import HTTPStatus
from typing import NamedTuple, TypeAlias

from ergon_framework.errors import describe
from ergon_framework.providers.errors import Reason
from ergon_framework.providers.mapping.retry_after import header, is_used_up, retry_after_seconds


class ErrorFinding(NamedTuple):
    """What an exception says about the call that raised it."""

    reason: Reason
    never_sent: bool = False
    http_status: int | None = None
    retry_after: float | None = None
    text: str = ""
    """A better message than the exception's own; empty when that is good enough."""


ErrorReader: TypeAlias = Callable[[Exception, Callable[[], float]], ErrorFinding | None]
"""Reads an exception whose type alone does not say what it means; given the wall clock."""

TIMEOUT = ErrorFinding(Reason.TIMEOUT)
TIMEOUT_UNSENT = ErrorFinding(Reason.TIMEOUT, never_sent=True)
BROKEN = ErrorFinding(Reason.CONNECTION_ERROR)
UNREACHED = ErrorFinding(Reason.CONNECTION_ERROR, never_sent=True)
DENIED = ErrorFinding(Reason.AUTH_FAILED)
REFUSED = ErrorFinding(Reason.BAD_REQUEST)
REFUSED_UNSENT = ErrorFinding(Reason.BAD_REQUEST, never_sent=True)
INVALID = ErrorFinding(Reason.RESPONSE_INVALID)
DOWN = ErrorFinding(Reason.DEPENDENCY_UNAVAILABLE)
DEFECT = ErrorFinding(Reason.INTERNAL_ERROR)


def attribute(holder: object, name: str) -> object:
    """An attribute, or None: an exception's properties may raise what they like."""
    try:
        return getattr(holder, name, None)
    except Exception:
        return None


STATUS_REASONS: dict[int, Reason] = {
    # The same credentials would be refused again.
    401: Reason.AUTH_FAILED,
    403: Reason.AUTH_FAILED,  # but see _is_throttle
    407: Reason.AUTH_FAILED,
    511: Reason.AUTH_FAILED,
    # Our credit with the provider is used up: not a mistake, and no retry pays the bill.
    402: Reason.QUOTA_EXHAUSTED,
    # The service, or a proxy, gave up waiting; the request may have been served.
    408: Reason.TIMEOUT,
    504: Reason.TIMEOUT,
    524: Reason.TIMEOUT,  # a proxy's word for 504
    # Not now.
    425: Reason.RATE_LIMITED,
    429: Reason.RATE_LIMITED,
    # This connection leads to the wrong server; another one may not.
    421: Reason.CONNECTION_ERROR,
    # It will never be served, whatever the first digit says.
    501: Reason.BAD_REQUEST,
    505: Reason.BAD_REQUEST,
    510: Reason.BAD_REQUEST,
}
"""Statuses that mean something of their own; :func:`reason_of_status` knows the rest."""


def reason_of_status(status: int) -> Reason:
    """The reason that an HTTP status stands for.

    Every other 4xx says that the request is wrong. Every other 5xx, 500 included, may pass by
    itself: the clients of the large providers retry it. A status below 400 that was raised as an
    error, such as a redirect nobody follows, is not the answer that was agreed.
    """
    named = STATUS_REASONS.get(status)
    if named is not None:
        return named
    if 400 <= status < 500:
        return Reason.BAD_REQUEST
    return Reason.DEPENDENCY_UNAVAILABLE if 500 <= status < 600 else Reason.RESPONSE_INVALID


def by_status(status: int, headers: object, now: Callable[[], float]) -> ErrorFinding:
    """Reads the status of a provider's response, with the pause that it asks for."""
    reason = reason_of_status(status)
    if status == 403 and _is_throttle(headers):
        reason = Reason.RATE_LIMITED
    is_throttled = reason is Reason.RATE_LIMITED
    wait = (
        None if headers is None else retry_after_seconds(headers, now(), is_throttled=is_throttled)
    )
    return ErrorFinding(reason, http_status=status, retry_after=wait, text=_words(status))


def by_answer(error: Exception, now: Callable[[], float]) -> ErrorFinding | None:
    """Reads an exception that carries a response or its status, whatever the status is."""
    answer = _answer(error)
    return None if answer is None else by_status(*answer, now)


def by_error_answer(error: Exception, now: Callable[[], float]) -> ErrorFinding | None:
    """Like ``by_answer`` for unknown exceptions: only a status that is an error counts."""
    answer = _answer(error)
    return None if answer is None or answer[0] < 400 else by_status(*answer, now)


def by_content(error: Exception, now: Callable[[], float]) -> ErrorFinding | None:
    """Reads an exception about an unreadable response: its status if that is an error, else
    invalid.
    """
    answer = _answer(error)
    if answer is None:
        return INVALID
    status, headers = answer
    return (
        by_status(status, headers, now) if status >= 400 else INVALID._replace(http_status=status)
    )


def by_spent_retries(error: Exception, now: Callable[[], float]) -> ErrorFinding | None:
    """Reads urllib3's "too many 503 error responses", raised when its own retries are spent."""
    for word in str(error).split():
        if len(word) == 3 and word.isascii() and word.isdigit():
            return by_status(int(word), None, now)
    return DOWN


def _answer(error: Exception) -> tuple[int, object] | None:
    response = attribute(error, "response")
    for holder in (response, error):
        for name in ("status_code", "status", "http_status"):
            status = attribute(holder, name)
            if isinstance(status, int) and 100 <= status <= 599:
                headers = attribute(holder, "headers")
                return int(status), attribute(response, "headers") if headers is None else headers
    return None


def _is_throttle(headers: object) -> bool:
    """Some providers throttle with 403; such an answer says when to retry, a refusal does not."""
    return header(headers, "retry-after") is not None or is_used_up(headers)


def _words(status: int) -> str:
    try:
        return f"HTTP {status} {HTTPStatus(status).phrase}"
    except ValueError:
        return f"HTTP {status}"


SQLSTATES: dict[str, ErrorFinding] = {
    # Five characters name a condition, two its class; the condition is asked first.
    "08": BROKEN,
    "0A": REFUSED,  # a feature it does not have
    "21": REFUSED,
    "22": REFUSED,  # data
    "23": REFUSED,  # a constraint
    "25006": DOWN,  # read-only: a standby that is about to take over
    "28": DENIED,
    "3D": REFUSED,
    "3F": REFUSED,
    "40": DOWN,  # rolled back because of another transaction: may be tried again
    "40003": BROKEN,  # it is not known whether it was done
    "42": REFUSED,  # a wrong statement
    "42501": DENIED,
    "44": REFUSED,
    "53": DOWN,  # out of memory, disk or connections
    "54": REFUSED,  # larger than it can be
    "55P03": DOWN,  # another session holds the lock
    "57": DOWN,  # shutting down or starting up
    "57014": TIMEOUT,  # cancelled, which is what a statement timeout does
    "58": DOWN,  # its disk
}

SQLITE_CODES: dict[str, ErrorFinding] = {
    "SQLITE_BUSY": DOWN,
    "SQLITE_LOCKED": DOWN,
    "SQLITE_FULL": DOWN,
    "SQLITE_IOERR": DOWN,
    "SQLITE_CANTOPEN": DOWN,
    "SQLITE_PROTOCOL": DOWN,
    "SQLITE_READONLY": DOWN,
    "SQLITE_INTERRUPT": TIMEOUT,
    "SQLITE_AUTH": DENIED,
    "SQLITE_PERM": DENIED,
    "SQLITE_INTERNAL": DEFECT,
    "SQLITE_CORRUPT": DEFECT,
    "SQLITE_NOTADB": DEFECT,
    "SQLITE_NOMEM": DEFECT,
}

DBAPI_CLASSES: dict[str, ErrorFinding] = {
    # The names that PEP 249 gives to every driver.
    "OperationalError": DOWN,
    "InterfaceError": BROKEN,
    "DataError": REFUSED,
    "IntegrityError": REFUSED,
    "ProgrammingError": REFUSED,
    "NotSupportedError": REFUSED,
    "InternalError": DEFECT,
}


def by_sqlstate(code: str) -> ErrorFinding:
    """What an SQLSTATE says."""
    return SQLSTATES.get(code) or SQLSTATES.get(code[:2]) or DEFECT


def by_psycopg(error: Exception, _now: Callable[[], float]) -> ErrorFinding | None:
    """PostgreSQL: the code, if the server got as far as sending one."""
    code = attribute(error, "sqlstate")
    if isinstance(code, str) and code:
        return by_sqlstate(code)
    if attribute(error, "pgconn") is not None:  # it failed to connect
        is_denied = "authentication failed" in describe(error)
        return DENIED._replace(never_sent=True) if is_denied else UNREACHED
    found = by_dbapi_class(error)
    return BROKEN if found is DOWN else found  # without a code, the connection is what failed


def by_sqlite(error: Exception, _now: Callable[[], float]) -> ErrorFinding | None:
    """Reads an SQLite error by its code. Extended codes include the plain one."""
    name = attribute(error, "sqlite_errorname")
    if isinstance(name, str):
        plain = "_".join(name.split("_")[:2])
        # Anything else, such as a table that is not there, is a wrong statement.
        return SQLITE_CODES.get(plain, REFUSED)
    return by_dbapi_class(error)


def by_sqlalchemy(error: Exception, _now: Callable[[], float]) -> ErrorFinding | None:
    """Reads a driver's error by the SQLAlchemy exception around it, if the driver's own says
    nothing.
    """
    if attribute(error, "connection_invalidated") is True:
        return BROKEN
    code = attribute(attribute(error, "orig"), "sqlstate")
    return by_sqlstate(code) if isinstance(code, str) and code else by_dbapi_class(error)


def by_dbapi_class(error: Exception) -> ErrorFinding | None:
    """What the name of its class says, as every driver uses it."""
    names = (kind.__name__ for kind in type(error).__mro__)
    return next((DBAPI_CLASSES[name] for name in names if name in DBAPI_CLASSES), None)


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


def _by_errno(error: Exception, _now: Callable[[], float]) -> ErrorFinding | None:
    """A plain OSError: one of the network's, or a file's, which is a bug like any other."""
    return BROKEN if attribute(error, "errno") in _NETWORK_ERRNOS else None


def _by_url_reason(error: Exception, _now: Callable[[], float]) -> ErrorFinding | None:
    """A URLError whose reason is only a text: urllib does not know such URLs."""
    return REFUSED_UNSENT if isinstance(attribute(error, "reason"), str) else BROKEN


def _asked_again(error: Exception, _now: Callable[[], float]) -> ErrorFinding | None:
    """``Retry``: the function itself asks for another attempt, perhaps not before some time."""
    wait = attribute(error, "retry_after_seconds")
    return DOWN._replace(retry_after=wait if isinstance(wait, int | float) else None)


def _snoozed(error: Exception, now: Callable[[], float]) -> ErrorFinding | None:
    """``Snooze``: the service asks for a pause, which all callers keep."""
    found = _asked_again(error, now)
    return None if found is None else found._replace(reason=Reason.RATE_LIMITED)


_OURS: dict[str, ErrorFinding | ErrorReader] = {
    # What handlers raise to say what is to become of their unit, in the function of a provider.
    "Business": REFUSED,
    "Discard": REFUSED,
    "Retry": _asked_again,
    "Snooze": _snoozed,
}


def _for(
    package: str, names: dict[str, ErrorFinding | ErrorReader]
) -> dict[str, ErrorFinding | ErrorReader]:
    return {f"{package}.{name}": found for name, found in names.items()}


_HTTPX: dict[str, ErrorFinding | ErrorReader] = {
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

_REQUESTS: dict[str, ErrorFinding | ErrorReader] = {
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

_URLLIB3: dict[str, ErrorFinding | ErrorReader] = {
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

_AIOHTTP: dict[str, ErrorFinding | ErrorReader] = {
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

_REDIS: dict[str, ErrorFinding | ErrorReader] = {
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
    "WatchError": DOWN,  # another client changed the key
    "ConnectionError": BROKEN,  # the client tries again by itself, so it may have been sent
    "TimeoutError": TIMEOUT,
    "InvalidResponse": INVALID,
    "DataError": REFUSED_UNSENT,
    "ResponseError": REFUSED,
}

_STANDARD: dict[str, ErrorFinding | ErrorReader] = {
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

NAMED: dict[str, ErrorFinding | ErrorReader] = {
    **_for("ergon_framework.errors", _OURS),
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
"""What each exception name stands for, or the function that reads it."""


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
"""How to reach the exception inside a wrapper. The inner one is read first, as it knows more."""
