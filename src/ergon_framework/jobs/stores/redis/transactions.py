"""Scripts of a Redis job store, each of which is one transaction, and what its server promises."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ergon_framework.core.retention import STANDARD, JobRetention
from ergon_framework.engine.atfork import renew_after_fork
from ergon_framework.errors import (
    ConfigurationError,
    StoreReadOnlyError,
    StoreSchemaError,
    StoreUnavailableError,
)
from ergon_framework.jobs.stores.redis.rows import encode
from ergon_framework.jobs.stores.redis.scripts import KEYS, fenced
from ergon_framework.jobs.stores.transitions import AFTER, BEFORE
from ergon_framework.ports.jobstore import Subscription, Topic
from ergon_framework.ports.transfer import Fence, overtaken
from ergon_framework.storage.connection_errors import as_unavailable
from ergon_framework.storage.failpoints import failpoint
from ergon_framework.storage.redis.address import address_of
from ergon_framework.storage.redis.client import (
    DEFAULT_TIMEOUTS,
    RedisClient,
    RedisScript,
    RedisTimeouts,
    packed,
)
from ergon_framework.storage.redis.diagnostics import persistence_of, refuse_unsafe
from ergon_framework.storage.redis.notifier import PubSubNotifier
from ergon_framework.storage.server import ServerClock

VERSION = 1
"""Of what the keys hold. A later version that this one cannot read has a higher number."""

FLOW_VERSION = 2
"""The same once a flow was added: a program that knows no flows would count no ends of steps."""

INSPECT_INTERVAL = 10.0
"""Seconds after which the server is asked again whether it still syncs before it answers: its
settings can be changed while it runs, and be others after a restart."""

SCHEMA = "schema"
BIRTH = "birth"
_OVERTAKEN = b"ergon: overtaken"
"""What a fenced script answers that has changed nothing."""


class RedisTransactions:
    """Runs scripts on one server by one clock; a script is a transaction."""

    durability: str
    is_synced: bool
    is_made: bool
    """Whether the store was ever opened for writing. Keys with other names belong to other
    programs.
    """

    def __init__(
        self,
        url: str,
        *,
        clock: Callable[[], float] | None = None,
        read_only: bool = False,
        prefix: str | None = None,
        timeouts: RedisTimeouts = DEFAULT_TIMEOUTS,
        inspect_interval: float = INSPECT_INTERVAL,
    ) -> None:
        """Connect, and look at what is there; refuses a server that would lose jobs."""
        address = address_of(url, prefix)
        self._inspect_interval = inspect_interval
        self._fence: Fence | None = None
        self.retention = STANDARD
        # In braces: all keys of a store lie in one slot of a cluster, which scripts need.
        self._tag = f"{{{address.prefix}}}:"
        self.is_read_only = read_only
        self._keys = packed([f"{self._tag}{key}".encode() for key in KEYS.values()])
        self._channel = f"{self._tag}{address.database}:bell:".encode()
        self.client = RedisClient(address, timeouts=timeouts)
        try:
            self._inspect()
            self._clock = clock
            self._now = clock or self._server_clock()
        except BaseException:
            self.client.close()
            raise
        self._notifier = PubSubNotifier(self.client)

    @property
    def name(self) -> str:
        """The name of the store shown to users."""
        return self.client.name

    @property
    def retention(self) -> JobRetention:
        """How long jobs are kept that a script ends by itself."""
        return self._retention

    @retention.setter
    def retention(self, retention: JobRetention) -> None:
        self._retention = retention
        # What a script ends by itself it cancels: Python sends all that expires.
        own = {name: each.cancelled for name, each in retention.queues.items()}
        self._spans = encode((retention.usual.cancelled, own))

    def now(self) -> float:
        """The store's clock."""
        return self._now()

    def subscribe(self, topic: Topic) -> Subscription:
        """Subscribe this process to each change of that kind, made by any process."""
        return self._notifier.subscribe(f"{self._channel.decode()}{topic.value}")

    def announce(self) -> None:
        """Wake the workers."""
        self.client.call("PUBLISH", self._channel + Topic.WORK.value.encode(), "")

    def close(self) -> None:
        """Close everything. May be called twice."""
        self._notifier.close()
        self.client.close()

    # ---- opening --------------------------------------------------------------------------------

    def _inspect(self) -> None:
        self._look_at_the_server()
        self._check_schema()

    def _look_at_the_server(self) -> None:
        """Refuse a server that would lose jobs, and say what an acknowledgement means there."""
        found = persistence_of(self.client)
        self.durability = found.sentence()
        self.is_synced = found.is_synced
        refuse_unsafe(found, self.client, read_only=self.is_read_only)
        self._inspect_at = time.monotonic() + self._inspect_interval

    def _check_schema(self) -> None:
        key = f"{self._tag}{SCHEMA}"
        version = self.client.call("GET", key)
        if version is None and not self.is_read_only:
            # Only if there is none: two processes that open an empty store at once must agree on
            # one.
            self.client.call("SET", self.key(BIRTH), secrets.token_hex(16), "NX")
            self.client.call("SET", key, VERSION, "NX")
            version = self.client.call("GET", key)
        self.is_made = version is not None or self._has_keys()
        self._refuse_version(version)

    def check_version(self) -> None:
        """Refuse keys that another version of the program has made meanwhile."""
        self._refuse_version(self.client.call("GET", f"{self._tag}{SCHEMA}"))

    def _refuse_version(self, version: bytes | None) -> None:
        if version is None or version in (b"%d" % VERSION, b"%d" % FLOW_VERSION):
            return
        if not version.isdigit():
            raise StoreSchemaError(
                f"{self.name} has keys of the store's names that are not of this jobs store",
                remedy="give the store a prefix of its own: redis://host/0?prefix=NAME",
            )
        is_newer = int(version) > FLOW_VERSION
        raise StoreSchemaError(
            f"the jobs in {self.name} are kept as version {version.decode()} has them, and this"
            f" program knows version {FLOW_VERSION}",
            remedy="upgrade ergon-framework" if is_newer else "move the jobs to a new store",
        )

    def _has_keys(self) -> bool:
        """Whether there is something in a store whose word was deleted while others had it open."""
        plain = [self.key(name) for name in KEYS.values() if not name.endswith(":")]
        return bool(self.client.call("EXISTS", *plain))

    def _server_clock(self) -> ServerClock:
        clock = ServerClock(self._time, time.monotonic)
        renew_after_fork(clock)
        return clock

    def _time(self) -> float:
        seconds, micros = self.client.call("TIME")
        return int(seconds) + int(micros) / 1_000_000

    # ---- running --------------------------------------------------------------------------------

    def write(
        self,
        what: RedisScript,
        call: str,
        *args: Any,
        blobs: Sequence[bytes] = (),
        is_repeatable: bool = True,
    ) -> Any:
        """Run a script that changes something; failpoints stand around it."""
        self.refuse_to_write()
        # Now and then, not at each write: it costs two commands.
        if time.monotonic() >= self._inspect_at:
            self._refuse_another_server()
        failpoint(BEFORE[call])
        try:
            answer = self.run(what, *args, blobs=blobs, is_repeatable=is_repeatable)
        except StoreUnavailableError:
            self._inspect_at = 0.0  # the server that comes back may have other settings
            raise
        failpoint(AFTER[call])
        return answer

    def _refuse_another_server(self) -> None:
        """Refuse to write while the server would lose jobs, as if it were away."""
        try:
            self._look_at_the_server()
        except ConfigurationError as error:
            raise as_unavailable(error) from error

    def run(
        self, what: RedisScript, *args: Any, blobs: Sequence[bytes] = (), is_repeatable: bool = True
    ) -> Any:
        """Run a script."""
        now = None if self._clock is None else self._clock()
        arguments = (encode((now, *args)), self._channel, self._spans, *blobs)
        fence = self._fence
        if fence is None:
            return self.client.run(what, self._keys, arguments, is_repeatable=is_repeatable)
        # One byte tells a state that is not there from an empty one.
        state = b"-" if fence.state is None else b"+" + fence.state
        answer = self.client.run(
            fenced(what), self._keys, (*arguments, state), is_repeatable=is_repeatable
        )
        if answer == _OVERTAKEN:
            raise overtaken()
        return answer

    @contextmanager
    def fenced(self, fence: Fence | None) -> Iterator[None]:
        """Run every script of this handle only while the move state is that of a fence.

        The script itself compares it, so that nobody can write in between.
        """
        before, self._fence = self._fence, fence
        try:
            yield
        finally:
            self._fence = before

    def call(self, command: str, name: str, *args: Any) -> Any:
        """Send one plain command about a key of the store."""
        return self.client.call(command, self.key(name), *args)

    def refuse_to_write(self) -> None:
        """Raise if the store was opened to be read."""
        if self.is_read_only:
            raise StoreReadOnlyError(
                f"{self.name} was opened to be read", remedy="open it without read_only"
            )

    def key(self, name: str) -> str:
        """The full name of a key of the store."""
        return f"{self._tag}{name}"
