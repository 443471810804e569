"""Appending in one round trip, with little of the driver.

A group of appends is small when few producers come together, and then what the driver does around
each statement costs more than the facts do. So these are sent by the driver's lowest layer.
"""

from __future__ import annotations

import select
import struct
from collections.abc import Mapping, Sequence
from typing import TypeAlias
from weakref import WeakKeyDictionary

from psycopg.errors import error_from_result
from psycopg.pq import DiagnosticField, ExecStatus, Format
from psycopg.pq.abc import PGconn, PGresult

from ergon_framework.ports.factstore import Meanwhile
from ergon_framework.storage.postgres.pipeline import Packed
from ergon_framework.storage.postgres.pool import Connection

_ANNOUNCE = "logs.announce"
_BIGINT, _BYTEA, _FLOAT = 20, 17, 701
_NOT_PREPARED, _PREPARED_BEFORE = b"26000", b"42P05"
_TYPES = {int: _BIGINT, bytes: _BYTEA, float: _FLOAT}

Value: TypeAlias = int | bytes | float | Packed
Values: TypeAlias = tuple[Value, ...]
Statement: TypeAlias = tuple[str, Values]
"""The name of a statement, and what it is given."""


class Straight:
    """Statements on the connections of one store."""

    def __init__(self, wordings: Mapping[str, bytes], told: Sequence[str]) -> None:
        self._wordings = wordings
        self._told = [each.encode() for each in told]
        self._prepared: WeakKeyDictionary[Connection, set[str]] = WeakKeyDictionary()

    def run(
        self,
        connection: Connection,
        statements: Sequence[Statement],
        *,
        is_planned: bool,
        meanwhile: Meanwhile,
    ) -> None:
        """Execute these as one transaction, commit and announce, in one round trip.

        Raises what the server refuses. What lies between two syncs of a pipeline is a transaction
        by itself, so nobody has to say BEGIN. ``is_planned``: the tables that are searched may have
        grown since a plan was made. ``meanwhile`` is called before the server is waited for.
        """
        answers = self._sent(connection, statements, meanwhile, is_planned=is_planned)
        if any(map(_is_forgotten, answers)):
            answers = self._sent(connection, statements, meanwhile, is_planned=is_planned)
        for answer in answers:
            _check(answer)

    def _sent(
        self,
        connection: Connection,
        statements: Sequence[Statement],
        meanwhile: Meanwhile,
        *,
        is_planned: bool,
    ) -> list[PGresult]:
        """One attempt at it; the answers to the transaction."""
        line = connection.pgconn
        self._prepare(connection, [] if is_planned else statements, meanwhile)
        line.enter_pipeline_mode()
        try:
            for name, values in statements:
                data, forms = [_data(each) for each in values], [Format.BINARY] * len(values)
                if is_planned:
                    types = [_type(each) for each in values]
                    line.send_query_params(self._wordings[name], data, types, forms)
                else:
                    line.send_query_prepared(_called(name), data, forms)
            line.pipeline_sync()
            line.send_query_prepared(_called(_ANNOUNCE), self._told)
            line.pipeline_sync()
            answers, announced = _answers(line, meanwhile)
            line.exit_pipeline_mode()
        except BaseException:
            connection.close()  # it may be in the middle of anything
            raise
        if any(map(_is_forgotten, (*answers, *announced))):
            self._prepared.pop(connection, None)
        return answers

    def _prepare(
        self,
        connection: Connection,
        statements: Sequence[Statement],
        meanwhile: Meanwhile,
    ) -> None:
        known = self._prepared.setdefault(connection, set())
        for name, values in (*statements, (_ANNOUNCE, ())):
            if name in known:
                continue
            meanwhile()
            types = [_type(each) for each in values]
            answer = connection.pgconn.prepare(_called(name), self._wordings[name], types)
            if _state(answer) != _PREPARED_BEFORE:
                _check(answer)
            known.add(name)


def _called(name: str) -> bytes:
    """What a statement is called at the server."""
    return f"ergon.{name}".encode()


def _answers(line: PGconn, meanwhile: Meanwhile) -> tuple[list[PGresult], list[PGresult]]:
    """What came before the first sync, and what came before the second.

    An error at the commit itself comes behind the answers to all statements.
    """
    found: list[list[PGresult]] = [[]]
    wait = select.poll()
    wait.register(line.socket, select.POLLIN | select.POLLOUT)
    while line.flush():
        meanwhile()
        wait.poll()
        line.consume_input()
    wait.modify(line.socket, select.POLLIN)
    while len(found) < 3:
        # Asked for too early, an answer would be waited for while no other thread can run.
        while line.is_busy():
            meanwhile(lambda: bool(wait.poll(0)))
            wait.poll()
            line.consume_input()
        answer = line.get_result()
        if answer is None:
            continue
        if answer.status == ExecStatus.PIPELINE_SYNC:
            found.append([])
        else:
            found[-1].append(answer)
    return found[0], found[1]


def _is_forgotten(answer: PGresult) -> bool:
    """Whether a statement is not prepared any more: the driver lets go of all after a rollback."""
    return _state(answer) == _NOT_PREPARED


def _state(answer: PGresult) -> bytes | None:
    return answer.error_field(DiagnosticField.SQLSTATE)


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
