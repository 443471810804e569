"""Calls whose rows go to an SQLite file: what that costs the caller."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import repeat
from pathlib import Path
from typing import Any

from comparison import Effort, Entry, FailedError, Record, Turn, race

from ergon_framework.providers.base import ProviderBase
from ergon_framework.providers.recorder import recorder_of
from provider_parts.calls import CORRELATION, KEY, PAYLOAD, TENANT, Noop, calling, sure, turns
from provider_parts.costs import Goal, entry, records
from provider_parts.peers import answer

BURST = 10_000
"""Calls in one go, fewer than the recorder holds, so that none of their rows is spilled."""
PACE = 0.0005
"""Seconds between two calls of a steady trickle."""


def persisted(effort: Effort) -> Iterator[Record]:
    """A success with its row handed to the writer, beside one insert and commit per call."""
    filed = Noop(store=f"sqlite:///{effort.folder / 'calls.db'}")
    durable = Noop(store=f"sqlite:///{effort.folder / 'durable.db'}", durable=True)
    sure(calling(filed)(), "succeeded")
    entries = [
        Entry("Ergon on SQLite", _bursts(filed, effort)),
        Entry("Ergon on SQLite, a trickle of calls", _trickle(filed, effort)),
        Entry("Ergon in memory", _bursts(Noop(), effort)),
        Entry("Ergon on SQLite, durable", turns(calling(durable), effort.seconds)),
        entry("SQLAlchemy ORM, a commit per call", lambda: _each(effort, _by_orm)),
        entry("SQLAlchemy Core, a commit per call", lambda: _each(effort, _by_core)),
    ]
    race(entries, effort.rounds)
    _check(filed, entries[:2])
    for provider in (filed, durable):
        provider.close()
        provider.store.close()
    ours, trickle, memory, kept, *others = entries
    yield from records(
        "persisted",
        ours,
        [(memory, Goal(extra_us=3.0)), *((other, None) for other in others)],
        Goal(p99_us=200.0),
    )
    yield from records("persisted-trickle", trickle, [], Goal(p99_us=200.0), by="wall")
    yield from records("durable", kept, [], Goal(us=150.0), by="wall")


def _bursts(provider: ProviderBase, effort: Effort) -> Callable[[], Turn]:
    """Calls without a pause while the writer works; what is left to write is waited for untimed.

    The processor time is the caller's own: the writer's thread is not in it.
    """
    call = calling(provider)
    count = min(BURST, max(500, int(20_000 * effort.seconds)))

    def turn() -> Turn:
        taken: list[float] = []
        note, clock = taken.append, time.perf_counter
        burnt = time.thread_time()
        for _ in repeat(None, count):
            began = clock()
            call()
            note(clock() - began)
        burnt = time.thread_time() - burnt
        if not provider.flush(60.0):
            raise FailedError("rows are not written after a minute")
        return Turn(count, sum(taken), taken, burnt)

    return turn


def _trickle(provider: ProviderBase, effort: Effort) -> Callable[[], Turn]:
    """A call now and then, so that nearly all of them happen beside a small write."""
    call = calling(provider)
    count = max(100, int(effort.seconds / PACE))

    def turn() -> Turn:
        taken: list[float] = []
        for _ in repeat(None, count):
            time.sleep(PACE)
            began = time.perf_counter()
            call()
            taken.append(time.perf_counter() - began)
        return Turn(count, sum(taken), taken)

    return turn


def _check(provider: ProviderBase, entries: list[Entry]) -> None:
    provider.flush(60.0)
    stats = recorder_of(provider.store).stats()
    if stats.dropped_rows or stats.lost_rows or stats.spilled_rows:
        for each in entries:
            each.skipped = f"rows were not written in time: {stats}"


def _each(effort: Effort, make: Callable[[Any], Callable[[], None]]) -> Callable[[], Turn]:
    insert = make(_engine(effort.folder / f"{make.__name__}.db"))

    def call() -> Any:
        data = answer(PAYLOAD)
        insert()
        return data

    return turns(call, effort.seconds)


def _by_orm(engine: Any) -> Callable[[], None]:
    from sqlalchemy.orm import Session

    from ergon_framework.providers.models import ProviderExecutionMetric

    def insert() -> None:
        with Session(engine) as session:
            session.add(ProviderExecutionMetric(**_row()))
            session.commit()

    return insert


def _by_core(engine: Any) -> Callable[[], None]:
    from sqlalchemy import insert as inserting

    from ergon_framework.providers.models import ProviderExecutionMetric

    statement = inserting(ProviderExecutionMetric)

    def insert() -> None:
        with engine.begin() as connection:
            connection.execute(statement, _row())

    return insert


def _engine(path: Path) -> Any:
    """The same table; a commit does not wait for the disk, which is kinder than what we do."""
    from sqlalchemy import create_engine, event

    from ergon_framework.providers.models import ProviderExecutionMetric

    engine = create_engine(f"sqlite:///{path}")

    @event.listens_for(engine, "connect")
    def settle(connection: Any, _record: Any) -> None:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")

    ProviderExecutionMetric.__table__.create(engine)  # type: ignore[attr-defined]
    return engine


def _row() -> dict[str, Any]:
    return {
        "id": str(uuid.uuid4()),
        "tenant_id": TENANT,
        "provider_name": "noop",
        "capability": "send",
        "operation": "send",
        "idempotency_key": KEY,
        "correlation_id": CORRELATION,
        "attempt_number": 1,
        "max_attempts": 3,
        "duration_ms": 0,
        "timeout_budget_ms": 60_000,
        "outcome": "success",
        "retryable": False,
        "created_at": datetime.now(UTC),
    }
