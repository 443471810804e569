"""What it means for a client that it and a node do not trust each other."""

from __future__ import annotations

import ssl

from ergon_framework.errors import NotPermittedError, describe

_REFUSALS = {
    "CERTIFICATE_REQUIRED": "it asks for a certificate, and this client shows none",
    "UNKNOWN_CA": "it does not know the authority of this client's certificate",
    "CERTIFICATE_EXPIRED": "this client's certificate has expired",
    "CERTIFICATE_REVOKED": "this client's certificate was withdrawn",
    "CERTIFICATE_UNKNOWN": "it does not accept this client's certificate",
    "BAD_CERTIFICATE": "this client's certificate is damaged, or not valid yet",
    "UNSUPPORTED_CERTIFICATE": "this client's certificate is not made for clients",
    "ACCESS_DENIED": "it does not let this client in",
    "PROTOCOL_VERSION": "this client does not speak its version of TLS",
}
"""Alerts of a node, by the end of their names: the beginnings differ with the version of TLS."""
_OLD = "PROTOCOL_VERSION"
# A peer that vanishes in the middle is no matter of trust.
_GONE = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)


def distrust_of_handshake(url: str, error: BaseException) -> NotPermittedError | None:
    """What a handshake that failed says about trust, if it does. Nothing was sent."""
    if not isinstance(error, ssl.SSLError) or isinstance(error, _GONE):
        return None
    if isinstance(error, ssl.SSLCertVerificationError):
        return _unauthenticated(
            f"this client does not trust {url}: {error.verify_message or describe(error)}",
            "check the node's certificate, its dates and names, and the CA given here",
        )
    return distrust_of_use(url, error) or _unauthenticated(
        f"{url} and this client do not trust each other: {describe(error)}",
        "check the certificates of both sides, their dates and the CA",
    )


def distrust_of_use(url: str, error: BaseException) -> NotPermittedError | None:
    """The node's refusal, if a connection failed because of one. Nothing was done.

    A node looks at a client's certificate when the client's handshake has ended already, so its
    alert comes instead of the first answer. When the connection broke while a long request was
    being sent, the alert is what was read then: the context of the error.
    """
    alert = _alert(error) or _alert(error.__context__)
    if alert not in _REFUSALS:
        return None
    return _unauthenticated(
        f"{url} does not trust this client: {_REFUSALS[alert]}",
        "use TLS 1.3"
        if alert == _OLD
        else "check this client's certificate, its dates, and the CA that the node was given",
    )


def _alert(error: BaseException | None) -> str:
    reason = error.reason if isinstance(error, ssl.SSLError) else None
    return (reason or "").rpartition("ALERT_")[2]


def _unauthenticated(message: str, remedy: str) -> NotPermittedError:
    return NotPermittedError(message, code="unauthenticated", reason="tls", remedy=remedy)
