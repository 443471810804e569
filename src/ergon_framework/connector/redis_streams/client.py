"""Clients of one Redis server, and what their errors mean."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Generator
from functools import partial
from hashlib import sha1
from importlib import import_module
from typing import Any, TypeVar, cast

from ergon_framework.connector.broker.connection import (
    AsyncBrokerConnection,
    BrokerConnection,
)
from ergon_framework.connector.broker.url import BrokerUrl, import_client, tls_files
from ergon_framework.connector.broker.wakeup import Wakeup
from ergon_framework.errors import ConfigurationError, ConnectorError, ErgonError

EXAMPLE = "redis://host:6379/0?stream=orders&group=billing, or rediss:// for TLS"
CONNECT_TIMEOUT = 5.0
MAX_CONNECTIONS = 10_000
"""How many connections there may be: one for each call under way."""
RESPONSE_TIMEOUT = 20.0
"""Seconds for an answer, because a server that hangs keeps its side of a connection open."""

_AWAY = ("LOADING", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "NOREPLICAS")
_FULL = ("OOM", "'maxmemory'", "MISCONF")
_REFUSED = ("NOAUTH", "WRONGPASS", "invalid username-password", "AUTH ", "Authentication required")

R = TypeVar("R")
Command = tuple[Any, ...]
Kind = tuple[Any, ...]
Steps = Generator[Command, Any, R]
"""The commands to send, one after another. A sync or an async client sends them."""


class RedisStreamsError(ConnectorError):
    """The connector was asked for something it must refuse, or its server refused it."""

    code = "redis_streams"


class ServerFullError(RedisStreamsError):
    """The server has no memory or disk left for the write. It may have some later."""

    code = "redis_streams_full"
    failure_kind = "transient"


class StoppedError(Exception):
    """A stop was requested while a fetch waited for its server."""


def packed(command: Command) -> bytes:
    """A command encoded for the protocol, in one piece. The driver takes several times as long."""
    parts = [b"*%d\r\n" % len(command)]
    for word in command:
        text = word if type(word) is bytes else str(word).encode()
        parts += (b"$%d\r\n" % len(text), text, b"\r\n")
    return b"".join(parts)


class ThreadedCalls:
    """A driver whose connections are used without its pool, which asks the server before each use.

    A call that finds its connection broken says so, and all of them are made anew.
    """

    def __init__(self, driver: Any, answered: type[Exception]) -> None:
        self.driver = driver
        self._answered = answered
        self._free: deque[Any] = deque()
        self._is_closed = False

    def call(self, command: bytes) -> Any:
        """The server's answer."""
        try:
            connection = self._free.pop()
        except IndexError:
            connection = self.driver.connection_pool.make_connection()
            connection.connect()
        is_whole = False
        try:
            connection.send_packed_command([command])
            answer = connection.read_response()
            is_whole = True
            return answer
        except self._answered:
            is_whole = True
            raise
        finally:
            if is_whole and not self._is_closed:
                self._free.append(connection)
            else:
                connection.disconnect()

    def close(self) -> None:
        """Close every connection. One in use is closed after its call."""
        self._is_closed = True
        while self._free:
            self._free.pop().disconnect()
        self.driver.close()


class AsyncCalls:
    """The async version of :class:`ThreadedCalls`."""

    def __init__(self, driver: Any, answered: type[Exception]) -> None:
        self.driver = driver
        self._answered = answered
        self._free: deque[Any] = deque()
        self._is_closed = False

    async def call(self, command: bytes) -> Any:
        """The server's answer."""
        if self._free:
            connection = self._free.pop()
        else:
            connection = self.driver.connection_pool.make_connection()
            await connection.connect()
        is_whole = False
        try:
            await connection.send_packed_command(command)
            answer = await connection.read_response()
            is_whole = True
            return answer
        except self._answered:
            is_whole = True
            raise
        finally:
            if is_whole and not self._is_closed:
                self._free.append(connection)
            else:
                await connection.disconnect(nowait=True)

    async def close(self) -> None:
        """Close every connection. One in use is closed after its call."""
        self._is_closed = True
        while self._free:
            await self._free.pop().disconnect()
        await self.driver.aclose()


class RedisClients:
    """The connections of one connector: one client for threads, one for asyncio."""

    def __init__(
        self,
        url: BrokerUrl,
        wakeup: Wakeup,
        *,
        ca: str | None,
        cert: str | None,
        key: str | None,
    ) -> None:
        self.name = f"{url.name}/{_database(url.path)}"
        self._redis = import_client("redis", extra="redis", connector="to Redis Streams")
        self._asyncio = import_client("redis.asyncio", extra="redis", connector="to Redis Streams")
        self._errors = self._redis.exceptions
        self._options = _options(url, ca=ca, cert=cert, key=key)
        self._refused: set[Kind] = set()
        self.threads = BrokerConnection(self.name, self._connect, ThreadedCalls.close, wakeup)
        self.tasks = AsyncBrokerConnection(self.name, self._connect_async, AsyncCalls.close, wakeup)

    def drive(self, steps: Steps[R], *, waits: bool = False) -> R:
        """Send the commands.

        With ``waits`` a server that is away is waited for, until a stop, and what had no answer is
        sent again: an entry whose delivery got lost comes back by itself. Otherwise the steps hear
        of it, and may know what to do.
        """
        act: Callable[[], Command] = partial(next, steps)
        kind: Kind = ()
        while True:
            try:
                command = act()
            except StopIteration as end:
                return cast(R, end.value)
            except self._errors.RedisError as error:
                raise self._noted(error, kind) from error
            kind = _kind(command)
            while True:
                try:
                    client = self.threads.wait() if waits else self.threads.get()
                except Exception as error:
                    act = partial(steps.throw, error)
                    break
                if client is None:
                    act = partial(steps.throw, StoppedError())
                    break
                try:
                    act = partial(steps.send, client.call(packed(command)))
                    self._refused.discard(kind)
                    break
                except Exception as error:
                    found = self.threads.lost(client, error) if self._is_lost(error) else error
                    if found is error or not waits:
                        act = partial(steps.throw, found)
                        break

    async def drive_async(self, steps: Steps[R], *, waits: bool = False) -> R:
        """The async version of :meth:`drive`."""
        act: Callable[[], Command] = partial(next, steps)
        kind: Kind = ()
        while True:
            try:
                command = act()
            except StopIteration as end:
                return cast(R, end.value)
            except self._errors.RedisError as error:
                raise self._noted(error, kind) from error
            kind = _kind(command)
            while True:
                try:
                    client = await (self.tasks.wait() if waits else self.tasks.get())
                except Exception as error:
                    act = partial(steps.throw, error)
                    break
                if client is None:
                    act = partial(steps.throw, StoppedError())
                    break
                try:
                    act = partial(steps.send, await client.call(packed(command)))
                    self._refused.discard(kind)
                    break
                except Exception as error:
                    lost = self._is_lost(error)
                    found = await self.tasks.lost(client, error) if lost else error
                    if found is error or not waits:
                        act = partial(steps.throw, found)
                        break

    def send_all(self, commands: list[Command]) -> None:
        """Send all commands in one transaction of the server."""
        client = self.threads.get()
        pipeline = _transaction_of(client.driver)
        try:
            for command in commands:
                pipeline.execute_command(*command)
            pipeline.execute()
        except Exception as error:
            if self._is_lost(error):
                raise self.threads.lost(client, error) from error
            raise self._noted(error, _TOGETHER) from error
        self._refused.discard(_TOGETHER)

    async def send_all_async(self, commands: list[Command]) -> None:
        """The async version of :meth:`send_all`."""
        client = await self.tasks.get()
        pipeline = _transaction_of(client.driver)
        try:
            for command in commands:
                pipeline.execute_command(*command)
            await pipeline.execute()
        except Exception as error:
            if self._is_lost(error):
                raise await self.tasks.lost(client, error) from error
            raise self._noted(error, _TOGETHER) from error
        self._refused.discard(_TOGETHER)

    @property
    def is_healthy(self) -> bool:
        """Whether the sync and the async client can be used, as far as is known.

        A server that is there and refuses what is asked cannot: until it takes the like of it.
        """
        is_there = self.threads.state.is_healthy and self.tasks.state.is_healthy
        return is_there and not self._refused

    # ---- connections and errors -----------------------------------------------------------------

    def _connect(self) -> ThreadedCalls:
        # Of a server that accepts and says nothing, a stop and a settlement must hear soon.
        first = self._calls(CONNECT_TIMEOUT)
        try:
            first.call(packed(("PING",)))
        except Exception as error:
            raise self._refusal(error) from error
        finally:
            first.close()
        return self._calls(RESPONSE_TIMEOUT)

    def _calls(self, timeout: float) -> ThreadedCalls:
        # The driver must not repeat by itself: it does not know what may be done twice.
        retry = _no_retry("redis.retry")
        driver = self._redis.Redis(**self._options, socket_timeout=timeout, retry=retry)
        return ThreadedCalls(driver, self._errors.ResponseError)

    async def _connect_async(self) -> AsyncCalls:
        first = self._calls_async(CONNECT_TIMEOUT)
        try:
            await first.call(packed(("PING",)))
        except Exception as error:
            raise self._refusal(error) from error
        finally:
            await first.close()
        return self._calls_async(RESPONSE_TIMEOUT)

    def _calls_async(self, timeout: float) -> AsyncCalls:
        retry = _no_retry("redis.asyncio.retry")
        driver = self._asyncio.Redis(**self._options, socket_timeout=timeout, retry=retry)
        return AsyncCalls(driver, self._errors.ResponseError)

    def _is_lost(self, error: Exception) -> bool:
        """Whether the client cannot be used any more: its connection broke, or its server is a
        replica.
        """
        if isinstance(error, self._errors.AuthenticationError | ErgonError):
            return False
        known = self._errors
        broken = (known.ConnectionError, known.TimeoutError, known.ReadOnlyError, OSError)
        if isinstance(error, (*broken, known.ClusterDownError, known.TryAgainError)):
            return True
        # The error of a command inside of a script stands somewhere in the text.
        return isinstance(error, known.ResponseError) and any(e in str(error) for e in _AWAY)

    def _noted(self, error: Any, kind: Kind) -> Any:
        """The error for what the server refused. If only an operator can change it,
        health is bad.
        """
        found = self._refusal(error)
        if isinstance(found, ConfigurationError):
            self._refused.add(kind)
        return found

    def _refusal(self, error: Any) -> Any:
        """The connector's own error for what the server refused; other errors unchanged."""
        if not isinstance(error, self._errors.RedisError):
            return error
        text = (str(error).splitlines() or [""])[0][:300]
        if isinstance(error, self._errors.AuthenticationError) or text.startswith(_REFUSED):
            return ConfigurationError(
                f"{self.name} does not let this user in",
                remedy="correct the user and the password in the URL of the connector",
            )
        if isinstance(error, self._errors.NoPermissionError) or _FORBIDDEN.search(text):
            return ConfigurationError(
                f"{self.name} forbids something to this user: {text}",
                remedy="let the user run scripts and use the keys of the stream (ACL)",
            )
        if "CERTIFICATE_VERIFY_FAILED" in text:
            return ConfigurationError(
                f"the certificate of {self.name} is not trusted: {text}",
                remedy="name the file of its authority: ca=FILE; a wrong host name is refused, too",
            )
        if isinstance(error, self._errors.MovedError):
            return ConfigurationError(
                f"{self.name} is one server of a cluster, and another one has the stream",
                remedy="name the server that has it; a cluster is not followed",
            )
        if isinstance(error, self._errors.OutOfMemoryError) or any(e in text for e in _FULL):
            return ServerFullError(
                f"{self.name} writes nothing for now: {text}",
                remedy="give the server memory and disk, or trim its streams (max_length)",
            )
        for sign, remedy in _REMEDIES.items():
            if sign in text:
                return ConfigurationError(f"{self.name} cannot be used: {text}", remedy=remedy)
        if self._is_lost(error):
            return error
        return RedisStreamsError(
            f"{self.name} refused a call: {text}", remedy="look into the server's log"
        )


_TOGETHER = ("MULTI",)


def _kind(command: Command) -> Kind:
    """A key that is the same for commands that need the same rights: their name, or that of a
    script.
    """
    if command[0] == "EVAL":  # the server did not know the script by its name
        text = command[1]
        raw = text.encode() if isinstance(text, str) else text
        return ("EVALSHA", sha1(raw, usedforsecurity=False).hexdigest())
    return command[:2] if command[0] == "EVALSHA" else command[:1]


_FORBIDDEN = re.compile("^NOPERM|ACL failure in script")
"""What a server answers to a command that the user may not run, alone or in a script."""
_REMEDIES = {
    "DB index": "correct the number of the database in the URL of the connector",
    "WRONGTYPE": "another program uses the name of the stream, or that of its dead letters, for"
    " something else: choose another one",
    "Invalid stream ID": "start is 0 (all entries), $ (new ones), or the id of an entry",
    "unknown command": "use Redis 6.2, Valkey 7.2, or newer",
}


def _transaction_of(client: Any) -> Any:
    """A transaction of the server whose errors do not show what was sent."""
    pipeline = client.pipeline(transaction=True)
    # The driver would put the command into the message of its error, and so the payload.
    pipeline.annotate_exception = lambda *_: None
    return pipeline


def _no_retry(module: str) -> Any:
    return import_module(module).Retry(import_module("redis.backoff").NoBackoff(), 0)


def _database(path: str) -> int:
    text = path.strip("/")
    if not text:
        return 0
    if not (text.isascii() and text.isdigit()) or len(text) > 9:
        raise ConfigurationError(
            "what follows the host in the URL of a Redis stream is the number of a database",
            remedy=f"write {EXAMPLE}",
        )
    return int(text)


def _options(
    url: BrokerUrl, *, ca: str | None, cert: str | None, key: str | None
) -> dict[str, Any]:
    options: dict[str, Any] = {
        "host": url.host,
        "port": url.port,
        "db": _database(url.path),
        "username": url.user,
        "password": url.password,
        "protocol": 2,
        "max_connections": MAX_CONNECTIONS,
        "socket_connect_timeout": CONNECT_TIMEOUT,
        "socket_keepalive": True,
    }
    if tls_files(url, ("rediss",), ca=ca, cert=cert, key=key):
        options |= {"ssl": True, "ssl_ca_certs": ca, "ssl_certfile": cert, "ssl_keyfile": key}
        options["ssl_check_hostname"] = True
    return options
