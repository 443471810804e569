"""A zone's stream as a database: optimistic transactions, a cache of records, notifications.

A transaction reads records, decides, and commits a batch of messages on the condition that the
stream still ends where it ended when the records were read. If another process was faster, the
transaction is tried again with what that one wrote. Transactions of one process take turns, so
that they do not overtake each other.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from ergon_framework.boundary.factstore.nats.schema import Attribute
from ergon_framework.boundary.factstore.nats.session import (
    RecordCache,
    StreamRecord,
    StreamTransaction,
)
from ergon_framework.boundary.factstore.nats.setup import MOVED_TO, StreamSetup
from ergon_framework.errors import (
    BoundaryError,
    StoreError,
    StoreReadOnlyError,
    StoreUnavailableError,
)
from ergon_framework.ports.transfer import moved_away
from ergon_framework.storage.conflicts import ConflictError, retry_conflicts
from ergon_framework.storage.failpoints import declare, failpoint
from ergon_framework.storage.nats import NatsClient
from ergon_framework.storage.nats.stream import MAX_MESSAGES
from ergon_framework.storage.notifier import LocalNotifier
from ergon_framework.storage.server import ServerClock
from ergon_framework.storage.write_guard import WriteGuard

logger = logging.getLogger("ergon_framework.boundary")


class Notifier:
    """Wakes subscribers of this process when facts were added, and notifies other processes."""

    def __init__(self, line: NatsClient, topic: str) -> None:
        self._line = line
        self._topic = topic
        self._wakes: list[Callable[[], None]] = []
        self._waking = threading.Lock()
        self._local = LocalNotifier()
        self._listener: threading.Thread | None = None

    def add(self, wake: Callable[[], None]) -> None:
        """Call ``wake()``, from any thread, after each commit of any process that added facts."""
        with self._waking:
            # Replaced, not changed: a wake-up may be reading the list at this moment, without the
            # lock.
            self._wakes = [*self._wakes, wake]
            if self._listener is None:
                self._listener = threading.Thread(
                    target=self._listen, name="ergon-nats-notifier", daemon=True
                )
                self._listener.start()
                self._line.subscribe(self._topic, lambda: self._local.notify(self._topic))

    def remove(self, wake: Callable[[], None]) -> None:
        """Call it no longer. Does nothing if it was never added."""
        with self._waking:
            left = list(self._wakes)
            if wake in left:
                left.remove(wake)
            self._wakes = left

    def close(self) -> None:
        """Close the line, and wait until nothing listens any more. Closing twice is fine."""
        with self._waking:
            listener, self._listener = self._listener, None
        self._line.close()
        self._local.close()
        if listener is not None and listener is not threading.current_thread():
            listener.join()

    def notify(self) -> None:
        """Wake the subscribers of all processes: there are new facts."""
        # Here first: the way over the server takes longer, and does not come back to us.
        self._wake()
        self._line.notify(self._topic)

    def _listen(self) -> None:
        """Wake subscribers of this process when another process has added facts."""
        subscription = self._local.subscribe(self._topic)
        while subscription.wait(None):
            self._wake()

    def _wake(self) -> None:
        for wake in self._wakes:
            try:
                wake()
            except Exception:
                logger.exception("a callback that waits for facts failed")


T = TypeVar("T")

_CALLS = ("append", "receive", "confirm", "truncate", "bind", "quarantine", "desk", "move")
_BEFORE = {call: f"boundary.{call}.before" for call in _CALLS}
_AFTER = {call: f"boundary.{call}.after" for call in _CALLS}
declare(*_BEFORE.values(), *_AFTER.values())

KEPT_MESSAGES = 2
"""Messages of a record that are kept: when a commit has to be undone, the one before counts."""
MAX_ATTEMPTS = 1000
"""How often a transaction is tried because other writers were faster, before it gives up."""


class NatsDatabase:
    """Runs transactions: some while others go on, and those that write one after the other."""

    def __init__(
        self,
        url: str,
        *,
        zone: str,
        clock: Callable[[], float] | None = None,
        read_only: bool = False,
    ) -> None:
        self._is_read_only = read_only
        self._turn = threading.RLock()
        self.guard: WriteGuard[StreamTransaction] = WriteGuard()
        """What is looked at first in each transaction that may change something."""
        self.moved_to = ""
        """Where the zone went, as far as the stream was asked; empty while it is here."""
        self._memory = RecordCache()
        self.opening = StreamSetup(url, zone, read_only=read_only)
        self.stream, self.subjects = self.opening.stream, self.opening.subjects
        self.notifier = Notifier(self.stream.client, self.subjects.notifications)
        try:
            self.opening.meet()
            self.clock = clock or ServerClock(self.opening.server_time, time.monotonic)
            self.opening.move_in(self.clock)
        except BaseException:
            self.stream.client.close()
            raise
        self._connections = self.stream.client.connections

    @property
    def url(self) -> str:
        """The URL of the store, without a password."""
        return self.stream.client.address.name

    def close(self) -> None:
        """Close the connection. May be called twice."""
        self.notifier.close()

    # ---- transactions ---------------------------------------------------------------------------

    def read(self, work: Callable[[StreamTransaction], T]) -> T:
        """Run a step that writes nothing, on what is there now, while others go on."""

        def attempt() -> T:
            transaction = self.begin_read()
            try:
                result = work(transaction)
            except BoundaryError as error:
                # A refusal counts only if what it was based on has not changed meanwhile.
                if self._is_unchanged(transaction):
                    raise
                raise ConflictError from error
            if transaction.is_doubtful and not self._is_unchanged(transaction):
                raise ConflictError
            # Under the lock, because writers change the same memory.
            with self._turn:
                self._memory.adopt_records(transaction.memory)
            return result

        return self._retry(attempt)

    def transaction(self, work: Callable[[StreamTransaction], T], call: str) -> T:
        """Run a step until what it wants written is written."""
        return self.transaction_and_end(work, call)[0]

    def transaction_and_end(
        self, work: Callable[[StreamTransaction], T], call: str
    ) -> tuple[T, int]:
        """Run a step until what it wants written is written; and where the stream ended then.

        It is first tried with the cached records, without asking the server. Then a refusal, or
        nothing to write, proves nothing: the step is run again on what the stream really holds.
        """
        self.refuse_reader()
        with self._turn:
            transaction, result = self._try(work, call)
            # Read under the same lock: the next writer moves it on.
            last = self._memory.last
        failpoint(_AFTER[call])
        self._trim()
        # Outside of the lock: subscribers may call the store.
        if transaction.is_longer:
            self.notifier.notify()
        return result, last

    def _try(
        self, work: Callable[[StreamTransaction], T], call: str
    ) -> tuple[StreamTransaction, T]:
        # Whether a zone that went elsewhere is here again, only the stream can tell.
        is_sure = not self._is_current() or bool(self.moved_to)

        def attempt() -> tuple[StreamTransaction, T]:
            if is_sure:
                self._refresh()
            transaction = self._begin(self._memory, is_sure=is_sure)
            if is_sure:
                self._refuse_moved(transaction, call)
            if self.guard.check is not None:
                self.guard.check(transaction)
            try:
                result = work(transaction)
            except BoundaryError as error:
                if is_sure and self._is_unchanged(transaction):
                    raise
                raise ConflictError from error
            if transaction.finish():
                self._commit(transaction, call)
            # What the cache says may be old; only the stream itself can say that nothing is to be
            # done.
            elif not is_sure:  # nothing to write counts only when the stream was looked at
                raise ConflictError
            return transaction, result

        def invalidate_cache() -> None:
            nonlocal is_sure
            is_sure = True

        return self._retry(attempt, before_retry=invalidate_cache)

    def compare_and_set(self, work: Callable[[StreamTransaction], T], call: str, subject: str) -> T:
        """Run a step that depends on one record and writes only that record.

        Other records may change meanwhile: the commit depends on this record alone. So the step
        reads while other transactions go on, and takes its turn only to write.
        """
        self.refuse_reader()

        def attempt() -> T:
            transaction = self.begin_read()
            self._refuse_moved(transaction, call)
            try:
                result = work(transaction)
            except BoundaryError as error:
                if self._is_unchanged(transaction):
                    raise
                raise ConflictError from error
            if not transaction.finish():
                return result
            message = transaction.only(subject)
            # Another record is to be written, too: then all of it has to be one commit.
            if message is None:  # it wants more written than that record
                return self.transaction(work, call)
            failpoint(_BEFORE[call])
            with self._turn:
                seq = self.stream.commit([message], None)
                self._memory.follow(subject, StreamRecord(message.data, seq))
                failpoint(_AFTER[call])
                self._trim()
            return result

        return self._retry(attempt)

    def _retry(
        self, attempt: Callable[[], T], *, before_retry: Callable[[], None] | None = None
    ) -> T:
        return retry_conflicts(
            attempt,
            max_attempts=MAX_ATTEMPTS,
            give_up=lambda: _too_busy(self.url),
            before_retry=before_retry,
        )

    def _commit(self, transaction: StreamTransaction, call: str) -> None:
        """Write what a step wants; ``OvertakenError`` when another process was faster."""
        messages = transaction.messages()
        if len(messages) > MAX_MESSAGES:
            raise StoreError(
                f"{len(messages)} messages are more than {self.url} takes at once",
                remedy="do it in smaller parts",
            )
        failpoint(_BEFORE[call])
        # On the condition that the stream ends where the cache says: any other writer makes it
        # fail.
        transaction.was_written(self.stream.commit(messages, self._memory.last))

    def _trim(self) -> None:
        """Remove what records were before: all but two, of which one undoes half a commit."""
        with self._turn:
            records_to_trim = self._memory.records_to_trim()
        for subject in records_to_trim:
            with suppress(StoreError):  # another time will do
                self.stream.trim(subject, KEPT_MESSAGES)

    def clear(self, below: int, *subjects: str) -> None:
        """Remove messages that no record refers to any more; it only frees room."""
        for subject in subjects:
            with suppress(StoreError):  # what was committed counts, whether they go or not
                self.stream.purge(subject, below)

    # ---- what is remembered ---------------------------------------------------------------------

    def _begin(self, memory: RecordCache, *, is_sure: bool) -> StreamTransaction:
        return StreamTransaction(self.stream, self.subjects, memory, is_sure=is_sure)

    def begin_read(self) -> StreamTransaction:
        """Begin a transaction that only reads and blocks no other."""
        last = self.opening.standing().last
        with self._turn:
            if last != self._memory.last or not self._is_current():
                self._refresh()
            return self._begin(self._memory.view(), is_sure=True)

    def forget(self) -> None:
        """Read everything anew at the next use."""
        with self._turn:
            self._memory.forget(-1)

    def _is_current(self) -> bool:
        """Whether the memory is worth a try."""
        return self._memory.last >= 0 and self._connections == self.stream.client.connections

    def _is_unchanged(self, transaction: StreamTransaction) -> bool:
        """Whether the stream still ends where it ended when a step began."""
        last = self.opening.standing().last
        return (
            last == transaction.memory.last and self._connections == self.stream.client.connections
        )

    def _refresh(self) -> None:
        """See where the stream ends; after a connection was lost, also whether it is whole."""
        last = self.opening.standing().last
        connections = self.stream.client.connections
        # Another connection may lead to a server that has lost its last messages.
        if self._connections != connections:
            self.opening.repair(self._memory.highest, self.clock)
            self._connections = connections
            last = self.opening.standing().last
            self._memory.begin_anew(last)
        # Shorter than it was: the server lost messages, and others will get their numbers.
        elif last < self._memory.highest:
            self._memory.begin_anew(last)
        elif last != self._memory.last:
            self._memory.forget(last)

    def _refuse_moved(self, transaction: StreamTransaction, call: str) -> None:
        """Write nothing into a zone that went elsewhere; a move may say that it is here again."""
        self.moved_to = self.opening.moved_to
        if self.opening.is_moving:  # then a record says it, which the commit depends on
            found = transaction.get(Attribute, self.subjects.attribute(MOVED_TO))
            self.moved_to = "" if found is None else found.value
        if self.moved_to and call != "move":
            raise moved_away(self.url, self.moved_to, zone=self.opening.zone)

    def refuse_reader(self) -> None:
        """Raise ``StoreReadOnlyError`` if the store was opened for reading only."""
        if self._is_read_only:
            raise StoreReadOnlyError(
                f"{self.url} was opened for reading only", remedy="open it for writing"
            )


def _too_busy(name: str) -> StoreUnavailableError:
    return StoreUnavailableError(
        f"others wrote to {name} all the time", remedy="try again when less is going on"
    )
