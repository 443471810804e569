"""Who a certificate speaks for."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote, unquote_to_bytes

from ergon_framework.errors import NotPermittedError

SCHEME = "bsfg://zone/"
_NAME = re.compile(r"[^\x00-\x1f\x7f]{1,128}")


def zone_uri(zone: str) -> str:
    """A zone's name as the subject alternative name of its certificate."""
    return SCHEME + quote(zone, safe="")


def peer_identity(certificate: Mapping[str, Any] | None) -> str:
    """The zone in the SAN URI ``bsfg://zone/<name>``, else the common name; nobody is an error.

    ``certificate`` is what ``getpeercert()`` gives. One that names two zones names none: whoever
    signed it may have looked at the other one.
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
