"""A client of one NATS server: an event loop in a thread of its own, for callers of any thread."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from ergon_framework.errors import ConfigurationError, StoreUnavailableError
from ergon_framework.storage.connection_errors import as_unavailable
from ergon_framework.storage.failpoints import declare, failpoint
from ergon_framework.storage.nats.address import DEFAULT_TIMEOUTS, NatsAddress, NatsTimeouts
from ergon_framework.storage.nats.errors import PermissionsError, away, closed, lost

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg


T = TypeVar("T")

declare("nats.commit.before", "nats.commit.within", "nats.commit.after")

logger = logging.getLogger("ergon_framework.storage")

CLOSE_TIMEOUT = 3.0
"""Seconds for callers that wait for an answer to learn that the client is closed."""
STATUS_HEADER = "Status"
"""The header of a reply that is about the replies, and the last of them."""
_MAX_PENDING_BYTES = 1 << 28  # that wait to be read, before the library throws some away


Sendable: TypeAlias = tuple[str, bytes, Mapping[str, str] | None]
"""Subject, content and headers."""


@dataclass(frozen=True, slots=True)
class NatsReply:
    """A reply of the server."""

    headers: Mapping[str, str]
    data: bytes

    @property
    def status(self) -> str:
        """What the server says about the request; empty when it answers it."""
        return self.headers.get(STATUS_HEADER, "")


@dataclass(slots=True)
class _Asked:
    """A request under way."""

    answered: asyncio.Future[list[NatsReply]]
    is_many: bool
    subjects: frozenset[str]
    """The subjects that the message was sent to."""
    replies: list[NatsReply] = field(default_factory=list)


class _Session:
    """One connection and what is under way on it."""

    client: Client

    def __init__(
        self,
        when_over: Sequence[Callable[[], None]],
        when_denied: Sequence[Callable[[PermissionsError], None]],
    ) -> None:
        self.inbox = ""
        self.denied: PermissionsError | None = None
        """The server does not let the user hear any answer."""
        self.asked: dict[str, _Asked] = {}
        self._when_over = when_over
        self._when_denied = when_denied

    async def on_message(self, message: Msg) -> None:
        """Take a reply and wake the caller."""
        asked = self.asked.get(message.subject.rpartition(".")[2])
        # An answer may come after its request was given up; the number is never used again.
        if asked is None or asked.answered.done():
            return
        reply = NatsReply(headers_of(message), message.data)
        asked.replies.append(reply)
        if not asked.is_many or reply.status:
            asked.answered.set_result(asked.replies)

    def give_up(self) -> None:
        """The connection is gone: fail all requests that wait for a reply."""
        for asked in self.asked.values():
            if not asked.answered.done():
                asked.answered.set_exception(ConnectionResetError("the connection was lost"))
        for callback in self._when_over:
            callback()

    def refuse_when_denied(self) -> None:
        """Raise where no answer would be heard."""
        if self.denied is not None:
            raise self.denied

    def deny(self, error: PermissionsError) -> None:
        """Fail what was asked without the permission for it: the server will not answer it."""
        if is_about(error, [f"{self.inbox}.*"]):
            self.denied = error
        for asked in self.asked.values():
            if asked.answered.done():
                continue
            if is_about(error, [*asked.subjects, f"{self.inbox}.*"]):
                asked.answered.set_exception(error)
        for callback in self._when_denied:
            callback(error)


class NatsClient:
    """Connects when something is asked, and again after the connection was lost."""

    def __init__(self, address: NatsAddress, timeouts: NatsTimeouts = DEFAULT_TIMEOUTS) -> None:
        self.address = address
        self.timeouts = timeouts
        """May be changed at any time; calls that have begun keep to what they began with."""
        self.connections = 0
        """How often it has connected: a server may have been restarted in between."""
        self.max_payload = 1 << 20
        """Bytes of the largest message that the server takes."""
        self._lock = threading.Lock()
        self._numbers = count(1)
        self._callbacks: dict[str, Callable[[], None]] = {}
        self.when_over: list[Callable[[], None]] = []
        """Called in the loop's thread when a connection is over."""
        self.when_denied: list[Callable[[PermissionsError], None]] = []
        """Called in the client's event loop when the server says that the user lacks a permission.
        """
        self._is_closed = False
        self._forget()

    def _forget(self) -> None:
        """Start without a thread: at first, and in a forked child, which has not inherited it."""
        self._owner = os.getpid()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._session: _Session | None = None
        self._connecting: asyncio.Lock | None = None

    @property
    def link(self) -> int:
        """The number of the current connection; 0 if there is none."""
        session = self._session
        return 0 if session is None or session.client.is_closed else self.connections

    # ---- for any thread -------------------------------------------------------------------------

    def request(self, subject: str, data: bytes) -> NatsReply:
        """Send a request; its answer."""
        return self.send([(subject, data, None)])

    def request_many(self, subject: str, data: bytes) -> list[NatsReply]:
        """Send a request that has several answers; the last one has a status."""
        return self._run(self._ask([[(subject, data, None)]], is_many=True))[0]

    def send(self, messages: Sequence[Sendable]) -> NatsReply:
        """Send messages one after the other; returns the answer to the last one."""
        return self._run(self._ask([messages]))[0][0]

    def send_each(self, messages: Sequence[Sendable]) -> list[NatsReply]:
        """Send messages one after the other without waiting in between; the answer to each."""
        return self._run(self.ask_each(messages))

    def notify(self, subject: str) -> None:
        """Publish an empty message; no answer is waited for, and it may get lost."""
        # Under the lock, so that closing cannot end the loop between the look and the call.
        with self._lock:
            if not self._is_closed:
                asyncio.run_coroutine_threadsafe(self._notify(subject), self._running())

    def subscribe(self, subject: str, callback: Callable[[], None]) -> None:
        """Have ``callback`` called, in the loop's thread, when another connection notifies."""
        self._callbacks[subject] = callback
        self._run(self._subscribe_to(subject, callback))

    def version(self) -> str:
        """Which version the server has."""
        return self._run(self._version())

    def close(self) -> None:
        """Close the connection and end the thread. Closing twice is fine."""
        with self._lock:
            self._is_closed = True
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop is None or thread is None or self._owner != os.getpid():
            return
        asyncio.run_coroutine_threadsafe(self._finish(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()

    def begin(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Have a coroutine run in the loop's thread; what it will return."""
        # The lock is held only until the request is in the loop, not while it is answered.
        with self._lock:  # closing comes before this, or after the request has begun
            try:
                loop = self._running()
            except BaseException:
                work.close()
                raise
            return asyncio.run_coroutine_threadsafe(work, loop)

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        waiting = self.begin(work)
        try:
            return waiting.result()
        except BaseException:
            # A caller that is interrupted gives the request up: else its answer would be kept for
            # nobody.
            waiting.cancel()
            raise

    def _running(self) -> asyncio.AbstractEventLoop:
        if self._is_closed:
            raise closed(self.address.name)
        # After a fork there is no such thread, and the socket belongs to the parent.
        if self._owner != os.getpid():
            self._forget()
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(
                target=self._loop.run_forever, name="ergon-nats", daemon=True
            )
            self._thread.start()
        return self._loop

    # ---- in the loop ----------------------------------------------------------------------------

    async def connection(self) -> Client:
        """The connection of the library, which is made now if there is none."""
        return (await self._connected()).client

    async def disconnect(self, client: Client) -> None:
        """Close a connection without answers, unless another one has replaced it."""
        if self._session is not None and self._session.client is client:
            await self._disconnect()

    async def ask_each(self, messages: Sequence[Sendable]) -> list[NatsReply]:
        """Send messages one after the other without waiting in between; the answer to each."""
        return [each[0] for each in await self._ask([[each] for each in messages])]

    async def _ask(
        self, groups: Sequence[Sequence[Sendable]], *, is_many: bool = False
    ) -> list[list[NatsReply]]:
        """Send groups of messages, one after the other; the answers to the last of each."""
        session = await self._connected()
        begun: dict[str, _Asked] = {}
        try:
            session.refuse_when_denied()
            for group in groups:
                number = str(next(self._numbers))
                subjects = frozenset(subject for subject, _, _ in group)
                asked = _Asked(asyncio.get_running_loop().create_future(), is_many, subjects)
                begun[number] = session.asked[number] = asked
                for index, (subject, data, headers) in enumerate(group, 1):
                    if index > 1:
                        failpoint("nats.commit.within")
                    # Only the last message of a group is answered: the server acknowledges a batch
                    # as a whole.
                    to = f"{session.inbox}.{number}" if index == len(group) else ""
                    named = dict(headers) if headers else None
                    await session.client.publish(subject, data, to, named)
            answers = asyncio.gather(*(each.answered for each in begun.values()))
            return await asyncio.wait_for(answers, self.timeouts.response)
        except Exception as error:
            # Another request may have replaced the connection meanwhile; that one is not to be
            # closed.
            is_deaf = isinstance(error, TimeoutError) or session.denied is not None
            if is_deaf and self._session is session:
                # It is frozen, the network swallows what is sent, or it may hear no answer.
                await self._disconnect()
            raise lost(self.address.name, error) from error
        finally:
            for number, asked in begun.items():
                del session.asked[number]
                asked.answered.cancel()

    async def _notify(self, subject: str) -> None:
        try:
            await (await self._connected()).client.publish(subject)
        except Exception as error:  # subscribers poll now and then
            logger.debug("nobody was told on %s: %s", subject, error)

    async def _subscribe_to(self, subject: str, callback: Callable[[], None]) -> None:
        session = await self._connected()
        await _subscribe(session.client, subject, callback)

    async def _version(self) -> str:
        found = (await self._connected()).client.connected_server_version
        return f"{found.major}.{found.minor}.{found.patch}"

    async def _connected(self) -> _Session:
        if self._connecting is None:
            self._connecting = asyncio.Lock()
        # One at a time: a hundred callers that find the connection gone must not connect a hundred
        # times.
        async with self._connecting:
            if self._session is None or self._session.client.is_closed:
                self._session = await self._connect_again()
                self.max_payload = self._session.client.max_payload
                self.connections += 1
            return self._session

    async def _connect_again(self) -> _Session:
        """Connect; what is wrong with the URL at first may be a passing problem later."""
        try:
            return await self._open()
        except ConfigurationError as error:
            if self.connections:
                raise as_unavailable(error) from error
            raise

    async def _open(self) -> _Session:
        from ergon_framework.storage.nats.connect import connect, quietly

        session = _Session(self.when_over, self.when_denied)
        session.client = client = await connect(
            self.address, session.give_up, self.timeouts, session.deny
        )
        try:
            session.inbox = client.new_inbox()
            # One subscription for all answers: a subscription per request would cost a round trip
            # each.
            await client.subscribe(
                f"{session.inbox}.*", cb=session.on_message, pending_bytes_limit=_MAX_PENDING_BYTES
            )
            # A new connection knows nothing of earlier subscriptions; without these, nobody would
            # be woken any more.
            for subject, callback in self._callbacks.items():
                await _subscribe(client, subject, callback)
        except Exception as error:
            await quietly(client, self.timeouts.connect)
            raise away(self.address.name, error) from error
        return session

    async def _finish(self) -> None:
        """Close the connection, and raise in every caller that waits for an answer."""
        await self._disconnect()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        if others:
            # Bounded: a request that ignores its failure must not keep the program from ending.
            _, late = await asyncio.wait(others, timeout=CLOSE_TIMEOUT)
            for task in late:
                task.cancel()

    async def _disconnect(self) -> None:
        from ergon_framework.storage.nats.connect import quietly

        session, self._session = self._session, None
        if session is not None:
            # First: waiting callers get their error at once, although closing the connection may
            # take time.
            session.give_up()
            await quietly(session.client, self.timeouts.connect)


def is_about(error: PermissionsError, subjects: Iterable[str]) -> bool:
    """Whether the permission that is lacking is one for these subjects, as they were asked for.

    A user may lack one for something else, such as being told of news, and do all the rest.
    """
    text = str(error).lower()
    return any(f'"{each.lower()}"' in text for each in subjects)


def headers_of(message: Msg) -> dict[str, str]:
    """The headers of a message; of those that the library adds, names are members of an enum."""
    return {getattr(k, "value", k): v for k, v in (message.headers or {}).items()}


async def _subscribe(client: Client, subject: str, callback: Callable[[], None]) -> None:
    async def on_message(_: Msg) -> None:
        callback()

    await client.subscribe(subject, cb=on_message)


def is_lost(error: StoreUnavailableError) -> bool:
    """Whether a request was under way, so that its outcome is not known."""
    return bool(error.details.get("is_lost"))
