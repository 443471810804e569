"""The flows of a Redis job store: the calls of their port.

A flow of few steps is added by one script. Of one with many, the parts are handed in first, where
nobody looks, and are forgotten when the client dies; then one script adds the flow, and from then
on it is there for good. Its steps are added in slices after that: by the client or, if it died, by
claims and retention.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NoReturn, TypeVar, cast

import msgspec

from ergon_framework.core.flow import (
    FlowEvent,
    FlowState,
    FlowStatus,
    InvalidFlowChange,
    advance,
)
from ergon_framework.core.job import JobStatus
from ergon_framework.errors import StoreError, StoreUnavailableError
from ergon_framework.jobs.stores.flow_settlement import (
    FlowRow,
    FlowWork,
    flow_goes_on,
    flow_is_over,
    flow_taken,
    no_flow,
    no_predecessor,
)
from ergon_framework.jobs.stores.pages import flow_page
from ergon_framework.jobs.stores.redis.rows import (
    NUMBERS,
    Blobs,
    pairs,
    result_in,
    status_in,
    wire_step,
)
from ergon_framework.jobs.stores.redis.scripts import (
    FLOW_STATUSES,
    JOBS,
    POLICIES,
    event_name,
    script,
)
from ergon_framework.jobs.stores.redis.transactions import FLOW_VERSION, RedisTransactions
from ergon_framework.jobs.stores.transitions import id_taken
from ergon_framework.ports.flow import Flow, Join, NewFlow, SignalOutcome, flow_of
from ergon_framework.ports.jobstore import EnqueueResult, NewJob, Search
from ergon_framework.ports.transfer import FlowRecord, as_page
from ergon_framework.storage.conflicts import ConflictError

logger = logging.getLogger("ergon.jobs")

MAX_PART = 500
MAX_PART_BYTES = 2 << 20
"""Steps or joins of one script, and bytes of their arguments: the server serves no other client
meanwhile."""
STAGED_FOR = 3600
"""Seconds after which the parts of a flow are forgotten that nobody has added."""
PAGE = 1000
"""Rows and results that are read at once."""
COUNTED = 2000
"""Rows that one script looks at when it counts."""

_STAGE = script("frozen", "rows", "stage")
_PUT = script("frozen", *JOBS, "put_flow")
_GO_ON = script("frozen", *JOBS, "go_on")
_COUNT = script("rows", "count")
_DECIDE = script("frozen", *JOBS, "decide")
_PURGE = script("frozen", *JOBS, "purge_flow")
_DELETE = script("frozen", *JOBS, "delete", "delete_flow")
_SIGNAL = script("frozen", *JOBS, "signal")
_LOAD = script("rows", "strip_flow", "load_flows")
_DISCARD = script("rows", "strip_flow", "discard_flows")

_flow = msgspec.msgpack.Decoder(
    tuple[int, int, int, int, int, int, int, float | bool, float | bool, float, float, str, int]
).decode
T = TypeVar("T")


class RedisFlows:
    """The flows of one job store."""

    def __init__(
        self,
        transactions: RedisTransactions,
        end_outdated: Callable[[Sequence[str], bytes, str], int],
    ) -> None:
        self._transactions = transactions
        self._end_outdated = end_outdated
        self._is_marked = False
        self._ids: list[str] = []  # of all flows, as of the first page of a dump

    # ---- adding ---------------------------------------------------------------------------------

    def add(self, flow: NewFlow, steps: Sequence[NewJob]) -> list[EnqueueResult]:
        """Store a flow and its steps in one commit, or steps of a flow that is there."""
        self._mark()
        parts = list(_parts(flow, steps))
        if len(parts) > 1 and flow.is_new:
            self._stage(flow.id, parts, steps)
            self._put(flow, (), (), steps, len(parts))
            while self._transactions.write(_GO_ON, "add", flow.id):
                pass  # workers would do the rest, too, if this process died
        else:
            self._put(flow, flow.joins, steps, steps, 0)
        return [EnqueueResult(step.id, True) for step in steps]

    def _mark(self) -> None:
        """Programs that know nothing of flows do not open the store any more."""
        if not self._is_marked:
            self._transactions.refuse_to_write()
            self._transactions.call("SET", "schema", FLOW_VERSION)
            self._is_marked = True

    def _stage(self, flow_id: str, parts: Sequence[_Part], steps: Sequence[NewJob]) -> None:
        first = 0
        for number, part in enumerate(parts):
            blobs = Blobs()
            wire = _wire(part, blobs)
            kind = "joins" if isinstance(part[0], Join) else "steps"
            arguments = (flow_id, kind, wire, number, STAGED_FOR)
            answer, found = self._transactions.write(_STAGE, "add", *arguments, blobs=blobs)
            if answer == b"id":
                raise id_taken(steps[first + found - 1])
            if found != number + 1:
                raise self._too_slow()
            first += len(part) if kind == "steps" else 0

    def _put(
        self,
        flow: NewFlow,
        joins: Sequence[Join],
        inline: Sequence[NewJob],
        steps: Sequence[NewJob],
        staged: int,
    ) -> None:
        blobs = Blobs()
        made = _new_row(flow) if flow.is_new else None
        arguments = (
            *(flow.id, made, blobs.add(flow.plan), len(steps)),
            *(_wire(joins, blobs), _wire(inline, blobs), staged, flow.after),
        )
        try:
            kind, *rest = self._transactions.write(
                _PUT, "add", *arguments, blobs=blobs, is_repeatable=False
            )
        except StoreUnavailableError as error:
            # A script runs whole or not at all: the first of the joins, whose ids are new with each
            # call, tells whether it was carried out, and the flow where they come later.
            if error.details.get("outcome") != "unknown" or not self._was_put(flow, joins):
                raise
            return
        if kind != b"added":
            self._refuse(kind, rest, flow, inline)

    def _was_put(self, flow: NewFlow, joins: Sequence[Join]) -> bool:
        where = ("flow:join", joins[0].id) if joins else ("flow:flow", flow.id)
        return bool(self._transactions.call("HEXISTS", *where))

    def _refuse(
        self, kind: bytes, rest: Sequence[int], flow: NewFlow, steps: Sequence[NewJob]
    ) -> NoReturn:
        if kind == b"conflict":
            raise ConflictError  # a job was edited, or joined another flow, since the client looked
        if kind == b"taken":
            raise flow_taken(flow.id)
        if kind == b"missing":
            raise no_predecessor(flow.after[rest[0] - 1])
        if kind == b"id":
            raise id_taken(steps[rest[0] - 1])
        found = self.find(flow.id)
        if kind == b"late":
            raise self._too_slow()
        raise no_flow(flow.id) if found is None else flow_is_over(found)

    def _too_slow(self) -> StoreUnavailableError:
        return StoreUnavailableError(
            f"{self._transactions.name}: parts of a flow were handed in, and are gone",
            remedy="enqueue the chain or group again, whole; nothing of it was stored",
        )

    # ---- reading --------------------------------------------------------------------------------

    def find(self, flow_id: str) -> Flow | None:
        """One flow."""
        return next(iter(self._flows([flow_id])), None)

    def search(self, statuses: Sequence[FlowStatus], limit: int) -> list[Flow]:
        """Flows in one of these states, or in any; the newest first."""
        return self.page(statuses, limit)[0]

    def page(
        self, statuses: Sequence[FlowStatus], limit: int, below: int | None = None
    ) -> tuple[list[Flow], int | None]:
        """One page of flows, and the place below which the next page begins; None: this was the
        last page.
        """
        names = [f"flow:in:{FLOW_STATUSES.index(each)}" for each in statuses] or ["flow:flows"]
        places: dict[str, int] = {}
        for name in names:
            end = "+inf" if below is None else f"({below}"
            part = (name, end, "-inf", "WITHSCORES", "LIMIT", 0, limit + 1)
            found = pairs(self._transactions.call("ZREVRANGEBYSCORE", *part))
            places |= {each: int(float(place)) for each, place in found}
        flows = self._flows([*places])
        wanted = (each for each in flows if not statuses or each.status in statuses)
        return flow_page([(places[each.id], each) for each in wanted], limit)

    def _flows(self, ids: Sequence[str], page: int = PAGE) -> Iterator[Flow]:
        for some in _pages(ids, page):
            states = self._transactions.call("HMGET", "flow:flow", *some)
            plans = self._transactions.call("HMGET", "flow:plan", *some)
            for flow_id, state, plan in zip(some, states, plans, strict=True):
                if state is not None:
                    yield _read(flow_id, state, plan)

    def joins(self, flow_id: str) -> list[Join]:
        """The joins of a flow, in the order in which they were added."""
        ids = [each.decode() for each in self._transactions.call("LRANGE", _joins(flow_id), 0, -1)]
        found: list[Join] = []
        for some in _pages(ids, PAGE):
            left = self._transactions.call("HMGET", "flow:join", *some)
            members = self._transactions.call("HMGET", "flow:members", *some)
            found += [
                Join(id=join, flow_id=flow_id, remaining=int(number), members=text)
                for join, number, text in zip(some, left, members, strict=True)
                if number is not None and text is not None
            ]
        return found

    def results(self, ids: Sequence[str]) -> Mapping[str, bytes | None]:
        """What jobs returned, by id."""
        found: dict[str, bytes | None] = {}
        for some in _pages(ids, PAGE):
            heads = self._transactions.call("HMGET", "job", *some)
            tales = self._transactions.call("HMGET", "tale", *some)
            for job_id, row, tale in zip(some, heads, tales, strict=True):
                if status_in(row) is JobStatus.COMPLETED:
                    result = result_in(tale)
                    found |= {} if result is None else {job_id: result}
        return found

    # ---- deciding -------------------------------------------------------------------------------

    def apply(self, flow_id: str, event: FlowEvent) -> Flow:
        """Cancel, retry or skip."""
        kind, *rest = self._transactions.write(
            _DECIDE, "desk", flow_id, event_name(event), is_repeatable=False
        )
        if kind == b"done":
            return _read(flow_id, *rest)
        found = self.find(flow_id)
        if found is None:
            raise no_flow(flow_id)
        advance(found.state, event)  # says why not
        raise InvalidFlowChange("the flow was changed at the same moment")

    def sweep(self, flow_id: str) -> bool:
        """Continue a decision for one slice of steps. Returns whether anything is left to do."""
        answer = self._transactions.write(_GO_ON, "desk", flow_id)
        if answer is None:
            raise no_flow(flow_id)
        return bool(answer)

    def purge(self, flow_id: str) -> None:
        """Let retention delete a flow that has ended, with its steps."""
        [kind] = self._transactions.write(_PURGE, "desk", flow_id)
        found = self.find(flow_id)
        if kind == b"none" or found is None:
            raise no_flow(flow_id)
        if kind == b"no":
            raise flow_goes_on(found)

    def prunable(self, limit: int) -> list[Flow]:
        """Flows that have ended and whose retention is over."""
        arguments = ("-inf", self._transactions.now(), "LIMIT", 0, limit)
        ids = self._transactions.call("ZRANGEBYSCORE", "flow:purging", *arguments)
        return list(self._flows([each.decode() for each in ids]))

    def delete(self, flow: Flow, limit: int) -> bool:
        """Delete some steps of a flow whose retention is over, and finally the flow."""
        arguments = (flow.id, flow.purge_at, flow.changed_at, min(limit, PAGE))
        return bool(self._transactions.write(_DELETE, "sweep", *arguments))

    def signal(self, flow_id: str, name: str, value: bytes) -> SignalOutcome:
        """Complete the step that waits for a signal, or keep the value for the step that will wait
        for it.
        """
        blobs = Blobs()
        number = blobs.add(value)
        answer = self._transactions.write(
            _SIGNAL, "desk", flow_id, name, number, blobs=blobs, is_repeatable=False
        )
        if answer is None:
            raise no_flow(flow_id)
        outcome, late, row = answer
        if late:
            try:
                self._end_outdated([late.decode()], row, "desk")
            except StoreError as error:  # the signal was refused: that has to be answered
                logger.warning("a step whose time limit is over is ended later: %s", error)
        return SignalOutcome(outcome.decode())

    def count(self, wanted: Search) -> int | None:
        """How many steps of a flow match, where their rows tell; None where they do not."""
        known = Search(
            flow=wanted.flow,
            statuses=wanted.statuses,
            queue=wanted.queue,
            is_released=wanted.is_released,
        )
        has_ended = any(status.is_final for status in wanted.statuses) or not wanted.statuses
        if wanted.flow is None or wanted != known or (wanted.is_released and has_ended):
            return None
        if wanted == Search(flow=wanted.flow):
            steps: int = self._transactions.call("ZCARD", f"flow:steps:{wanted.flow}")
            return steps
        statuses = [NUMBERS[each] for each in wanted.statuses or JobStatus]
        arguments = (COUNTED, statuses, wanted.queue, wanted.is_released)
        number, after = 0, cast("bytes | None", b"0")
        while after is not None:
            place = wanted.flow, after.decode()
            found, after = self._transactions.run(_COUNT, *place, *arguments)
            number += found
        return number

    # ---- moving ---------------------------------------------------------------------------------

    def dump(self, after: str | None, limit: int) -> list[FlowRecord]:
        """One page of flows by id; it has fewer flows when they are large."""
        page = [] if after is None else self._page(after, limit)
        if not page:  # from the beginning, or to see whether any came since
            found = self._transactions.call("ZRANGE", "flow:flows", 0, -1)
            self._ids = sorted(each.decode() for each in found)
            page = self._page(after or "", limit)
        return page

    def _page(self, after: str, limit: int) -> list[FlowRecord]:
        """Some of the flows that were there when the first page was asked for."""
        ids = self._ids[bisect_right(self._ids, after) :]
        work = self._work() if ids else {}
        records = (
            FlowRecord(flow, tuple(self.joins(flow.id)), work.get(flow.id, {}))
            for flow in islice(self._flows(ids, limit), limit)
        )
        return as_page((each, each.payload_size) for each in records)

    def _work(self) -> dict[str, dict[str, str]]:
        """What is left to be done in slices, by flow and target."""
        found: dict[str, dict[str, str]] = {}
        for target, blob in pairs(self._transactions.call("HGETALL", "flow:kinds")):
            work = FlowWork(target, msgspec.msgpack.decode(blob)[0], 0)
            if work.kind == _ADMIT:
                raise _half_added(flow_of(target))
            found.setdefault(work.flow_id, {})[target] = work.kind
        return found

    def load(self, records: Sequence[FlowRecord]) -> None:
        """Put whole flows in, where they stood or behind all others; one with many joins in parts,
        the last of which makes it be there.
        """
        part: list[tuple[Any, ...]] = []
        blobs, number = Blobs(), 0
        for copy in records:
            pages = list(_pages(copy.joins, MAX_PART)) or [()]
            for n, joins in enumerate(pages):
                if part and (
                    number + len(joins) > MAX_PART or sum(map(len, blobs)) > MAX_PART_BYTES
                ):
                    self._transactions.write(_LOAD, "move", part, blobs=blobs)
                    part, blobs, number = [], Blobs(), 0
                last: tuple[Any, ...] = (False, False, False)
                if n == len(pages) - 1:
                    last = (_row_of(copy.flow), blobs.add(copy.flow.plan), copy.work)
                part.append((copy.flow.id, n * MAX_PART, _wire(joins, blobs), *last))
                number += 1 + len(joins)
        self._transactions.write(_LOAD, "move", part, blobs=blobs)
        self._mark()  # only when the store took them: another move may have it by now

    def discard(self, records: Sequence[FlowRecord]) -> None:
        """Delete flows. Their steps are records of their own."""
        self._transactions.write(_DISCARD, "move", [each.flow.id for each in records])


_ADMIT = "admit"
"""The kind of work that adds steps which were handed in."""


def _half_added(flow_id: str) -> StoreError:
    return StoreError(
        f"not all steps of the flow {flow_id} have been added yet: its client is about to, or died",
        remedy="wait for it, or start a worker on the store for a moment, which adds the rest; then"
        " try again",
        details={"flow_id": flow_id},
    )


_Part = Sequence[Join] | Sequence[NewJob]


def _parts(flow: NewFlow, steps: Sequence[NewJob]) -> Iterator[_Part]:
    """A flow in pieces that one script can take: first all joins, then the steps."""
    if len(flow.joins) + len(steps) <= MAX_PART and _size(steps) <= MAX_PART_BYTES:
        yield steps
        return
    # Joins first: a step that is added may be released at once, and its join has to be there.
    yield from _pages(flow.joins, MAX_PART)
    part: list[NewJob] = []
    size = 0
    for step in steps:
        size += len(step.args) + len(step.kwargs)
        if part and (len(part) == MAX_PART or size > MAX_PART_BYTES):
            yield part
            part, size = [], len(step.args) + len(step.kwargs)
        part.append(step)
    yield part


def _size(steps: Sequence[NewJob]) -> int:
    return sum(len(step.args) + len(step.kwargs) for step in steps)


def _pages(found: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    left = iter(found)
    while some := list(islice(left, size)):
        yield some


def _wire(part: _Part, blobs: Blobs) -> list[tuple[Any, ...]]:
    """Joins or steps as the scripts want them."""
    return [
        (each.id, each.remaining, blobs.add(each.members))
        if isinstance(each, Join)
        else wire_step(each, blobs)
        for each in part
    ]


def _new_row(flow: NewFlow) -> tuple[Any, ...]:
    policy = POLICIES.index(flow.on_failure)
    status = FLOW_STATUSES.index(FlowStatus.RUNNING)
    return (policy, status, *(0, 0, 0, 0, 0), flow.keep, False, 0, 0, flow.name, 0)


def _row_of(flow: Flow) -> tuple[Any, ...]:
    """The row of a flow that comes from another store; the script gives it its number."""
    state = flow.state
    return (
        *(POLICIES.index(state.on_failure), FLOW_STATUSES.index(state.status), state.unfinished),
        *(state.completed, state.failed, state.cancelled, state.uncounted),
        False if flow.keep is None else flow.keep,
        False if flow.purge_at is None else flow.purge_at,
        *(flow.created_at, flow.changed_at, flow.name, 0),
    )


def _read(flow_id: str, blob: bytes, plan: bytes | None) -> Flow:
    policy, status, *counts = (row := _flow(blob))[:7]
    keep, purge_at, created_at, changed_at, name, _ = row[7:]
    return FlowRow(
        flow_id,
        FlowState(POLICIES[policy], FLOW_STATUSES[status], *counts),
        None if isinstance(keep, bool) else float(keep),
        None if isinstance(purge_at, bool) else float(purge_at),
        name,
        float(created_at),
        float(changed_at),
        plan or b"{}",
    ).flow()


def _joins(flow_id: str) -> str:
    return f"flow:joins:{flow_id}"
