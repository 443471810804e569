"""Quota: a unit of a window's budget, from memory, a file, a server, or a block taken ahead."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace

from comparison import Effort, Entry, FailedError, Record, race

from ergon_framework.ports.providerstore import LaneKey, ProviderStore
from ergon_framework.providers import open_store
from ergon_framework.providers.quota import QuotaLimiter
from ergon_framework.providers.stores.memory import MemoryProviderStore
from provider_parts import peers
from provider_parts.calls import PLENTY, TENANT, Call, turns
from provider_parts.costs import Goal, entry, record, records
from provider_parts.postgres import opened, postgres

KEY = LaneKey(TENANT, "noop", "send")
BLOCK = 100


def quota(effort: Effort) -> Iterator[Record]:
    """One unit, taken for good."""
    ours = Entry("Ergon", turns(_taking(MemoryProviderStore()), effort.seconds))
    theirs = entry("limits", lambda: turns(peers.taking(), effort.seconds))
    race([ours, theirs], effort.rounds)
    yield from records("quota-memory", ours, [(theirs, None)], Goal(us=0.5))

    path = effort.folder / "quota.db"
    with closing(sqlite3.connect(effort.folder / "bare.db", isolation_level=None)) as link:
        floor = Entry("bare sqlite3", turns(_bare(link), effort.seconds))
        yield from _stored(effort, "sqlite", lambda: open_store(f"sqlite:///{path}"), [floor])
    with postgres(effort) as url:
        yield from _stored(effort, "postgres", lambda: opened(url()), [])


def _stored(
    effort: Effort, kind: str, opening: Callable[[], ProviderStore], floors: list[Entry]
) -> Iterator[Record]:
    def one_by_one() -> Call:
        return _taking(opening())

    def in_blocks() -> Call:
        return _taking(opening(), BLOCK)

    ours = entry("Ergon", lambda: turns(one_by_one(), effort.seconds))
    ahead = entry(f"Ergon, blocks of {BLOCK}", lambda: turns(in_blocks(), effort.seconds))
    race([ours, ahead, *floors], effort.rounds)
    goal = Goal(us=60.0) if kind == "sqlite" else None
    peers_ = [(floor, None) for floor in floors]
    yield from records(f"quota-{kind}", ours, peers_, goal, by="wall")
    yield record(f"quota-{kind}-leased", ahead, None, Goal(us=1.0), by="wall")
    if ours.skipped is None:
        opening().close()


def _taking(store: ProviderStore, block: int = 1) -> Call:
    desk = QuotaLimiter(store, KEY, replace(PLENTY, block=block))
    if desk.reserve(1) is None:
        raise FailedError("nothing was granted")
    return lambda: desk.reserve(1)


def _bare(link: sqlite3.Connection) -> Call:
    """The one statement that it takes, committed; as ours it does not wait for the disk."""
    link.execute("PRAGMA journal_mode = WAL")
    link.execute("PRAGMA synchronous = NORMAL")
    link.execute("CREATE TABLE quota (tenant TEXT PRIMARY KEY, used INT, most INT)")
    link.execute("INSERT INTO quota VALUES (?, 0, 1000000000)", (TENANT,))
    sql = "UPDATE quota SET used = used + 1 WHERE tenant = ? AND used < most RETURNING used"

    def take() -> None:
        link.execute("BEGIN IMMEDIATE")
        link.execute(sql, (TENANT,)).fetchone()
        link.execute("COMMIT")

    return take
