"""Appending with one statement, which is its own transaction, and with little of the driver.

A group of appends is small when few producers come together, and then what the driver does around
each statement costs more than the facts do. So this one is sent by the driver's lowest layer.
"""

from __future__ import annotations

import select
import struct
from collections.abc import Sequence
from weakref import WeakSet

from psycopg.errors import error_from_result
from psycopg.pq import ExecStatus, Format
from psycopg.pq.abc import PGconn, PGresult

from ergon_framework.storage.postgres.arrays import Packed
from ergon_framework.storage.postgres.connections import Connection

_APPEND, _ANNOUNCE = b"ergon_append", b"ergon_announce"
_BIGINT, _BYTEA, _FLOAT = 20, 17, 701
_TYPES = {int: _BIGINT, bytes: _BYTEA, float: _FLOAT}

Value = int | bytes | float | Packed


class Straight:
    """The statement on the connections of one store."""

    def __init__(self, append: bytes, announce: bytes, told: Sequence[str]) -> None:
        self._append = append
        self._announce = announce
        self._told = [each.encode() for each in told]
        self._prepared: WeakSet[Connection] = WeakSet()

    def run(self, connection: Connection, values: Sequence[Value], *, is_planned: bool) -> None:
        """Append, commit and announce, in one round trip; raises what the server refuses.

        ``is_planned``: the tables that are searched may have grown since a plan was made.
        """
        line = connection.pgconn
        if connection not in self._prepared:
            _check(line.prepare(_APPEND, self._append, [_type(each) for each in values]))
            _check(line.prepare(_ANNOUNCE, self._announce))
            self._prepared.add(connection)
        data = [_data(each) for each in values]
        binary = [Format.BINARY] * len(data)
        line.enter_pipeline_mode()
        try:
            if is_planned:
                types = [_type(each) for each in values]
                line.send_query_params(self._append, data, types, binary)
            else:
                line.send_query_prepared(_APPEND, data, binary)
            line.pipeline_sync()
            line.send_query_prepared(_ANNOUNCE, self._told)
            line.pipeline_sync()
            answers = _answers(line)
        finally:
            line.exit_pipeline_mode()
        _check(answers[0])


def _answers(line: PGconn) -> list[PGresult]:
    """The answer to each of two statements: what was committed is known by the first."""
    found: list[PGresult] = []
    synced = 0
    wait = select.poll()
    wait.register(line.socket, select.POLLIN | select.POLLOUT)
    while line.flush():
        wait.poll()
        line.consume_input()
    wait.modify(line.socket, select.POLLIN)
    while synced < 2:
        # Asked for too early, an answer would be waited for while no other thread can run.
        while line.is_busy():
            wait.poll()
            line.consume_input()
        answer = line.get_result()
        if answer is None:
            continue
        if answer.status == ExecStatus.PIPELINE_SYNC:
            synced += 1
        else:
            found.append(answer)
    return found


def _check(answer: PGresult) -> None:
    if answer.status not in {ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK}:
        raise error_from_result(answer)


def _type(value: Value) -> int:
    return value.array if isinstance(value, Packed) else _TYPES[type(value)]


def _data(value: Value) -> bytes:
    if isinstance(value, Packed):
        return value.data
    if isinstance(value, int):
        return struct.pack(">q", value)
    return value if isinstance(value, bytes) else struct.pack(">d", value)
