"""Reads a stored flow, applies an operator's decisions to it, and waits for its end."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec

from ergon_framework.core.failure import Failure
from ergon_framework.core.flow import (
    CancelFlow,
    FlowEvent,
    FlowStatus,
    InvalidFlowChange,
    RetryFlow,
    SkipFailed,
)
from ergon_framework.core.job import JobStatus
from ergon_framework.errors import (
    JobError,
    JobFailedError,
    JobNotFoundError,
    JobStateError,
    ResultTimeoutError,
)
from ergon_framework.jobs.flow_results import value_of
from ergon_framework.jobs.payload_codec import refuse_marked_value
from ergon_framework.jobs.payload_codec_store import results_reader
from ergon_framework.jobs.results import (
    MIN_POLL_INTERVAL,
    POLL_INTERVAL,
    SharedSubscription,
    check_timeout,
    refuse_erased_result,
    why_hint,
)
from ergon_framework.jobs.stores.erasure import erased_among, is_erased, missing_for_retry
from ergon_framework.jobs.stores.flow_settlement import no_flow
from ergon_framework.jobs.views import error_view
from ergon_framework.lazy_exports import LateModule
from ergon_framework.ports.flow import SIGNAL_PREFIX, Flow, SignalOutcome, used_ids
from ergon_framework.ports.job_fields import encode_value, is_storable
from ergon_framework.ports.job_fields import name as name_of
from ergon_framework.ports.jobstore import FlowStore, FullJobStore, Job, Search
from ergon_framework.storage.urls import option_for, pasteable

if TYPE_CHECKING:
    import ergon_framework.jobs.settings as job_settings
else:
    job_settings = LateModule("ergon_framework.jobs.settings")

T = TypeVar("T")

PURGED_AT_ONCE = 1_000
"""How many steps one transaction deletes."""

_REFUSED: dict[type[FlowEvent], tuple[str, str]] = {
    CancelFlow: ("cannot be cancelled", "only a flow that has not ended can"),
    RetryFlow: ("has nothing to retry", "only a flow with steps that failed or were cancelled has"),
    SkipFailed: ("has nothing to skip", "only a flow that is held or has failed has"),
}


_NOT_TAKEN: dict[SignalOutcome, tuple[str, str]] = {
    SignalOutcome.UNKNOWN: (
        "no step of the flow {flow} waits for the signal {signal}",
        "this shows what it waits for",
    ),
    SignalOutcome.TOO_LATE: (
        "the signal {signal} came too late: the time limit of its step of the flow {flow} is over",
        "the step fails; this shows what can be done",
    ),
    SignalOutcome.SIGNALLED: (
        "the step of the flow {flow} that waits for the signal {signal} has another value already",
        "the first value holds; this shows how far the flow is",
    ),
}


def flows_of(store: FullJobStore) -> FlowStore:
    """The flows of a store. Raises JobError if the store keeps none."""
    flows: FlowStore | None = getattr(store, "flows", None)
    if flows is None:
        raise JobError(
            f"{type(store).__name__} keeps no flows",
            remedy="use a store that does, such as sqlite:///work.db",
        )
    return flows


@contextmanager
def hints_for(store: FullJobStore) -> Iterator[None]:
    """Add the store's URL to the commands that its errors suggest; a store does not
    know its URL.
    """
    try:
        yield
    except (JobNotFoundError, JobStateError) as error:
        option = option_for(store)
        if "  ergon flows" in error.remedy and not error.remedy.endswith(option):
            error.remedy += option
        raise


class StoreClient(Protocol):
    """The client that a flow uses to reach its store."""

    store: FullJobStore
    settings: job_settings.JobsSettings

    @property
    def subscription(self) -> SharedSubscription:
        """The subscription to ends of jobs."""


class AsyncStoreClient(Protocol):
    """Like ``StoreClient``, for event loops."""

    async def of_flow(
        self, flow_id: str, ask: Callable[[EnqueuedFlow], T], *, waits: bool = False
    ) -> T:
        """Ask a flow something in another thread: in one of its own if that may take long."""


class EnqueuedId(str):
    """The id of a job or flow: text like any other, whose copies are plain text."""

    __slots__ = ()

    @property
    def id(self) -> str:
        """The plain id."""
        return str(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return (str, (str(self),))


class EnqueuedFlow(EnqueuedId):
    """The id of a flow, which remembers the client it came from and can be asked about the flow."""

    __slots__ = ("_client",)

    _client: StoreClient

    @classmethod
    def of(cls, flow_id: str, client: StoreClient) -> EnqueuedFlow:
        """The flow of that id."""
        made = cls(flow_id)
        made._client = client
        return made

    def status(self) -> FlowStatus:
        """Where the flow stands; a word that can be compared with text."""
        return found_flow(self._client.store, self).status

    def show(self) -> Flow:
        """The record of the flow, with the counts of its steps."""
        return found_flow(self._client.store, self)

    def steps(self) -> list[Job]:
        """The jobs of the flow, in the order of adding."""
        return list(steps_of(self._client.store, self))

    def result(self, timeout: float | None = None) -> Any:
        """What the last step returned, or the members of the last group; waits for the end.

        Raises JobFailedError when the flow failed or was cancelled, and ResultTimeoutError when it
        has not ended by then.
        """
        flow = wait_for_flow(self._client.store, self._client.subscription, self, timeout)
        return flow_result(self._client.store, flow)

    def cancel(self) -> FlowStatus:
        """Cancel the steps that wait; steps that run go on to their end."""
        return decide(self._client.store, self, CancelFlow()).status

    def retry(self) -> FlowStatus:
        """Run the steps again that failed or were cancelled."""
        return decide(self._client.store, self, RetryFlow()).status

    def skip(self) -> FlowStatus:
        """Continue without the steps that failed."""
        return decide(self._client.store, self, SkipFailed()).status

    def purge(self) -> None:
        """Delete the flow with its steps. Only a flow that has ended can be deleted."""
        purge_flow(self._client.store, self)

    def signal(self, name: str, value: Any = None) -> None:
        """Complete the step that waits for this signal; the value is its result.

        A signal that comes before the step is reached is kept for it.
        """
        limit = self._client.settings.max_payload
        send_signal(self._client.store, self, name, value, max_payload=limit)


class AsyncEnqueuedFlow(EnqueuedId):
    """The id of a flow, for event loops: its methods are coroutines."""

    __slots__ = ("_client",)

    _client: AsyncStoreClient

    @classmethod
    def of(cls, flow_id: str, client: AsyncStoreClient) -> AsyncEnqueuedFlow:
        """The flow of that id."""
        made = cls(flow_id)
        made._client = client
        return made

    async def status(self) -> FlowStatus:
        """Where the flow stands."""
        return await self._client.of_flow(self, EnqueuedFlow.status)

    async def steps(self) -> list[Job]:
        """The jobs of the flow, in the order of adding."""
        return await self._client.of_flow(self, EnqueuedFlow.steps)

    async def result(self, timeout: float | None = None) -> Any:  # noqa: ASYNC109 - as the other
        """What the last step returned; see :meth:`EnqueuedFlow.result`."""
        return await self._client.of_flow(self, lambda flow: flow.result(timeout), waits=True)

    async def cancel(self) -> FlowStatus:
        """Cancel the steps that wait."""
        return await self._client.of_flow(self, EnqueuedFlow.cancel)

    async def retry(self) -> FlowStatus:
        """Run the steps again that failed or were cancelled."""
        return await self._client.of_flow(self, EnqueuedFlow.retry)

    async def skip(self) -> FlowStatus:
        """Continue without the steps that failed."""
        return await self._client.of_flow(self, EnqueuedFlow.skip)

    async def purge(self) -> None:
        """Delete the flow with its steps. Only a flow that has ended can be deleted."""
        await self._client.of_flow(self, EnqueuedFlow.purge)

    async def signal(self, name: str, value: Any = None) -> None:
        """Complete the step that waits for this signal."""
        await self._client.of_flow(self, lambda flow: flow.signal(name, value))


def found_flow(store: FullJobStore, flow_id: str) -> Flow:
    """The flow of that id. Raises JobNotFoundError."""
    wanted = str(flow_id)
    flow = flows_of(store).find(wanted) if is_storable(wanted) else None
    if flow is None:
        raise no_flow(str(flow_id), option_for(store))
    return flow


def steps_of(store: FullJobStore, flow_id: str, limit: int | None = None) -> Iterator[Job]:
    """The steps of a flow, in the order of adding."""
    found_flow(store, flow_id)
    yield from reversed(list(store.search(Search(flow=str(flow_id)), limit)))


def decide(
    store: FullJobStore,
    flow_id: str,
    event: FlowEvent,
    *,
    seconds: float = math.inf,
    ticks: Callable[[], float] = time.monotonic,
) -> Flow:
    """Cancel, retry or skip. Raises JobStateError if the state of the flow does not allow it.

    Steps that are not finished after so many ``seconds`` are left to workers.
    """
    until = ticks() + seconds
    flows = flows_of(store)
    if not isinstance(event, CancelFlow):
        _refuse_erased(store, str(flow_id), is_skip=isinstance(event, SkipFailed))
    try:
        with hints_for(store):
            changed = flows.apply(str(flow_id), event)
    except InvalidFlowChange as error:
        flow = found_flow(store, flow_id)
        what, remedy = _REFUSED[type(event)]
        raise JobStateError(
            f"the flow {flow.id} is {flow.status} and {what}",
            remedy=remedy,
            details={"flow_id": flow.id, "status": flow.status.value},
        ) from error
    # Workers would do the rest, too, but they may be few, busy or stopped.
    is_swept = False
    while ticks() < until and flows.sweep(changed.id):
        is_swept = True
    # The flow was changed, even if somebody has deleted it since.
    return (flows.find(str(flow_id)) or changed) if is_swept else changed


def _refuse_erased(store: FullJobStore, flow_id: str, *, is_skip: bool) -> None:
    """Raise JobStateError if a step that would be sent back has lost its arguments."""
    missing = missing_for_retry(store, flow_id, is_skip=is_skip)
    if missing is None:
        return
    erased, step = missing
    what = f"the step {erased} of the flow {flow_id} was erased and cannot run again"
    if erased != step:
        what = f"the result of the step {erased} was erased, and the step {step} cannot run without"
    raise JobStateError(
        what,
        remedy="enqueue the flow again with its arguments",
        details={"flow_id": flow_id, "job_id": erased},
    )


def purge_flow(
    store: FullJobStore,
    flow_id: str,
    *,
    seconds: float = math.inf,
    ticks: Callable[[], float] = time.monotonic,
) -> None:
    """Delete a flow that has ended, with its steps; in slices, as retention does.

    Retention deletes what is left of it after so many ``seconds``.
    """
    until = ticks() + seconds
    flows = flows_of(store)
    with hints_for(store):
        flows.purge(str(flow_id))
    # Not by a prune, which would also delete what others keep until it is archived.
    while (flow := flows.find(str(flow_id))) is not None:
        while flows.delete(flow, PURGED_AT_ONCE):
            if ticks() >= until:
                return
        if not flow.status.is_final:
            return  # Somebody has brought it back meanwhile.


def send_signal(
    store: FullJobStore, flow_id: str, name: str, value: Any, *, max_payload: int
) -> None:
    """Complete the step that waits for a signal, or keep the value for the step that will wait for
    it.
    """
    name = name_of("signal", name)
    text = encode_value("value", value)
    refuse_marked_value(text)
    if len(text) > max_payload:  # The value becomes an argument of the step that follows.
        raise JobError(
            f"value takes {len(text):,} bytes of JSON, and the limit is {max_payload:,}",
            remedy="keep the data elsewhere and pass where it is, or raise max_payload in [jobs]",
            details={"field": "value", "size": len(text), "limit": max_payload},
        )
    with hints_for(store):
        outcome = flows_of(store).signal(str(flow_id), name, text)
    if outcome is SignalOutcome.UNKNOWN:
        outcome = _earlier_outcome(store, str(flow_id), name, text)
    if outcome is SignalOutcome.TAKEN:
        return
    what, remedy = _NOT_TAKEN[outcome]
    why = pasteable("why", flow_id, option_for(store))
    raise JobStateError(
        what.format(flow=flow_id, signal=repr(name)),
        remedy=f"{remedy}:  {why}",
        details={"flow_id": str(flow_id), "signal": name, "outcome": outcome.value},
    )


def _earlier_outcome(store: FullJobStore, flow_id: str, name: str, text: bytes) -> SignalOutcome:
    """What became of a signal whose step waits no more. A caller whose answer was lost
    asks again.
    """
    completed = (JobStatus.COMPLETED,)
    search = Search(flow=flow_id, handler=f"{SIGNAL_PREFIX}{name}", statuses=completed)
    for step in store.search(search, 2):
        if step.step is not None and step.step.signal is not None and not is_erased(step):
            return SignalOutcome.TAKEN if step.result == text else SignalOutcome.SIGNALLED
    return SignalOutcome.UNKNOWN


def wait_for_flow(
    store: FullJobStore,
    shared: SharedSubscription,
    flow_id: str,
    timeout: float | None,
    now: Callable[[], float] = time.monotonic,
) -> Flow:
    """The flow in its final state."""
    check_timeout(timeout)
    flow = found_flow(store, flow_id)
    if flow.status.is_final:
        return flow
    until = None if timeout is None else now() + timeout
    with closing(shared.join()) as waiter:
        while True:
            flow = found_flow(store, flow_id)  # After subscribing, so that no end is missed.
            if flow.status.is_final:
                return flow
            left = POLL_INTERVAL if until is None else min(POLL_INTERVAL, until - now())
            if left <= 0:
                raise _timed_out(store, flow, timeout)
            if waiter.wait(left):
                waiter.wait(min(MIN_POLL_INTERVAL, left))


def _timed_out(store: FullJobStore, flow: Flow, timeout: float | None) -> ResultTimeoutError:
    why = pasteable("why", flow.id, option_for(store))
    return ResultTimeoutError(
        f"the flow {flow.id} is still {flow.status} after {timeout:g} seconds",
        remedy=f"this shows what it waits for:  {why}",
        details={"flow_id": flow.id, "status": flow.status.value},
    )


def flow_result(store: FullJobStore, flow: Flow) -> Any:
    """What a completed flow returned. Raises JobFailedError for a flow that ended otherwise.

    As with a job, a result that was erased raises an error and is not None.
    """
    if flow.status is FlowStatus.COMPLETED:
        source = msgspec.json.decode(flow.plan).get("result")
        if source is None:
            return None
        read = results_reader(store) or flows_of(store).results
        ids = list(used_ids(source, flow.id))
        results = read(ids)
        lost = erased_among(store, [each for each in ids if results.get(each) is None])
        if lost is not None:
            refuse_erased_result(lost)
        return msgspec.json.decode(value_of(source, flow.id, results))
    failed = next(iter(store.search(Search(flow=flow.id, statuses=(JobStatus.FAILED,)), 1)), None)
    details: dict[str, Any] = {"flow_id": flow.id, "status": flow.status.value}
    how = f"was {flow.status}" if flow.status is FlowStatus.CANCELLED else "failed"
    if failed is not None:
        failure: Failure | None = failed.last_error
        details |= {"job_id": failed.id}
        if failure is not None:
            how += f" in {failed.handler}: {failure.message or failure.code}"
            details |= error_view(failure)
    raise JobFailedError(
        f"the flow {flow.id} {how}", remedy=why_hint(store, flow.id), details=details
    )
