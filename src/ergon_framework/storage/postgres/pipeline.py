"""Pipelines: many statements in one packet; and arrays packed in the server's binary form."""

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
from ergon_framework.storage.postgres.pool import Connection, local_settings

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


class ByteaArray(Packed):
    """``bytea[]``; None is NULL."""

    array = 1001

    def __init__(self, values: Sequence[bytes | None]) -> None:
        super().__init__(17, len(values), _sized(values))


class Texts(Packed):
    """``text[]``, of texts that are encoded already; None is NULL."""

    array = 1009

    def __init__(self, values: Sequence[bytes | None]) -> None:
        super().__init__(25, len(values), _sized(values))


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


def _sized(values: Sequence[bytes | None]) -> bytes:
    """Values of any size, each with its size before it; NULL has none."""
    given = [each for each in values if each is not None]
    # The header says whether there are NULLs; the server does not rely on it, a length of -1 is
    # enough.
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


class PreparedStatements:
    """The statements that one connection has prepared, by text."""

    def __init__(self) -> None:
        self.numbers = count(1)
        self.names: dict[bytes, bytes] = {}

    def name(self, statement: bytes) -> bytes:
        """A name that was never used."""
        name = self.names[statement] = b"ergon_%d" % next(self.numbers)
        return name


_prepared: weakref.WeakKeyDictionary[Connection, PreparedStatements] = weakref.WeakKeyDictionary()


class Result:
    """The result of one statement; the first one that is read costs a round trip."""

    __slots__ = ("_pipeline", "result", "statement")

    def __init__(self, pipeline: Pipeline, statement: bytes) -> None:
        self._pipeline = pipeline
        self.statement = statement
        self.result: pq.abc.PGresult | None = None

    @property
    def rowcount(self) -> int:
        """How many rows it changed, or has."""
        return self._read().command_tuples or 0

    def fetchall(self) -> list[Row]:
        """The rows of the result."""
        result = self._read()
        transformer = Transformer(self._pipeline.connection)
        transformer.set_pgresult(result)
        return transformer.load_rows(0, result.ntuples, tuple)

    def _read(self) -> pq.abc.PGresult:
        if self.result is None:
            self._pipeline.sync()
        if self.result is None:
            raise psycopg.InterfaceError("the statement was never sent")
        if self.result.status in _BAD:
            raise self._pipeline.error or psycopg.errors.error_from_result(self.result)
        return self.result


class Pipeline:
    """Statements for one connection. Leaving it sends what is left, and raises the first error.

    Statements of ``execute_after`` come last and may fail alone: all others are committed by then.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.error: psycopg.Error | None = None
        self._pgconn = connection.pgconn
        self._prepared = _prepared.setdefault(connection, PreparedStatements())
        self._local_settings = local_settings(connection)
        self._is_begun = False  # a transaction, on a connection that a pooler shares out
        self._waiting: deque[Result | None] = deque()  # None: the end of a segment
        self._is_after = False
        self._is_done = False  # all but what comes afterwards has been answered
        self._poll = select.poll()
        self._poll.register(self._pgconn.socket, select.POLLIN)

    def __enter__(self) -> Self:
        self._pgconn.enter_pipeline_mode()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.sync()
            self._pgconn.exit_pipeline_mode()
        except psycopg.Error as lost:
            with suppress(psycopg.Error):
                # Answers of earlier statements may still come: the next user would take them for
                # its own.
                self.connection.close()  # its state is unknown
            if error is None and not self._is_done:
                raise
            # All that matters is committed: only the hint to other processes was lost.
            if self._is_done:
                log_lost_notification(lost)
        if self.error is not None and self.error.sqlstate in _FORGOTTEN:
            self.connection.close()  # the next one begins anew
        if error is None and self.error is not None:
            raise self.error

    def execute(self, statement: bytes, values: Mapping[str, Any] | None = None) -> Result:
        """Add a statement; nothing is sent before a result is read."""
        text, places = _placed(statement)
        given = values or {}
        if self._local_settings is not None:
            return self._execute_shared(text, [given[place] for place in places])
        # Prepared at its first use on each connection, so that the server parses a text once.
        name = self._prepared.names.get(statement)
        if name is None:
            name = self._prepared.name(statement)
            self._pgconn.send_prepare(name, text)
            self._waiting.append(Result(self, statement))
        bound = [given[place] for place in places]
        self._pgconn.send_query_prepared(
            name,
            [_encoded(value) for value in bound],
            [isinstance(value, Packed) for value in bound],
            result_format=pq.Format.BINARY,
        )
        result = Result(self, b"")
        self._waiting.append(result)
        return result

    def _execute_shared(self, text: bytes, values: Sequence[Any]) -> Result:
        """Add a statement on a connection that is ours for this transaction alone.

        Nothing is prepared, and the settings of a session are those of each transaction. Outside of
        BEGIN and COMMIT, what is sent up to a sync is a transaction.
        """
        begins, is_first = text.startswith(b"BEGIN"), not self._waiting
        if is_first and not (begins or self._is_begun or self._is_after):
            self._send_shared(self._local_settings or b"", ())
        result = self._send_shared(text, values)
        if begins:
            self._send_shared(self._local_settings or b"", ())
        self._is_begun = begins or (self._is_begun and not text.startswith((b"COMMIT", b"ROLLB")))
        return result

    def _send_shared(self, text: bytes, values: Sequence[Any]) -> Result:
        self._pgconn.send_query_params(
            text,
            [_encoded(value) for value in values],
            param_formats=[isinstance(value, Packed) for value in values],
            result_format=pq.Format.BINARY,
        )
        result = Result(self, b"")
        self._waiting.append(result)
        return result

    def execute_after(self, statement: bytes, values: Mapping[str, Any] | None = None) -> None:
        """Add a statement after all others, such as NOTIFY; a failure is logged, not raised."""
        if not self._is_after:
            self._is_after = True
            if self._waiting:
                # A segment of its own: what comes after it cannot undo what was committed by it.
                self._end_segment()
            else:
                self._is_done = self.error is None
        self.execute(statement, values)

    def sync(self) -> None:
        """Send all statements, and wait for their results."""
        if not self._waiting:
            return
        self._end_segment()
        self._flush()
        while self._waiting:
            result = self._waiting.popleft()
            if result is None:
                self._take_end()
            else:
                self._take(result)

    def _end_segment(self) -> None:
        self._pgconn.pipeline_sync()
        self._waiting.append(None)

    def _take_end(self) -> None:
        """What is committed by the end of a segment alone may fail there."""
        before: pq.abc.PGresult | None = None
        while (result := self._next()) is None or result.status != pq.ExecStatus.PIPELINE_SYNC:
            if result is None and before is None:
                raise psycopg.OperationalError("the connection to the server was lost")
            if result is not None:
                self._note(result)
            before = result
        self._is_done = self._is_after and self.error is None

    def _take(self, pending: Result) -> None:
        result = self._next()
        if result is None:
            raise psycopg.OperationalError("the connection to the server was lost")
        pending.result = result
        # A result is followed by a NULL, which has to be read before the next one.
        while self._next() is not None:
            pass
        if result.status not in _BAD:
            return
        if pending.statement:  # it is not prepared after all
            self._prepared.names.pop(pending.statement, None)
        self._note(result)

    def _note(self, result: pq.abc.PGresult) -> None:
        # The first error is the cause; all that follow it only say that the pipeline was aborted.
        if result.status not in _BAD or self.error is not None:
            return
        error = psycopg.errors.error_from_result(result, self._encoding)
        if self._is_done:
            log_lost_notification(error)
        else:
            self.error = error

    def _next(self) -> pq.abc.PGresult | None:
        while self._pgconn.is_busy():
            self._poll.poll()
            self._pgconn.consume_input()
        return self._pgconn.get_result()

    def _flush(self) -> None:
        while self._pgconn.flush():
            self._poll.modify(self._pgconn.socket, select.POLLIN | select.POLLOUT)
            self._poll.poll()
            self._pgconn.consume_input()  # a server that cannot answer does not listen
        self._poll.modify(self._pgconn.socket, select.POLLIN)

    @property
    def _encoding(self) -> str:
        return self.connection.info.encoding


def rows_changed(connection: Connection, statement: bytes, values: Mapping[str, Any]) -> int:
    """How many rows one statement has changed, in a transaction of its own.

    It is prepared at its first use. For one short statement a cursor or a pipeline takes several
    times the processor time. Values are texts and numbers.
    """
    if local_settings(connection) is not None or b"%%" in statement:
        return connection.execute(statement, values).rowcount
    text, places = _placed(statement)
    prepared = _prepared.setdefault(connection, PreparedStatements())
    pgconn = connection.pgconn
    name = prepared.names.get(statement)
    if name is None:
        name = b"ergon_%d" % next(prepared.numbers)
        pgconn.send_prepare(name, text)
        _answered(connection)
        prepared.names[statement] = name
    pgconn.send_query_prepared(name, [_encoded(values[place]) for place in places])
    return _answered(connection).command_tuples or 0


def _answered(connection: Connection) -> pq.abc.PGresult:
    """The answer to one statement. The wait for it can be interrupted by a signal."""
    pgconn = connection.pgconn
    poll = select.poll()
    poll.register(pgconn.socket, select.POLLIN)
    while pgconn.flush():
        poll.modify(pgconn.socket, select.POLLIN | select.POLLOUT)
        poll.poll()
        pgconn.consume_input()
        poll.modify(pgconn.socket, select.POLLIN)
    while pgconn.is_busy():
        poll.poll()
        pgconn.consume_input()
    result = pgconn.get_result()
    if result is None:
        raise psycopg.OperationalError("the connection to the server was lost")
    while pgconn.get_result() is not None:
        pass
    _refuse_bad(connection, result)
    return result


def _refuse_bad(connection: Connection, result: pq.abc.PGresult) -> None:
    if result.status not in _BAD:
        return
    error = psycopg.errors.error_from_result(result, connection.info.encoding)
    if error.sqlstate in _FORGOTTEN:
        connection.close()  # the next one begins anew
    if not error.sqlstate:  # it is libpq's own
        raise psycopg.OperationalError(first_line(error))
    raise error


def log_lost_notification(error: psycopg.Error) -> None:
    """Log that other processes may notice a change late."""
    logger.warning("a hint to other processes was not given: %s", first_line(error))


@cache
def _placed(statement: bytes) -> tuple[bytes, tuple[str, ...]]:
    """A statement as the server wants it, and the names of its values in order."""
    names: dict[str, int] = {}

    def place(found: re.Match[bytes]) -> bytes:
        return b"$%d" % names.setdefault(found[1].decode(), len(names) + 1)

    return _PLACE.sub(place, statement), tuple(names)


def _encoded(value: Any) -> bytes | None:
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
