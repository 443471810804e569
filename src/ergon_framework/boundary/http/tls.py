"""TLS 1.3 with certificates on both sides, which may be renewed while everything runs.

Also here: which zone a certificate speaks for, and a handshake that delivers its alert. When a
handshake fails, OpenSSL writes an alert that says so, and asyncio closes the connection without
sending it. Here a refused handshake asks for more bytes instead, as one under way does, which sends
what there is to send. From then on it never succeeds, and throws away what comes in.
"""

from __future__ import annotations

import asyncio
import os
import re
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import quote, unquote_to_bytes

from ergon_framework.boundary.reloading import ReloadingFile, Told
from ergon_framework.errors import (
    ConfigurationError,
    ErgonError,
    NotPermittedError,
    describe,
)

__all__ = ["Certificates", "client_context", "peer_identity", "server_context"]


SCHEME = "bsfg://zone/"
_NAME = re.compile(r"[^\x00-\x1f\x7f]{1,128}")


def zone_uri(zone: str) -> str:
    """A zone's name as the subject alternative name of its certificate."""
    return SCHEME + quote(zone, safe="")


def peer_identity(certificate: Mapping[str, Any] | None) -> str:
    """The zone in the SAN URI ``bsfg://zone/<name>``, else the common name; a certificate without
    either is an error.

    ``certificate`` is what ``getpeercert()`` gives. One that names two zones is refused: its signer
    may have checked only one of them.
    """
    if not certificate:
        raise _unauthenticated("no certificate was presented")
    uris = [uri for uri in _uris(certificate) if uri.startswith(SCHEME)]
    if uris:
        names = [_decoded(uri.removeprefix(SCHEME)) for uri in uris]
    else:
        names = list(_common_names(certificate))
    if len(names) != 1:
        raise _unauthenticated("the certificate names " + ("two zones" if names else "no zone"))
    if not _NAME.fullmatch(names[0]):
        raise _unauthenticated("the name in the certificate is no zone's")
    return names[0]


def _uris(certificate: Mapping[str, Any]) -> Iterator[str]:
    return (value for kind, value in certificate.get("subjectAltName", ()) if kind == "URI")


def _common_names(certificate: Mapping[str, Any]) -> Iterator[str]:
    for part in certificate.get("subject", ()):
        yield from (value for kind, value in part if kind == "commonName")


def _decoded(text: str) -> str:
    try:
        return unquote_to_bytes(text).decode()
    except UnicodeDecodeError:
        raise _unauthenticated("the zone in the certificate is not UTF-8") from None


def _unauthenticated(problem: str) -> NotPermittedError:
    return NotPermittedError(
        problem,
        code="unauthenticated",
        reason="no_identity",
        remedy=f"use a certificate with one SAN URI {SCHEME}<name>, or one common name",
    )


SHUTDOWN_TIMEOUT = 2.0
"""Seconds for a client to say goodbye in TLS."""

Refused = Callable[[ssl.SSLError], None]


class ProbeDisconnected(ConnectionResetError):
    """The client connected and closed without sending a byte, as a health probe does."""


@dataclass(slots=True)
class HandshakeObserver:
    """Observes a handshake, to report why it failed."""

    on_refused: Refused
    has_heard: bool = False
    """Whether the client has sent anything."""


# asyncio makes the object that does the handshake, so this is how it learns whose handshake it is.
_observer: ContextVar[HandshakeObserver | None] = ContextVar("handshake_observer", default=None)


@contextmanager
def observed_handshake(on_refused: Refused) -> Iterator[HandshakeObserver]:
    """Observe the handshake that a ``ServerContext`` begins meanwhile, in this thread or task."""
    observer = HandshakeObserver(on_refused)
    token = _observer.set(observer)
    try:
        yield observer
    finally:
        _observer.reset(token)


async def secured(
    raw: asyncio.Transport,
    protocol: asyncio.BaseProtocol,
    context: ssl.SSLContext,
    on_refused: Refused,
    seconds: float,
) -> asyncio.Transport:
    """The encrypted transport, once the client has shown who it is.

    When the client is refused with an alert, ``on_refused`` is called right before it is sent. The
    connection stays open for the client to read it, until ``raw`` or the client ends it.
    """
    with observed_handshake(on_refused) as observer:
        try:
            transport = await asyncio.get_running_loop().start_tls(
                raw,
                protocol,
                context,
                server_side=True,
                ssl_handshake_timeout=seconds,
                ssl_shutdown_timeout=SHUTDOWN_TIMEOUT,
            )
        except ConnectionResetError:
            if not observer.has_heard:
                raise ProbeDisconnected("it hung up without a word") from None
            raise
    if transport is None:
        is_probe = not observer.has_heard
        raise (ProbeDisconnected if is_probe else ConnectionResetError)("it hung up")
    return transport


class _Handshake(ssl.SSLObject):
    """The server's side of one connection."""

    incoming: ssl.MemoryBIO
    outgoing: ssl.MemoryBIO
    observer: HandshakeObserver | None = None
    _is_refused = False

    def do_handshake(self) -> None:
        """Do one step of the handshake. After a refusal, only wait for the client to hang up."""
        if self.observer is not None and self.incoming.pending:
            self.observer.has_heard = True
        if not self._is_refused:
            try:
                super().do_handshake()
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                raise
            except ssl.SSLError as error:
                if self.observer is None or not self.outgoing.pending:  # there is no alert
                    raise
                self._is_refused = True
                self.observer.on_refused(error)
            else:
                self.observer = None  # a connection lives long, and the observer is done
                return
        self.incoming.read()
        raise ssl.SSLWantReadError


class ServerContext(ssl.SSLContext):
    """A context whose connections do their handshake that way, when ``secured`` begins it."""

    sslobject_class = _Handshake

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        """Wrap a connection whose bytes the caller transports."""
        made = super().wrap_bio(incoming, outgoing, server_side, server_hostname, session)
        if isinstance(made, _Handshake):
            made.incoming, made.outgoing = incoming, outgoing
            made.observer = _observer.get()
        return made


File = str | os.PathLike[str]


def server_context(cert: File, key: File, ca: File, crl: File | None = None) -> ssl.SSLContext:
    """A context that asks every client for a certificate signed by ``ca``."""
    context = ServerContext(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = ssl.CERT_REQUIRED
    context.num_tickets = 0  # a resumed session would not look at the certificate again
    return _filled(context, cert, key, ca, crl)


def client_context(cert: File, key: File, ca: File, crl: File | None = None) -> ssl.SSLContext:
    """A context that shows a certificate, and trusts servers whose own is signed by ``ca``.

    It checks the host name. A caller that expects a zone instead sets ``check_hostname`` to false
    and compares ``peer_identity``.
    """
    return _filled(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), cert, key, ca, crl)


def _filled(
    context: ssl.SSLContext, cert: File, key: File, ca: File, crl: File | None
) -> ssl.SSLContext:
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    _check_pem(ca, "CERTIFICATE")
    _check_pem(cert, "CERTIFICATE")
    _tried(ca, lambda: context.load_verify_locations(ca))
    if crl is not None:
        _check_pem(crl, "X509 CRL")
        _tried(crl, lambda: context.load_verify_locations(crl))
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
    _tried(f"{cert} with {key}", lambda: context.load_cert_chain(cert, key, _no_password))
    return context


@dataclass(frozen=True, slots=True)
class _Loaded:
    server: ssl.SSLContext
    client: ssl.SSLContext
    identity: str
    not_after: float


class Certificates:
    """A certificate with its key and its authority, for both sides, as the files are now.

    The files are checked for each connection. Files that do not fit together, because they are just
    being replaced or by mistake, are reported to ``on_problem``, and the old ones stay.
    """

    def __init__(
        self,
        cert: File,
        key: File,
        ca: File,
        crl: File | None = None,
        *,
        on_problem: Told | None = None,
        every: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        files = (cert, key, ca) if crl is None else (cert, key, ca, crl)

        def load() -> _Loaded:
            identity, not_after = _read_own(cert)
            server = server_context(cert, key, ca, crl)
            client = client_context(cert, key, ca, crl)
            return _Loaded(server, client, identity, not_after)

        self._files = ReloadingFile(files, load, on_problem=on_problem, every=every, clock=clock)

    def server(self) -> ssl.SSLContext:
        """The context for the next incoming connection."""
        return self._files.current().server

    def client(self) -> ssl.SSLContext:
        """The context for the next outgoing connection."""
        return self._files.current().client

    @property
    def identity(self) -> str:
        """The zone that the own certificate speaks for."""
        return self._files.current().identity

    @property
    def not_after(self) -> float:
        """When the own certificate ends, in Unix seconds."""
        return self._files.current().not_after

    @property
    def problem(self) -> ErgonError | None:
        """Why the files as they are now are not in use, if so."""
        return self._files.problem


def _read_own(cert: File) -> tuple[str, float]:
    """The zone of the first certificate in a file, and when it expires."""
    from cryptography import x509  # late: it takes its time, and a plain node needs none

    try:
        leaf = x509.load_pem_x509_certificate(Path(cert).read_bytes())
        extensions = leaf.extensions
    except (OSError, ValueError) as error:
        raise _unusable(cert, error) from error
    uris: list[str] = []
    for each in extensions:
        if isinstance(each.value, x509.SubjectAlternativeName):
            uris = each.value.get_values_for_type(x509.UniformResourceIdentifier)
    common = leaf.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
    certificate = {
        "subjectAltName": [("URI", uri) for uri in uris],
        "subject": [[("commonName", str(each.value))] for each in common],
    }
    try:
        return peer_identity(certificate), leaf.not_valid_after_utc.timestamp()
    except NotPermittedError as error:
        raise ConfigurationError(
            f"{cert} cannot be used: {error.message}", remedy=error.remedy
        ) from error


def _check_pem(path: File, kind: str) -> None:
    """OpenSSL overlooks the end of a bundle that was cut off; we do not."""
    try:
        text = Path(path).read_bytes()
    except OSError as error:
        raise _unusable(path, error) from error
    begins, ends = (text.count(f"-----{word} {kind}-----".encode()) for word in ("BEGIN", "END"))
    if not begins or begins != ends:
        raise ConfigurationError(
            f"{path} cannot be used: it does not hold whole PEM blocks of {kind.lower()}s",
            remedy="check that the file is complete and in PEM form",
        )


def _tried(what: object, step: Callable[[], None]) -> None:
    try:
        step()
    except (OSError, ValueError) as error:
        raise _unusable(what, error) from error


def _unusable(what: object, error: Exception) -> ConfigurationError:
    reason = getattr(error, "reason", None)
    if isinstance(error, ssl.SSLError) and reason:
        problem = str(reason).lower().replace("_", " ")
    else:
        problem = getattr(error, "strerror", None) or describe(error)
    return ConfigurationError(
        f"{what} cannot be used: {problem}",
        remedy="check the paths, that key and certificate belong together, and who may read them",
    )


def _no_password() -> NoReturn:
    raise ValueError("the key is encrypted, and nobody is there to type its password")
