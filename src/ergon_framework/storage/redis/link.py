"""The connections to one Redis server, and what is run there."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import redis
from redis import exceptions
from redis.backoff import NoBackoff
from redis.retry import Retry

from ergon_framework.errors import ErgonError, StoreUnavailableError
from ergon_framework.storage.hurry import ASKING
from ergon_framework.storage.reconnecting import told_again
from ergon_framework.storage.redis.address import Address
from ergon_framework.storage.redis.connecting import PlainConnection
from ergon_framework.storage.redis.faults import (
    away,
    closed,
    closed_meanwhile,
    is_deposed,
    lost,
    silent,
    translate,
)
from ergon_framework.storage.redis.scripts import Script
from ergon_framework.storage.redis.tls import EncryptedConnection, fault_of

CONNECTED = 3.0
"""Seconds for a connection to come about."""
ANSWERED = 20.0
"""Seconds for an answer; a server that is frozen keeps its side of a connection open."""
REST = 0.5
"""Seconds for which a server that did not answer is not asked again."""
MOST_CONNECTIONS = 1000
"""One for each thread that waits for an answer."""
_MOST_MOVES = 5
_LENT = () if redis.VERSION >= (5, 3) else ("EVALSHA",)  # what a connection is lent for
_CUT_OFF = (
    *(exceptions.ConnectionError, exceptions.TimeoutError, exceptions.InvalidResponse),
    OSError,
)


class RedisLink:
    """Any thread may call any method; each call has a connection of its own."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._pool = self._new_pool(address)
        self._silent_until = float("-inf")
        self._silence = ("", "")
        """What was wrong, and what to do: it is said again until the server is asked again."""
        self._is_closed = False
        self._was_let_in = False
        self._is_elsewhere = False  # on another server of the cluster than the URL says
        self._when_left: Callable[[], None] = lambda: None

    @property
    def name(self) -> str:
        """What to call the server in front of people."""
        return self.address.name

    def call(self, *words: Any) -> Any:
        """Run one command that only reads, or that may be repeated."""
        return self._answer(lambda connection: connection.send_command(*words), is_repeatable=True)

    def run(
        self, script: Script, keys: bytes, args: Sequence[bytes], *, is_repeatable: bool
    ) -> Any:
        """Run a script; ``keys`` are packed. The server gets its text when it does not know it.

        One that may be repeated is, once, when the connection broke before its answer came.
        """
        try:
            words = script.call(keys, args)
            return self._answer(lambda line: line.send_packed_command([words]), is_repeatable)
        except exceptions.NoScriptError:
            words = script.full_call(keys, args)
            return self._answer(lambda line: line.send_packed_command([words]), is_repeatable)

    def info(self, section: str) -> dict[str, str]:
        """What the server tells of itself."""
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
        except _CUT_OFF as error:
            raise self._refused(error) from error
        return connection

    def when_left(self, call: Callable[[], None]) -> None:
        """Call this, from any thread, when the server behind our connections is no longer ours."""
        self._when_left = call

    def close(self) -> None:
        """Close all connections; may be called twice."""
        self._is_closed = True
        self._pool.disconnect()

    # ---- one call -------------------------------------------------------------------------------

    def _answer(self, send: Callable[[Any], object], is_repeatable: bool) -> Any:
        for _ in range(_MOST_MOVES):
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
            # Its own for this call: whoever had it before may have had less time, or more.
            connection._sock.settimeout(ASKING.at_most(ANSWERED))  # noqa: SLF001 - it has no other name
            send(connection)
            answer = connection.read_response()
            is_whole = self._was_let_in = True
            return answer
        except exceptions.ResponseError as error:
            is_whole = True
            if is_deposed(error):
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
            if isinstance(error, _CUT_OFF):
                raise lost(self.name, error) from error
            raise
        finally:
            self._give_back(pool, connection, is_whole)

    def _borrow(self) -> tuple[Any, Any]:
        """An idle connection that the server has not closed, or a new one."""
        self._refuse_when_closed()
        if time.monotonic() < self._silent_until:
            message, remedy = self._silence  # whoever was told before may be somebody else
            raise StoreUnavailableError(f"{message}, a moment ago", remedy=remedy)
        pool = self._pool
        try:
            return pool, pool.get_connection(*_LENT)
        except exceptions.ResponseError as error:
            raise self._outside(translate(error, self.name)) from error
        except Exception as error:
            self._refuse_when_closed()  # then the driver stumbles over anything
            if isinstance(error, _CUT_OFF):
                raise self._refused(error) from error
            raise

    def _give_back(self, pool: Any, connection: Any, is_whole: bool) -> None:
        if self._is_closed:
            with suppress(Exception):  # whoever closes does the same at this moment
                connection.disconnect()
                pool.release(connection)
            return
        if not is_whole:  # nobody knows what comes next on it
            connection.disconnect()
        pool.release(connection)

    def _refused(self, error: BaseException) -> ErgonError:
        """Why no connection came about."""
        return self._outside(self._reason(error))

    def _outside(self, error: ErgonError) -> ErgonError:
        """How to tell it: who was answered before waits until the server lets us in again.

        Without a password in the URL, connecting is not refused: the first answer counts.
        """
        return told_again(error) if self._was_let_in else error

    def _reason(self, error: BaseException) -> ErgonError:
        """The driver calls much of what the server says by one name, so the text tells."""
        text = str(error)
        if isinstance(error, exceptions.BusyLoadingError) or "LOADING" in text:
            return translate(exceptions.ResponseError(f"LOADING {text}"), self.name)
        if isinstance(error, exceptions.AuthenticationError):
            return translate(exceptions.ResponseError(f"WRONGPASS {text}"), self.name)
        if "invalid DB index" in text or "Invalid Database" in text or "out of range" in text:
            return translate(exceptions.ResponseError("DB index is out of range"), self.name)
        wrong = fault_of(self.address, error)
        if wrong is None and self._is_elsewhere:
            self._go_to(self.address)  # who had the slot is gone: ask the first one who has it
        told = wrong or away(self.name, error)
        self._rest(error, told)
        return told

    def _rest(self, error: BaseException, told: ErgonError) -> None:
        """Ask nothing for a moment, unless it was the caller who could not wait any longer."""
        is_slow = isinstance(error, exceptions.TimeoutError)
        if not (is_slow and ASKING.is_short(ANSWERED)):
            self._silence = told.message, told.remedy
            self._silent_until = time.monotonic() + REST

    def _follow(self, error: exceptions.MovedError) -> None:
        """In a cluster another server has the slot of our keys, with all of them."""
        options = self.address.options | {"host": error.host, "port": error.port}
        self._go_to(replace(self.address, options=options))

    def _leave(self, pool: Any) -> None:
        """The server became a replica, which keeps its connections; the name in the URL may lead
        to the new primary by now, so the next call connects anew.
        """
        if pool is self._pool:  # otherwise somebody was faster
            self._go_to(self.address)
            self._when_left()

    def _go_to(self, address: Address) -> None:
        self._is_elsewhere = address is not self.address
        old, self._pool = self._pool, self._new_pool(address)
        with suppress(exceptions.RedisError):
            old.disconnect(inuse_connections=False)

    def _refuse_when_closed(self) -> None:
        if self._is_closed:
            raise closed(self.name)

    @staticmethod
    def _new_pool(address: Address) -> Any:
        kind: Any = EncryptedConnection if address.has_tls else PlainConnection
        return redis.ConnectionPool(
            connection_class=kind,
            max_connections=MOST_CONNECTIONS,
            protocol=2,
            socket_connect_timeout=CONNECTED,
            socket_timeout=ANSWERED,
            socket_keepalive=True,
            retry=Retry(NoBackoff(), 0),
            **address.options,
        )
