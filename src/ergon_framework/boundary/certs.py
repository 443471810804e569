"""A certificate authority for development and tests: not for a plant."""

from __future__ import annotations

import datetime as dt
import ipaddress
import os
import secrets
import shlex
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from ergon_framework.boundary.http.tls import zone_uri
from ergon_framework.errors import ConfigurationError

HOSTS = ("localhost", "127.0.0.1", "::1")
CA = "ca"
_COMMON_NAME = 64  # characters, the most that X.509 allows


def make_ca(
    folder: str | os.PathLike[str],
    *,
    name: str = "Ergon development CA",
    days: float = 3650,
    not_before: dt.datetime | None = None,
    not_after: dt.datetime | None = None,
    force: bool = False,
) -> tuple[Path, Path]:
    """Make ``ca.pem`` and ``ca.key`` in a folder."""
    paths = _paths(folder, CA, force=force)
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    begun = _begun(subject, subject, key.public_key(), *_span(days, not_before, not_after))
    built = (
        begun.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(is_ca=True), critical=True)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False
        )
    )
    return _written(paths, built.sign(key, hashes.SHA256()), key)


def issue(
    folder: str | os.PathLike[str],
    zone: str,
    *,
    hosts: Sequence[str] = HOSTS,
    days: float = 365,
    not_before: dt.datetime | None = None,
    not_after: dt.datetime | None = None,
    force: bool = False,
) -> tuple[Path, Path]:
    """Make a certificate and a key for a zone, signed by the authority in the folder.

    The files have the zone's name, percent-encoded where it could not be a file's. An empty zone
    gives a certificate without a zone.
    """
    if zone == CA:
        raise ConfigurationError(
            "a zone cannot be called 'ca' here: the authority's files are", remedy="rename the zone"
        )
    paths = _paths(folder, quote(zone, safe=" ") or "nobody", force=force)
    authority, signer = _read_ca(Path(folder))
    key = ec.generate_private_key(ec.SECP256R1())
    issuer = signer.public_key()
    is_short = 0 < len(zone) <= _COMMON_NAME
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, zone)] if is_short else [])
    span = _span(days, not_before, not_after)
    begun = _begun(subject, authority.subject, key.public_key(), *span)
    both = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    # Without a subject only these names identify the owner: RFC 5280 wants them critical then.
    names = x509.SubjectAlternativeName(_names(zone, hosts))
    built = (
        begun.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(is_ca=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(both), critical=False)
        .add_extension(names, critical=not is_short)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer), critical=False)
    )
    return _written(paths, built.sign(signer, hashes.SHA256()), key)


def _begun(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    not_before: dt.datetime,
    not_after: dt.datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(not_before)
        .not_valid_after(not_after)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _span(
    days: float, not_before: dt.datetime | None, not_after: dt.datetime | None
) -> tuple[dt.datetime, dt.datetime]:
    now = dt.datetime.now(dt.UTC)
    # A minute of grace for machines whose clocks differ a little.
    return (
        not_before or now - dt.timedelta(minutes=1),
        not_after or now + dt.timedelta(days=days),
    )


def _usage(*, is_ca: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=is_ca,
        crl_sign=is_ca,
        encipher_only=False,
        decipher_only=False,
    )


def _names(zone: str, hosts: Sequence[str]) -> list[x509.GeneralName]:
    names: list[x509.GeneralName] = []
    if zone:
        names.append(x509.UniformResourceIdentifier(zone_uri(zone)))
    for host in hosts:
        try:
            names.append(x509.IPAddress(ipaddress.ip_address(host)))
        except ValueError:
            names.append(x509.DNSName(host))
    return names


def _read_ca(folder: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    try:
        authority = x509.load_pem_x509_certificate((folder / "ca.pem").read_bytes())
        key = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), None)
    except (OSError, ValueError, TypeError) as error:
        raise ConfigurationError(
            f"{folder} holds no usable authority (ca.pem and ca.key)",
            remedy=f"make one first:  ergon boundary certs ca --folder {shlex.quote(str(folder))}",
        ) from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ConfigurationError(
            f"the key in {folder / 'ca.key'} is not one that was made here",
            remedy="make the authority with this tool, or sign certificates with your own",
        )
    return authority, key


def _paths(folder: str | os.PathLike[str], name: str, *, force: bool) -> tuple[Path, Path]:
    paths = Path(folder) / f"{name}.pem", Path(folder) / f"{name}.key"
    there = [path for path in paths if os.path.lexists(path)]
    if there and not force:
        raise ConfigurationError(
            f"{there[0]} is there already; nothing was changed",
            remedy="choose another folder, or force it, after which the old one is gone",
        )
    return paths


def _written(
    paths: tuple[Path, Path], certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey
) -> tuple[Path, Path]:
    secret = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    try:
        # Whatever the umask: who may write there could put another authority in its place.
        paths[0].parent.mkdir(0o755, parents=True, exist_ok=True)
        _replace(paths[1], secret, 0o600)
        _replace(paths[0], certificate.public_bytes(serialization.Encoding.PEM), 0o644)
    except OSError as error:
        raise ConfigurationError(
            f"{error.filename or paths[0].parent} cannot be written: {error.strerror}",
            remedy="check the folder and who may write there",
        ) from error
    return paths


def _replace(path: Path, content: bytes, mode: int) -> None:
    """Whole or not at all, and never readable by others for a moment."""
    draft = path.with_name(f".{secrets.token_hex(8)}.new")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        draft.replace(path)
    except OSError:
        draft.unlink(missing_ok=True)
        raise
