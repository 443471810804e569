"""How the processes of one machine share a zone: one of them serves it, the others are its clients.

A zone's folder belongs to one process at a time. The process that gets its lock serves the zone on
a port of this machine and writes the address into the folder; the others read the address and
connect to it. When the holder ends or dies, the kernel frees the lock and the next caller takes
over. So a fact goes into the zone's own log whichever process publishes it, and there is no second
store in which it could be forgotten.

A process that serves the zone only for its own calls is a **guest**: it gives up the folder when
there were no calls for a while, or as soon as a permanent node waits for it (``ergon boundary
serve``, ``app.run()``).
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

from ergon_framework.boundary.client.options import client_tls
from ergon_framework.boundary.client.transport import ObjectStream
from ergon_framework.boundary.data_folder import (
    FolderInUseError,
    FolderRequest,
    is_in_use,
    is_requested,
    listening_node,
)
from ergon_framework.boundary.http.addresses import split_address
from ergon_framework.boundary.http.client import HttpTransport
from ergon_framework.boundary.model import ObjectReceipt
from ergon_framework.boundary.node.app import NO_TOKEN
from ergon_framework.boundary.node.node import Node
from ergon_framework.boundary.settings import ZoneSettings
from ergon_framework.boundary.store_urls import destination_of, fact_file, folders_of, zone_moved
from ergon_framework.engine.atfork import renew_after_fork
from ergon_framework.errors import (
    BoundaryError,
    ErgonError,
    NodeUnavailableError,
    NotPermittedError,
    WiringError,
    describe,
)
from ergon_framework.ports.settings_model import FrozenDict
from ergon_framework.storage.substitutes import find_substitute

logger = logging.getLogger("ergon_framework.boundary")

IDLE_TIME = 5.0
"""Seconds without a request after which a guest lets go of the folder."""
LOOKS = 50
"""Looks at a lock after which a node that waits also looks who has the folder."""
POLL_INTERVAL = 0.1
"""Seconds between two looks of a guest, and of a node that waits for a folder."""
CHANGE_TIME = 2.0
"""Seconds within which a folder usually passes from one process to the next."""
LAST_GRACE = 1.0
"""Seconds that requests have to end when the interpreter ends."""
CONNECTIONS = 32
"""The most connections of one process to the node of a zone."""
ANYWHERE = "127.0.0.1:0"

T = TypeVar("T")
_left_behind: list[LocalNode] = []  # by a fork: closing them would touch the parent's files


class LocalNode:
    """The node of a zone in a thread of this process, from :meth:`start` to :meth:`stop`.

    Without ``is_guest`` it is the node as the settings describe it, with its address, certificates
    and peers. While another process has the folder it waits in the background and takes over when
    that one ends: of several programs that serve the same zone one does, and the others stand by.
    """

    def __init__(
        self,
        name: str,
        settings: ZoneSettings,
        *,
        is_guest: bool = False,
        idle_time: float = IDLE_TIME,
    ) -> None:
        self.name = name
        self.is_guest = is_guest
        self._idle_time = idle_time
        self._settings = guest_settings(settings) if is_guest else settings
        folders = folders_of(self._settings)
        self._folder = folders[0] if folders else None
        self.token = token_of(self._settings)
        """What its callers have to show; None when certificates or nothing is asked for."""
        self._node: Node | None = None
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ask: Callable[[], object] = lambda: None
        self._is_stopping = threading.Event()
        self._error: BaseException | None = None
        """What ended it after it had begun."""
        self._used_at = 0.0
        self._pid = os.getpid()

    @property
    def address(self) -> str | None:
        """The address as ``host:port``; None while the node is on standby or has stopped."""
        node = self._node
        return None if node is None else node.address

    def start(self) -> None:
        """Serve. Returns when the node listens, or knows that it has to stand by.

        A guest never stands by: ``FolderInUseError`` when another process has the folder.
        """
        if not self.is_over:
            return
        begun: Future[None] = Future()
        self._pid = os.getpid()
        self._is_stopping.clear()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._serve(begun)),
            name=f"ergon-zone-{self.name}",
            daemon=True,
        )
        self._thread.start()
        try:
            begun.result()
        except BaseException:
            # It has failed before it began: without this, the thread could still close what the
            # next start opens.
            self._thread.join()
            self._thread = None
            raise
        atexit.register(self._leave)

    def wait(self) -> None:
        """Wait until it serves no more: it was stopped, or it failed, and then that is raised."""
        if self._thread is not None:
            self._thread.join()
        error, self._error = self._error, None
        if error is not None:
            raise error

    def stop(self, timeout: float | None = None) -> bool:
        """Let what runs end, and let go of the zone; whether it has ended in time.

        Stopping twice is fine. Whatever was acknowledged is on disk, stopped or not.
        """
        if os.getpid() != self._pid:
            return True  # the thread is the parent's
        # Before it is stopped: at the end of the interpreter it would be closed a second time.
        atexit.unregister(self._leave)
        self._is_stopping.set()
        # By the loop: only its own thread may set the event.
        self._ask()
        if self._thread is None:
            return True
        self._thread.join(timeout)
        return not self._thread.is_alive()

    @property
    def is_over(self) -> bool:
        """Whether the node has stopped for good."""
        return self._thread is None or not self._thread.is_alive()

    def used(self) -> None:
        """Note that this process has asked it for something."""
        self._used_at = time.monotonic()

    # ---- in its thread ----

    async def _serve(self, begun: Future[None]) -> None:
        try:
            await self._serve_until_over(begun)
        except BaseException as error:
            if begun.done():
                self._error = error
            else:
                begun.set_exception(error)

    async def _serve_until_over(self, begun: Future[None]) -> None:
        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        self._loop = loop
        # From any thread, and also after the loop has ended.
        self._ask = lambda: _called_soon(loop, stop.set)
        # Stopped before the event loop was running.
        if self._is_stopping.is_set():
            stop.set()
        node = await self._opened(begun, stop)
        if node is None:
            return
        self._node = node
        self.used()
        _mark_begun(begun)
        try:
            await self._until_over(node, stop)
        finally:
            self._node = None
            await node.stop()
            node.close()

    async def _opened(self, begun: Future[None], stop: asyncio.Event) -> Node | None:
        """The node, once it listens; None when it was stopped before it had the folder."""
        request: FolderRequest | None = None
        try:
            while not stop.is_set():
                try:
                    return await self._started()
                except FolderInUseError:
                    if self.is_guest or self._folder is None:
                        raise
                    # Before the wait: a guest that has the folder gives it up for the holder of the
                    # request.
                    request = request or FolderRequest.hold(self._folder)
                    found = listening_node(self._folder, self.name)
                    if found is not None and not found.is_guest:
                        self._stand_by(begun)
                    if not await self._is_free(self._folder, stop):
                        self._stand_by(begun)  # a move or a restore has the folder, or a slow guest
                except ErgonError as error:
                    # At the start a wrong setting is raised to the caller; later on it may pass,
                    # and there is no caller.
                    if not begun.done():
                        raise
                    logger.warning(
                        "zone %s cannot be taken over yet: %s", self.name, describe(error)
                    )
                    await _pause(stop, LOOKS * POLL_INTERVAL)
            _mark_begun(begun)
            return None
        finally:
            if request is not None:
                request.close()

    def _stand_by(self, begun: Future[None]) -> None:
        """Let the start go on without the zone, as another process has its folder."""
        if not begun.done():
            logger.info("zone %s is in use by another process; standing by", self.name)
            begun.set_result(None)

    async def _is_free(self, folder: Path, stop: asyncio.Event) -> bool:
        """Wait for a while for the process that has the folder; whether it has let go."""
        for _ in range(LOOKS):
            await _pause(stop, POLL_INTERVAL)
            if stop.is_set() or not is_in_use(folder):
                return True
        return False

    async def _started(self) -> Node:
        try:
            node = Node(self.name, self._settings, token=self.token, is_guest=self.is_guest)
        except FolderInUseError:
            if self._folder is not None:
                listening_node(self._folder, self.name)  # by the node of another zone?
            raise
        try:
            await node.start()
        except BaseException:
            node.close()
            raise
        return node

    async def _until_over(self, node: Node, stop: asyncio.Event) -> None:
        """Wait until it is stopped; a guest also leaves when it is idle, or another node waits."""
        while not stop.is_set():
            if not self.is_guest or self._folder is None:
                await stop.wait()
                return
            is_idle = time.monotonic() - max(self._used_at, node.asked_at) > self._idle_time
            # Looked at ten times a second: the node that waits stands still meanwhile.
            if is_idle or is_requested(self._folder):
                return
            await _pause(stop, POLL_INTERVAL)

    def _leave(self) -> None:
        """Called at the end of the interpreter, when no thread can be started any more."""
        node, loop = self._node, self._loop
        self._node = None
        # The thread belongs to the parent; closing its files here would take the parent's lock
        # away.
        if node is None or loop is None or os.getpid() != self._pid:
            return
        with suppress(RuntimeError, TimeoutError):  # the loop has ended by itself, or hangs
            asyncio.run_coroutine_threadsafe(node.hang_up(LAST_GRACE), loop).result(2 * LAST_GRACE)
        node.close()


def guest_settings(settings: ZoneSettings) -> ZoneSettings:
    """The zone's settings for a process that serves it in passing: to this user, on any port."""
    private = {"listen": ANYWHERE, "insecure": True, "names": (), "peers": FrozenDict()}
    files = dict.fromkeys(("cert", "key", "ca", "crl", "policy", "health_listen"))
    return settings.model_copy(update={**private, **files})


def token_of(settings: ZoneSettings) -> str | None:
    """A new token for a node on a port that the system chose; callers find both in its folder."""
    is_private = settings.cert is None and split_address(settings.listen)[1] == 0
    return secrets.token_urlsafe(24) if is_private else None


async def _pause(stop: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await stop.wait()
    except TimeoutError:
        return


def _called_soon(loop: asyncio.AbstractEventLoop, function: Callable[[], object]) -> None:
    try:
        loop.call_soon_threadsafe(function)
    except RuntimeError:
        return  # the loop is closed: it has ended by itself


def _mark_begun(begun: Future[None]) -> None:
    if not begun.done():
        begun.set_result(None)


# ---- calling the process that serves -------------------------------------------------------------


class LocalTransport:
    """Calls the node of a zone on this machine: that of another process, or one of this process.

    Any thread may call. A call that found no server has sent nothing, and is repeated with the next
    holder of the folder; after any other error the caller decides, as with every transport.
    """

    def __init__(
        self,
        name: str,
        settings: ZoneSettings,
        *,
        timeout: float = 30.0,
        guest: Callable[[str, ZoneSettings], LocalNode] | None = None,
    ) -> None:
        """``guest`` makes the node that serves the zone here while no other node does."""
        self._guest = guest or partial(LocalNode, is_guest=True)
        self._name = name
        self._settings = settings
        self._timeout = timeout
        folders = folders_of(settings)
        self._folder = folders[0] if folders else None
        self._is_closed = False
        self._lock = threading.Lock()
        self._http: HttpTransport | None = None
        self._own: LocalNode | None = None
        renew_after_fork(self)

    def renew(self) -> None:
        """Called in a forked child: the node, if this process has one, is the parent's."""
        self._lock = threading.Lock()
        if self._own is not None:
            _left_behind.append(self._own)
        self._own = self._http = None

    def call(self, method: str, body: bytes, *, timeout: float | None = None) -> bytes:
        """The answer to a unary call such as ``bsfg.v1.Boundary/AppendFact``."""
        return self._asked(lambda node: node.call(method, body, timeout=timeout))

    def put_object(
        self,
        bucket: str,
        key: str,
        chunks: Iterable[bytes],
        *,
        size: int,
        digest: str | None = None,
    ) -> bytes:
        """Send a blob."""
        return self._asked(
            lambda node: node.put_object(bucket, key, chunks, size=size, digest=digest)
        )

    def get_object(
        self, bucket: str, key: str, *, start: int = 0, digest: bytes | None = None
    ) -> ObjectStream:
        """Begin to receive an object, from its byte ``start`` on."""
        return self._asked(lambda node: node.get_object(bucket, key, start=start, digest=digest))

    def head_object(self, bucket: str, key: str) -> ObjectReceipt:
        """What the node knows about an object; ``BoundaryNotFoundError`` when it has none."""
        return self._asked(lambda node: node.head_object(bucket, key))

    def close(self) -> None:
        """Release the node, and the zone if this process has it. May be called twice."""
        with self._lock:
            self._is_closed = True
            http, self._http = self._http, None
            own, self._own = self._own, None
        if http is not None:
            http.close()
        if own is not None:
            own.stop()

    # ---- inside ----

    def _asked(self, ask: Callable[[HttpTransport], T]) -> T:
        substitute = None if self._folder is None else find_substitute("zone", self._name)
        if substitute is not None:
            return ask(substitute)
        node = self._reached()
        try:
            return ask(node)
        except (NodeUnavailableError, NotPermittedError) as error:
            # The node is there and busy: another one would be the same.
            if error.reason == "connections_busy" or not _is_gone(error):
                raise
            self._forget(node)
            # Part of the request may have been carried out: only the caller knows whether it may be
            # repeated.
            if error.reason not in _UNSENT:
                raise
        return ask(self._reached())

    def _reached(self) -> HttpTransport:
        with self._lock:
            if self._is_closed:
                raise WiringError(
                    f"zone {self._name} is closed",
                    remedy="make a new one; close the last",
                )
            if self._http is None:
                self._http = self._connected()
            if self._own is not None:
                self._own.used()
            return self._http

    def _connected(self) -> HttpTransport:
        """A client of the process that serves the zone, waited for while one stops and another
        begins.
        """
        until = time.monotonic() + CHANGE_TIME
        while True:
            try:
                return self._found_or_made()
            except NodeUnavailableError:
                if time.monotonic() >= until:
                    # The folder may be held by a move, which is a better answer than a node that
                    # does not come up.
                    self._refuse_moved()
                    raise
            threading.Event().wait(POLL_INTERVAL / 5)

    def _refuse_moved(self) -> None:
        """Raise that the zone was moved; the move holds its folder until all other parts are
        moved.
        """
        file = fact_file(self._settings)
        gone = None if file is None else destination_of(self._name, file)
        if gone is not None:
            raise zone_moved(self._name, self._settings, gone)

    def _found_or_made(self) -> HttpTransport:
        """A client of the node that has the folder; if none has, of one in this process."""
        # A node that is to stay waits for the folder: a guest that begins now would only be in its
        # way.
        if self._folder is None or not is_requested(self._folder):
            own = self._guest(self._name, self._settings)
            try:
                own.start()
            except FolderInUseError:
                pass  # by the node that is asked below
            else:
                address = own.address
                if address is None:  # it has left already, for a node that is to stay
                    raise NodeUnavailableError(
                        f"zone {self._name} goes from one node to the next", reason="starting"
                    )
                self._own = own
                return self._client(f"http://{address}", own.token)
        if self._folder is None:
            raise NodeUnavailableError(f"zone {self._name} has no folder", reason="starting")
        found = listening_node(self._folder, self._name)
        if found is None:
            raise NodeUnavailableError(
                f"another process has {self._folder}, and does not say where it can be asked",
                reason="starting",
                remedy="it may be starting; otherwise stop it, or name another folder",
            )
        return self._client(found.url, found.token)

    def _client(self, url: str, token: str | None) -> HttpTransport:
        is_secure = url.startswith("https:")
        settings = self._settings
        files = {"cert": settings.cert, "key": settings.key, "ca": settings.ca}
        return HttpTransport(
            url,
            tls=client_tls(files) if is_secure else None,  # type: ignore[arg-type]
            expected_zone=self._name if is_secure else None,
            token=token or None,
            timeout=self._timeout,
            connections=CONNECTIONS,
        )

    def _forget(self, http: HttpTransport) -> None:
        with self._lock:
            # Another thread was faster, and has a connection to the new node already.
            if self._http is not http:
                return
            self._http = None
            if self._own is not None and self._own.is_over:
                self._own = None
        http.close()


_UNSENT = ("connect_failed", NO_TOKEN)


def _is_gone(error: BoundaryError) -> bool:
    """Whether the node that was asked may not be the one that has the folder now."""
    return isinstance(error, NodeUnavailableError) or error.reason == NO_TOKEN
