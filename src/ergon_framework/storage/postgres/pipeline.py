"""Many statements in one packet, and arrays packed in the server's own binary form."""

from __future__ import annotations

import logging
import re
import select
import struct
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from itertools import chain, count, repeat
from types import TracebackType
from typing import Any, Self

import psycopg
from psycopg import Cursor, pq
from psycopg.abc import Buffer
from psycopg.adapt import Dumper, Transformer
from psycopg.pq import Format

from ergon_framework.storage.postgres.errors import first_line
from ergon_framework.storage.postgres.pool import Connection

_HEAD = struct.Struct(">5i")
_LENGTH = struct.Struct(">i").pack
_NULL = _LENGTH(-1)


class Packed:
    """An array whose type is known to the server by the number ``array``."""

    __slots__ = ("data",)

    array = 0

    def __init__(self, element: int, count: int, data: bytes) -> None:
        # Dimensions, whether there are NULLs, the type, the size of the dimension, its first index.
        self.data = _HEAD.pack(1, 0, element, count, 1) + data


class Bytes(Packed):
    """``bytea[]``."""

    array = 1001

    def __init__(self, values: Sequence[bytes]) -> None:
        super().__init__(17, len(values), sized(values))


class Bigints(Packed):
    """``bigint[]``."""

    array = 1016

    def __init__(self, values: Sequence[int]) -> None:
        super().__init__(20, len(values), _fixed("iq", 8, values))


class Integers(Packed):
    """``integer[]``."""

    array = 1007

    def __init__(self, values: Sequence[int]) -> None:
        super().__init__(23, len(values), _fixed("ii", 4, values))


class Floats(Packed):
    """``double precision[]``."""

    array = 1022

    def __init__(self, values: Sequence[float]) -> None:
        super().__init__(701, len(values), _fixed("id", 8, values))


def sized(values: Sequence[bytes | None]) -> bytes:
    """Values of any size, each with its size before it; NULL has none."""
    given = [each for each in values if each is not None]
    if len(given) < len(values):
        pairs = ((_NULL,) if each is None else (_LENGTH(len(each)), each) for each in values)
        return b"".join(chain.from_iterable(pairs))
    sizes = set(map(len, given))
    if len(sizes) == 1:  # as keys and digests are: much less has to be put together
        size = _LENGTH(*sizes)
        return size + size.join(given)
    parts = [b""] * (2 * len(given))
    parts[::2], parts[1::2] = map(_LENGTH, map(len, given)), given
    return b"".join(parts)


def _fixed(form: str, size: int, values: Sequence[float]) -> bytes:
    """Values of one size, each with the size before it."""
    pairs = zip(repeat(size), values, strict=False)
    return struct.pack(f">{form * len(values)}", *chain.from_iterable(pairs))


class _PackedDumper(Dumper):
    format = Format.BINARY

    def __init__(self, cls: type[Packed], _context: object = None) -> None:
        super().__init__(cls, None)
        self.oid = cls.array

    def dump(self, obj: Packed) -> Buffer:
        return obj.data


def taking_arrays(cursor: Cursor[Any]) -> Cursor[Any]:
    """The cursor, which takes packed arrays from now on."""
    cursor.adapters.register_dumper(Packed, _PackedDumper)
    return cursor


logger = logging.getLogger("ergon.storage")

Row = tuple[Any, ...]

_PLACE = re.compile(rb"%\((\w+)\)s")
_FORGOTTEN = frozenset({"26000", "42P05", "0A000"})
"""What was prepared is not there, is there already, or does not fit the tables any more."""
_BAD = (pq.ExecStatus.FATAL_ERROR, pq.ExecStatus.PIPELINE_ABORTED)


class Prepared:
    """The statements that one connection has prepared, by text."""

    def __init__(self) -> None:
        self._numbers = count(1)
        self.names: dict[bytes, bytes] = {}

    def name(self, statement: bytes) -> bytes:
        """A name that was never used."""
        name = self.names[statement] = b"ergon_%d" % next(self._numbers)
        return name


_prepared: weakref.WeakKeyDictionary[Connection, Prepared] = weakref.WeakKeyDictionary()


class Answer:
    """What the server answers to one statement; asking for it costs a round trip, once."""

    __slots__ = ("_batch", "result", "statement")

    def __init__(self, batch: Batch, statement: bytes) -> None:
        self._batch = batch
        self.statement = statement
        self.result: pq.abc.PGresult | None = None

    @property
    def rowcount(self) -> int:
        """How many rows it changed, or has."""
        return self._read().command_tuples or 0

    def fetchall(self) -> list[Row]:
        """Its rows."""
        result = self._read()
        transformer = Transformer(self._batch.connection)
        transformer.set_pgresult(result)
        return transformer.load_rows(0, result.ntuples, tuple)

    def _read(self) -> pq.abc.PGresult:
        if self.result is None:
            self._batch.sync()
        if self.result is None:
            raise psycopg.InterfaceError("the statement was never sent")
        if self.result.status in _BAD:
            raise self._batch.error or psycopg.errors.error_from_result(self.result)
        return self.result


class Batch:
    """Statements for one connection. Leaving it sends what is left, and raises the first error.

    Hints come last, and fail for themselves: what came before them is done by then.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.error: psycopg.Error | None = None
        self._line = connection.pgconn
        self._prepared = _prepared.setdefault(connection, Prepared())
        self._waiting: deque[Answer | None] = deque()  # None: the end of a stretch
        self._has_hints = False
        self._is_done = False  # all but the hints has been answered
        self._poll = select.poll()
        self._poll.register(self._line.socket, select.POLLIN)

    def __enter__(self) -> Self:
        self._line.enter_pipeline_mode()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.sync()
            self._line.exit_pipeline_mode()
        except psycopg.Error as lost:
            with suppress(psycopg.Error):
                self.connection.close()  # nobody knows how it stands
            if error is None and not self._is_done:
                raise
            if self._is_done:
                tell_unheard(lost)
        if self.error is not None and self.error.sqlstate in _FORGOTTEN:
            self.connection.close()  # the next one begins anew
        if error is None and self.error is not None:
            raise self.error

    def say(self, statement: bytes, values: Mapping[str, Any] | None = None) -> Answer:
        """Add a statement; nothing is sent before somebody wants an answer."""
        text, places = _placed(statement)
        given = values or {}
        name = self._prepared.names.get(statement)
        if name is None:
            name = self._prepared.name(statement)
            self._line.send_prepare(name, text)
            self._waiting.append(Answer(self, statement))
        told = [given[place] for place in places]
        self._line.send_query_prepared(
            name,
            [_told(value) for value in told],
            [isinstance(value, Packed) for value in told],
            result_format=pq.Format.BINARY,
        )
        answer = Answer(self, b"")
        self._waiting.append(answer)
        return answer

    def hint(self, statement: bytes, values: Mapping[str, Any] | None = None) -> None:
        """Add a statement that goes along, after all others; it may fail, and nobody is told."""
        if not self._has_hints:
            self._has_hints = True
            if self._waiting:
                self._end_stretch()
            else:
                self._is_done = self.error is None
        self.say(statement, values)

    def sync(self) -> None:
        """Send all there is, and wait for the answers."""
        if not self._waiting:
            return
        self._end_stretch()
        self._flush()
        while self._waiting:
            answer = self._waiting.popleft()
            if answer is None:
                self._take_end()
            else:
                self._take(answer)

    def _end_stretch(self) -> None:
        self._line.pipeline_sync()
        self._waiting.append(None)

    def _take_end(self) -> None:
        """What is committed by the end of a stretch alone may fail there."""
        before: pq.abc.PGresult | None = None
        while (result := self._next()) is None or result.status != pq.ExecStatus.PIPELINE_SYNC:
            if result is None and before is None:
                raise psycopg.OperationalError("the connection to the server was lost")
            if result is not None:
                self._note(result)
            before = result
        self._is_done = self._has_hints and self.error is None

    def _take(self, answer: Answer) -> None:
        result = self._next()
        if result is None:
            raise psycopg.OperationalError("the connection to the server was lost")
        answer.result = result
        while self._next() is not None:
            pass
        if result.status not in _BAD:
            return
        if answer.statement:  # it is not prepared after all
            self._prepared.names.pop(answer.statement, None)
        self._note(result)

    def _note(self, result: pq.abc.PGresult) -> None:
        if result.status not in _BAD or self.error is not None:
            return
        error = psycopg.errors.error_from_result(result, self._encoding)
        if self._is_done:
            tell_unheard(error)
        else:
            self.error = error

    def _next(self) -> pq.abc.PGresult | None:
        while self._line.is_busy():
            self._poll.poll()
            self._line.consume_input()
        return self._line.get_result()

    def _flush(self) -> None:
        while self._line.flush():
            self._poll.modify(self._line.socket, select.POLLIN | select.POLLOUT)
            self._poll.poll()
            self._line.consume_input()  # a server that cannot answer does not listen
        self._poll.modify(self._line.socket, select.POLLIN)

    @property
    def _encoding(self) -> str:
        return self.connection.info.encoding


def tell_unheard(error: psycopg.Error) -> None:
    """Say that others may hear late of what was done."""
    logger.warning("a hint to other processes was not given: %s", first_line(error))


@cache
def _placed(statement: bytes) -> tuple[bytes, tuple[str, ...]]:
    """A statement as the server wants it, and the names of its values in order."""
    names: dict[str, int] = {}

    def place(found: re.Match[bytes]) -> bytes:
        return b"$%d" % names.setdefault(found[1].decode(), len(names) + 1)

    return _PLACE.sub(place, statement), tuple(names)


def _told(value: Any) -> bytes | None:
    """A value as text, or as what it was packed to."""
    if value is None:
        return None
    if isinstance(value, Packed):
        return value.data
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes):
        return b"\\x" + value.hex().encode()
    if isinstance(value, bool):
        return b"t" if value else b"f"
    return repr(value).encode()
