"""The connector class: its options, and the sync and async methods that the engines call."""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar, Self

from ergon_framework.connector.base import (
    Delivered,
    DroppedDeliveries,
    ThreadedConsuming,
    check_batch_size,
    inherited,
    refuse_extra,
    settling,
)
from ergon_framework.connector.broker.connection import BrokerConnection, closed
from ergon_framework.connector.broker.in_flight import MAX_IN_FLIGHT, MAX_IN_FLIGHT_BYTES, InFlight
from ergon_framework.connector.broker.message import MAX_MESSAGE_BYTES
from ergon_framework.connector.broker.options import SECONDS, takes_options
from ergon_framework.connector.broker.wakeup import Wakeup
from ergon_framework.connector.files.errors import (
    FilesConnectorError,
    FilesLockedError,
    MalformedRowError,
)
from ergon_framework.connector.files.formats import Formats
from ergon_framework.connector.files.letters import LETTERS, DeadLetters
from ergon_framework.connector.files.places import (
    BucketAddress,
    FolderAddress,
    address_of,
    observed,
)
from ergon_framework.connector.files.positions import Positions
from ergon_framework.connector.files.reader import FilesReader, HeldRow
from ergon_framework.connector.files.readiness import Readiness
from ergon_framework.connector.jsonl.append_file import DirectoryLock, LockedError
from ergon_framework.engine.atfork import renew_after_fork
from ergon_framework.engine.clocks import current_clock
from ergon_framework.errors import (
    ChannelLostError,
    ConfigurationError,
    ConnectorError,
    EnvelopeError,
    StoreError,
    describe,
)
from ergon_framework.ports.transaction import Transaction
from ergon_framework.storage.secure_files import Folder, UnsafeFileError
from ergon_framework.storage.server import Observation

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class _Delivery(Delivered):
    """A delivered transaction with its row."""

    __slots__ = ("held",)

    held: HeldRow


class FilesConnector(ThreadedConsuming):
    """Consumes the rows of files in a folder, each row a transaction. It changes no file.

    ``url`` is ``files:///folder``, the path of a folder, or ``s3://bucket/prefix``. ``format`` is
    ``csv``, ``jsonl`` or ``parquet``, by default what the name of a file says; ``pattern`` says
    which names are read (``orders-*.csv``). Names that end in ``.gz`` are read compressed. CSV has
    its columns in the first row, or as ``columns``.

    A file is read when it was not changed for ``settle`` seconds, or when there is a file beside it
    whose name ends in ``marker``. With ``follow`` rows are delivered as they are written.

    ``payload`` and ``ids`` name columns with the payload and the transaction's id. By default they
    are the whole row, and the file with the number of the row.

    Where it stopped is kept in ``state``, by default ``.ergon`` in the folder, under the name of
    the ``consumer``. For a bucket it must be given, and ``region`` and ``endpoint`` say where that
    is; credentials are those that AWS clients find. What cannot be read is set aside there, with
    its reason.
    """

    exclusive: ClassVar[bool] = True
    """One process at a time reads as one consumer; others wait until it is gone."""

    @takes_options(settle=SECONDS)
    def __init__(
        self,
        url: str,
        *,
        name: str | None = None,
        format: str = "auto",
        pattern: str | None = None,
        delimiter: str | None = None,
        columns: str | None = None,
        encoding: str = "utf-8",
        ids: str | None = None,
        payload: str | None = None,
        follow: bool = False,
        settle: float | None = None,
        marker: str | None = None,
        consumer: str = "ergon",
        state: str | None = None,
        endpoint: str | None = None,
        region: str | None = None,
        fsync: bool = True,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        max_in_flight: int = MAX_IN_FLIGHT,
        max_in_flight_bytes: int = MAX_IN_FLIGHT_BYTES,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._address = address_of(url, endpoint, region)
        self.name = name
        settle = self._address.settle if settle is None else settle
        if follow and isinstance(self._address, BucketAddress):
            raise ConfigurationError(
                "follow is for folders: an object in a bucket does not grow",
                remedy="leave it out; objects that come later are read",
            )
        if marker is not None and (not marker or "/" in marker):
            raise ConfigurationError("marker is what a name ends in, such as .done")
        if not _NAME.fullmatch(consumer):
            raise ConfigurationError(
                "consumer is a name of letters, digits, dots, hyphens and underscores"
            )
        self._formats = Formats.of(format, pattern, delimiter, columns, encoding, max_message_bytes)
        self._readiness = (settle, marker, follow, now)
        self._consumer = consumer
        self._state = None if state is None else Path(state).absolute()
        self._fsync = fsync
        self._ids, self._payload = ids, payload
        self._malformed = 0
        self._wakeup = Wakeup()
        self._in_flight = InFlight(self._wakeup, max_in_flight, max_in_flight_bytes)
        self._connection: BrokerConnection[FilesReader] = BrokerConnection(
            self._address.title, self._connect, lambda _: None, self._wakeup
        )
        _ = self._state_path  # of a bucket it must be given
        self._reader: FilesReader | None = None
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Forget the files and what was read in a forked child, because they are the parent's."""
        # Kept: freeing the parent's reader would close it, and settling on it names the reason.
        self._inherited, self._reader = self._reader, None
        self._fetching = threading.Lock()
        self._in_hand: set[int] = set()
        self._dropped: DroppedDeliveries[HeldRow] = DroppedDeliveries()

    # ---- opening and closing ---------------------------------------------------------------------

    @property
    def malformed(self) -> int:
        """How many rows and files were set aside since this connector was made."""
        return self._malformed + (0 if self._reader is None else self._reader.malformed)

    @property
    def dead_letter_file(self) -> Path:
        """The file with what was set aside."""
        return self._state_path / LETTERS

    def open(self) -> None:
        """Open the folder and lock it; otherwise the first fetch does."""
        self._connection.get()

    def stop_waiting(self) -> None:
        """Make a waiting fetch return. Any thread may call it."""
        self._wakeup.stop()

    def health(self) -> bool:
        """Whether it can be used, as far as is known."""
        reader = self._reader
        return self._connection.state.is_healthy and (reader is None or reader.is_writable)

    def close(self) -> None:
        """Close the connector. Unsettled deliveries go to the next reader. Closing
        twice is fine.
        """
        self._connection.close()
        self._wakeup.stop()
        with self._fetching:
            if self._reader is not None:
                self._reader.close()

    def observe(self) -> list[Observation]:
        """What ``ergon doctor`` reports: which files there are, and whether positions
        can be kept.
        """
        return list(observed(self._address, self._formats.takes, self._state_path))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # ---- consuming ------------------------------------------------------------------------------

    def fetch_transactions(self, batch_size: int, **extra: Any) -> list[Transaction]:
        """Up to ``batch_size`` rows; an empty list when there are none now."""
        return self._fetch(batch_size, extra, threading.Event())

    def ack(self, transaction: Transaction) -> None:
        """The transaction succeeded: never deliver its row again. On disk when this returns."""
        with self._claimed(transaction, "ack") as delivery:
            if delivery is not None:
                delivery.held.reader.settle(delivery.held)

    def nack(self, transaction: Transaction, exc: Exception) -> None:
        """The transaction failed for good: write its row and the reason to the dead letters."""
        with self._claimed(transaction, "nack") as delivery:
            if delivery is not None:
                reason = describe(exc) or "unknown"
                delivery.held.reader.set_aside(delivery.held, transaction.transaction_id, reason)

    def release(self, transaction: Transaction) -> None:
        """The transaction was not finished: deliver its row again, before later ones."""
        with self._claimed(transaction, "release") as delivery:
            if delivery is not None:
                delivery.held.reader.give_back(delivery.held)

    def get_transactions_count(self) -> int:
        """How many rows wait. Rows in flight do not count. Reads the rest of every file."""
        return self._connection.get().count()

    def read_dead_letters(self) -> Iterator[dict[str, Any]]:
        """The dead letters, oldest first: file, row, reason, and the row as ``text``."""
        return self._connection.get().letters.read()

    # ---- the same for event loops; what blocks is done by other threads -------------------------

    async def fetch_transactions_async(self, batch_size: int, **extra: Any) -> list[Transaction]:
        """The async version of :meth:`fetch_transactions`; cancelled, it gives the rows back."""
        gave_up = threading.Event()

        def end() -> None:
            gave_up.set()
            self._wakeup.stop()

        return await self._fetch_in_thread(self._fetch, end, batch_size, extra, gave_up)

    async def get_transactions_count_async(self) -> int:
        """The async version of :meth:`get_transactions_count`."""
        return await self._threads.run(self.get_transactions_count)

    # ---- inside: fetching -----------------------------------------------------------------------

    def _fetch(
        self, batch_size: int, extra: dict[str, Any], gave_up: threading.Event
    ) -> list[Transaction]:
        refuse_extra(self, extra, "it takes no settings per call")
        check_batch_size(batch_size)
        self._wakeup.begin()
        if not self._in_flight.wait_for_room(batch_size):
            return []
        with self._fetching:
            while (reader := self._connection.wait()) is not None:
                # The caller may have been cancelled while this thread waited: nothing is taken.
                if gave_up.is_set():
                    break
                try:
                    self._give_back_dropped()
                    return self._taken(reader, batch_size)
                except (OSError, ConnectorError, StoreError) as error:
                    found = self._connection.lost(reader, error)
                    if isinstance(found, ConfigurationError):
                        raise found from error
        return []

    def _taken(self, reader: FilesReader, count: int) -> list[Transaction]:
        def make(held: HeldRow, payload: Any) -> Transaction:
            delivery = self._made(held, payload)
            delivery.belongs_to(self, held=held)
            self._in_hand.add(id(held))
            self._in_flight.add(held.row.size)
            self._dropped.watch(delivery, held)
            return delivery

        return reader.take(count, lambda: self._in_flight.room(1) > 0, make)

    def _made(self, held: HeldRow, payload: Any) -> _Delivery:
        place, file = held.place, held.file
        identity = f"{place['file']}@{file.id}:{held.row.number}"
        if self._ids is not None:
            identity = str(_column(payload, self._ids))
        if self._payload is not None:
            payload = _column(payload, self._payload)
        try:
            return _Delivery(identity, payload, place, source=self.name)
        except EnvelopeError as error:
            raise MalformedRowError(f"not a transaction: {error.message}") from error

    def _give_back_dropped(self) -> None:
        """Make rows due again, after a while, whose deliveries were dropped."""
        for held in self._dropped.take_idle(current_clock().now()):
            self._let_go(held)
            if held.reader is self._reader:
                held.reader.give_back(held)

    # ---- inside: settling -----------------------------------------------------------------------

    @contextlib.contextmanager
    def _claimed(self, transaction: Transaction, verb: str) -> Iterator[_Delivery | None]:
        """The delivery to settle, or None when it was already settled with this verb."""
        if self._connection.state.is_closed:
            raise closed(self._connection.state.name)
        with settling(_Delivery, transaction, self, verb, FilesConnectorError) as delivery:
            if delivery is None:
                yield None
                return
            held = delivery.held
            if held.reader is not self._reader:
                self._let_go(held)
                if held.reader is self._inherited:
                    raise inherited(delivery, verb)
                raise ChannelLostError(
                    f"cannot {verb} {delivery!r}: its folder was away meanwhile",
                    remedy="nothing: its row is delivered again",
                )
            yield delivery
            self._dropped.forget(held)
            self._let_go(held)

    def _let_go(self, held: HeldRow) -> None:
        if id(held) in self._in_hand:
            self._in_hand.discard(id(held))
            self._in_flight.remove(held.row.size)

    # ---- inside: opening ------------------------------------------------------------------------

    @property
    def _state_path(self) -> Path:
        if self._state is not None:
            return self._state
        if isinstance(self._address, FolderAddress):
            return self._address.state(self._consumer)
        raise ConfigurationError(
            "state is missing: where it stopped in a bucket is kept in a folder of this machine",
            remedy="name one: state=/var/lib/orders",
        )

    def _connect(self) -> FilesReader:
        reader = self._reader
        if reader is not None:
            if reader.reopen_after_failure():
                return reader
            self._malformed += reader.malformed
            self._reader = None
            reader.close()
        with contextlib.ExitStack() as opened:
            self._reader = self._opened(opened)
            opened.pop_all()
        return self._reader

    def _opened(self, opened: contextlib.ExitStack) -> FilesReader:
        place = self._address.open()
        opened.callback(place.close)
        try:
            state = opened.enter_context(self._state_folder())
            lock = DirectoryLock(state, "lock", self._state_path)
        except (UnsafeFileError, PermissionError) as error:
            raise ConfigurationError(
                f"{self._state_path} cannot keep where it stopped: {error.strerror}",
                remedy="let this user write there, or name another folder with state=",
            ) from error
        except LockedError as error:
            raise FilesLockedError(
                f"another connector reads as the consumer {self._consumer!r}; the number of its"
                f" process is in {self._state_path / 'lock'}",
                remedy="nothing: this one goes on when that one ends; or name another consumer",
            ) from error
        opened.callback(lock.close)
        letters = DeadLetters(state, fsync=self._fsync)
        opened.callback(letters.close)
        positions = Positions(state, fsync=self._fsync, lock=lock)
        opened.callback(positions.close)
        settle, marker, follow, now = self._readiness
        readiness = Readiness(settle, marker, follow, now)
        kept = contextlib.ExitStack()
        reader = FilesReader(place, self._formats, readiness, positions, letters, kept)
        kept.push(opened.pop_all())
        return reader

    def _state_folder(self) -> Folder:
        if self._state is None and isinstance(self._address, FolderAddress):
            return self._address.state_folder(self._consumer)
        return Folder.ensure(self._state_path, parents=True)


def _column(payload: Any, name: str) -> Any:
    if not isinstance(payload, dict) or payload.get(name) in (None, ""):
        raise MalformedRowError(f"it has no {name!r}")
    return payload[name]
