"""What the planner of the core would claim, for stores that decide inside themselves.

``Planned`` keeps due jobs in a list and takes them by ``ClaimPlan``, ``QueueGate`` and ``admit``
alone. ``compare`` lets it and a store claim the same random jobs, and wants the same answers.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

from ergon_framework.core.claim import (
    DEFAULT_BOUNDS,
    Candidate,
    ClaimPlan,
    ClaimRequest,
    KeyOfQueue,
    Lane,
    Pick,
    QueueGate,
    QueueLimits,
    ShareKey,
    Turns,
    admit,
    deal,
    in_turn,
    waits_for_token,
)
from ergon_framework.ports.jobstore import NewJob
from ergon_framework.testing.suites.drivers import START, HandClock
from ergon_framework.testing.suites.jobstore.under_test import JobStoreSubject, ask, new

EXECUTORS = ("python", "node")
QUEUES = ("a", "b", "c", "d")
LIMITS: tuple[dict[str, Any], ...] = (
    {},
    {},
    {"max_active": 3},
    {"rate": 1.0, "burst": 4},
    {"is_paused": True},
    {"key_max_active": 2},
    {"key_rate": 0.5, "key_burst": 2, "max_active": 6},
)
VERSIONS = ("", "1", "2", "2")
"""Of workers that claim."""
RESUMED = 0.5
"""How often a paused queue is resumed between two claims."""
PINNED = 0.25
"""How many of the queues are pinned to a version."""


@dataclass
class KeyState:
    """A limit key of a queue that limits its keys."""

    full_at: float = 0.0
    active: int = 0
    wakes_at: float | None = None
    waiting: dict[int, NewJob] = field(default_factory=dict)
    is_blocked: bool = False  # jobs began to wait in this claim

    def save(self, gate: QueueGate, now: float) -> None:
        """A claim is over."""
        if gate.full_at is not None:
            self.full_at = gate.full_at
        if gate.has_entered or self.is_blocked:
            self.wakes_at = gate.looks_again_at(now) if self.waiting else None
        self.is_blocked = False


@dataclass
class Planned:
    """Due jobs, and what the planner takes of them.

    An expired job is ended within the claim that meets it, or, where ``ends_later``, after that.
    """

    ends_later: bool = False
    jobs: dict[int, NewJob] = field(default_factory=dict)  # by number, in the order of adding
    limits: dict[str, QueueLimits] = field(default_factory=dict)
    turns: Turns = field(default_factory=dict)
    active: Counter[str] = field(default_factory=Counter)  # by queue
    running: Counter[str] = field(default_factory=Counter)  # by limit key
    key_states: dict[KeyOfQueue, KeyState] = field(default_factory=dict)
    key_turns: dict[ShareKey, str] = field(default_factory=dict)
    ended_keys: list[str | None] = field(default_factory=list)  # of jobs that have expired

    def claim(self, request: ClaimRequest, now: float) -> tuple[list[str], int]:
        """The ids that start, in order, and how many jobs have expired."""
        plan, started, expired = ClaimPlan(request, self.turns), list[str](), 0
        gates = {
            queue: QueueGate(queue, limits.seen_by(request.version), self.active[queue])
            for queue in QUEUES
            for limits in [self.limits.get(queue, QueueLimits())]
        }
        keys = {name: self._key_gate(name) for name in self.key_states}
        self._wake_keys(keys, now)
        lanes = [
            Lane(executor, queue, gates[queue].is_paused)
            for executor, queue in sorted(
                {(each.executor, each.queue) for each in self.jobs.values()},
                key=lambda lane: (EXECUTORS.index(plan.share_of(*lane)[0]), lane),
            )
        ]
        while plan.has_slots and (picks := plan.next_picks(lanes)):
            for pick in picks:
                gate = gates[pick.queue]
                taken = 0
                while room := gate.room(pick.most - taken, now):
                    candidates = self._candidates(pick, room, gate.limits)
                    for each in candidates:
                        name = (pick.queue, each.key or "")
                        if gate.limits.limits_keys and each.key and name not in keys:
                            self.key_states[name] = KeyState()
                            keys[name] = self._key_gate(name)
                    found = admit(
                        candidates, [room], {pick.queue: room}, self.running, now, key_gates=keys
                    )
                    started += [self._start(self.jobs[number]) for number in found.admitted]
                    self._end(found.outdated, now)
                    for number in (*found.admitted, *found.outdated):
                        del self.jobs[number]
                    self._wait(pick, found.blocked, gate.limits)
                    expired += len(found.outdated)
                    gate.enter(len(found.admitted), now)
                    taken += len(found.admitted)
                    if not gate.limits.limits_keys or not candidates:
                        break
                plan.record(pick.share, taken, is_spent=taken < pick.most)
        for name, key_gate in keys.items():
            self.key_states[name].save(key_gate, now)
        for queue, gate in gates.items():
            if gate.full_at is not None:
                self.limits[queue] = replace(self.limits[queue], full_at=gate.full_at)
        self._wake_waiting(now)
        return started, expired

    def _candidates(self, pick: Pick, room: int, limits: QueueLimits) -> list[Candidate]:
        """All of a pick; where keys take turns, one of each key in turn."""
        found = [
            _candidate(number, job)
            for number, job in self.jobs.items()
            if job.queue == pick.queue and job.executor in pick.names
        ]
        if not limits.limits_keys:
            return found
        after = self.key_turns.get(pick.share, "")
        order = in_turn((each.key or "" for each in found), after, room)
        turns = {key: sorted(each for each in found if (each.key or "") == key) for key in order}
        each = -(-room // len(order)) if order else 0
        dealt, last = deal({key: turns[key][:each] for key in order}, room)
        if dealt:
            self.key_turns[pick.share] = last
        return dealt

    def _key_gate(self, name: KeyOfQueue) -> QueueGate:
        state = self.key_states[name]
        return QueueGate(name[1], self.limits[name[0]].of_key(state.full_at), state.active)

    def _wake_keys(self, gates: dict[KeyOfQueue, QueueGate], now: float) -> None:
        for name, gate in gates.items():
            state = self.key_states[name]
            if state.wakes_at is not None and state.wakes_at <= now:
                state.wakes_at = None
                self._look_again(state, gate.room(DEFAULT_BOUNDS.scan_size, now) or 1)

    def _end(self, expired: list[int], now: float) -> None:
        self.ended_keys += [self.jobs[number].limit_key for number in expired]
        if not self.ends_later:
            self._wake_waiting(now)

    def _wake_waiting(self, now: float) -> None:
        """Jobs of some keys have ended, in whatever queue: one of each lane is looked at again.

        Also after the end of a job that did not run: it may be the one that was to be looked at.
        Jobs that their own limit refused are left out: they would be refused again.
        """
        ended, self.ended_keys = self.ended_keys, []
        for key in ended:
            for (queue, name), state in self.key_states.items():
                rate = self.limits[queue].key_rate
                if name == key and not waits_for_token(state.wakes_at, rate, now):
                    self._look_again(state, 1)

    def _look_again(self, state: KeyState, most: int) -> None:
        for executor in ("", *EXECUTORS):
            mine = [n for n, job in state.waiting.items() if job.executor == executor]
            mine.sort(key=lambda n: _candidate(n, state.waiting[n]))
            for number in mine[:most]:
                self.jobs[number] = state.waiting.pop(number)

    def _wait(self, pick: Pick, blocked: list[int], limits: QueueLimits) -> None:
        """Jobs that their keys refused wait, and all others of these keys with them."""
        if not limits.limits_keys:
            for number in blocked:
                del self.jobs[number]
            return
        for key in {self.jobs[number].limit_key or "" for number in blocked}:
            state = self.key_states[pick.queue, key]
            state.is_blocked = True
            for number, job in list(self.jobs.items()):
                is_mine = job.queue == pick.queue and job.executor in pick.names
                if is_mine and job.limit_key == key:
                    state.waiting[number] = self.jobs.pop(number)

    def _start(self, job: NewJob) -> str:
        self.active[job.queue] += 1
        if job.limit_key is not None:
            self.running[job.limit_key] += 1
            state = self.key_states.get((job.queue, job.limit_key))
            if state is not None:
                state.active += 1
        return job.id


def _candidate(number: int, job: NewJob) -> Candidate:
    place = -job.priority, START, number
    return Candidate(place, 0, job.queue, job.expires_at, job.limit_key, job.limit)


def compare(
    s: JobStoreSubject, clock: HandClock, seed: int, *, ends_later: bool = False, shut: int = 0
) -> None:
    """One life: limits and pins, jobs, and some claims of a worker with two executors.

    ``shut``: so many other queues have due jobs and are paused, which changes no answer. Some of
    them are resumed and paused again meanwhile.
    """
    dice = random.Random(seed)  # noqa: S311 - a test
    for n in range(shut):
        s.store.set_queue(f"c-{n}", is_paused=True)
    s.store.add([_job(n, dice, f"c-{n}") for n in range(shut)])
    planned = Planned(ends_later)
    for queue in QUEUES:
        changes = dict(dice.choice(LIMITS))
        if dice.random() < PINNED:
            changes["pinned_version"] = "2"
        if changes:
            s.store.set_queue(queue, **changes)
            planned.limits[queue] = QueueLimits(**changes)
    jobs = [_job(n, dice) for n in range(dice.randint(5, 60))]
    s.store.add(jobs)
    planned.jobs = dict(enumerate(jobs))
    clock.forward(1.0)  # some have expired
    for _ in range(4):
        request = ask(
            {executor: dice.randint(0, 12) for executor in EXECUTORS},
            routes={"d": "node"},
            version=dice.choice(VERSIONS),
        )
        claimed = s.store.settle_and_claim([], request)[1]
        expected = planned.claim(request, clock())
        found = sorted(job.id for job in claimed.jobs), claimed.outdated
        assert found == (sorted(expected[0]), expected[1]), f"seed {seed}"
        clock.forward(dice.choice((0.0, 0.5, 2.0)))
        for n in dice.sample(range(shut), min(shut, 2)):
            s.store.set_queue(f"c-{n}", is_paused=False)
            s.store.set_queue(f"c-{n}", is_paused=True)
        paused = [name for name, limits in planned.limits.items() if limits.is_paused]
        if paused and dice.random() < RESUMED:
            s.store.set_queue(paused[0], is_paused=False)
            planned.limits[paused[0]] = replace(planned.limits[paused[0]], is_paused=False)


def _job(n: int, dice: random.Random, queue: str | None = None) -> NewJob:
    executor = dice.choice(("", "python", "node"))
    return new(
        f"job-{n}" if queue is None else f"job-of-{queue}",
        handler=f"{executor}#work" if executor else "work",
        executor=executor,
        queue=queue or dice.choice(QUEUES),
        priority=dice.choice((0, 0, 1)),
        expires_at=dice.choice((None, None, START + 0.5)),
        limit_key=dice.choice((None, "k", "k", "l")),
        limit=2,
    )
