"""Flows as stores keep them: jobs that wait for others, and the joins at which they wait.

A step is a job. It names the one join that it waits at, and the joins that its end counts at. A
join opens when all its predecessors have counted; then the steps that wait there are due. How
flows are stored, read and changed is the port :class:`ergon_framework.ports.jobstore.FlowStore`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import Any

import msgspec

from ergon_framework.core.flow import FlowState, FlowStatus, OnFailure

SIGNAL_PREFIX = "signal:"
"""How the handler of a step begins that waits for a signal; its name follows."""
CANCELLED_BY_FLOW = "flow"
"""Why a step was cancelled that its flow cancelled: such a step comes back with its flow."""


class SignalOutcome(StrEnum):
    """What became of a signal. One signal is for one step, and never for two."""

    TAKEN = "taken"  # it completed its step, or is kept until the step is reached
    UNKNOWN = "unknown"  # no step waits for it, or will
    TOO_LATE = "too_late"  # the time limit of its step was over; the step fails
    SIGNALLED = "signalled"  # another value is kept for its step, which has not been reached


class StepPlace(msgspec.Struct, frozen=True, kw_only=True):
    """What a step has beside what every job has."""

    flow_id: str
    join_id: str | None = None
    """The join at which the step waits for its predecessors; None once it is released, or without
    any.
    """
    feeds: tuple[str, ...] = ()
    """The joins at which its end counts; none once it has counted."""
    wait: float | None = None
    """Seconds from its release until it is due; of a signal: how long it is waited for."""
    signal: str | None = None
    """The name of the signal that completes it; such a step is never claimed."""


class Join(msgspec.Struct, frozen=True, kw_only=True):
    """Where steps wait for others."""

    id: str
    flow_id: str
    remaining: int  # predecessors that have not counted
    members: bytes = b"[]"  # JSON: the predecessors, as numbers, runs and ids


class NewFlow(msgspec.Struct, frozen=True, kw_only=True):
    """A flow as a client hands it in; its steps are jobs that are handed in with it."""

    id: str
    name: str = ""
    on_failure: OnFailure = OnFailure.CANCEL
    is_new: bool = True  # False: the steps are added to a flow that is there
    joins: tuple[Join, ...] = ()
    plan: bytes = b"{}"  # JSON: how the flow was written, for people
    after: tuple[str, ...] = ()
    """Jobs that are there already; each becomes a step, and counts at the first join."""
    keep: float = 0.0
    """Seconds that it is kept once it has ended, where none of its steps says so."""


class Flow(msgspec.Struct, frozen=True, kw_only=True):
    """A flow as callers of a store see it."""

    id: str
    name: str
    state: FlowState
    created_at: float
    changed_at: float
    purge_at: float | None
    keep: float | None  # the longest that one of its steps asks to be kept; None: for ever
    plan: bytes

    @property
    def status(self) -> FlowStatus:
        """The status of the flow."""
        return self.state.status


def join_id(flow_id: str, number: int | str) -> str:
    """The id of a join, which names its flow."""
    return f"{flow_id}:{number}"


def flow_of(join: str) -> str:
    """The id of the flow that a join belongs to."""
    return join.rpartition(":")[0]


def step_id(flow_id: str, number: int) -> str:
    """The id of a step: that of its flow with a number."""
    return f"{flow_id}.{number}"


RUN = "run"
"""The key of a range in a list of steps: ``{"run": [first, count, distance]}``."""
MIN_RUN = 4


def as_runs(sources: Iterable[Any]) -> list[Any]:
    """The list with numbers at equal distances as one entry, so that 100,000 steps take little
    room.
    """
    sources = list(sources)
    if len(sources) < MIN_RUN:  # each join of a chain
        return sources
    if all(type(each) is int for each in sources[:2]):
        first, distance = sources[0], sources[1] - sources[0]
        # Most groups are one run, which is seen at once.
        if distance and sources == [*range(first, first + distance * len(sources), distance)]:
            return [{RUN: [first, len(sources), distance]}]
    found: list[Any] = []
    run: list[int] = []

    def close() -> None:
        if len(run) >= MIN_RUN:
            found.append({RUN: [run[0], len(run), run[1] - run[0]]})
        else:
            found.extend(run)
        run.clear()

    for each in sources:
        is_number = isinstance(each, int)
        if run and not (is_number and (len(run) == 1 or each - run[-1] == run[1] - run[0])):
            close()
        if is_number:
            run.append(each)
        else:
            found.append(each)
    close()
    return found


def from_runs(sources: Iterable[Any]) -> Iterator[Any]:
    """What :func:`as_runs` was given."""
    for each in sources:
        if isinstance(each, dict):
            first, count, distance = each[RUN]
            yield from (first + n * distance for n in range(count))
        else:
            yield each


def used_ids(source: Any, flow_id: str) -> Iterator[str]:
    """The jobs whose results a source is made of: a number, an id, or a list of such."""
    if isinstance(source, list):
        for each in from_runs(source):
            yield from used_ids(each, flow_id)
    elif isinstance(source, int):
        yield step_id(flow_id, source)
    else:
        yield str(source)
