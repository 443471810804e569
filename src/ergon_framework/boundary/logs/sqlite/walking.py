"""Walking a log's hash chain from the oldest kept fact to the head."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from ergon_framework.boundary.logs.sqlite.ground import SQL
from ergon_framework.boundary.logs.sqlite.ledger import Ledger
from ergon_framework.boundary.logs.sqlite.pages import chain_at
from ergon_framework.boundary.logs.sqlite.records import key_of, next_chain, read_proof
from ergon_framework.boundary.logs.sqlite.rows import (
    LAST,
    LogRow,
    Row,
    Zones,
    log_named,
    seal_in,
)
from ergon_framework.boundary.logs.sqlite.runs import run_at
from ergon_framework.ports.factstore import Flaw
from ergon_framework.storage.statements import load

STRIDE = 200
"""Facts looked at between two words about how far it is."""

_SQL = load(SQL, "logs.sql")

Look = Callable[[Callable[[sqlite3.Cursor, Ledger], "_Leg"]], "_Leg"]
"""Runs something on what was committed last, and on the ledger."""


@dataclass(slots=True)
class _Leg:
    """One stretch of the way: what was found, and where it ended."""

    reached: int
    chain: bytes
    flaws: list[Flaw] = field(default_factory=list)
    is_end: bool = False


def walk(look: Look, log: str, after: int) -> Iterator[Flaw | int]:
    """Flaws as they are found, and the offset reached; between two stretches nothing is held."""
    leg = _Leg(after, b"")
    while not leg.is_end:
        start, chain = leg.reached, leg.chain

        def work(
            cursor: sqlite3.Cursor, ledger: Ledger, start: int = start, chain: bytes = chain
        ) -> _Leg:
            return _stride(cursor, ledger, log, start, chain)

        leg = look(work)
        yield from leg.flaws
        if leg.reached > start:
            yield leg.reached


def _stride(cursor: sqlite3.Cursor, ledger: Ledger, name: str, start: int, chain: bytes) -> _Leg:
    log = log_named(cursor, name)
    if log is None:
        return _Leg(start, chain, is_end=True)
    if not chain or start < log.first:  # the first stride, or payloads were dropped meanwhile
        start = max(start, log.first - 1)
        chain = chain_at(cursor, log, start)
    leg = _Leg(start, chain)
    bounds = (log.base + start, log.base + log.head, STRIDE)
    rows = cursor.execute(_SQL["facts"], bounds).fetchall()
    ledger.follow(cursor, log)
    zones = Zones(cursor)
    for row in rows:
        _check(log, row, zones[row[1]], leg)
        _check_books(cursor, ledger, log, row, leg.flaws)
    if len(rows) < STRIDE:
        _check_end(log, leg)
        leg.is_end = True
    return leg


def _check(log: LogRow, row: Row, to_zone: str | None, leg: _Leg) -> None:
    offset = row[0] & LAST
    if offset != leg.reached + 1:
        leg.flaws.append(_missing(log, leg.reached + 1, offset - 1))
        leg.chain = b""
    seal = None if to_zone is None else seal_in(row, to_zone)
    proof = read_proof(row[4])
    chain = b"" if proof is None else proof.chain
    if seal is None:
        leg.flaws.append(Flaw(log.name, offset, "it is not what was stored there"))
    elif leg.chain and next_chain(leg.chain, seal) != chain:
        leg.flaws.append(Flaw(log.name, offset, "it does not fit the hash chain"))
    # From here on the stored chain counts: what comes after a flaw is judged by itself.
    leg.reached, leg.chain = offset, chain


def _check_books(
    cursor: sqlite3.Cursor, ledger: Ledger, log: LogRow, row: Row, flaws: list[Flaw]
) -> None:
    """A fact must be known by its id, or it could be appended twice, and found in its view."""
    offset = row[0] & LAST
    proof = read_proof(row[4])
    if proof is None:  # the row itself is reported
        return
    known = ledger.known(cursor, key_of(log.name, proof.from_zone, proof.message_id))
    if known != (proof.digest[:16], offset):
        flaws.append(Flaw(log.name, offset, "the ledger does not know it as it is"))
    run = run_at(cursor, row[1], offset)
    if run is None or (run.last or log.head) < offset:
        flaws.append(Flaw(log.name, offset, "its zone cannot see it"))


def _check_end(log: LogRow, leg: _Leg) -> None:
    if leg.reached < log.head:
        leg.flaws.append(_missing(log, leg.reached + 1, log.head))
        leg.reached = log.head


def _missing(log: LogRow, first: int, last: int) -> Flaw:
    what = "it is missing" if first == last else f"it and all up to {last} are missing"
    return Flaw(log.name, first, what)
