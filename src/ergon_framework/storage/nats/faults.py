"""What a NATS server says went wrong, told as errors of our own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ergon_framework.errors import (
    ConfigurationError,
    ErgonError,
    StoreError,
    StoreFullError,
    StoreUnavailableError,
)

WRONG_SEQUENCE = 10071
NO_STREAM = 10059
NO_MESSAGE = 10037
NO_JETSTREAM = frozenset({10039, 10076})
"""Not for this account, not at all."""
_STRANGERS = ("authorization", "authentication", "permissions", "account")
_FULL = ("maximum bytes", "maximum messages", "insufficient", "storage")
_TOO_LARGE = ("maxpayload", "maximum payload", "message size")
_LOOK = "see that the server runs and can be reached: nats server check connection"


def refused(name: str, error: BaseException) -> ErgonError | None:
    """The error of a server that lets nobody in like this, however often it is asked."""
    text = str(error).lower()
    if any(each in text for each in _STRANGERS):
        return ConfigurationError(
            f"{name} does not let this user in",
            remedy="correct the user and the password, or the token, in the URL",
        )
    return None


def away(name: str, error: BaseException) -> StoreUnavailableError:
    """The error of a server that could not be reached."""
    return StoreUnavailableError(
        f"{name} cannot be reached: {_text(error)}", remedy=_LOOK, details={"is_lost": False}
    )


def lost(name: str, error: BaseException) -> ErgonError:
    """The error of a request that nobody answered."""
    if type(error).__name__ == "MaxPayloadError":
        return too_large(name)
    return StoreUnavailableError(
        f"{name} did not answer: {_text(error)}; whether it did what was asked is not known",
        remedy=f"do the same again, nothing is stored twice; {_LOOK}",
        details={"is_lost": True},
    )


def closed(name: str) -> StoreUnavailableError:
    """The error of a store that was closed."""
    return StoreUnavailableError(f"the store on {name} is closed", remedy="open it again")


def no_jetstream(name: str) -> ConfigurationError:
    """The error of a server that keeps nothing."""
    return ConfigurationError(
        f"{name} has no JetStream, so it keeps nothing",
        remedy="start the server with -js, or a jetstream block in its configuration file",
    )


def unanswered(name: str) -> StoreUnavailableError:
    """The error of a stream without anybody who serves it just now."""
    return StoreUnavailableError(
        f"{name} has nobody who serves the stream just now",
        remedy="wait until the server has read its files, or the cluster has chosen a leader",
        details={"is_lost": False},
    )


def translate(name: str, error: Mapping[str, Any]) -> StoreError:
    """The store's error for what the server answered; nothing was written."""
    text = str(error.get("description", "no reason given"))[:300]
    lowered = text.lower()
    if any(each in lowered for each in _TOO_LARGE):
        return too_large(name)
    if any(each in lowered for each in _FULL):
        return StoreFullError(
            f"{name} has no room left: {text}",
            remedy="raise max_bytes of the stream, or free space on the server's disk",
        )
    if int(error.get("code", 0)) >= 500 or "inflight" in lowered:
        return StoreUnavailableError(
            f"{name} cannot be used for now: {text}", remedy=_LOOK, details={"is_lost": False}
        )
    return StoreError(f"{name} refused: {text}", remedy="nothing of it was written")


def too_large(name: str) -> StoreError:
    """The error of a message that is larger than the server takes."""
    return StoreError(
        f"{name} takes no message of that size",
        remedy="raise max_payload in the server's configuration file",
    )


def _text(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [""])[0][:200] or type(error).__name__
