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
    Candidate,
    ClaimPlan,
    ClaimRequest,
    KeyOfQueue,
    Lane,
    QueueGate,
    QueueLimits,
    Turns,
    admit,
)
from ergon_framework.ports.jobstore import NewJob
from ergon_framework.testing.suites.drivers import START, HandClock
from ergon_framework.testing.suites.jobstore.subject import JobStoreSubject, ask, new

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


@dataclass
class Planned:
    """Due jobs, and what the planner takes of them."""

    jobs: dict[int, NewJob] = field(default_factory=dict)  # by number, in the order of adding
    limits: dict[str, QueueLimits] = field(default_factory=dict)
    turns: Turns = field(default_factory=dict)
    active: Counter[str] = field(default_factory=Counter)  # by queue
    running: Counter[str] = field(default_factory=Counter)  # by limit key
    keys: dict[KeyOfQueue, tuple[float, int]] = field(default_factory=dict)
    """Of queues that limit their keys: when the bucket of a key is full, and how many run."""
    waiting: dict[int, NewJob] = field(default_factory=dict)
    """Jobs of such queues that their keys refused."""

    def claim(self, request: ClaimRequest, now: float) -> tuple[list[str], int]:
        """The ids that start, in order, and how many jobs have expired."""
        plan, started, expired = ClaimPlan(request, self.turns), list[str](), 0
        self.jobs |= self.waiting  # whether their keys have tokens is asked again
        self.waiting = {}
        gates = {
            queue: QueueGate(queue, self.limits.get(queue, QueueLimits()), self.active[queue])
            for queue in QUEUES
        }
        lanes = [
            Lane(executor, queue, gates[queue].is_paused)
            for executor, queue in sorted(
                {(each.executor, each.queue) for each in self.jobs.values()}
            )
        ]
        while plan.has_slots and (picks := plan.next_picks(lanes)):
            for pick in picks:
                gate = gates[pick.queue]
                room = gate.room(pick.most, now)
                candidates = [
                    _candidate(number, job)
                    for number, job in self.jobs.items()
                    if job.queue == pick.queue and job.executor in pick.names
                ]
                keys = self._key_gates(gate, candidates)
                found = admit(
                    candidates, [room], {pick.queue: room}, self.running, now, key_gates=keys
                )
                for (queue, key), each in keys.items():
                    full_at, active = self.keys.get((queue, key), (0.0, 0))
                    started_now = sum(
                        self.jobs[number].limit_key == key for number in found.admitted
                    )
                    full_at = full_at if each.full_at is None else each.full_at
                    self.keys[queue, key] = full_at, active + started_now
                if keys:
                    self.waiting |= {number: self.jobs[number] for number in found.blocked}
                for number in found.admitted:
                    started.append(self._start(self.jobs[number]))
                for number in (*found.admitted, *found.outdated, *found.blocked):
                    del self.jobs[number]
                expired += len(found.outdated)
                gate.enter(len(found.admitted), now)
                is_spent = len(found.admitted) < pick.most
                plan.record(pick.share, len(found.admitted), is_spent=is_spent)
        for queue, gate in gates.items():
            if gate.full_at is not None:
                self.limits[queue] = replace(self.limits[queue], full_at=gate.full_at)
        return started, expired

    def _key_gates(
        self, gate: QueueGate, candidates: list[Candidate]
    ) -> dict[KeyOfQueue, QueueGate]:
        if not gate.limits.limits_keys:
            return {}
        names = {(gate.name, each.key) for each in candidates if each.key is not None}
        known = {name: self.keys.get(name, (0.0, 0)) for name in names}
        return {
            name: QueueGate(name[1], gate.limits.of_key(full_at), active)
            for name, (full_at, active) in known.items()
        }

    def _start(self, job: NewJob) -> str:
        self.active[job.queue] += 1
        if job.limit_key is not None:
            self.running[job.limit_key] += 1
        return job.id


def _candidate(number: int, job: NewJob) -> Candidate:
    place = -job.priority, START, number
    return Candidate(place, 0, job.queue, job.expires_at, job.limit_key, job.limit)


def compare(s: JobStoreSubject, clock: HandClock, seed: int) -> None:
    """One life: limits, jobs, and some claims of a worker with two executors."""
    dice = random.Random(seed)  # noqa: S311 - a test
    planned = Planned()
    for queue in QUEUES:
        changes = dice.choice(LIMITS)
        if changes:
            s.store.set_queue(queue, **changes)
            planned.limits[queue] = QueueLimits(**changes)
    jobs = [_job(n, dice) for n in range(dice.randint(5, 60))]
    s.store.add(jobs)
    planned.jobs = dict(enumerate(jobs))
    clock.forward(1.0)  # some have expired
    for _ in range(4):
        request = ask(
            {executor: dice.randint(0, 12) for executor in EXECUTORS}, routes={"d": "node"}
        )
        claimed = s.store.settle_and_claim([], request)[1]
        expected = planned.claim(request, clock())
        found = sorted(job.id for job in claimed.jobs), claimed.outdated
        assert found == (sorted(expected[0]), expected[1]), f"seed {seed}"
        clock.forward(dice.choice((0.0, 0.5, 2.0)))


def _job(n: int, dice: random.Random) -> NewJob:
    executor = dice.choice(("", "python", "node"))
    return new(
        f"job-{n}",
        handler=f"{executor}#work" if executor else "work",
        executor=executor,
        queue=dice.choice(QUEUES),
        priority=dice.choice((0, 0, 1)),
        expires_at=dice.choice((None, None, None, START + 0.5)),
        limit_key=dice.choice((None, None, "k", "l")),
        limit=2,
    )
