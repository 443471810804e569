"""Limit keys of queues that limit each of their keys: gates, and jobs that wait for tokens.

A claim that judges jobs of such a queue holds the lock of the queue's row, so that nobody else
reads or changes the buckets of its keys. Waking needs no such lock: what it wakes is judged again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from ergon_framework.core.claim import ClaimBounds, KeyOfQueue, QueueGate, QueueLimits
from ergon_framework.jobs.stores.postgres.statements import flags, numbers, statements, texts
from ergon_framework.jobs.stores.postgres.transactions import Tx

_SQL = statements("key_limits.sql")


def key_gates(
    tx: Tx, wanted: Collection[KeyOfQueue], limits: Mapping[str, QueueLimits]
) -> dict[KeyOfQueue, QueueGate]:
    """The gates of these limit keys, by the limits of their queues."""
    if not wanted:
        return {}
    found = tx.execute(_SQL["gates"], _names(wanted)).fetchall()
    return {
        (queue, key): QueueGate(key, limits[queue].of_key(full_at), active)
        for queue, key, full_at, active in found
    }


def save_keys(
    tx: Tx, gates: Mapping[KeyOfQueue, QueueGate], blocked: Collection[KeyOfQueue], now: float
) -> None:
    """Write down what a claim used, and when to look again at jobs that wait for a token."""
    rows = [
        (name, gate, gate.looks_again_at(now), name in blocked)
        for name, gate in gates.items()
        if gate.full_at is not None or name in blocked
    ]
    rows = [each for each in rows if each[1].full_at is not None or each[2] is not None]
    if rows:
        fulls = [
            each.limits.full_at if each.full_at is None else each.full_at for _, each, *_ in rows
        ]
        values = {
            "full_at": numbers(fulls),
            "wakes_at": numbers([wakes_at for _, _, wakes_at, _ in rows]),
            "blocked": flags([is_blocked for *_, is_blocked in rows]),
        }
        tx.execute(_SQL["save"], _names([name for name, *_ in rows]) | values)


def wake_due(tx: Tx, bounds: ClaimBounds) -> bool:
    """Make jobs due whose limit keys have tokens again; whether there were any."""
    found = tx.execute(_SQL["due"], {"most": bounds.max_promoted}).fetchall()
    if not found:
        return False
    most = []
    for _, key, full_at, now, active, key_max_active, key_rate, key_burst in found:
        limits = QueueLimits(False, key_max_active, key_rate, key_burst, full_at)
        # As many as may start, so that the next ones need no wake-up of their own.
        most.append(QueueGate(key, limits, active).room(bounds.scan_size, now) or 1)
    names = _names([(queue, key) for queue, key, *_ in found])
    tx.execute(_SQL["woken"], names)
    tx.execute(_SQL["wake"], names | {"most": numbers(most)})
    return True


def _names(names: Collection[KeyOfQueue]) -> dict[str, object]:
    return {
        "queues": texts([queue for queue, _ in names]),
        "keys": texts([key for _, key in names]),
    }
