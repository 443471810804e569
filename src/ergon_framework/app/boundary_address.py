"""Where the node of a zone is reached, and with which certificates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ergon_framework.app.boundary import ZoneSetup, known_zone
from ergon_framework.boundary.http.addresses import split_address
from ergon_framework.boundary.http.client import HttpTransport
from ergon_framework.boundary.producing.options import TlsOptions, client_tls
from ergon_framework.boundary.settings import ZoneSettings
from ergon_framework.errors import ConfigurationError

_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - to be told from, not to bind


@dataclass(frozen=True, slots=True)
class NodeAddress:
    """A node's URL and what it takes to be let in."""

    url: str
    files: TlsOptions
    expected_zone: str | None = None
    """Whose certificate the node must show; then its host name need not match."""

    def connect(self, timeout: float) -> HttpTransport:
        """A client of that node; nothing is sent yet."""
        tls = client_tls(self.files)
        if tls is None and self.url.lower().startswith("https:"):
            raise ConfigurationError(
                f"{self.url} asks its callers for a certificate",
                remedy="give --cert, --key and --ca",
            )
        return HttpTransport(
            self.url, tls=tls, expected_zone=self.expected_zone, timeout=timeout, connections=2
        )


def node_address(
    config: str | Path | None = None,
    zone: str | None = None,
    url: str | None = None,
    files: TlsOptions | None = None,
    environ: Mapping[str, str] | None = None,
) -> NodeAddress:
    """Where options and settings say the node is.

    With a URL the settings only help out with certificates; without one they say where the zone
    listens, and without settings it is the usual port of this machine.
    """
    given: TlsOptions = {
        "cert": (files or {}).get("cert"),
        "key": (files or {}).get("key"),
        "ca": (files or {}).get("ca"),
    }
    has_files = any(given.values())
    if url is not None and (has_files or not url.lower().startswith("https:")):
        return NodeAddress(url, given)
    setup = known_zone(config, zone, environ)
    known = setup.settings if setup is not None else ZoneSettings()
    chosen = given if has_files else _files(known)
    if url is not None:
        return NodeAddress(url, chosen)
    return zone_address(setup, chosen)


def zone_address(setup: ZoneSetup | None, files: TlsOptions | None = None) -> NodeAddress:
    """Where the node of a zone listens, or that of no zone in particular."""
    known = setup.settings if setup is not None else ZoneSettings()
    chosen = _files(known) if files is None else files
    is_secure = any(chosen.values())
    expected = setup.name if setup is not None and is_secure else None
    return NodeAddress(_url(known.listen, is_secure=is_secure), chosen, expected)


def zone_meant(
    config: str | Path | None = None,
    zone: str | None = None,
    environ: Mapping[str, str] | None = None,
) -> ZoneSetup:
    """The zone whose stores are to be looked at, since no option names a folder."""
    setup = known_zone(config, zone, environ)
    if setup is None:
        raise ConfigurationError(
            "which folder? The settings name none",
            remedy="give --data DIR, or write data under [zones.NAME] in ergon.toml",
        )
    return setup


def _files(settings: ZoneSettings) -> TlsOptions:
    return {"cert": settings.cert, "key": settings.key, "ca": settings.ca}


def _url(listen: str, *, is_secure: bool) -> str:
    host, port = split_address(listen)
    if port == 0:
        raise ConfigurationError(
            "the settings let the node choose its port",
            remedy="give --url with the address that the node printed when it was ready",
        )
    host = _EVERYWHERE.get(host, host)
    spelled = f"[{host}]" if ":" in host else host
    return f"{'https' if is_secure else 'http'}://{spelled}:{port}"
