"""Retention: what is taken out of the store, and what is ended because its time has passed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ergon_framework.jobs.stores.own_moves import WORKER_FORGOTTEN_AFTER, outdated
from ergon_framework.jobs.stores.postgres.settling import (
    Settling,
    blocked_keys,
    try_keys,
    wake,
)
from ergon_framework.jobs.stores.postgres.statements import numbers, statements, texts
from ergon_framework.jobs.stores.postgres.words import Words
from ergon_framework.ports.jobstore import Job

_SQL = statements("desk.sql")


def purge(words: Words, jobs: Sequence[Job]) -> int:
    """Delete jobs that have ended and were not moved since they were read."""
    values = {
        "seqs": numbers([job.key for job in jobs]),
        "ids": texts([job.id for job in jobs]),
        "fences": numbers([job.fence for job in jobs]),
        "statuses": texts([job.status.value for job in jobs]),
        "finished": numbers([job.finished_at for job in jobs]),
    }
    return words.say(_SQL["purge"], values).rowcount


def purge_due(words: Words, limit: int) -> int:
    """Delete what has been kept long enough."""
    return words.say(_SQL["purge_due"], {"limit": limit}).rowcount


def end_outdated(words: Words, limit: int) -> tuple[int, Counter[str]]:
    """Dead-letter what was not started before its expiry; limit keys for which others wait."""
    rows = words.say(_SQL["outdated"], {"limit": limit}).fetchall()
    settling = Settling(words, [outdated(row[:7], row[7]) for row in rows])
    settling.read()
    return len(rows), settling.freed


def forget_workers(words: Words) -> int:
    """Take those off the list that have not been heard of for long."""
    return words.say(_SQL["forget_workers"], {"age": WORKER_FORGOTTEN_AFTER}).rowcount


def wake_blocked(words: Words, freed: Counter[str], after: str, limit: int) -> tuple[bool, str]:
    """Let jobs go whose limit key is free, whether or not somebody has told them.

    Answers whether any goes, and after which key to look the next time: all have their turn.
    """
    keys = [row[0] for row in blocked_keys(words, after, limit).fetchall()]
    last = keys[-1] if len(keys) == limit else ""
    both = Counter[str](keys)
    both |= freed
    if not both:
        return False, last
    try_keys(words, both)  # a job that is missed because others hold its key: the next sweep's
    return bool(wake(words, both).fetchall()), last
