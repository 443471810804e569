"""A zone as a running process: it serves, it pulls from its peers, it maintains its stores."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable, Mapping

from ergon_framework.boundary.arguments import check_given
from ergon_framework.boundary.client.transport import AsyncTransport
from ergon_framework.boundary.data_folder import (
    FolderInUseError,
    FolderRequest,
    ListeningNode,
    announce,
    listening_node,
    withdraw,
)
from ergon_framework.boundary.http.addresses import check_plaintext, split_address
from ergon_framework.boundary.http.async_client import AsyncHttpTransport
from ergon_framework.boundary.http.exchange import Exchange
from ergon_framework.boundary.http.server import Server
from ergon_framework.boundary.http.tls import Certificates
from ergon_framework.boundary.maintenance import run_maintenance
from ergon_framework.boundary.node.app import (
    HealthApplication,
    NodeApplication,
    TokenApplication,
)
from ergon_framework.boundary.node.policy import Policy, PolicyFile
from ergon_framework.boundary.node.replication import Puller
from ergon_framework.boundary.settings import DAY, LimitSettings, ZoneSettings
from ergon_framework.boundary.store_urls import folders_of
from ergon_framework.boundary.telemetry import SUMMARY_INTERVAL, logger
from ergon_framework.boundary.zone import ZONE, LocalZone
from ergon_framework.engine.clocks import AsyncSignal
from ergon_framework.errors import ConfigurationError, ErgonError, StoreError, WiringError

__all__ = ["Node", "certificates_of", "run_node"]

SHUTDOWN_GRACE = 5.0
"""Seconds that running requests have to end."""
GUEST_TIMEOUT = 15.0
"""Seconds that a program has to leave which serves the zone in passing."""
GUEST_POLL_INTERVAL = 0.1
"""Seconds between two looks whether it has."""
HEALTH = LimitSettings(
    connections=64,
    body_bytes=1024,
    header_bytes=8192,
    idle_seconds=5.0,
    body_seconds=5.0,
    request_seconds=5.0,
)
"""What probes may take of a node."""
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - to be told from, not to bind
Connect = Callable[[str, str], AsyncTransport]
"""Makes the transport to a peer from its name and URL."""


class Node:
    """The node of a zone on the running event loop, from :meth:`start` to :meth:`stop`."""

    def __init__(
        self,
        name: str,
        settings: ZoneSettings,
        *,
        zone: LocalZone | None = None,
        connect: Connect | None = None,
        token: str | None = None,
        is_guest: bool = False,
    ) -> None:
        check_given({"name": name, "settings": settings}, ZONE)
        self.name = name
        self.settings = settings
        self._host, self._port = split_address(settings.listen)
        self._certificates = certificates_of(settings, self._certificates_rejected)
        if self._certificates is None:
            check_plaintext(self._host, settings.insecure)
        if settings.health_listen is not None:
            split_address(settings.health_listen)
        self._check_own_name()
        self._policy = self._read_policy()
        self._connect = connect or self._reach
        self._token = token
        self._checking: TokenApplication | None = None
        self._is_guest = is_guest
        self.zone = zone or LocalZone.open(name, settings)
        self._pullers: dict[str, Puller] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._is_started = self._has_listened = False

    @property
    def address(self) -> str:
        """The address on which the node listens, as ``host:port``."""
        self._check_started()
        return _spelled(*self._server.address)

    @property
    def health_address(self) -> str | None:
        """The address on which the node answers probes; None if it has none."""
        self._check_started()
        return None if self._health is None else _spelled(*self._health.address)

    @property
    def asked_at(self) -> float:
        """When the last request with a token came, on the event loop's clock; 0 when none has."""
        return 0.0 if self._checking is None else self._checking.asked_at

    async def start(self) -> None:
        """Serve, and begin to pull from every peer."""
        if self._is_started:
            raise WiringError(
                f"the node of zone {self.name!r} has been started already",
                remedy="start it once, or stop it first",
            )
        zone = self.zone
        self._application = NodeApplication(zone, self._policy, on_contact=self._wake_pullers)
        if self._token:
            self._checking = TokenApplication(self._application, self._token)
        self._server = Server(
            self._checking or self._application,
            host=self._host,
            port=self._port,
            limits=self.settings.limits,
            tls=self._certificates,
            names=None if self._certificates else (self._host, *self.settings.names),
            on_denied=self._turned_away,
            on_error=self._log_failure_of,
        )
        self._health = self._health_server()
        try:
            self._transports = {
                peer: self._connect(peer, url) for peer, url in self.settings.peers.items()
            }
            await self._server.start()
            if self._health is not None:
                await self._health.start()
        except BaseException:
            await self._server.stop(0.0)
            await self._application.close()
            raise
        self._is_started = self._has_listened = True
        self._announce()
        for peer, transport in self._transports.items():
            puller = self._pullers[peer] = Puller(
                zone,
                peer,
                transport,
                in_thread=self._application.in_thread,
                policy=self._policy,
            )
            self._tasks.append(asyncio.create_task(puller.run(), name=f"pull {peer}"))
        self._tasks.append(asyncio.create_task(self._keep(), name="maintenance"))
        self._tasks.append(asyncio.create_task(self._tell_sums(), name="tell sums"))
        zone.events.tell("zone.started", zone=self.name, address=self.address)

    async def stop(self, grace: float = SHUTDOWN_GRACE) -> None:
        """Let running requests end, then close everything. Does nothing if no node runs."""
        if not self._is_started:
            return
        self._is_started = False
        for puller in self._pullers.values():
            puller.stop()
        await self.hang_up(grace)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(puller.leave() for puller in self._pullers.values()))
        self._tasks.clear()
        self._pullers.clear()
        for transport in self._transports.values():
            await transport.close()
        if self._health is not None:
            await self._health.stop(grace)
        await self._application.close()
        self.zone.events.tell_sums(is_last=True)
        self.zone.events.tell("zone.stopped", zone=self.name)

    async def hang_up(self, grace: float = SHUTDOWN_GRACE) -> None:
        """Let requests end and accept no more: all that can be done when the interpreter ends."""
        # First: a client that reads the address from now on would be refused.
        self._withdraw()
        self._application.is_ready = False
        # Fetches that wait for facts answer now: they would take the whole grace.
        self._application.release()
        await self._server.stop(grace)

    def close(self) -> None:
        """Close the zone itself, when everything else has stopped."""
        self.zone.close()

    # ---- for other processes of this machine ----

    def _announce(self) -> None:
        """Write the node's address into the zone's folder, for processes that find it locked."""
        if not self.zone.folders:
            return
        host, port = self._server.address
        scheme = "http" if self._certificates is None else "https"
        url = f"{scheme}://{_spelled(_EVERYWHERE.get(host, host), port)}"
        node = ListeningNode(url, self._token or "", self._is_guest, self.name)
        try:
            announce(self.zone.folders[0], node)
        except OSError as error:  # those who know the address find the node all the same
            logger.warning("the node's address cannot be left in its folder: %s", error.strerror)

    def _withdraw(self) -> None:
        if self.zone.folders:
            withdraw(self.zone.folders[0])

    # ---- what happens meanwhile ----

    async def _tell_sums(self) -> None:
        signal, loop = AsyncSignal(), asyncio.get_running_loop()
        while True:
            await signal.wait(loop.time() + SUMMARY_INTERVAL)
            self.zone.events.tell_sums()

    async def _keep(self) -> None:
        """Retention, orphans and what a certificate's end means for the status, round by round."""
        signal, loop = AsyncSignal(), asyncio.get_running_loop()
        every = self.settings.retention.every
        thorough_at = loop.time()
        while True:
            if self._certificates is not None:
                self.zone.certificate_expiry = self._certificates.not_after
            is_thorough = loop.time() >= thorough_at
            try:
                await self._application.in_thread(
                    lambda is_thorough=is_thorough: run_maintenance(  # type: ignore[misc]
                        self.zone,
                        is_thorough=is_thorough,
                        is_stopping=lambda: not self._application.is_ready,
                    )
                )
            except StoreError as error:
                self.zone.failed(error)
            except Exception as error:  # the next round may go better
                logger.error("housekeeping failed: %s", type(error).__name__)
            if is_thorough:
                thorough_at = loop.time() + DAY
            await signal.wait(loop.time() + every)

    def _wake_pullers(self, peer: str) -> None:
        """A peer asks for facts, so it lives; or (``""``) an operator did something."""
        for name, puller in self._pullers.items():
            if peer in ("", name):
                puller.wake()

    def _turned_away(self, address: str, why: str) -> None:
        self.zone.events.count("denied", "handshake")
        self.zone.events.warn_in_sums(
            why,
            "call.denied",
            f"a connection from {address} was refused: {why}",
            identity="",
            operation="connect",
            address=address,
        )

    def _log_failure_of(self, exchange: Exchange, error: BaseException) -> None:
        if isinstance(error, StoreError):
            self.zone.failed(error)
            return
        # Not the error's text, which may quote a payload.
        place = traceback.extract_tb(error.__traceback__)[-1:]
        where = f" at {place[0].filename}:{place[0].lineno}" if place else ""
        logger.error(
            "%s %s failed: %s%s", exchange.method, exchange.path, type(error).__name__, where
        )

    def _certificates_rejected(self, error: ErgonError) -> None:
        self.zone.events.warn(
            "certificate.rejected", f"new certificates cannot be used: {error}", error=error
        )

    # ---- how it is put together ----

    def _health_server(self) -> Server | None:
        """The server for health probes, which have no certificate: its answers are public."""
        if self.settings.health_listen is None:
            return None
        host, port = split_address(self.settings.health_listen)
        application = HealthApplication(self._application.takes_facts)
        return Server(
            application,
            host=host,
            port=port,
            limits=HEALTH,
            on_denied=self._turned_away,
            on_error=self._log_failure_of,
            crowds_out=True,
        )

    def _check_started(self) -> None:
        if not self._has_listened:
            raise WiringError(
                f"the node of zone {self.name!r} does not listen yet",
                remedy="await start() first",
            )

    def _check_own_name(self) -> None:
        found = self._certificates.identity if self._certificates else self.name
        if found != self.name:
            raise ConfigurationError(
                f"the certificate is that of zone {found!r}, and this is {self.name!r}",
                remedy="use the certificate of this zone, or correct --zone",
            )

    def _read_policy(self) -> Callable[[], Policy]:
        settings = self.settings
        if settings.policy is not None:
            return PolicyFile(settings.policy, on_problem=self._rejected).current
        if self._certificates is None:
            policy = Policy.open()
        else:
            policy = Policy.default(self.name, settings.peers)
        return lambda: policy

    def _rejected(self, error: ErgonError) -> None:
        self.zone.events.warn(
            "policy.rejected", f"a new policy cannot be used: {error}", error=error
        )

    def _reach(self, peer: str, url: str) -> AsyncTransport:
        timeout = self.settings.pull.timeout
        if self._certificates is None:
            return AsyncHttpTransport(url, timeout=timeout)
        return AsyncHttpTransport(
            url, tls=self._certificates.client, expected_zone=peer, timeout=timeout
        )


def certificates_of(
    settings: ZoneSettings, on_problem: Callable[[ErgonError], None] | None = None
) -> Certificates | None:
    """The certificate of a zone and its trusted authority, read and checked; None for plain
    HTTP.
    """
    given: Mapping[str, str | None] = {
        "cert": settings.cert,
        "key": settings.key,
        "ca": settings.ca,
    }
    missing = [name for name, value in given.items() if not value]
    if len(missing) == len(given):
        if settings.crl:
            raise ConfigurationError(
                "a list of revoked certificates was given, and no certificates",
                remedy="give cert, key and ca as well, or leave crl out",
            )
        return None
    if settings.insecure:
        raise ConfigurationError(
            "certificates were given, and insecure was asked for",
            remedy="leave out one of the two",
        )
    if missing or settings.cert is None or settings.key is None or settings.ca is None:
        raise ConfigurationError(
            f"TLS needs cert, key and ca, and {' and '.join(missing)} is missing",
            remedy="give all three",
        )
    return Certificates(
        settings.cert, settings.key, settings.ca, settings.crl, on_problem=on_problem
    )


def _spelled(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


async def run_node(
    name: str,
    settings: ZoneSettings,
    *,
    ready: Callable[[str], None],
    stop: asyncio.Event,
) -> None:
    """Run a zone's node until ``stop`` is set; ``ready`` is called with its address.

    A guest that has the zone is asked to give it up, and waited for.
    """
    node = await _opened(name, settings, stop)
    try:
        await node.start()
        try:
            ready(node.address)
            await stop.wait()
        finally:
            await node.stop()
    finally:
        node.close()


async def _opened(name: str, settings: ZoneSettings, stop: asyncio.Event) -> Node:
    loop = asyncio.get_running_loop()
    until, request = loop.time() + GUEST_TIMEOUT, None
    try:
        while True:
            try:
                return Node(name, settings)
            except FolderInUseError:
                folder = folders_of(settings)[0]
                found = listening_node(folder, name)
                # A guest that leaves withdraws its address before it unlocks the folder: then it is
                # not found, and is waited for all the same.
                is_guest = request is not None or (found is not None and found.is_guest)
                if not is_guest or stop.is_set() or loop.time() > until:
                    raise
                request = request or FolderRequest.hold(folder)
            await AsyncSignal().wait(loop.time() + GUEST_POLL_INTERVAL)
    finally:
        if request is not None:
            request.close()
