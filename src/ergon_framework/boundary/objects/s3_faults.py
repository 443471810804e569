"""What the refusals of a bucket mean."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from ergon_framework.boundary.objects.s3_url import CREDENTIALS
from ergon_framework.errors import (
    ConfigurationError,
    StoreError,
    StoreFullError,
    StoreUnavailableError,
)

_METADATA = "169.254.169.254"  # asked for credentials when there are none
_STATUS = re.compile(r"status code: (\d{3}[^:\n]*)")
_SERVER = re.compile(r"https?://[^/\s]+")


@contextmanager
def told(place: str, *, is_opening: bool = False) -> Iterator[None]:
    """Turn what the client raises into errors of our own.

    A bucket that is missing or shut is a wrong setting when it is opened, and trouble later on.
    """
    from obstore.exceptions import BaseError

    try:
        yield
    except (BaseError, FileNotFoundError) as error:  # the latter is how it says 404
        trouble, is_setting = translated(error, place, is_opening=is_opening)
        if is_opening and is_setting:
            raise ConfigurationError(trouble.message, remedy=trouble.remedy) from None
        raise trouble from None  # its own text may go on for pages


def translated(
    error: BaseException, place: str, *, is_opening: bool = False
) -> tuple[StoreError, bool]:
    """The store's error for it, and whether somebody has to set something right."""
    from obstore.exceptions import PermissionDeniedError, UnauthenticatedError

    text = str(error)
    if "NoSuchBucket" in text:
        return StoreUnavailableError(
            f"there is no bucket for {place}",
            remedy="make the bucket, or correct its name in the URL",
        ), True
    if _METADATA in text:
        return StoreUnavailableError(
            f"there are no credentials for {place}",
            remedy=CREDENTIALS,
        ), True
    if isinstance(error, PermissionDeniedError | UnauthenticatedError) or _is_status(text, "403"):
        return StoreUnavailableError(
            f"access to {place} is denied",
            remedy="check the credentials and what they permit: to list, get, put and delete",
        ), True
    if _is_status(text, "507") or "QuotaExceeded" in text or "XMinioStorageFull" in text:
        return StoreFullError(
            f"there is no room left in {place}", remedy="free some space there, then try again"
        ), False
    if isinstance(error, FileNotFoundError):
        return StoreUnavailableError(
            f"something in {place} went away while it was used", remedy="try again"
        ), False
    then = ", then start again" if is_opening else "; nothing has to be restarted"
    return StoreUnavailableError(
        f"{place} {_answer(text)}",
        remedy=f"see that its server runs and can be reached from here{then}",
    ), False


def _answer(text: str) -> str:
    """What the server said instead of an answer, and which one: the text may go on for pages."""
    status, server = _STATUS.search(text), _SERVER.search(text)
    said = "does not answer" if status is None else f"answers {status[1].strip()}"
    return said if server is None else f"{said} at {server[0]}"


def _is_status(text: str, *statuses: str) -> bool:
    found = _STATUS.search(text)
    return found is not None and found[1].startswith(statuses)
