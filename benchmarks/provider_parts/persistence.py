"""Calls whose rows go to an SQLite file: what that costs the caller."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import repeat
from pathlib import Path
from typing import Any

from comparison import Contestant, ContestantError, Record, RunOptions, Turn, race

from ergon_framework.providers.base import ProviderBase
from ergon_framework.providers.recorder import recorder_of
from provider_parts.calls import (
    CORRELATION,
    KEY,
    PAYLOAD,
    TENANT,
    Noop,
    expect_end,
    sync_call,
    timed_turns,
)
from provider_parts.costs import CostTarget, contestant, records
from provider_parts.peers import answer

BURST = 10_000
"""Calls in one go, fewer than the recorder holds, so that none of their rows is spilled."""
PACE = 0.0005
"""Seconds between two calls of a steady trickle."""


def persisted(options: RunOptions) -> Iterator[Record]:
    """A success with its row handed to the writer, beside one insert and commit per call."""
    filed = Noop(store=f"sqlite:///{options.folder / 'calls.db'}")
    durable = Noop(store=f"sqlite:///{options.folder / 'durable.db'}", durable=True)
    expect_end(sync_call(filed)(), "succeeded")
    contestants = [
        Contestant("Ergon on SQLite", _bursts(filed, options)),
        Contestant("Ergon on SQLite, a trickle of calls", _trickle(filed, options)),
        Contestant("Ergon in memory", _bursts(Noop(), options)),
        Contestant("Ergon on SQLite, durable", timed_turns(sync_call(durable), options.seconds)),
        contestant("SQLAlchemy ORM, a commit per call", lambda: _each(options, _by_orm)),
        contestant("SQLAlchemy Core, a commit per call", lambda: _each(options, _by_core)),
    ]
    race(contestants, options.rounds)
    _check(filed, contestants[:2])
    for provider in (filed, durable):
        provider.close()
        provider.store.close()
    ours, trickle, memory, kept, *others = contestants
    yield from records(
        "persisted",
        ours,
        [(memory, CostTarget(extra_us=3.0)), *((other, None) for other in others)],
        CostTarget(p99_us=200.0),
    )
    yield from records("persisted-trickle", trickle, [], CostTarget(p99_us=200.0), by="wall")
    core = others[-1]
    yield from records(
        "durable", kept, [(core, CostTarget(most=0.6))], CostTarget(us=150.0), by="wall"
    )


def _bursts(provider: ProviderBase, options: RunOptions) -> Callable[[], Turn]:
    """Calls without a pause while the writer works; what is left to write is waited for untimed.

    The processor time is the caller's own: the writer's thread is not in it.
    """
    call = sync_call(provider)
    count = min(BURST, max(500, int(20_000 * options.seconds)))

    def turn() -> Turn:
        latencies: list[float] = []
        note, clock = latencies.append, time.perf_counter
        cpu_time = time.thread_time()
        for _ in repeat(None, count):
            began = clock()
            call()
            note(clock() - began)
        cpu_time = time.thread_time() - cpu_time
        if not provider.flush(60.0):
            raise ContestantError("rows are not written after a minute")
        return Turn(count, sum(latencies), latencies, cpu_time)

    return turn


def _trickle(provider: ProviderBase, options: RunOptions) -> Callable[[], Turn]:
    """A call now and then, so that nearly all of them happen beside a small write."""
    call = sync_call(provider)
    count = max(100, int(options.seconds / PACE))

    def turn() -> Turn:
        latencies: list[float] = []
        for _ in repeat(None, count):
            time.sleep(PACE)
            began = time.perf_counter()
            call()
            latencies.append(time.perf_counter() - began)
        return Turn(count, sum(latencies), latencies)

    return turn


def _check(provider: ProviderBase, contestants: list[Contestant]) -> None:
    provider.flush(60.0)
    stats = recorder_of(provider.store).stats()
    if stats.dropped_rows or stats.lost_rows or stats.spilled_rows:
        for each in contestants:
            each.skipped = f"rows were not written in time: {stats}"


def _each(options: RunOptions, make: Callable[[Any], Callable[[], None]]) -> Callable[[], Turn]:
    insert = make(_engine(options.folder / f"{make.__name__}.db"))

    def call() -> Any:
        data = answer(PAYLOAD)
        insert()
        return data

    return timed_turns(call, options.seconds)


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
