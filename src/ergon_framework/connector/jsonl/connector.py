"""The connector class: sync and async methods, settlement by transaction, checks of arguments."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar, Self, cast

from ergon_framework.connector.base import (
    Delivered,
    ThreadedProducing,
    check_batch_size,
    refuse_extra,
    settling,
)
from ergon_framework.connector.broker.options import COUNT, check_given, takes_options
from ergon_framework.connector.jsonl.append_file import RotatingWriter
from ergon_framework.connector.jsonl.codec import (
    NEWLINE,
    JsonlConnectorError,
    MalformedLineError,
    decode,
    encode,
    shown,
)
from ergon_framework.connector.jsonl.offsets import InboxLine, JournalLimits
from ergon_framework.connector.jsonl.reader import DirectoryReader
from ergon_framework.errors import ConfigurationError, EnvelopeError, describe
from ergon_framework.ports.transaction import Transaction

MAX_LINE_BYTES = 16 * 1024 * 1024
ROTATE_BYTES = 64 * 1024 * 1024


class _Delivery(Delivered):
    """A delivered transaction with its line."""

    __slots__ = ("line",)

    line: InboxLine


class JsonlConnector(ThreadedProducing):
    """Consumes JSON Lines files from ``inbox`` and produces them into ``outbox``.

    Either may be left out, and both may be the same directory, which makes it a durable queue. One
    connector at a time may read an inbox. Settle the very object that was delivered.

    ``dead_letters`` is a file, by default ``inbox/.ergon/dead_letters.jsonl``. ``name`` becomes
    the source of transactions that have none. ``strict`` raises :class:`MalformedLineError`
    instead of setting a malformed line aside. Without ``fsync`` a crash of the process loses
    nothing either, but a power failure may.
    """

    exclusive_with: ClassVar[tuple[str, ...]] = ("inbox",)
    """With one of these options only one process at a time may have it; others may share it."""

    @takes_options(max_line_bytes=COUNT, rotate_bytes=COUNT)
    def __init__(
        self,
        inbox: str | PathLike[str] | None = None,
        outbox: str | PathLike[str] | None = None,
        dead_letters: str | PathLike[str] | None = None,
        *,
        name: str | None = None,
        raw: bool = False,
        strict: bool = False,
        fsync: bool = True,
        max_line_bytes: int = MAX_LINE_BYTES,
        rotate_bytes: int = ROTATE_BYTES,
        journal: JournalLimits | None = None,
    ) -> None:
        self.name = name
        self._raw = raw
        self._max_line_bytes = max_line_bytes
        self._closed = False
        self._fetching = threading.Lock()
        self._inbox: DirectoryReader[_Delivery] | None = None
        self._outbox: RotatingWriter | None = None
        source, dead = _check_places(inbox, outbox, dead_letters)
        if outbox is not None:
            self._outbox = RotatingWriter(Path(outbox), rotate_bytes=rotate_bytes, fsync=fsync)
        if source is not None:
            self._inbox = DirectoryReader(
                source,
                self._parse,
                dead_letters=dead,
                strict=strict,
                fsync=fsync,
                max_line_bytes=max_line_bytes,
                limits=journal or JournalLimits(),
            )

    @staticmethod
    def check_options(
        inbox: str | PathLike[str] | None = None,
        outbox: str | PathLike[str] | None = None,
        dead_letters: str | PathLike[str] | None = None,
        **others: Any,
    ) -> None:
        """Refuse what the constructor would refuse, without making or locking anything."""
        check_given(JsonlConnector, others)
        _check_places(inbox, outbox, dead_letters)

    @property
    def malformed(self) -> int:
        """How many malformed lines were set aside since this connector was opened."""
        return 0 if self._inbox is None else self._inbox.malformed

    @property
    def dead_letter_file(self) -> Path | None:
        """The file that keeps what was set aside; None without an inbox."""
        return None if self._inbox is None else self._inbox.dead_path

    def fetch_transactions(self, batch_size: int, **extra: Any) -> list[Transaction]:
        """Up to ``batch_size`` transactions: by file name, then by line."""
        return self._fetch(batch_size, extra, threading.Event())

    def dispatch_transactions(self, transactions: Iterable[Transaction], **extra: Any) -> None:
        """Append all transactions, or none if one cannot be written as JSON without loss."""
        refuse_extra(self, extra, "it takes no settings per call")
        outbox = self._writing()
        outbox.append([encode(each, self._max_line_bytes) for each in transactions])

    def ack(self, transaction: Transaction) -> None:
        """The transaction succeeded: never deliver its line again. On disk when this returns."""
        with self._claimed(transaction, "ack") as line:
            if line is not None:
                self._reading().settle(line)

    def nack(self, transaction: Transaction, exc: Exception) -> None:
        """The transaction failed for good: write its line and the reason to the dead letters."""
        with self._claimed(transaction, "nack") as line:
            if line is not None:
                self._reading().set_aside(line, transaction.transaction_id, describe(exc))

    def release(self, transaction: Transaction) -> None:
        """The transaction was not finished: deliver its line again, before later ones."""
        with self._claimed(transaction, "release") as line:
            if line is not None:
                self._reading().give_back([line])

    def get_transactions_count(self) -> int:
        """How many lines wait. Lines in flight do not count. Reads the rest of every file."""
        return self._reading().count()

    def fetch_transaction_by_id(self, transaction_id: str) -> Transaction | None:
        """The first one with this id in any inbox file, settled or not. It claims nothing."""
        for line in self._reading().lines():
            try:
                found = None if line.data is None or line.is_blank else self._parse(line)
            except MalformedLineError:
                continue
            if found is not None and found.transaction_id == transaction_id:
                return Transaction.from_dict(found.to_dict())  # no delivery: it cannot be settled
        return None

    def read_dead_letters(self) -> Iterator[dict[str, Any]]:
        """The dead letters, oldest first: place, reason, and ``value``, ``text`` or ``base64``."""
        with self._reading().read_letters() as file:
            for text in file:
                if text.endswith(NEWLINE):  # the last one may be being written
                    yield decode(text)

    def health(self) -> bool:
        """Whether it can be used: open, and no write has failed."""
        parts: list[DirectoryReader[_Delivery] | RotatingWriter | None] = [
            self._inbox,
            self._outbox,
        ]
        return not self._closed and all(part is None or part.is_writable for part in parts)

    def close(self) -> None:
        """Close every file. What is in flight is delivered again to the next connector."""
        self._closed = True
        if self._inbox is not None:
            self._inbox.close()
        if self._outbox is not None:
            self._outbox.close()

    async def fetch_transactions_async(self, batch_size: int, **extra: Any) -> list[Transaction]:
        """The async version of :meth:`fetch_transactions`; cancelled, it gives the lines back."""
        gave_up = threading.Event()
        return await self._fetch_in_thread(self._fetch, gave_up.set, batch_size, extra, gave_up)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _fetch(
        self, batch_size: int, extra: dict[str, Any], gave_up: threading.Event
    ) -> list[Transaction]:
        refuse_extra(self, extra, "it takes no settings per call")
        check_batch_size(batch_size)
        inbox = self._reading()
        with self._fetching:
            # The caller may have been cancelled while this thread waited for its turn: nothing is
            # taken then.
            if gave_up.is_set():
                return []
            return [delivery for _, delivery in inbox.take(batch_size)]

    def _parse(self, line: InboxLine) -> _Delivery:
        value = decode(line.data or b"")
        try:
            delivery = self._wrap(line, value) if self._raw else self._open(value)
        except (EnvelopeError, OverflowError) as error:
            raise MalformedLineError(f"not a transaction: {describe(error)}") from error
        delivery.belongs_to(self, line=line)
        return delivery

    def _wrap(self, line: InboxLine, value: Any) -> _Delivery:
        name = shown(line.file.name)
        place = {"file": name, "line": line.number}
        return _Delivery(f"{name}:{line.number}", value, place, source=self.name)

    def _open(self, value: Any) -> _Delivery:
        if self.name is not None and isinstance(value, dict):
            value.setdefault("source", self.name)
        return cast(_Delivery, _Delivery.from_dict(value))  # it makes the class it is called on

    @contextmanager
    def _claimed(self, transaction: Transaction, verb: str) -> Iterator[InboxLine | None]:
        """The line to settle, or None when it was already settled with this verb."""
        self._reading()
        with settling(_Delivery, transaction, self, verb, JsonlConnectorError) as delivery:
            yield None if delivery is None else delivery.line

    def _reading(self) -> DirectoryReader[_Delivery]:
        self._refuse_when_closed()
        if self._inbox is None:
            raise ConfigurationError(
                "this JsonlConnector has no inbox", remedy="give it one: JsonlConnector(inbox=...)"
            )
        return self._inbox

    def _writing(self) -> RotatingWriter:
        self._refuse_when_closed()
        if self._outbox is None:
            raise ConfigurationError(
                "this JsonlConnector has no outbox",
                remedy="give it one: JsonlConnector(outbox=...)",
            )
        return self._outbox

    def _refuse_when_closed(self) -> None:
        if self._closed:
            raise JsonlConnectorError(
                "this JsonlConnector is closed",
                remedy="open a new one; close it after the last use",
            )


def _check_places(
    inbox: str | PathLike[str] | None,
    outbox: str | PathLike[str] | None,
    dead_letters: str | PathLike[str] | None,
) -> tuple[Path | None, Path | None]:
    if inbox is None and outbox is None:
        raise ConfigurationError(
            "a JsonlConnector needs an inbox or an outbox",
            remedy="JsonlConnector(inbox=...) to consume, JsonlConnector(outbox=...) to produce",
        )
    source = None if inbox is None else Path(inbox)
    if source is not None and not source.is_dir():
        raise ConfigurationError(f"the inbox {source} is not a directory", remedy="create it first")
    dead = None if dead_letters is None else Path(dead_letters)
    if dead is not None and source is None:
        raise ConfigurationError("dead_letters without an inbox: nothing can be set aside")
    if dead is not None and source is not None and dead.parent.resolve() == source.resolve():
        raise ConfigurationError(
            f"the dead letters {dead} would be read as work: they lie in the inbox",
            remedy="put them into another directory",
        )
    return source, dead
