"""Quota: a unit of a window's budget, from memory, a file, a server, or a block taken ahead."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace

from comparison import Contestant, ContestantError, Record, RunOptions, race

from ergon_framework.ports.providerstore import LaneKey, ProviderStore
from ergon_framework.providers import open_store
from ergon_framework.providers.quota import QuotaLimiter
from ergon_framework.providers.stores.memory import MemoryProviderStore
from provider_parts import peers
from provider_parts.calls import PLENTY, TENANT, Call, timed_turns
from provider_parts.costs import CostTarget, contestant, record, records
from provider_parts.postgres import opened, postgres

KEY = LaneKey(TENANT, "noop", "send")
BLOCK = 100


def quota(options: RunOptions) -> Iterator[Record]:
    """One unit, taken for good."""
    ours = Contestant("Ergon", timed_turns(_reserving(MemoryProviderStore()), options.seconds))
    theirs = contestant("limits", lambda: timed_turns(peers.limiter_only(), options.seconds))
    race([ours, theirs], options.rounds)
    yield from records("quota-memory", ours, [(theirs, None)], CostTarget(us=0.5))

    path = options.folder / "quota.db"
    with closing(sqlite3.connect(options.folder / "bare.db", isolation_level=None)) as connection:
        floor = Contestant("bare sqlite3", timed_turns(_bare(connection), options.seconds))
        yield from _stored(options, "sqlite", lambda: open_store(f"sqlite:///{path}"), [floor])
    with postgres(options) as url:
        yield from _stored(options, "postgres", lambda: opened(url()), [])


def _stored(
    options: RunOptions, kind: str, opening: Callable[[], ProviderStore], floors: list[Contestant]
) -> Iterator[Record]:
    def one_by_one() -> Call:
        return _reserving(opening())

    def in_blocks() -> Call:
        return _reserving(opening(), BLOCK)

    ours = contestant("Ergon", lambda: timed_turns(one_by_one(), options.seconds))
    ahead = contestant(
        f"Ergon, blocks of {BLOCK}", lambda: timed_turns(in_blocks(), options.seconds)
    )
    race([ours, ahead, *floors], options.rounds)
    target = CostTarget(us=60.0) if kind == "sqlite" else None
    peers_ = [(floor, None) for floor in floors]
    yield from records(f"quota-{kind}", ours, peers_, target, by="wall")
    yield record(f"quota-{kind}-leased", ahead, None, CostTarget(us=1.0), by="wall")
    if ours.skipped is None:
        opening().close()


def _reserving(store: ProviderStore, block: int = 1) -> Call:
    limiter = QuotaLimiter(store, KEY, replace(PLENTY, block=block))
    if limiter.reserve(1) is None:
        raise ContestantError("nothing was granted")
    return lambda: limiter.reserve(1)


def _bare(connection: sqlite3.Connection) -> Call:
    """The one statement that it takes, committed; as ours it does not wait for the disk."""
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("CREATE TABLE quota (tenant TEXT PRIMARY KEY, used INT, most INT)")
    connection.execute("INSERT INTO quota VALUES (?, 0, 1000000000)", (TENANT,))
    sql = "UPDATE quota SET used = used + 1 WHERE tenant = ? AND used < most RETURNING used"

    def take() -> None:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(sql, (TENANT,)).fetchone()
        connection.execute("COMMIT")

    return take
