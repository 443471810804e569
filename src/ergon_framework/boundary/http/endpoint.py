"""Where a node is, how to trust it, and what it means when it cannot be reached.

A connection that ends during or after the handshake may mean that one side does not trust the
other; the error says which.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from typing import TypeAlias
from urllib.parse import SplitResult, unquote, urlsplit

from ergon_framework.boundary.http.addresses import is_loopback
from ergon_framework.boundary.http.codec import (
    ZONE_HEADER,
    call_prefix,
    object_target,
    request_head,
)
from ergon_framework.errors import (
    BoundaryError,
    ConfigurationError,
    NodeUnavailableError,
    NotPermittedError,
    describe,
)

_REFUSALS = {
    "CERTIFICATE_REQUIRED": "it asks for a certificate, and this client shows none",
    "UNKNOWN_CA": "it does not know the authority of this client's certificate",
    "CERTIFICATE_EXPIRED": "this client's certificate has expired, or its list of revoked ones",
    "CERTIFICATE_REVOKED": "this client's certificate was withdrawn",
    "CERTIFICATE_UNKNOWN": "it does not accept this client's certificate",
    "BAD_CERTIFICATE": "this client's certificate is damaged, or not valid yet",
    "UNSUPPORTED_CERTIFICATE": "this client's certificate is not made for clients",
    "ACCESS_DENIED": "it does not let this client in",
    "PROTOCOL_VERSION": "this client does not speak its version of TLS",
}
"""Alerts of a node, by the end of their names: the beginnings differ with the version of TLS."""
_OLD_PROTOCOL = "PROTOCOL_VERSION"
# A peer that vanishes in the middle is no matter of trust.
_DISCONNECTS = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)


def refusal_of_handshake(url: str, error: BaseException) -> NotPermittedError | None:
    """What a handshake that failed says about trust, if it does. Nothing was sent."""
    if not isinstance(error, ssl.SSLError) or isinstance(error, _DISCONNECTS):
        return None
    if isinstance(error, ssl.SSLCertVerificationError):
        return _unauthenticated(
            f"this client does not trust {url}: {error.verify_message or describe(error)}",
            "check the node's certificate, its dates and names, and the CA given here",
        )
    return refusal_of_certificate(url, error) or _unauthenticated(
        f"{url} and this client do not trust each other: {describe(error)}",
        "check the certificates of both sides, their dates and the CA",
    )


def refusal_of_certificate(url: str, error: BaseException) -> NotPermittedError | None:
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
        if alert == _OLD_PROTOCOL
        else "check this client's certificate, its dates, and the CA that the node was given",
    )


def _alert(error: BaseException | None) -> str:
    reason = error.reason if isinstance(error, ssl.SSLError) else None
    return (reason or "").rpartition("ALERT_")[2]


def _unauthenticated(message: str, remedy: str) -> NotPermittedError:
    return NotPermittedError(message, code="unauthenticated", reason="tls", remedy=remedy)


Tls: TypeAlias = ssl.SSLContext | Callable[[], ssl.SSLContext] | None
"""A context, or what makes one for each new connection, so that certificates may be renewed."""

PORTS = {"http": 80, "https": 443}
UNKNOWN_OUTCOME = "the outcome is unknown: repeat the call with the same id and content"


class Endpoint:
    """The address of a node, and requests to it as bytes."""

    def __init__(
        self,
        url: str,
        tls: Tls,
        expected_zone: str | None,
        token: str | None = None,
        asked_zone: str | None = None,
    ) -> None:
        parts, self.host, self.port = _taken_apart(url)
        self.url = url
        self.is_secure = parts.scheme == "https"
        self.expected_zone = expected_zone
        self.asked_zone = asked_zone
        """The zone that the node must name if no certificate does. A node that names none is
        accepted.
        """
        self._tls = tls
        self._prefix = parts.path.rstrip("/")
        self._name = parts.netloc.rpartition("@")[2]
        self._calls: dict[str, bytes] = {}
        self._headers = [("Authorization", f"Bearer {token}")] if token else []
        self._check_trust()

    def _check_trust(self) -> None:
        if self.is_secure:
            return
        if self._tls is not None or self.expected_zone is not None:
            raise ConfigurationError(
                f"{self.url} is not encrypted, although certificates or a zone were given",
                remedy="use https://",
            )
        if not is_loopback(self.host):
            raise ConfigurationError(
                f"{self.url} would send facts over the network unencrypted",
                remedy="use https:// and certificates; http:// is for this machine only",
            )

    def context(self) -> ssl.SSLContext | None:
        """How to trust the node on a new connection; None without encryption."""
        if not self.is_secure:
            return None
        if self._tls is None:
            self._tls = ssl.create_default_context()
        if isinstance(self._tls, ssl.SSLContext):
            context = self._tls
            # Where a zone is expected, that of the certificate is compared instead of the name.
            context.check_hostname = context.check_hostname and self.expected_zone is None
        else:
            context = self._tls()
            context.check_hostname = self.expected_zone is None
        return context

    def check_zone(self, certificate: Mapping[str, object] | None) -> None:
        """Refuse a node of another zone than the one expected."""
        if self.expected_zone is None:
            return
        from ergon_framework.boundary.http.tls import peer_identity

        zone = peer_identity(certificate)
        if zone != self.expected_zone:
            raise self._other_zone(zone, self.expected_zone)

    def look(self) -> bytes:
        """A request whose answer names the zone, for a connection without certificates."""
        return request_head("GET", f"{self._prefix}/livez", self._name, self._headers)

    def check_name(self, headers: Mapping[str, str]) -> None:
        """Refuse a node that names another zone than the one asked for."""
        named, wanted = headers.get(ZONE_HEADER), self.asked_zone
        if named is not None and wanted is not None and unquote(named) != wanted:
            raise self._other_zone(unquote(named), wanted)

    def _other_zone(self, zone: str, wanted: str) -> NotPermittedError:
        return NotPermittedError(
            f"{self.url} is zone {zone!r}, not {wanted!r}",
            code="unauthenticated",
            reason="zone_mismatch",
            remedy="correct the URL, or the name of the zone",
        )

    # ---- requests ----

    def call(self, method: str, body: bytes) -> bytes:
        """A unary call, whole."""
        prefix = self._calls.get(method)
        if prefix is None:
            target = f"{self._prefix}/{method}"
            prefix = self._calls[method] = call_prefix(target, self._name, self._headers)
        return b"%b%d\r\n\r\n%b" % (prefix, len(body), body)

    def object_request(
        self, method: str, bucket: str, key: str, headers: list[tuple[str, str]]
    ) -> bytes:
        """The head of a request for an object."""
        target = object_target(self._prefix, bucket, key)
        return request_head(method, target, self._name, [*self._headers, *headers])

    def put_head(self, bucket: str, key: str, size: int, digest: str | None) -> bytes:
        """The head of a put."""
        headers = [("Content-Type", "application/octet-stream"), ("Content-Length", str(size))]
        if digest is not None:
            headers.append(("Digest-SHA256", digest))
        return self.object_request("PUT", bucket, key, headers)

    def get_head(
        self,
        bucket: str,
        key: str,
        start: int,
        digest: bytes | None,
        fact_offset: int | None = None,
    ) -> bytes:
        """The head of a get."""
        headers = [("Range", f"bytes={start}-")] if start else []
        target = object_target(self._prefix, bucket, key)
        asked = {
            "digest": None if digest is None else digest.hex(),
            "fact_offset": fact_offset,
        }
        query = "&".join(f"{name}={value}" for name, value in asked.items() if value is not None)
        target = f"{target}?{query}" if query else target
        return request_head("GET", target, self._name, [*self._headers, *headers])

    # ---- trouble ----

    def unreachable(self, error: BaseException) -> BoundaryError:
        """The error if no connection was made: nothing was sent."""
        if isinstance(error, BoundaryError):
            return error
        return refusal_of_handshake(self.url, error) or NodeUnavailableError(
            f"cannot connect to {self.url}: {describe(error)}",
            reason="connect_failed",
            remedy="check the address, and that the node is running",
        )

    def lost(self, error: BaseException) -> BoundaryError:
        """The error if a connection failed while it was used."""
        if isinstance(error, BoundaryError):
            return error
        if isinstance(error, TimeoutError):
            return NodeUnavailableError(
                f"{self.url} did not answer in time",
                code="deadline_exceeded",
                reason="timeout",
                remedy=UNKNOWN_OUTCOME,
            )
        return refusal_of_certificate(self.url, error) or NodeUnavailableError(
            f"the connection to {self.url} was lost: {describe(error)}",
            reason="connection_lost",
            remedy=UNKNOWN_OUTCOME,
        )


def _taken_apart(url: str) -> tuple[SplitResult, str, int]:
    """The parts of a URL, its host and its port; what may be a secret in it is refused unseen."""
    remedy = "write http(s)://host:port"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ConfigurationError(
            "this is no URL of a node: its host or its port is wrong", remedy=remedy
        ) from None
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise ConfigurationError(
            "the URL of a node has a user, a password, a query or a fragment, which nobody reads",
            remedy=f"{remedy}; a node knows its callers by their certificates",
        )
    if parts.scheme not in PORTS or not parts.hostname:
        raise ConfigurationError(f"{url!r} is no URL of a node", remedy=remedy)
    return parts, parts.hostname, port or PORTS[parts.scheme]
