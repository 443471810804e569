"""The client of one Redis server: connections, TLS, Lua scripts, and how both are used."""

from __future__ import annotations

import hashlib
import re
import socket
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any

import redis
from redis import exceptions
from redis.backoff import NoBackoff
from redis.retry import Retry

from ergon_framework.errors import (
    ConfigurationError,
    ErgonError,
    StoreUnavailableError,
    WiringError,
)
from ergon_framework.storage import connection_errors
from ergon_framework.storage.connection_errors import as_unavailable
from ergon_framework.storage.deadlines import CALL_BUDGET
from ergon_framework.storage.redis.address import TLS_OPTIONS, RedisAddress
from ergon_framework.storage.redis.errors import (
    away,
    closed,
    closed_meanwhile,
    is_replica_error,
    lost,
    silent,
    translate,
)

_PROBE_TIMEOUT = 3.0  # seconds for a server to say what is wrong
_PLAIN_REPLIES = (b"+", b"-")  # first byte of any reply of a server without TLS
_HUNG_UP = ("reset", "closed", "EOF", "Broken pipe", "Protocol Error")  # in texts of errors


@dataclass(frozen=True)
class RedisTimeouts:
    """How long a client waits for its Redis server, in seconds."""

    connect: float = 3.0
    """Seconds to establish a connection."""
    handshake: float = 3.0
    """Seconds for the TLS handshake."""
    response: float = 20.0
    """Seconds for a response: a frozen server keeps its side of the connection open."""
    reconnect_delay: float = 0.5
    """Between a server that did not answer and the next attempt. Callers in between get the same
    error at once: without it, every thread of a busy process would wait for such a server."""


DEFAULT_TIMEOUTS = RedisTimeouts()


class EncryptedConnection(redis.SSLConnection):
    """A connection with TLS, whose handshake has a timeout of its own.

    A server without TLS may never answer the handshake, so waiting for it as long as for a
    response would be too long. ``_connect`` is a private method of the driver: a version that no
    longer calls it waits as long as for a response, and nothing else changes. A key file with a
    passphrase is refused; the user is not asked for the passphrase.
    """

    def __init__(self, *, handshake_timeout: float, **options: Any) -> None:
        super().__init__(**options, ssl_password=connection_errors.no_passphrase)
        self._handshake_timeout = handshake_timeout

    def _connect(self) -> Any:
        return connect_in_budget(self, super()._connect, self._handshake_timeout)


def fault_of(address: RedisAddress, error: BaseException) -> ConfigurationError | None:
    """What is wrong about TLS when no connection came about; None when it is something else.

    When a server closes the connection at once, its alert is often lost; then a second connection
    is made to read it.
    """
    text = str(error)
    if not address.has_tls:
        is_cut = any(each in text for each in _HUNG_UP)
        return _encrypted(address.name) if is_cut and _speaks_tls(address) else None
    try:
        context = _context(address)
    except ConfigurationError as unreadable:
        return unreadable
    found = connection_errors.refused(address.name, text, TLS_OPTIONS)
    if found is None and any(each in text for each in _HUNG_UP):
        found = connection_errors.refused(address.name, _tls_alert(address, context), TLS_OPTIONS)
    if found is None and _speaks_plainly(address):
        found = connection_errors.plain(address.name, TLS_OPTIONS)
    return found


def _context(address: RedisAddress) -> ssl.SSLContext:
    options = address.options
    files = (options.get(f"ssl_{each}") for each in ("ca_certs", "certfile", "keyfile"))
    context = connection_errors.context_of(TLS_OPTIONS, *files)
    context.check_hostname = options["ssl_check_hostname"]
    if options["ssl_cert_reqs"] == "none":
        context.verify_mode = ssl.CERT_NONE
    return context


def _encrypted(name: str) -> ConfigurationError:
    return ConfigurationError(
        f"{name} speaks TLS there, and the URL is for a server without",
        remedy="write rediss:// in the URL, and the authority of its certificate:"
        f" {TLS_OPTIONS.authority}",
    )


# ---- asking the server without a word about who we are ------------------------------------------


def _open_socket(address: RedisAddress) -> socket.socket:
    seconds = CALL_BUDGET.at_most(_PROBE_TIMEOUT)
    sock = socket.create_connection((address.options["host"], address.options["port"]), seconds)
    sock.settimeout(seconds)
    return sock


def _speaks_plainly(address: RedisAddress) -> bool:
    """Whether a Redis without TLS is there: to the beginning of TLS it may say nothing at all."""
    try:
        with _open_socket(address) as sock:
            sock.sendall(b"PING\r\n")
            return sock.recv(1) in _PLAIN_REPLIES
    except OSError:
        return False


def _speaks_tls(address: RedisAddress) -> bool:
    """Whether a server there shows a certificate, of whomever."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        with _open_socket(address) as sock, context.wrap_socket(sock):
            return True
    except OSError as error:
        return "alert" in str(error).lower()


def _tls_alert(address: RedisAddress, context: ssl.SSLContext) -> str:
    try:
        with _open_socket(address) as sock:
            return connection_errors.tls_alert_of(sock, context, address.options["host"])
    except OSError as error:
        return str(error)


class PlainConnection(redis.Connection):
    """A connection without TLS, which connects within the time that its caller has left.

    A version of the driver that no longer calls ``_connect`` takes the usual timeouts.
    """

    def _connect(self) -> Any:
        return connect_in_budget(self, super()._connect)


def connect_in_budget(
    connection: Any, connect: Callable[[], Any], handshake_timeout: float | None = None
) -> Any:
    """Connect, and exchange the first messages, within the time that the caller has left."""
    own = connection.socket_connect_timeout, connection.socket_timeout
    # The driver reads these settings of its own object while it connects, and has no argument for
    # them.
    connection.socket_connect_timeout = CALL_BUDGET.at_most(own[0])
    connection.socket_timeout = CALL_BUDGET.at_most(
        own[1] if handshake_timeout is None else handshake_timeout
    )
    try:
        connected = connect()
    finally:
        # The connection goes back to a pool: the next caller may have more time.
        connection.socket_connect_timeout, connection.socket_timeout = own
    connected.settimeout(CALL_BUDGET.at_most(own[1]))
    return connected


_CONSTANT = re.compile(r'"[^"\n]*"|\b[A-Z][A-Z_]+\b')  # texts are left as they are


class RedisScript:
    """One Lua script, and how it is called.

    ``names`` are the words in capitals that are replaced in ``source``: constants cost nothing
    then, while Lua pays on each call for each name that a function takes from outside.
    """

    def __init__(self, source: str, *, keys: int, names: Mapping[str, str]) -> None:
        text = _CONSTANT.sub(lambda word: names.get(word[0], word[0]), source).encode()
        self.text = text
        """The script as it is sent to the server."""
        self._keys = keys
        self._head = self._words(b"EVALSHA", hashlib.sha1(text).hexdigest().encode())  # noqa: S324
        self._full_head = self._words(b"EVAL", text)

    def call(self, keys: bytes, args: Sequence[bytes]) -> bytes:
        """The call as the protocol wants it, for a server that knows the script."""
        return _call(self._head, self._keys, keys, args)

    def full_call(self, keys: bytes, args: Sequence[bytes]) -> bytes:
        """The call with the whole script, for a server that may not have it cached."""
        return _call(self._full_head, self._keys, keys, args)

    def _words(self, command: bytes, what: bytes) -> bytes:
        return packed((command, what, b"%d" % self._keys))


def packed(words: Sequence[bytes]) -> bytes:
    """Words as the protocol wants them."""
    return b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)


def _call(head: bytes, count: int, keys: bytes, args: Sequence[bytes]) -> bytes:
    words = [b"*%d\r\n" % (3 + count + len(args)), head, keys]
    for each in args:
        words += (b"$%d\r\n" % len(each), each, b"\r\n")
    return b"".join(words)  # in one piece: the driver sends each piece by itself


def read_lua(package: str, file: str) -> str:
    """The text of a Lua file of a package."""
    try:
        return (resources.files(package) / file).read_text(encoding="utf-8")
    except (ModuleNotFoundError, OSError) as error:
        raise WiringError(
            f"there is no file {package}/{file} with a Lua script",
            remedy="it belongs to the installed package; install it again",
        ) from error


MAX_CONNECTIONS = 1000
"""One for each thread that waits for a response."""
_MAX_REDIRECTS = 5  # servers of a cluster that one call is sent on to
# The command that a connection is taken for; newer versions of the driver want none.
_COMMAND = () if redis.VERSION >= (5, 3) else ("EVALSHA",)
_CONNECTION_LOST = (
    *(exceptions.ConnectionError, exceptions.TimeoutError, exceptions.InvalidResponse),
    OSError,
)


class RedisClient:
    """Any thread may call any method; each call has a connection of its own."""

    def __init__(
        self, address: RedisAddress, *, timeouts: RedisTimeouts = DEFAULT_TIMEOUTS
    ) -> None:
        self.address = address
        self._timeouts = timeouts
        self._pool = self._new_pool(address)
        self._silent_until = float("-inf")
        self._silence = ("", "")
        """The last error and its remedy, which callers get until the server is tried again."""
        self._is_closed = False
        self._was_connected = False
        self._is_elsewhere = False  # on another server of the cluster than the URL says
        self._on_failover: Callable[[], None] = lambda: None

    @property
    def name(self) -> str:
        """The name of the server shown to users."""
        return self.address.name

    def call(self, *words: Any) -> Any:
        """Run one command that only reads, or that may be repeated."""
        return self._answer(lambda connection: connection.send_command(*words), is_repeatable=True)

    def run(
        self, script: RedisScript, keys: bytes, args: Sequence[bytes], *, is_repeatable: bool
    ) -> Any:
        """Run a script; ``keys`` are packed. The server gets its text when it does not know it.

        One that may be repeated is, once, when the connection broke before its answer came.
        """
        try:
            words = script.call(keys, args)
            return self._answer(
                lambda connection: connection.send_packed_command([words]), is_repeatable
            )
        except exceptions.NoScriptError:
            # The server was restarted, or its scripts were flushed. Nothing has run, so this is no
            # repetition. With the text and not with SCRIPT LOAD: the server could forget it again
            # between that and the call.
            words = script.full_call(keys, args)
            return self._answer(
                lambda connection: connection.send_packed_command([words]), is_repeatable
            )

    def info(self, section: str) -> dict[str, str]:
        """The answer of INFO."""
        lines = (line.partition(":") for line in self.call("INFO", section).decode().splitlines())
        return {name: value.strip() for name, mark, value in lines if mark}

    def connect(self) -> Any:
        """A connection of the caller's own."""
        self._refuse_when_closed()
        connection = self._pool.make_connection()
        try:
            connection.connect()
        except exceptions.ResponseError as error:
            raise self._outside(translate(error, self.name)) from error
        except _CONNECTION_LOST as error:
            raise self._refused(error) from error
        return connection

    def on_failover(self, call: Callable[[], None]) -> None:
        """Call this, from any thread, when the server behind our connections is no longer ours."""
        self._on_failover = call

    def close(self) -> None:
        """Close all connections; may be called twice."""
        self._is_closed = True
        self._pool.disconnect()

    # ---- one call -------------------------------------------------------------------------------

    def _answer(self, send: Callable[[Any], object], is_repeatable: bool) -> Any:
        for _ in range(_MAX_REDIRECTS):
            try:
                return self._once(send, is_repeatable)
            except exceptions.MovedError as error:
                self._follow(error)
            except exceptions.NoScriptError:
                raise
            except exceptions.ResponseError as error:
                raise translate(error, self.name) from error
        raise StoreUnavailableError(
            f"{self.name}: the cluster sends us from one server to the next",
            remedy="see that the cluster is in order (redis-cli cluster info)",
        )

    def _once(self, send: Callable[[Any], object], is_repeatable: bool) -> Any:
        try:
            return self._exchange(send)
        except StoreUnavailableError as error:
            is_slow = isinstance(error.__cause__, exceptions.TimeoutError)  # and would be again
            if not is_repeatable or is_slow or error.details.get("outcome") != "unknown":
                raise
        return self._exchange(send)

    def _exchange(self, send: Callable[[Any], object]) -> Any:
        pool, connection = self._borrow()
        is_whole = False
        try:
            # Set for each call: the caller before may have had less time left, or more.
            connection._sock.settimeout(CALL_BUDGET.at_most(self._timeouts.response))  # noqa: SLF001 - it has no other name
            send(connection)
            answer = connection.read_response()
            is_whole = self._was_connected = True
            return answer
        except exceptions.ResponseError as error:
            is_whole = True
            if is_replica_error(error):
                self._leave(pool)
            raise
        except (exceptions.BusyLoadingError, exceptions.AuthenticationError) as error:
            raise self._refused(error) from error  # the driver calls these a broken connection
        except exceptions.TimeoutError as error:
            self._rest(error, silent(self.name, error))
            raise lost(self.name, error) from error
        except Exception as error:
            if self._is_closed:  # then the driver stumbles over anything
                raise closed_meanwhile(self.name) from error
            if isinstance(error, _CONNECTION_LOST):
                raise lost(self.name, error) from error
            raise
        finally:
            self._give_back(pool, connection, is_whole)

    def _borrow(self) -> tuple[Any, Any]:
        """An idle connection that the server has not closed, or a new one."""
        self._refuse_when_closed()
        # Without this rest every thread would wait out a timeout of its own at a server that hangs.
        if time.monotonic() < self._silent_until:
            message, remedy = self._silence  # the first caller who got it may have been another one
            raise StoreUnavailableError(f"{message}, a moment ago", remedy=remedy)
        pool = self._pool
        try:
            return pool, pool.get_connection(*_COMMAND)
        except exceptions.ResponseError as error:
            raise self._outside(translate(error, self.name)) from error
        except Exception as error:
            self._refuse_when_closed()  # then the driver stumbles over anything
            if isinstance(error, _CONNECTION_LOST):
                raise self._refused(error) from error
            raise

    def _give_back(self, pool: Any, connection: Any, is_whole: bool) -> None:
        if self._is_closed:
            with suppress(Exception):  # the thread that closes does the same at this moment
                connection.disconnect()
                pool.release(connection)
            return
        if not is_whole:  # a late response could be taken for that of the next call
            connection.disconnect()
        pool.release(connection)

    def _refused(self, error: BaseException) -> ErgonError:
        """Why no connection came about."""
        return self._outside(self._reason(error))

    def _outside(self, error: ErgonError) -> ErgonError:
        """The error for callers: once connected, a refusal counts as something that passes.

        Without a password in the URL, connecting is not refused: the first answer counts.
        """
        return as_unavailable(error) if self._was_connected else error

    def _reason(self, error: BaseException) -> ErgonError:
        """The driver raises one class for many errors of the server, so the text has to be read."""
        text = str(error)
        if isinstance(error, exceptions.BusyLoadingError) or "LOADING" in text:
            return translate(exceptions.ResponseError(f"LOADING {text}"), self.name)
        if isinstance(error, exceptions.AuthenticationError):
            return translate(exceptions.ResponseError(f"WRONGPASS {text}"), self.name)
        if "invalid DB index" in text or "Invalid Database" in text or "out of range" in text:
            return translate(exceptions.ResponseError("DB index is out of range"), self.name)
        wrong = fault_of(self.address, error)
        if wrong is None and self._is_elsewhere:
            self._go_to(self.address)  # the server that had the slot is gone: ask the first one
        reason = wrong or away(self.name, error)
        self._rest(error, reason)
        return reason

    def _rest(self, error: BaseException, reason: ErgonError) -> None:
        """Ask nothing for a moment, unless it was the caller who could not wait any longer."""
        is_slow = isinstance(error, exceptions.TimeoutError)
        if not (is_slow and CALL_BUDGET.is_less_than(self._timeouts.response)):
            self._silence = reason.message, reason.remedy
            self._silent_until = time.monotonic() + self._timeouts.reconnect_delay

    def _follow(self, error: exceptions.MovedError) -> None:
        """Connect to the server of the cluster that now has the slot of our keys."""
        options = self.address.options | {"host": error.host, "port": error.port}
        self._go_to(replace(self.address, options=options))

    def _leave(self, pool: Any) -> None:
        """The server became a replica, which keeps its connections; the name in the URL may lead
        to the new primary by now, so the next call connects anew.
        """
        if pool is self._pool:  # otherwise another thread was faster
            self._go_to(self.address)
            self._on_failover()

    def _go_to(self, address: RedisAddress) -> None:
        self._is_elsewhere = address is not self.address
        old, self._pool = self._pool, self._new_pool(address)
        with suppress(exceptions.RedisError):
            # Those in use are left to their callers: they may have been sent something, and wait
            # for the answer.
            old.disconnect(inuse_connections=False)

    def _refuse_when_closed(self) -> None:
        if self._is_closed:
            raise closed(self.name)

    def _new_pool(self, address: RedisAddress) -> Any:
        timeouts = self._timeouts
        options: dict[str, Any] = dict(address.options)
        if address.has_tls:
            options |= {
                "connection_class": EncryptedConnection,
                "handshake_timeout": timeouts.handshake,
            }
        else:
            options["connection_class"] = PlainConnection
        return redis.ConnectionPool(
            max_connections=MAX_CONNECTIONS,
            protocol=2,
            socket_connect_timeout=timeouts.connect,
            socket_timeout=timeouts.response,
            socket_keepalive=True,
            # The driver must not repeat by itself: it does not know which scripts may run twice.
            retry=Retry(NoBackoff(), 0),
            **options,
        )
