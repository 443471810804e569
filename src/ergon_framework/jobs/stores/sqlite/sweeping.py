"""Retention: what is taken out of the store, and what is ended because its time has passed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ergon_framework.jobs.stores.own_moves import WORKER_FORGOTTEN_AFTER
from ergon_framework.jobs.stores.sqlite.moves import Moves
from ergon_framework.jobs.stores.sqlite.rows import SQL
from ergon_framework.ports.jobstore import Job, Sweep
from ergon_framework.storage.sql_files import load

_SQL = load(SQL, "desk.sql")


def sweep(moves: Moves, limit: int) -> Sweep:
    """Purge, end what is outdated, forget dead workers, and wake who waits for a free key."""
    purged = _purge_due(moves, limit)
    outdated = _end_outdated(moves, limit - purged)
    moves.cursor.execute(_SQL["forget_workers"], (moves.now - WORKER_FORGOTTEN_AFTER,))
    workers = moves.cursor.rowcount
    moves.wake_keys(limit)
    return Sweep(purged, outdated, workers, purged + outdated >= limit)


def purge(moves: Moves, jobs: Sequence[Job]) -> int:
    """Delete jobs that have ended and were not moved since they were read."""
    if not jobs:
        return 0
    moves.cursor.executemany(
        _SQL["purge"],
        [(job.key, job.id, job.fence, job.status.value, job.finished_at) for job in jobs],
    )
    return moves.cursor.rowcount


def _purge_due(moves: Moves, limit: int) -> int:
    seqs: list[int] = []
    for queue, status in _groups(moves):
        if len(seqs) >= limit:
            break
        values = (queue, status, moves.now, limit - len(seqs))
        seqs += [seq for (seq,) in moves.cursor.execute(_SQL["kept_long_enough"], values)]
    if seqs:
        moves.cursor.executemany(_SQL["delete"], [(seq,) for seq in seqs])
    return len(seqs)


def _groups(moves: Moves) -> Iterator[tuple[str, str]]:
    group = ("", "")
    while row := moves.cursor.execute(_SQL["next_ended"], group).fetchone():
        group = row
        yield group


def _end_outdated(moves: Moves, limit: int) -> int:
    rows = moves.cursor.execute(_SQL["outdated"], (moves.now, limit)).fetchall()
    for row in rows:
        moves.end_outdated(row)
    return len(rows)
