"""Pulling messages of a stream through a consumer, on the connection of a :class:`NatsClient`.

Everything here runs in the client's loop. One pull runs at a time. A message that arrives when no
pull waits for it, because the pull was given up, goes back to the server at once.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

from ergon_framework.errors import StoreUnavailableError
from ergon_framework.storage.nats.client import STATUS_HEADER, NatsClient, headers_of, is_about
from ergon_framework.storage.nats.errors import PermissionsError, lost

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg

NO_MESSAGES = frozenset({"404", "408"})
"""Statuses of a pull without messages: there are none now, or none came in time."""
NO_RESPONDERS = "503"
TOO_LARGE = "exceeds maxbytes"
_NAK = b"-NAK"
_BYTES_LIMIT = 1 << 28  # that wait to be read, before the library throws some away


@dataclass(frozen=True, slots=True)
class Pulled:
    """What a pull brought, and why it ended early: a status of the server, or nothing."""

    messages: list[Msg]
    status: str = ""
    reason: str = ""


class Place(NamedTuple):
    """The stream, consumer and sequence of a message, parsed from the subject of its
    acknowledgement.
    """

    stream: str
    sequence: int
    """Its sequence number in the stream."""
    place: int
    """Among the deliveries of the consumer: from 1, without gaps."""
    deliveries: int
    """How often it was delivered, this time included."""


def place_of(reply: str) -> Place:
    """Read ``$JS.ACK.stream.consumer.deliveries.sequence.place.…``, or its form with a domain."""
    parts = reply.split(".")
    first = 2 if len(parts) == 9 else 4
    return Place(parts[first], int(parts[first + 3]), int(parts[first + 4]), int(parts[first + 2]))


class PullSubscription:
    """Pulls on the current connection of a client."""

    def __init__(self, client: NatsClient) -> None:
        self._client = client
        self._numbers = count(1)
        self._lock: asyncio.Lock | None = None
        self._connection: Client | None = None
        self._inbox = ""
        self._number = ""  # of the pull under way
        self._wanted = 0
        self._messages: list[Msg] = []
        self._ended: asyncio.Future[tuple[str, str]] | None = None
        self._subject = ""  # that it was asked for at
        client.when_over.append(self._over)
        client.when_denied.append(self._denied)

    async def pull(self, subject: str, most: int, *, wait: float = 0.0, room: int = 0) -> Pulled:
        """Fetch up to ``most`` messages, of at most ``room`` bytes together if that is not 0.

        Returns the messages that are there or, if there are none, those that come within ``wait``
        seconds.
        """
        if self._lock is None:
            self._lock = asyncio.Lock()
        async with self._lock:
            asked = {"batch": most, **({"max_bytes": room} if room else {})}
            if not wait:
                return await self._pull(subject, {**asked, "no_wait": True}, 0.0)
            return await self._pull(subject, {**asked, "expires": int(wait * 1e9)}, wait)

    def give_up(self) -> None:
        """End the pull under way with what has come. A late message goes back to the server."""
        self._end("", "")

    async def _pull(self, subject: str, request: dict[str, object], wait: float) -> Pulled:
        client = await self._subscribed()
        ended = self._ended = asyncio.get_running_loop().create_future()
        self._number, self._messages = f"{self._inbox}.{next(self._numbers)}", []
        self._wanted = int(str(request["batch"]))
        self._subject = subject
        try:
            await client.publish(subject, json.dumps(request).encode(), self._number)
            found = await asyncio.wait_for(ended, wait + self._client.timeouts.response)
        except BaseException as error:
            await self._return(client)
            if isinstance(error, TimeoutError):
                await self._client.disconnect(client)  # it is frozen, or the network swallows it
            if isinstance(error, Exception):
                raise lost(self._client.address.name, error) from error
            raise
        finally:
            messages, self._messages, self._ended = self._messages, [], None
        return Pulled(messages, *found)

    async def _subscribed(self) -> Client:
        client = await self._client.connection()
        if client is not self._connection:
            self._inbox = client.new_inbox()
            await client.subscribe(
                f"{self._inbox}.*", cb=self._on_message, pending_bytes_limit=_BYTES_LIMIT
            )
            self._connection = client
        return client

    async def _on_message(self, message: Msg) -> None:
        if message.subject.startswith(self._inbox):  # a message has the subject it was stored under
            if message.subject == self._number:
                headers = headers_of(message)
                # The library takes the headers after a bare status for its description.
                said = headers.get("Description", "").strip().splitlines()
                is_said = bool(said) and not said[0].startswith("Nats-")
                self._end(headers.get(STATUS_HEADER, ""), said[0] if is_said else "")
            return
        if self._ended is None or self._ended.done() or len(self._messages) >= self._wanted:
            await self._put_back(message)
            return
        self._messages.append(message)
        if len(self._messages) >= self._wanted:
            self._end("", "")

    def _end(self, status: str, reason: str) -> None:
        if self._ended is not None and not self._ended.done():
            self._ended.set_result((status, reason))

    def _over(self) -> None:
        """The connection is gone: what a pull had brought comes again, or is still ours."""
        if self._ended is not None and not self._ended.done():
            self._ended.set_exception(ConnectionResetError("the connection was lost"))

    async def _return(self, client: Client) -> None:
        """Give back the messages of a pull that failed."""
        for message in self._messages if client.is_connected else ():
            await self._put_back(message)

    async def _put_back(self, message: Msg) -> None:
        try:
            client = await self._client.connection()
            await client.publish(message.reply, _NAK)
        except (StoreUnavailableError, OSError):
            return  # its time to be acknowledged runs out instead

    def _denied(self, error: PermissionsError) -> None:
        """The server does not answer a pull that the user may not ask for."""
        ended = self._ended
        inbox = f"{self._inbox}.*"
        if is_about(error, [inbox]):
            self._connection = None  # the next pull subscribes anew
        subjects = [self._subject, inbox]
        if ended is not None and not ended.done() and is_about(error, subjects):
            ended.set_exception(error)
