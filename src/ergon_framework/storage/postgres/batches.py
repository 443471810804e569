"""Many statements in one packet.

The driver's own pipeline talks to the server at every statement, which costs more than most
statements do. Here they gather in the output buffer of libpq until somebody wants an answer. Values
are sent as text, apart from arrays that are packed already, and statements are prepared, once for
each connection.
"""

from __future__ import annotations

import re
import select
import weakref
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from itertools import count
from types import TracebackType
from typing import Any, Self

import psycopg
from psycopg import pq
from psycopg.adapt import Transformer

from ergon_framework.storage.postgres.arrays import Packed
from ergon_framework.storage.postgres.connections import Connection

Row = tuple[Any, ...]

_PLACE = re.compile(rb"%\((\w+)\)s")
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
    """Statements for one connection. Leaving it sends what is left, and raises the first error."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.error: psycopg.Error | None = None
        self._line = connection.pgconn
        self._prepared = _prepared.setdefault(connection, Prepared())
        self._waiting: deque[Answer | None] = deque()  # None: the end of a stretch
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
        except psycopg.Error:
            with suppress(psycopg.Error):
                self.connection.close()  # nobody knows how it stands
            if error is None:
                raise
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

    def sync(self) -> None:
        """Send all there is, and wait for the answers."""
        if not self._waiting:
            return
        self._line.pipeline_sync()
        self._waiting.append(None)
        self._flush()
        while self._waiting:
            self._take(self._waiting.popleft())

    def _take(self, answer: Answer | None) -> None:
        result = self._next()
        if answer is None:
            return  # the end of a stretch has no end of its own
        if result is None:
            raise psycopg.OperationalError("the connection to the server was lost")
        answer.result = result
        while self._next() is not None:
            pass
        if result.status not in _BAD:
            return
        if answer.statement:  # it is not prepared after all
            self._prepared.names.pop(answer.statement, None)
        if self.error is None:
            self.error = psycopg.errors.error_from_result(result, self._encoding)

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
