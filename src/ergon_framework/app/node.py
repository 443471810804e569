"""The node of a zone: where it can be reached, and serving it until a signal asks it to stop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from ergon_framework.app.signals import SignalListener, StopSignals
from ergon_framework.app.zones import ZoneSetup, known_zone
from ergon_framework.boundary.client.options import TlsOptions, client_tls
from ergon_framework.boundary.client.transport import Transport
from ergon_framework.boundary.data_folder import listening_node
from ergon_framework.boundary.http.addresses import split_address
from ergon_framework.boundary.http.client import HttpTransport
from ergon_framework.boundary.settings import ZoneSettings
from ergon_framework.boundary.store_urls import folders_of
from ergon_framework.errors import ConfigurationError
from ergon_framework.storage import failpoints

_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - to be told from, not to bind


@dataclass(frozen=True, slots=True)
class NodeAddress:
    """A node's URL and what it takes to be let in."""

    url: str
    files: TlsOptions
    expected_zone: str | None = None
    """Whose certificate the node must show; then its host name need not match."""
    token: str | None = field(default=None, repr=False)
    """What a node wants to see that serves only its own user."""
    asked_zone: str | None = None
    """Whose node it must be, where no certificate proves it."""

    def connect(self, timeout: float) -> HttpTransport:
        """A client of that node; nothing is sent yet."""
        tls = client_tls(self.files)
        if tls is None and self.url.lower().startswith("https:"):
            raise ConfigurationError(
                f"{self.url} asks its callers for a certificate",
                remedy="give --cert, --key and --ca",
            )
        return HttpTransport(
            self.url,
            tls=tls,
            expected_zone=self.expected_zone,
            token=self.token,
            asked_zone=self.asked_zone,
            timeout=timeout,
            connections=2,
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
        return NodeAddress(url, given, asked_zone=None if has_files else zone)
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
    if setup is not None and (private := _private_address(setup)) is not None:
        return private
    name = None if setup is None else setup.name
    expected, asked = (name, None) if is_secure else (None, name)
    url = _url(known.listen, is_secure=is_secure)
    return NodeAddress(url, chosen, expected, asked_zone=asked)


def reach_node(
    timeout: float,
    config: str | Path | None = None,
    zone: str | None = None,
    url: str | None = None,
    files: TlsOptions | None = None,
) -> Transport:
    """A client of the node that options and settings mean; nothing is sent yet.

    The zone of a script need not be served: then this process serves it for as long as it asks.
    """
    setup = known_zone(config, zone) if url is None and not any((files or {}).values()) else None
    if setup is not None:
        return reach_zone(setup, timeout)
    return node_address(config, zone, url, files).connect(timeout)


def reach_zone(setup: ZoneSetup, timeout: float) -> Transport:
    """The same for a zone whose settings are known."""
    folder = _private_folder(setup)
    if folder is not None and folder.is_dir():
        from ergon_framework.boundary.node.local_node import LocalTransport

        return LocalTransport(setup.name, setup.settings, timeout=timeout)
    return zone_address(setup).connect(timeout)


def _private_folder(setup: ZoneSetup) -> Path | None:
    """The folder of a zone whose node listens on no fixed address; None if it does."""
    if split_address(setup.settings.listen)[1] != 0 or setup.settings.cert is not None:
        return None
    folders = folders_of(setup.settings)
    return folders[0] if folders else None


def _private_address(setup: ZoneSetup) -> NodeAddress | None:
    """Where the zone of a script is served now; None when its port was chosen by somebody."""
    folder = _private_folder(setup)
    found = None if folder is None else listening_node(folder, setup.name)
    if found is None:
        return None
    return NodeAddress(found.url, {}, token=found.token or None)


def zone_meant(
    config: str | Path | None = None,
    zone: str | None = None,
    environ: Mapping[str, str] | None = None,
) -> ZoneSetup:
    """The zone of the settings that a command is about, as no option names a folder."""
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
            "the settings let the node choose its port, and no process of this machine serves it",
            remedy="start the program that serves it, or give --url with the address that the node"
            " printed when it was ready",
        )
    host = _EVERYWHERE.get(host, host)
    host_text = f"[{host}]" if ":" in host else host
    return f"{'https' if is_secure else 'http'}://{host_text}:{port}"


class _NodeStop:
    """Stops the node's event loop from a signal handler, also when the signal comes before the
    loop.
    """

    def __init__(self) -> None:
        self._ask: Callable[[], object] = lambda: None
        self._is_asked = False

    def attach(self, loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
        """Set the event that stops the loop: at once if a signal has already come."""
        # In this order, and in ask() the other way round: whichever of the two comes second sees
        # the first.
        self._ask = lambda: loop.call_soon_threadsafe(stop.set)
        if self._is_asked:
            stop.set()

    def ask(self, _count: int) -> None:
        """A signal asks for a graceful stop."""
        self._is_asked = True
        with suppress(RuntimeError):  # the loop is closed: it has ended by itself
            self._ask()


def serve(setup: ZoneSetup, ready: Callable[[str], None]) -> None:
    """Run the node until a signal asks it to stop; ``ready`` is told where it listens."""
    # Imported late, because a command that only asks for an address needs no node; but before the
    # check, because the node's modules declare its failpoints.
    from ergon_framework.boundary.node.node import run_node

    failpoints.check()
    stopping = _NodeStop()
    last_words = "stopped by force; what was acknowledged is on disk"
    stops = StopSignals(stopping.ask, force_at=2, last_words=last_words)
    with SignalListener(stops.take):

        async def run() -> None:
            stop = asyncio.Event()
            stopping.attach(asyncio.get_running_loop(), stop)
            await run_node(setup.name, setup.settings, ready=ready, stop=stop)

        asyncio.run(run())
