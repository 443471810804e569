"""What happens to flows in a random life of two job stores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from ergon_framework.core.flow import CancelFlow, FlowStatus, OnFailure, RetryFlow, SkipFailed
from ergon_framework.jobs.client import JobClient
from ergon_framework.jobs.flow_client import flows_of
from ergon_framework.jobs.flows import FlowPlanner, plan_after
from ergon_framework.jobs.newjob import new_job
from ergon_framework.ports.flow import step_id
from ergon_framework.ports.jobstore import NewJob

if TYPE_CHECKING:
    from tests.differential.jobs import JobTwins

DECISIONS = (CancelFlow(), RetryFlow(), RetryFlow(), SkipFailed())
SIGNALS = ("yes", "no")


class FlowActs:
    """Flows of both stores: clients that add and signal them, operators that decide."""

    def __init__(self, twins: JobTwins) -> None:
        self._twins = twins
        self._dice = twins.dice
        self._client = JobClient(store=twins.subjects[0].store)
        self.flows: list[str] = []
        self.steps: list[str] = []
        self._waits = 0

    def acts(self) -> Sequence[Callable[[], None]]:
        """Mostly additions: workers do the rest."""
        return (self.flow, self.flow, self.follow, self.decide, self.signal)

    def look(self) -> None:
        """Every flow and join."""
        self._twins.both(lambda s: {f.id: f for f in flows_of(s.store).search((), 10_000)})
        latest = self.flows[-5:]
        self._twins.both(lambda s: [flows_of(s.store).joins(each) for each in latest])
        waits = (FlowStatus.RUNNING, FlowStatus.HELD)
        self._twins.both(lambda s: {f.id for f in flows_of(s.store).search(waits, 10_000)})

    def flow(self) -> None:
        """A chain or a group of some parts."""
        draft = self._draft(2)
        flow_id = f"f{len(self.flows)}"
        flow, steps = FlowPlanner(draft, flow_id).plan(
            lambda handler, args, kwargs, options: new_job(
                handler, args, kwargs, now=self._twins.clock, **options
            )
        )
        steps = [_with_short_signal(step) for step in steps]
        self._twins.both(lambda s: flows_of(s.store).add(flow, steps))
        self.flows.append(flow_id)
        self.steps += [step_id(flow_id, n) for n in range(1, len(steps) + 1)]

    def _draft(self, depth: int) -> Any:
        dice = self._dice
        policy = {"on_failure": dice.choice(list(OnFailure))} if depth == 2 else {}
        parts = [self._part(depth) for _ in range(dice.randint(1, 3))]
        if dice.random() < 0.5:
            return self._client.chain(*parts, **policy)
        return self._client.group(parts, then=dice.choice((None, "then")), **policy)

    def _part(self, depth: int) -> Any:
        dice = self._dice
        what = dice.random()
        if what < 0.15:
            timeout = dice.choice((None, 20.0))
            # A client refuses two of one name; flows of earlier versions have them.
            self._waits += 1
            name = f"{dice.choice(SIGNALS)}/{self._waits}"
            return self._client.wait_for_signal(name, timeout=timeout)
        if what < 0.35 and depth:
            return self._draft(depth - 1)
        options: dict[str, Any] = {"handler": "step", "queue": dice.choice(("default", "mail"))}
        if dice.random() < 0.2:
            options["delay"] = float(dice.randint(1, 10))
        return options

    def follow(self) -> None:
        """A job that waits for one or two that are there, of one flow or of none."""
        ids = list(dict.fromkeys(self._twins.some_id() for _ in range(self._dice.randint(1, 2))))
        policy = self._dice.choice(list(OnFailure))
        store = self._twins.subjects[0].store
        jobs = [job for job in map(store.find, ids) if job is not None]
        known = {job.step.flow_id for job in jobs if job.step is not None}
        # The stores notice at different times that a job expired, and with it its flow stops.
        if len(known) > 1 or any(job.expires_at is not None for job in jobs):
            return
        self._twins.made += 1
        made = new_job("after", id=f"j{self._twins.made}")
        flow, step = plan_after(made, ids, next(iter(known), None), policy)
        self._twins.both(lambda s: flows_of(s.store).add(flow, [step]))
        if flow.is_new:
            self.flows.append(flow.id)

    def decide(self) -> None:
        """Somebody cancels a flow, retries it, or lets it go on without what failed."""
        if self.flows:
            event, flow_id = self._dice.choice(DECISIONS), self._some_flow()
            self._twins.both(lambda s: flows_of(s.store).apply(flow_id, event))

    def signal(self) -> None:
        """Somebody sends a signal, also one that nobody waits for."""
        if self.flows:
            name, flow_id = self._dice.choice(SIGNALS), self._some_flow()
            self._twins.both(lambda s: flows_of(s.store).signal(flow_id, name, b'"v"'))

    def _some_flow(self) -> str:
        return self._dice.choice(self.flows[-12:])


def _with_short_signal(job: NewJob) -> NewJob:
    """The same step, which waits for the part of the name that others have, too."""
    if job.step is None or job.step.signal is None:
        return job
    place = msgspec.structs.replace(job.step, signal=job.step.signal.partition("/")[0])
    return msgspec.structs.replace(job, step=place)
