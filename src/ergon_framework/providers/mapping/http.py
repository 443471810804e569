"""What an HTTP status means for a provider call: one table."""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus

from ergon_framework.providers.errors import Reason
from ergon_framework.providers.mapping.findings import DOWN, INVALID, Finding, attribute
from ergon_framework.providers.mapping.retry_after import header, is_used_up, retry_after_seconds

STATUS_REASONS: dict[int, Reason] = {
    # Whoever asks again under the same credentials is refused again.
    401: Reason.AUTH_FAILED,
    403: Reason.AUTH_FAILED,  # but see _is_throttle
    407: Reason.AUTH_FAILED,
    511: Reason.AUTH_FAILED,
    # Our credit with the provider is used up: not a mistake, and no retry pays the bill.
    402: Reason.QUOTA_EXHAUSTED,
    # Somebody waited for somebody else, and the request may have been served.
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


def by_status(status: int, headers: object, now: Callable[[], float]) -> Finding:
    """What an answer of the provider says, with the pause it asks for."""
    reason = reason_of_status(status)
    if status == 403 and _is_throttle(headers):
        reason = Reason.RATE_LIMITED
    is_throttled = reason is Reason.RATE_LIMITED
    wait = (
        None if headers is None else retry_after_seconds(headers, now(), is_throttled=is_throttled)
    )
    return Finding(reason, http_status=status, retry_after=wait, text=_words(status))


def by_answer(error: Exception, now: Callable[[], float]) -> Finding | None:
    """For an exception that carries an answer, or its status; whatever the status is."""
    answer = _answer(error)
    return None if answer is None else by_status(*answer, now)


def by_error_answer(error: Exception, now: Callable[[], float]) -> Finding | None:
    """The same for an exception nobody knows: only a status that is an error counts."""
    answer = _answer(error)
    return None if answer is None or answer[0] < 400 else by_status(*answer, now)


def by_content(error: Exception, now: Callable[[], float]) -> Finding | None:
    """For an answer that could not be read: unless its status says why, it is invalid."""
    answer = _answer(error)
    if answer is None:
        return INVALID
    status, headers = answer
    return (
        by_status(status, headers, now) if status >= 400 else INVALID._replace(http_status=status)
    )


def by_spent_retries(error: Exception, now: Callable[[], float]) -> Finding | None:
    """For urllib3's "too many 503 error responses": its own retries are spent."""
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
    """Some providers throttle with 403; what tells it apart is that they say until when."""
    return header(headers, "retry-after") is not None or is_used_up(headers)


def _words(status: int) -> str:
    try:
        return f"HTTP {status} {HTTPStatus(status).phrase}"
    except ValueError:
        return f"HTTP {status}"
