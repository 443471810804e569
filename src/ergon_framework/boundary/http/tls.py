"""TLS 1.3 with certificates on both sides, which may be renewed while everything runs."""

from __future__ import annotations

import os
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from ergon_framework.boundary.http.handshake import ServerContext
from ergon_framework.boundary.http.identity import peer_identity
from ergon_framework.boundary.watched import Told, Watched
from ergon_framework.errors import (
    ConfigurationError,
    ErgonError,
    NotPermittedError,
    describe,
)

__all__ = ["Certificates", "client_context", "peer_identity", "server_context"]

File = str | os.PathLike[str]


def server_context(cert: File, key: File, ca: File, crl: File | None = None) -> ssl.SSLContext:
    """A context that asks every client for a certificate signed by ``ca``."""
    context = ServerContext(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = ssl.CERT_REQUIRED
    context.num_tickets = 0  # a resumed session would not look at the certificate again
    return _filled(context, cert, key, ca, crl)


def client_context(cert: File, key: File, ca: File, crl: File | None = None) -> ssl.SSLContext:
    """A context that shows a certificate, and trusts servers whose own is signed by ``ca``.

    It checks the host name. Who expects a certain zone instead, sets ``check_hostname`` to false
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

    They are looked at for each connection. Files that do not fit together, because somebody is
    just replacing them or made a mistake, are told to ``on_problem``, and the old ones stay.
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

        self._files = Watched(files, load, on_problem=on_problem, every=every, clock=clock)

    def server(self) -> ssl.SSLContext:
        """For the next connection that somebody makes to us."""
        return self._files.current().server

    def client(self) -> ssl.SSLContext:
        """For the next connection that we make."""
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
    """Whom the first certificate of a file speaks for, and until when."""
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
    shape = {
        "subjectAltName": [("URI", uri) for uri in uris],
        "subject": [[("commonName", str(each.value))] for each in common],
    }
    try:
        return peer_identity(shape), leaf.not_valid_after_utc.timestamp()
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
