"""The stream with its clock: transactions that are tried again, and notifications."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import TypeVar

from ergon_framework.boundary.factstore.hashchain import Prepared
from ergon_framework.boundary.factstore.nats.append import refer
from ergon_framework.boundary.factstore.nats.session import Record, RecordCache, StreamTransaction
from ergon_framework.boundary.factstore.nats.setup import Opening
from ergon_framework.errors import (
    BoundaryError,
    StoreError,
    StoreReadOnlyError,
    StoreUnavailableError,
)
from ergon_framework.ports.factstore import StoreInfo
from ergon_framework.ports.moving import moved_away
from ergon_framework.storage.failpoints import declare, failpoint
from ergon_framework.storage.nats import NatsClient, OvertakenError
from ergon_framework.storage.nats.stream import MOST_MESSAGES
from ergon_framework.storage.notifier import LocalNotifier
from ergon_framework.storage.server import ServerClock

logger = logging.getLogger("ergon_framework.boundary")


class Notifier:
    """Wakes who waits here, and rings where others wait."""

    def __init__(self, line: NatsClient, topic: str) -> None:
        self._line = line
        self._topic = topic
        self._wakes: list[Callable[[], None]] = []
        self._waking = threading.Lock()
        self._local = LocalNotifier()
        self._ringer: threading.Thread | None = None

    def subscribe(self, wake: Callable[[], None]) -> None:
        """Call ``wake()``, from any thread, after each commit of anybody that added facts."""
        with self._waking:
            self._wakes = [*self._wakes, wake]
            if self._ringer is None:
                self._ringer = threading.Thread(
                    target=self._ring, name="ergon-nats-bell", daemon=True
                )
                self._ringer.start()
                self._line.subscribe(self._topic, lambda: self._local.notify(self._topic))

    def unsubscribe(self, wake: Callable[[], None]) -> None:
        """No longer; one who never subscribed is fine."""
        with self._waking:
            left = list(self._wakes)
            if wake in left:
                left.remove(wake)
            self._wakes = left

    def close(self) -> None:
        """Let go of everything. Closing twice is fine."""
        with self._waking:
            ringer, self._ringer = self._ringer, None
        self._line.close()
        self._local.close()
        if ringer is not None and ringer is not threading.current_thread():
            ringer.join()

    def _ring_all(self) -> None:
        """Tell everybody that there are facts."""
        self._wake()
        self._line.notify(self._topic)

    def _ring(self) -> None:
        """Wake who waits here when another process has added facts."""
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

MANY = 300
"""References of one fact, above which they are marked ahead of it."""
KEPT = 2
"""Messages of a record that are kept: when a commit has to be undone, the one before counts."""
ROUNDS = 1000
"""How often a step begins anew because others were faster, before it gives up."""


class NatsDatabase(Notifier):
    """Runs steps: some while others go on, and those that write one after the other."""

    def __init__(
        self,
        url: str,
        *,
        zone: str,
        clock: Callable[[], float] | None = None,
        read_only: bool = False,
    ) -> None:
        self._is_read_only = read_only
        self._heads_seen: Callable[[str, int], None] | None = None
        self._turn = threading.RLock()
        self._memory = RecordCache()
        self._opening = Opening(url, zone, read_only=read_only)
        self._stream, self._subjects = self._opening.stream, self._opening.subjects
        super().__init__(self._stream.client, self._subjects.bell)
        try:
            self._opening.meet()
            self.acknowledgement = self._opening.durability.sentence
            self.is_synced = self._opening.durability.is_safe
            self._clock = clock or ServerClock(self._opening.server_time, time.monotonic)
            self._info: StoreInfo = self._opening.move_in(self._clock)
        except BaseException:
            self._stream.client.close()
            raise
        self._connections = self._stream.client.connections

    @property
    def url(self) -> str:
        """Where it is, without a password."""
        return self._stream.client.address.name

    @property
    def clock(self) -> Callable[[], float]:
        """What time it is where the facts are."""
        return self._clock

    def info(self) -> StoreInfo:
        """Which store this is."""
        return self._look(self._opening.read_info)

    # ---- steps ----------------------------------------------------------------------------------

    def _look(self, work: Callable[[StreamTransaction], T]) -> T:
        """Run a step that writes nothing, on what is there now, while others go on."""
        for _ in range(ROUNDS):
            books = self._view()
            try:
                result = work(books)
            except BoundaryError:
                if self._is_unchanged(books):
                    raise
            else:
                if not books.is_doubtful or self._is_unchanged(books):
                    with self._turn:
                        self._memory.learn(books.memory)
                    return result
        raise _too_busy(self.url)

    def _step(self, work: Callable[[StreamTransaction], T], call: str) -> T:
        """Run a step until what it wants written is written."""
        return self._placed(work, call)[0]

    def _placed(self, work: Callable[[StreamTransaction], T], call: str) -> tuple[T, int]:
        """Run a step until what it wants written is written; and where the stream ended then.

        It is first tried with what is remembered. A refusal, or nothing to write, counts only when
        the stream was seen to end where the memory does.
        """
        self._refuse_reader()
        with self._turn:
            books, result = self._try(work, call)
            last = self._memory.last
        failpoint(_AFTER[call])
        self._trim()
        if books.is_longer:
            self._ring_all()
        return result, last

    def _try(
        self, work: Callable[[StreamTransaction], T], call: str
    ) -> tuple[StreamTransaction, T]:
        # Whether a zone that went elsewhere is here again, only the stream can tell.
        is_sure = not self._is_current() or bool(self._opening.moved_to)
        for _ in range(ROUNDS):
            if is_sure:
                self._refresh()
                self._refuse_moved(call)
            books = self._books(self._memory, is_sure=is_sure)
            try:
                result = work(books)
            except BoundaryError:
                if is_sure and self._is_unchanged(books):
                    raise
            else:
                has_news = books.finish()
                if self._is_committed(books, call) if has_news else is_sure:
                    return books, result
            is_sure = True
        raise _too_busy(self.url)

    def _narrow(self, work: Callable[[StreamTransaction], T], call: str, subject: str) -> T:
        """Run a step that depends on one record, if that is all it wants written.

        What else is written meanwhile does not matter to it. So it reads while others go on, and
        only writes in its turn.
        """
        self._refuse_reader()
        for _ in range(ROUNDS):
            books = self._view()
            self._refuse_moved(call)
            try:
                result = work(books)
            except BoundaryError:
                if self._is_unchanged(books):
                    raise
                continue
            if not books.finish():
                return result
            message = books.only(subject)
            if message is None:
                return self._step(work, call)
            failpoint(_BEFORE[call])
            with self._turn, suppress(OvertakenError):
                seq = self._stream.commit([message], None)
                self._memory.follow(subject, Record(message.data, seq))
                failpoint(_AFTER[call])
                self._trim()
                return result
        raise _too_busy(self.url)

    def _refer_ahead(self, facts: Iterable[Prepared], call: str, *, is_awaited: bool) -> None:
        """Mark what facts with very many references refer to, before they are entered.

        Their names would not fit into the commit of the fact; a name that is marked for a fact that
        never comes is merely kept.
        """
        for fact in facts:
            names = fact.new.references
            for start in range(0, len(names) if len(names) > MANY else 0, MANY):
                part = names[start : start + MANY]
                is_kept = is_awaited or not fact.new.needs_artifacts
                names_of = [(each.bucket, each.key) for each in part]
                self._step(partial(refer, names_of, is_awaited=is_kept), call)

    def _is_committed(self, books: StreamTransaction, call: str) -> bool:
        """Write what a step wants; False when somebody else was faster."""
        messages = books.messages()
        if len(messages) > MOST_MESSAGES:
            raise StoreError(
                f"{len(messages)} messages are more than {self.url} takes at once",
                remedy="do it in smaller parts",
            )
        failpoint(_BEFORE[call])
        try:
            books.was_written(self._stream.commit(messages, self._memory.last))
        except OvertakenError:
            return False
        return True

    def _trim(self) -> None:
        """Remove what records were before: all but two, of which one undoes half a commit."""
        with self._turn:
            worn = self._memory.worn()
        for subject in worn:
            with suppress(StoreError):  # another time will do
                self._stream.trim(subject, KEPT)

    def _clear(self, below: int, *subjects: str) -> None:
        """Remove messages that nobody sees any more; that is a matter of room alone."""
        for subject in subjects:
            with suppress(StoreError):  # what was committed counts, whether they go or not
                self._stream.purge(subject, below)

    # ---- what is remembered ---------------------------------------------------------------------

    def _books(self, memory: RecordCache, *, is_sure: bool) -> StreamTransaction:
        return StreamTransaction(self._stream, self._subjects, memory, is_sure=is_sure)

    def _view(self) -> StreamTransaction:
        """Books for who does not hold up others."""
        last = self._opening.standing().last
        with self._turn:
            if last != self._memory.last or not self._is_current():
                self._refresh()
            return self._books(self._memory.view(), is_sure=True)

    def _is_current(self) -> bool:
        """Whether the memory is worth a try."""
        return self._memory.last >= 0 and self._connections == self._stream.client.connections

    def _is_unchanged(self, books: StreamTransaction) -> bool:
        """Whether nobody has written since a step began."""
        last = self._opening.standing().last
        return last == books.memory.last and self._connections == self._stream.client.connections

    def _refresh(self) -> None:
        """See where the stream ends; after a connection was lost, also whether it is whole."""
        last = self._opening.standing().last
        connections = self._stream.client.connections
        if self._connections != connections:
            self._opening.mend(self._memory.highest, self._clock)
            self._connections = connections
            last = self._opening.standing().last
            self._memory.begin_anew(last)
        elif last < self._memory.highest:
            self._memory.begin_anew(last)
        elif last != self._memory.last:
            self._memory.forget(last)

    def _refuse_moved(self, call: str) -> None:
        """Write nothing into a zone that went elsewhere; a move may say that it is here again."""
        if self._opening.moved_to and call != "move":
            raise moved_away(self.url, self._opening.moved_to)

    def _refuse_reader(self) -> None:
        if self._is_read_only:
            raise StoreReadOnlyError(
                f"{self.url} was opened for reading only", remedy="open it for writing"
            )


def _too_busy(name: str) -> StoreUnavailableError:
    return StoreUnavailableError(
        f"others wrote to {name} all the time", remedy="try again when less is going on"
    )
