"""Walking a log's hash chain from the oldest kept fact to the head."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from ergon_framework.boundary.logs.records import key_of, next_chain, read_proof
from ergon_framework.boundary.logs.tables.ground import Books, Row
from ergon_framework.boundary.logs.tables.pages import chain_at
from ergon_framework.boundary.logs.tables.rows import (
    LAST,
    LogRow,
    Zones,
    log_named,
    seal_in,
)
from ergon_framework.boundary.logs.tables.runs import Run, run_at
from ergon_framework.ports.factstore import Flaw

STRIDE = 200
"""Facts looked at between two words about how far it is."""


Known: TypeAlias = tuple[bytes, int]
"""The first 16 bytes of the identity digest, and the offset."""
Knows = Callable[[LogRow, Sequence[bytes]], Mapping[bytes, Known]]
"""What the ledger of a log says about keys."""
Look = Callable[[Callable[[Books, Knows], "Leg"]], "Leg"]
"""Runs something on what was committed last, and on the ledger."""


@dataclass(slots=True)
class Leg:
    """One stretch of the way: what was found, and where it ended."""

    reached: int
    chain: bytes
    flaws: list[Flaw] = field(default_factory=list)
    is_end: bool = False


def walk(look: Look, log: str, after: int) -> Iterator[Flaw | int]:
    """Flaws as they are found, and the offset reached; between two stretches nothing is held."""
    leg = Leg(after, b"")
    while not leg.is_end:
        start, chain = leg.reached, leg.chain

        def work(books: Books, knows: Knows, start: int = start, chain: bytes = chain) -> Leg:
            return _stride(books, knows, log, start, chain)

        leg = look(work)
        yield from leg.flaws
        if leg.reached > start:
            yield leg.reached


def _stride(books: Books, knows: Knows, name: str, start: int, chain: bytes) -> Leg:
    log = log_named(books, name)
    if log is None:
        return Leg(start, chain, is_end=True)
    if not chain or start < log.first:  # the first stride, or payloads were dropped meanwhile
        start = max(start, log.first - 1)
        chain = chain_at(books, log, start)
    leg = Leg(start, chain)
    bounds = (log.base + start, log.base + log.head, STRIDE)
    rows = books.all("logs.facts", *bounds)
    zones = Zones(books)
    for row in rows:
        _check(log, row, zones[row[1]], leg)
    _check_ledger(knows, log, rows, leg.flaws)
    _check_views(books, log, rows, leg.flaws)
    if len(rows) < STRIDE:
        _check_end(log, leg)
        leg.is_end = True
    return leg


def _check(log: LogRow, row: Row, to_zone: str | None, leg: Leg) -> None:
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


def _check_ledger(knows: Knows, log: LogRow, rows: Sequence[Row], flaws: list[Flaw]) -> None:
    """A fact must be known by its id, or it could be appended twice."""
    wanted: dict[bytes, Known] = {}
    for row in rows:
        proof = read_proof(row[4])
        if proof is not None:  # otherwise the row itself is reported
            key = key_of(log.name, proof.from_zone, proof.message_id)
            wanted[key] = proof.digest[:16], row[0] & LAST
    known = knows(log, list(wanted))
    for key, fact in wanted.items():
        if known.get(key) != fact:
            flaws.append(Flaw(log.name, fact[1], "the ledger does not know it as it is"))


def _check_views(books: Books, log: LogRow, rows: Sequence[Row], flaws: list[Flaw]) -> None:
    """A fact must be found in its view."""
    runs: dict[int, Run] = {}
    for row in rows:
        offset, view = row[0] & LAST, row[1]
        if read_proof(row[4]) is None or _reaches(runs.get(view), offset, log):
            continue
        run = run_at(books, view, offset)
        if run is not None and _reaches(run, offset, log):
            runs[view] = run
        else:
            flaws.append(Flaw(log.name, offset, "its zone cannot see it"))


def _reaches(run: Run | None, offset: int, log: LogRow) -> bool:
    return run is not None and run.first <= offset <= (run.last or log.head)


def _check_end(log: LogRow, leg: Leg) -> None:
    if leg.reached < log.head:
        leg.flaws.append(_missing(log, leg.reached + 1, log.head))
        leg.reached = log.head


def _missing(log: LogRow, first: int, last: int) -> Flaw:
    what = "it is missing" if first == last else f"it and all up to {last} are missing"
    return Flaw(log.name, first, what)
