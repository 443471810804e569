"""Claiming where limits have to hold: queues with settings, limit keys, and jobs that may be over.

One transaction. The queues' rows are locked first, in the order of their names, then the limit keys
of what was found; what runs is counted after the lock, so that it counts what others did before.

Nobody waits for a limit key here. One that others hold is passed over: its jobs stay due, so that
no wake-up can miss them, and the worker asks again soon. No key is passed over for ever: it is held
only by a transaction that found a job of it, and that one starts the job, or blocks it because the
limit is reached, or has filled its slots with jobs that come before it; or by one that wakes jobs
after some have ended. So two workers cannot refuse it to each other in turns: the one that is
refused is so because the other has it, and whoever gets it moves something on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ergon_framework.core.admission import Admission, Applicant, admit
from ergon_framework.jobs.stores.gates import NONE, Gate, Settings
from ergon_framework.jobs.stores.own_moves import Standing, outdated
from ergon_framework.jobs.stores.postgres.claiming import Passing, candidates, place
from ergon_framework.jobs.stores.postgres.lanes import Line, Pick
from ergon_framework.jobs.stores.postgres.rows import QUEUE, SEQ, Held, Row
from ergon_framework.jobs.stores.postgres.settling import Settling, try_keys, wake
from ergon_framework.jobs.stores.postgres.statements import numbers, statements, texts
from ergon_framework.jobs.stores.postgres.words import Words
from ergon_framework.ports.jobstore import Ask

GLANCE = 64
"""How many to look at where some have been refused."""

_SQL = statements("claim.sql")
_FENCE, _ID, _ATTEMPTS, _DELIVERIES, _CLAIMED_AT = 1, 2, 8, 9, 14
_STATUS, _EXPIRES_AT, _KEY, _KEY_LIMIT = range(17, 21)


@dataclass(slots=True)
class Caught:
    """What one careful claim brought."""

    jobs: list[Row] = field(default_factory=list)
    keyed: set[Held] = field(default_factory=set)  # those of them that have a limit key
    taken: Counter[Line] = field(default_factory=Counter)
    spent: set[Line] = field(default_factory=set)  # there is no more to be had for now
    waits: dict[str, float] = field(default_factory=dict)  # when queues have tokens again
    passed: set[str] = field(default_factory=set)  # limit keys that others hold
    refused: int = 0
    outdated: int = 0


def claim_carefully(
    words: Words, ask: Ask, picks: Sequence[Pick], *, passing: Passing, is_again: bool
) -> Caught:
    """Take what may be taken, within a transaction that the caller commits.

    ``passing``: what is not looked at again.
    ``is_again``: some were refused already, so that it pays to look at more than are wanted.
    """
    now, stamp, gates = _gates(words, picks)
    rooms = [gates[pick.queue].room(pick.most, now) for pick in picks]
    wanted = [max(room, GLANCE) if room and is_again else room for room in rooms]
    looks = [replace(p, most=n) for p, n in zip(picks, wanted, strict=True)]
    found = _candidates(words, looks, passing)
    running, held = _running(words, found)
    let_in = _let_in(picks, gates, now)
    admission = admit(_applicants(found), rooms, let_in, running, now, unknown=held)
    rows = {row[SEQ]: row for each in found for row in each}
    started = set(admission.admitted)
    claimed = [_claimed(rows[seq], now, stamp) for seq in admission.admitted]
    caught = Caught(
        jobs=claimed,
        keyed={(row[SEQ], row[_FENCE]) for row in claimed if rows[row[SEQ]][_KEY] is not None},
        passed={rows[seq][_KEY] for seq in admission.passed_over},
        refused=len(admission.blocked) + len(admission.outdated),
        outdated=len(admission.outdated),
    )
    for pick, line in zip(picks, found, strict=True):
        count = sum(row[SEQ] in started for row in line)
        gates[pick.queue].enter(count, now)
        caught.taken[pick.line] = count
    for pick, most, line in zip(picks, wanted, found, strict=True):
        if len(line) < most or gates[pick.queue].room(1, now) == 0:
            caught.spent.add(pick.line)
    _apply(words, ask, admission, rows, now, stamp)
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


def _candidates(words: Words, picks: Sequence[Pick], passing: Passing) -> list[list[Row]]:
    """For each pick its jobs, in the order in which they go."""
    found: list[list[Row]] = [[] for _ in picks]
    for number, *row in candidates(words, picks, passing).fetchall():
        found[number].append(tuple(row))
    for pick, rows in zip(picks, found, strict=True):
        rows.sort(key=place)
        del rows[pick.most :]
    return found


def _running(words: Words, found: Sequence[Sequence[Row]]) -> tuple[Mapping[str, int], set[str]]:
    """How many jobs run of each limit key that was found, and nobody changes that until this ends;
    and the keys of which this cannot be said, as others hold them.
    """
    keys = {row[_KEY] for rows in found for row in rows} - {None}
    if not keys:
        return {}, set()
    ours = try_keys(words, keys)
    counted = words.say(_SQL["running_of_keys"], {"keys": texts(keys)})
    held = keys - {key for (key,) in ours.fetchall()}
    return dict(counted.fetchall()), held


def _applicants(found: Sequence[Sequence[Row]]) -> Iterator[Applicant]:
    for line, rows in enumerate(found):
        for row in rows:
            limits = row[_EXPIRES_AT], row[_KEY], row[_KEY_LIMIT]
            yield Applicant(place(row), line, row[QUEUE], *limits)


def _apply(
    words: Words,
    ask: Ask,
    admission: Admission,
    rows: Mapping[int, Row],
    now: float,
    stamp: int,
) -> None:
    """Write it down; who is over passes its turn on."""
    if admission.admitted:
        values = {"now": now, "stamp": stamp, "lease": ask.lease, "worker": ask.worker}
        words.say(_SQL["lease"], values | {"seqs": numbers(admission.admitted)})
    if admission.blocked:
        words.say(_SQL["block"], {"seqs": numbers(admission.blocked)})
    if admission.outdated:
        ends = [outdated(standing(rows[seq]), now) for seq in admission.outdated]
        settling = Settling(words, ends)
        settling.read()
        if settling.freed:
            wake(words, settling.freed)


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


def standing(row: Row) -> Standing:
    """What moving a candidate takes."""
    attempts, deliveries, excused = row[_ATTEMPTS : _ATTEMPTS + 3]
    return row[SEQ], row[_ID], row[_STATUS], row[_FENCE], attempts, deliveries, excused


def _claimed(row: Row, now: float, stamp: int) -> Row:
    """A candidate as the database has it now."""
    changed = list(row[:_STATUS])
    changed[_FENCE] = max(changed[_FENCE] + 1, stamp)
    changed[_DELIVERIES] += 1
    changed[_CLAIMED_AT] = now
    return tuple(changed)
