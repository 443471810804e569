"""What becomes of a flow is decided alike by the core and by the scripts of Redis."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from itertools import product
from typing import Any

import msgspec
import pytest

from ergon_framework.core.flow import (
    CancelFlow,
    FlowEvent,
    FlowState,
    FlowStatus,
    InvalidFlowChange,
    OnFailure,
    RetryFlow,
    SkipFailed,
    StepEnded,
    StepReturned,
    StepsAdded,
    StepSkipped,
    SweepEnded,
    advance,
)
from ergon_framework.core.job import JobStatus
from ergon_framework.jobs.stores.redis import RedisJobStore, scripts

ENDS = (JobStatus.COMPLETED, JobStatus.FAILED, JobStatus.CANCELLED)
EVENTS: tuple[FlowEvent, ...] = (
    StepsAdded(0),
    StepsAdded(2),
    *(StepEnded(*each) for each in product(ENDS, (False, True))),
    *(StepReturned(*each) for each in product(ENDS[1:], (False, True))),
    *(StepSkipped(), CancelFlow(), RetryFlow(), SkipFailed(), SweepEnded()),
)
ASK = """
local machine, answers = flow_machine(), {}
for n, case in ipairs(args[2]) do
  local flow, event = case[1], case[2]
  if machine.may(flow, event) then
    local counts, sweep = machine[event](flow, case[3], case[4])
    answers[n] = {flow, counts, sweep or ""}
  else
    answers[n] = false
  end
end
return cmsgpack.pack(answers)
"""
_answers = msgspec.msgpack.Decoder(list[tuple[list[int], bool, str] | bool]).decode
_statuses, _policies = list(FlowStatus), list(OnFailure)


def _states() -> Iterator[FlowState]:
    """Every status and policy, with counters at and beside the numbers that matter."""
    numbers = product((0, 1, 2), (0, 1), (0, 1), (0, 1, 2))
    for policy, status, counts in product(OnFailure, FlowStatus, numbers):
        unfinished, failed, cancelled, uncounted = counts
        yield FlowState(policy, status, unfinished, 3, failed, cancelled, uncounted)


def _row(state: FlowState) -> list[int]:
    policy, status, *counts = msgspec.structs.astuple(state)
    return [_policies.index(policy), _statuses.index(status), *counts]


def _wire(event: FlowEvent) -> tuple[Any, ...]:
    numbers = {status: number for number, status in enumerate(JobStatus)}
    fields = msgspec.structs.astuple(event)
    return (scripts.event_name(event), *(numbers.get(each, each) for each in fields))


def _decided(state: FlowState, event: FlowEvent) -> tuple[list[int], bool, str] | bool:
    """What the core says."""
    try:
        change = advance(state, event)
    except InvalidFlowChange:
        return False
    return _row(change.state), change.counts, change.sweep or ""


@pytest.mark.req("JOBS:store")
def test_redis_decides_about_flows_as_the_core_does(redis_url: str) -> None:
    """Every event in every state: whether it can happen, what it changes, and what follows."""
    source = "\n".join(map(scripts.source_of, ("head", "rows", "flow")))
    ask = scripts.script_of(source + ASK)
    with closing(RedisJobStore(redis_url)) as store:
        for event in EVENTS:
            states = list(_states())
            cases = [(_row(state), *_wire(event)) for state in states]
            answers = _answers(store.transactions.run(ask, cases))
            for state, answer in zip(states, answers, strict=True):
                assert answer == _decided(state, event), (state, event)
