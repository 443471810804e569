"""NATS errors, translated into errors of our own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from ergon_framework.errors import (
    ConfigurationError,
    ErgonError,
    StoreError,
    StoreFullError,
    StoreUnavailableError,
)
from ergon_framework.storage import connection_errors
from ergon_framework.storage.nats.address import TLS_OPTIONS, NatsAddress

WRONG_SEQUENCE = 10071
NO_STREAM = 10059
NO_MESSAGE = 10037
NO_JETSTREAM = frozenset({10039, 10076})
"""JetStream is not enabled for the account, or not on the server."""
_FIRST = replace(TLS_OPTIONS, plain="leave out tls_first unless it has handshake_first; nats://")
_SILENT = "expecting info"
_ACCESS_DENIED = ("authorization", "authentication", "permissions", "account")
_FULL = ("maximum bytes", "maximum messages", "insufficient", "storage")
_TOO_LARGE = ("maxpayload", "maximum payload", "message size")
_REMEDY = "see that the server runs and can be reached: nats server check connection"


class PermissionsError(Exception):
    """What a server says of a subject that this user may not publish to, or subscribe to."""


class NatsForbiddenError(StoreUnavailableError):
    """The server is there, and this user lacks a permission, until somebody gives it back."""

    is_refusal: ClassVar[bool] = True


def refused(address: NatsAddress, error: BaseException) -> ErgonError | None:
    """The error of a server that refuses these credentials or this TLS setting every time."""
    name, text = address.name, str(error)
    if type(error).__name__ == "PlainServerError":
        return connection_errors.plain(name, TLS_OPTIONS)
    about_tls = connection_errors.refused(
        name, text, _FIRST if address.is_tls_first else TLS_OPTIONS
    )
    if about_tls is not None:
        return about_tls
    if any(each in text.lower() for each in _ACCESS_DENIED):
        return ConfigurationError(f"{name} does not let this user in", remedy=_who(address))
    return None


def expired(name: str) -> ConfigurationError:
    """The error of credentials that do not count any more."""
    return ConfigurationError(
        f"{name} does not let this user in: the JWT of the credentials has expired",
        remedy="have new credentials made, and put them where creds in the URL says",
    )


def _who(address: NatsAddress) -> str:
    if address.creds is not None:
        return "name the credentials of a user whom an account of this server knows: ?creds=FILE"
    if address.nkey is not None:
        return "name the seed whose public key the server's configuration has: ?nkey=FILE"
    return (
        "correct the user and the password, or the token, in the URL; a server that goes by keys"
        " wants ?creds=FILE or ?nkey=FILE"
    )


def away(name: str, error: BaseException) -> StoreUnavailableError:
    """The error of a server that could not be reached."""
    first = "; if it has handshake_first in its tls block, write ?tls_first=yes in the URL"
    remedy = _REMEDY + (first if _SILENT in str(error).lower() else "")
    return StoreUnavailableError(
        f"{name} cannot be reached: {_text(error)}", remedy=remedy, details={"is_lost": False}
    )


def lost(name: str, error: BaseException) -> ErgonError:
    """The error of a request without a reply."""
    if type(error).__name__ == "MaxPayloadError":
        return too_large(name)
    if isinstance(error, PermissionsError):
        return NatsForbiddenError(
            f"{name} does not let this user do that: {_text(error)}",
            remedy=f"allow {_right(error)} in the permissions of the user, and have the server"
            " reload them; what was asked is then asked again",
            details={"is_lost": False},
        )
    return StoreUnavailableError(
        f"{name} did not answer: {_text(error)}; whether it did what was asked is not known",
        remedy=f"do the same again, nothing is stored twice; {_REMEDY}",
        details={"is_lost": True},
    )


def _right(error: PermissionsError) -> str:
    """What is to be allowed, where the subject that was refused is one of very many."""
    text = str(error).lower()
    if 'subscription to "_inbox.' in text:
        return "it to subscribe to _INBOX.>, where answers come,"
    if 'publish to "$js.ack.' in text:
        return "it to publish to $JS.ACK.>, which says how deliveries end,"
    return "the subject"


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
    """The error of a stream that has no leader at the moment."""
    return StoreUnavailableError(
        f"{name} has nobody who serves the stream just now",
        remedy="wait until the server has read its files, or the cluster has chosen a leader; if"
        " that takes long, see whether the stream is still there",
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
            f"{name} cannot be used for now: {text}", remedy=_REMEDY, details={"is_lost": False}
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
