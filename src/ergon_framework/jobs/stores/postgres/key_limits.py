"""Limit keys of queues that limit each of their keys: gates, and jobs that wait for tokens.

A claim that judges jobs of such a queue holds the lock of the queue's row, so that nobody else
reads or changes the buckets of its keys. Waking needs no such lock: what it wakes is judged again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from ergon_framework.core.claim import (
    ClaimBounds,
    KeyOfQueue,
    Pick,
    QueueGate,
    QueueLimits,
    ShareKey,
    deal,
    in_turn,
)
from ergon_framework.jobs.stores.postgres.rows import PRIORITY, RUN_AT, SEQ, Row
from ergon_framework.jobs.stores.postgres.statements import flags, numbers, statements, texts
from ergon_framework.jobs.stores.postgres.transactions import PostgresTx

_SQL = statements("key_limits.sql")
KEY = 19
"""The limit key in the row of a candidate."""


def place(row: Row) -> tuple[int, float, int]:
    """Where a job stands among those of its queue."""
    return -row[PRIORITY], row[RUN_AT], row[SEQ]


def key_gates(
    tx: PostgresTx, wanted: Collection[KeyOfQueue], limits: Mapping[str, QueueLimits]
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
    tx: PostgresTx,
    gates: Mapping[KeyOfQueue, QueueGate],
    blocked: Collection[KeyOfQueue],
    now: float,
) -> None:
    """Write down what a claim used, and when to look again at jobs that wait for a token."""
    rows = [
        (name, gate, gate.looks_again_at(now), name in blocked)
        for name, gate in gates.items()
        if gate.full_at is not None or gate.has_entered or name in blocked
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
            "used": flags([gate.full_at is not None for _, gate, *_ in rows]),
        }
        tx.execute(_SQL["save"], _names([name for name, *_ in rows]) | values)


def wake_due(tx: PostgresTx, bounds: ClaimBounds) -> bool:
    """Make jobs due whose limit keys have tokens again. Returns whether there were any."""
    found = tx.execute(_SQL["due"], {"most": bounds.max_promoted}).fetchall()
    if not found:
        return False
    most = []
    for _, key, full_at, now, active, key_max_active, key_rate, key_burst in found:
        limits = QueueLimits(False, key_max_active, key_rate, key_burst, full_at)
        # As many as may start, so that the next ones need no wake-up of their own.
        # One at least, even without room: the claim that judges it notes when to look again.
        most.append(QueueGate(key, limits, active).room(bounds.scan_size, now) or 1)
    names = _names([(queue, key) for queue, key, *_ in found])
    tx.execute(_SQL["woken"], names)
    tx.execute(_SQL["wake"], names | {"most": numbers(most)})
    return True


Place = tuple[int, float, int] | None
"""Priority, due time and number of a job; None: before all jobs."""


@dataclass(slots=True)
class KeyTurns:
    """Where one process goes on, in queues that limit their keys. It only says where to look."""

    last: dict[ShareKey, str] = field(default_factory=dict)
    """The limit key whose turn was the last."""
    places: dict[ShareKey, Place] = field(default_factory=dict)
    """Where to look for jobs without a key, among many that have one."""


def candidates_in_turn(
    tx: PostgresTx, pick: Pick, turns: KeyTurns, passed: Collection[str], unkeyed_scan: int
) -> list[Row]:
    """The first jobs, locked, of the limit keys whose turn it is; as many of each as it
    may start.
    """
    after, wanted = turns.last.get(pick.share, ""), pick.most
    values = {"executors": texts(pick.names), "queue": pick.queue, "after": after}
    # As many more as are taken out again below.
    found = tx.execute(_SQL["next_keys"], values | {"most": wanted + len(passed)})
    free = _without_key(tx, pick, turns, unkeyed_scan)
    keys = {key for (key,) in found.fetchall()}.difference(passed)
    order = in_turn(keys | ({""} if free else set()), after, wanted)
    if not order:
        return []
    # Rounded up: the shares must not be fewer together than are wanted. `deal` stops there.
    each = -(-wanted // len(order))
    heads: dict[str, list[Row]] = {key: [] for key in order}
    if "" in heads:
        heads[""] = free[:each]
    named = [(name, key) for name in pick.names for key in order if key]
    values = {
        "executors": texts([name for name, _ in named]),
        "keys": texts([key for _, key in named]),
        "queue": pick.queue,
        "most": each,
    }
    for row in tx.execute(_SQL["heads"], values).fetchall() if named else ():
        heads[row[KEY]].append(row)
    for key in order:
        heads[key] = sorted(heads[key], key=place)[:each]
    rows, turns.last[pick.share] = deal(heads, wanted)
    return rows


def _without_key(tx: PostgresTx, pick: Pick, turns: KeyTurns, unkeyed_scan: int) -> list[Row]:
    """Due jobs without a limit key.

    No index tells them from jobs with one. So each claim reads some more jobs of the lane, from
    where the last claim stopped, and remembers the place where it finds any.
    """
    seqs: list[int] = []
    for name in pick.names:
        lane = (name, pick.queue)
        start = turns.places.get(lane) or (None, None, None)
        values = {"executor": name, "queue": pick.queue, "most": unkeyed_scan}
        place_of = dict(zip(("priority", "run_at", "seq"), start, strict=True))
        found = tx.execute(_SQL["places"], {**values, **place_of}).fetchall()
        free = [seq for *_, seq, is_free in found if is_free][: pick.most]
        if not free:
            turns.places[lane] = None if len(found) < unkeyed_scan else tuple(found[-1][:3])
        seqs += free
    if not seqs:
        return []
    rows = tx.execute(_SQL["free"], {"seqs": numbers(seqs)}).fetchall()
    return sorted(rows, key=place)[: pick.most]


def block_rest(
    tx: PostgresTx, picks: Sequence[Pick], used_up: Collection[KeyOfQueue], scan_size: int
) -> int:
    """Let more jobs of keys wait that are used up, so that the next claims meet fewer: how many."""
    lanes = {
        (name, queue, key)
        for pick in picks
        for name in pick.names
        for queue, key in used_up
        if queue == pick.queue
    }
    values = {
        "executors": texts([name for name, _, _ in lanes]),
        "queues": texts([queue for _, queue, _ in lanes]),
        "keys": texts([key for *_, key in lanes]),
        "most": scan_size,
    }
    return len(tx.execute(_SQL["block_rest"], values).fetchall())


def _names(names: Collection[KeyOfQueue]) -> dict[str, object]:
    return {
        "queues": texts([queue for queue, _ in names]),
        "keys": texts([key for _, key in names]),
    }
