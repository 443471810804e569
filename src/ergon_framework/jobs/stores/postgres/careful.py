"""Claiming where limits have to hold: queues with settings, limit keys, and jobs that may be over.

One transaction. The queues' rows are locked first, in the order of their names, then the limit keys
of what was found; what runs is counted after the lock, so that it counts what others did before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ergon_framework.jobs.stores.gates import NONE, Gate, Settings
from ergon_framework.jobs.stores.own_moves import Standing, outdated
from ergon_framework.jobs.stores.postgres.claiming import candidates
from ergon_framework.jobs.stores.postgres.lanes import Line, Pick
from ergon_framework.jobs.stores.postgres.rows import PRIORITY, QUEUE, RUN_AT, Row
from ergon_framework.jobs.stores.postgres.settling import Settling, lock_keys, wake
from ergon_framework.jobs.stores.postgres.statements import numbers, statements, texts
from ergon_framework.jobs.stores.postgres.words import Words
from ergon_framework.ports.jobstore import Ask

GLANCE = 64
"""How many to look at where some have been refused."""

_SQL = statements("claim.sql")
_SEQ, _FENCE, _ID, _ATTEMPTS, _DELIVERIES, _CLAIMED_AT = 0, 1, 2, 8, 9, 14
_STATUS, _EXPIRES_AT, _KEY, _KEY_LIMIT = range(17, 21)


@dataclass(slots=True)
class Verdict:
    """What becomes of candidates; whoever is not mentioned stays where it is."""

    admitted: list[Row] = field(default_factory=list)
    blocked: list[Row] = field(default_factory=list)
    outdated: list[Row] = field(default_factory=list)


@dataclass(slots=True)
class Caught:
    """What one careful claim brought."""

    jobs: list[Row] = field(default_factory=list)
    keyed: set[int] = field(default_factory=set)  # those of them that have a limit key
    taken: Counter[Line] = field(default_factory=Counter)
    spent: set[Line] = field(default_factory=set)  # there is no more to be had for now
    waits: dict[str, float] = field(default_factory=dict)  # when queues have tokens again
    refused: int = 0
    outdated: int = 0


def judged(
    found: Sequence[Sequence[Row]],
    rooms: Sequence[int],
    gates: Mapping[str, int],
    running: Counter[str],
    now: float,
) -> Verdict:
    """Of several lines, each with so much room: who may start, and who before them may not.

    Lines of one queue share what its gate lets through. Whoever comes first by priority and age
    gets that, and a limit key, in whichever line it stands.
    """
    verdict = Verdict()
    left, open_gates, running = list(rooms), dict(gates), Counter(running)
    ranked = sorted((place(row), line, row) for line, rows in enumerate(found) for row in rows)
    for _, line, row in ranked:
        key, queue, expires_at = row[_KEY], row[QUEUE], row[_EXPIRES_AT]
        if left[line] == 0 or open_gates[queue] == 0:
            continue
        if expires_at is not None and expires_at <= now:
            verdict.outdated.append(row)
        elif key is not None and running[key] >= row[_KEY_LIMIT]:
            verdict.blocked.append(row)
        else:
            verdict.admitted.append(row)
            running[key] += key is not None
            left[line] -= 1
            open_gates[queue] -= 1
    return verdict


def claim_carefully(words: Words, ask: Ask, picks: Sequence[Pick], *, is_again: bool) -> Caught:
    """Take what may be taken, within a transaction that the caller commits.

    ``is_again``: some were refused already, so that it pays to look at more than are wanted.
    """
    now, stamp, gates = _gates(words, picks)
    rooms = [gates[pick.queue].room(pick.most, now) for pick in picks]
    wanted = [max(room, GLANCE) if room and is_again else room for room in rooms]
    found = _candidates(words, [replace(p, most=n) for p, n in zip(picks, wanted, strict=True)])
    verdict = judged(found, rooms, _let_in(picks, gates, now), _running(words, found), now)
    started = {row[_SEQ] for row in verdict.admitted}
    caught = Caught(
        jobs=[_claimed(row, now, stamp) for row in verdict.admitted],
        keyed={row[_SEQ] for row in verdict.admitted if row[_KEY] is not None},
        refused=len(verdict.blocked) + len(verdict.outdated),
        outdated=len(verdict.outdated),
    )
    for pick, rows in zip(picks, found, strict=True):
        count = sum(row[_SEQ] in started for row in rows)
        gates[pick.queue].enter(count, now)
        caught.taken[pick.line] = count
    for pick, most, rows in zip(picks, wanted, found, strict=True):
        if len(rows) < most or gates[pick.queue].room(1, now) == 0:
            caught.spent.add(pick.line)
    _apply(words, ask, verdict, now, stamp)
    caught.waits = _close(words, gates, now)
    return caught


def _gates(words: Words, picks: Sequence[Pick]) -> tuple[float, int, dict[str, Gate]]:
    """The time, the least fence, and the gates, which nobody else passes until this is over."""
    values = {"queues": texts(sorted({pick.queue for pick in picks}))}
    locked = words.say(_SQL["lock_gates"], values)
    counted = words.say(_SQL["running_in_queues"], values)
    [[now, stamp]] = words.say(_SQL["now"], {}).fetchall()
    active: dict[str, int] = dict(counted.fetchall())
    settings = {name: Settings(*rest) for name, *rest in locked.fetchall()}
    return (
        now,
        stamp,
        {
            name: Gate(name, _open(settings.get(name, NONE)), active.get(name, 0))
            for name in {pick.queue for pick in picks}
        },
    )


def _let_in(picks: Sequence[Pick], gates: Mapping[str, Gate], now: float) -> dict[str, int]:
    """How many jobs of each queue may start, for all executors together."""
    wanted: Counter[str] = Counter()
    for pick in picks:
        wanted[pick.queue] += pick.most
    return {queue: gates[queue].room(most, now) for queue, most in wanted.items()}


def _open(settings: Settings) -> Settings:
    """A queue that was paused a moment ago lets nobody through."""
    return replace(settings, max_active=0) if settings.is_paused else settings


def _candidates(words: Words, picks: Sequence[Pick]) -> list[list[Row]]:
    """For each pick its jobs, in the order in which they go."""
    found: list[list[Row]] = [[] for _ in picks]
    for number, *row in candidates(words, picks).fetchall():
        found[number].append(tuple(row))
    for pick, rows in zip(picks, found, strict=True):
        rows.sort(key=place)
        del rows[pick.most :]
    return found


def _running(words: Words, found: Sequence[Sequence[Row]]) -> Counter[str]:
    """How many jobs run of each limit key that was found, which nobody changes until this ends."""
    keys = {row[_KEY] for rows in found for row in rows} - {None}
    if not keys:
        return Counter()
    lock_keys(words, keys)
    return Counter(dict(words.say(_SQL["running_of_keys"], {"keys": texts(keys)}).fetchall()))


def _apply(words: Words, ask: Ask, verdict: Verdict, now: float, stamp: int) -> None:
    """Write it down; who is over passes its turn on."""
    if verdict.admitted:
        seqs = numbers([row[_SEQ] for row in verdict.admitted])
        values = {"now": now, "stamp": stamp, "lease": ask.lease, "worker": ask.worker}
        words.say(_SQL["lease"], values | {"seqs": seqs})
    if verdict.blocked:
        words.say(_SQL["block"], {"seqs": numbers([row[_SEQ] for row in verdict.blocked])})
    if verdict.outdated:
        ends = Settling(words, [outdated(standing(row), now) for row in verdict.outdated])
        ends.read()
        if ends.freed:
            wake(words, ends.freed)


def _close(words: Words, gates: Mapping[str, Gate], now: float) -> dict[str, float]:
    """Write down the tokens that were taken; when queues without any have some again."""
    waits = {}
    for gate in gates.values():
        if gate.full_at is not None:
            words.say(_SQL["set_full_at"], {"name": gate.name, "full_at": gate.full_at})
        until = gate.waits_until(now)
        if until is not None:
            waits[gate.name] = until
    return waits


def place(row: Row) -> tuple[int, float, int]:
    """Where a job stands among those of its queue."""
    return -row[PRIORITY], row[RUN_AT], row[_SEQ]


def standing(row: Row) -> Standing:
    """What moving a candidate takes."""
    attempts, deliveries, excused = row[_ATTEMPTS : _ATTEMPTS + 3]
    return row[_SEQ], row[_ID], row[_STATUS], row[_FENCE], attempts, deliveries, excused


def _claimed(row: Row, now: float, stamp: int) -> Row:
    """A candidate as the database has it now."""
    changed = list(row[:_STATUS])
    changed[_FENCE] = max(changed[_FENCE] + 1, stamp)
    changed[_DELIVERIES] += 1
    changed[_CLAIMED_AT] = now
    return tuple(changed)
