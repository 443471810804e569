"""The actions of people and programs on a flow. Each is recorded in the audit log."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from time import monotonic
from typing import Any

from ergon_framework.core.flow import (
    CancelFlow,
    FlowEvent,
    FlowState,
    FlowStatus,
    InvalidFlowChange,
    RetryFlow,
    SkipFailed,
    advance,
)
from ergon_framework.core.job import JobStatus
from ergon_framework.jobs.change_requests import checked_reason
from ergon_framework.jobs.client import JobClient
from ergon_framework.jobs.flow_client import (
    decide,
    flows_of,
    found_flow,
    purge_flow,
    send_signal,
)
from ergon_framework.jobs.flow_why import explain_flow, flow_view, plan_tree
from ergon_framework.ports.flow import SIGNAL_PREFIX, Flow
from ergon_framework.ports.jobstore import FlowStore, FullJobStore, Search
from ergon_framework.web.audit import (
    CANCEL_FLOW,
    PURGE_FLOW,
    RETRY_FLOW,
    SIGNAL_FLOW,
    SKIP_FLOW,
)
from ergon_framework.web.backends import JobBackend
from ergon_framework.web.job_actions import JobActions
from ergon_framework.web.job_routes import Place
from ergon_framework.web.responses import cursor_place, cursor_text, page

SECONDS = 3.0
"""Seconds for the steps of a flow, of which there may be very many; workers do the rest."""
MOST_SIGNALS = 20
"""How many signals of a flow are read."""
_STEPS_LOOKED_AT = 10_000
_MOST_NAME = 255
PURGED = "purged"
"""The state that the API gives a deleted flow."""


@dataclass(frozen=True, slots=True)
class FlowAction:
    """One action on a flow."""

    name: str
    """The name in the terminal and in the API."""
    audited_as: str
    title: str
    done: str
    consequence: str
    event: FlowEvent | None
    """The event that it is for the flow. None for deleting it."""
    asks_first: bool = False
    """Whether a person must confirm it, because it cannot be undone."""


FLOW_ACTIONS = {
    each.name: each
    for each in (
        FlowAction(
            "retry",
            RETRY_FLOW,
            "Retry",
            "The steps that failed or were cancelled are tried again.",
            "Steps that failed or were cancelled begin anew, and the flow goes on after them.",
            RetryFlow(),
        ),
        FlowAction(
            "skip",
            SKIP_FLOW,
            "Go on without",
            "The flow goes on without the steps that failed.",
            "Steps that wait for those that failed start now, and see no result in their place.",
            SkipFailed(),
            asks_first=True,
        ),
        FlowAction(
            "cancel",
            CANCEL_FLOW,
            "Cancel",
            "The flow was cancelled.",
            "Steps that wait are cancelled; those that run end by themselves. To retry the flow"
            " later brings it back.",
            CancelFlow(),
            asks_first=True,
        ),
        FlowAction(
            "purge",
            PURGE_FLOW,
            "Delete",
            "The flow was deleted with its steps.",
            "The flow is gone for good, with all its steps, their history and their results.",
            None,
            asks_first=True,
        ),
    )
}


def flow_actions_for(status: FlowStatus, state: FlowState) -> list[FlowAction]:
    """The actions that the state of a flow allows."""
    return [each for each in FLOW_ACTIONS.values() if _is_possible(each, status, state)]


def _is_possible(action: FlowAction, status: FlowStatus, state: FlowState) -> bool:
    if action.event is None:
        return status.is_final
    try:
        advance(state, action.event)
    except InvalidFlowChange:
        return False
    return True


def flow_document(source: JobBackend, flow_id: str) -> dict[str, Any]:
    """One flow for programs: its state and the reasons, and what can be done."""
    with source.opened() as client:
        flow = found_flow(client.store, flow_id)
        return {
            **flow_view(flow),
            "why": explain_flow(flow, client.store, ""),
            "actions": [each.name for each in flow_actions_for(flow.status, flow.state)],
            "signals": signals_of(flow, client.store),
        }


def flows_document(
    source: JobBackend, statuses: Sequence[FlowStatus], limit: int, cursor: str | None = None
) -> dict[str, Any]:
    """A page of flows, in one of these states or in any; the newest first."""
    below = None if cursor is None else cursor_place(cursor, Place)
    with source.opened() as client:
        flows: FlowStore | None = getattr(client.store, "flows", None)
        found, following = ([], None) if flows is None else flows.page(statuses, limit, below)
    next_cursor = None if following is None else cursor_text(following)
    views = [flow_view(each) for each in found]
    return {**page(views, next_cursor), "is_all": following is None}


def signals_of(flow: Flow, store: FullJobStore) -> list[str]:
    """The signals that steps of a flow wait for, or will wait for when they are reached."""
    if flow.status.is_final or flow.status.is_stopping:
        return []
    named = dict.fromkeys(islice(_signals(plan_tree(flow), _STEPS_LOOKED_AT), MOST_SIGNALS))
    open_states = (JobStatus.PENDING,)
    return [
        name
        for name in named
        if store.count(Search(flow=flow.id, handler=f"{SIGNAL_PREFIX}{name}", statuses=open_states))
    ]


def _signals(tree: Any, most: int) -> Iterator[str]:
    """The signals of a plan, of which not every part is read."""
    left = [tree]
    for _ in range(most):
        if not left:
            return
        part = left.pop()
        if isinstance(part, list):
            left += reversed(part)
        elif isinstance(part, Mapping):
            handler = part.get("handler")
            if isinstance(handler, str) and handler.startswith(SIGNAL_PREFIX):
                yield handler.removeprefix(SIGNAL_PREFIX)
            left += [part[each] for each in ("then", "group", "chain") if each in part]


class FlowActions:
    """Carries the actions out, in the threads of the job store."""

    def __init__(self, actions: JobActions, ticks: Callable[[], float] = monotonic) -> None:
        self._actions = actions
        self._ticks = ticks

    async def change(self, action: FlowAction, flow_id: str, actor: str, reason: str = "") -> str:
        """Do one action. Returns the state of the flow then, or ``purged`` for a deleted flow."""
        change, why = partial(_change, action, flow_id, self._ticks), checked_reason(reason)
        return await self._actions.recorded(actor, action.audited_as, flow_id, why, change)

    async def check(self, flow_id: str) -> None:
        """Raise ``JobNotFoundError`` for a flow that is not there."""
        await self._actions.look(lambda client: found_flow(client.store, flow_id))

    async def signal(
        self, flow_id: str, name: str, value: Any, actor: str, reason: str = ""
    ) -> str:
        """Complete the step that waits for a signal. Returns the state of the flow then."""

        def send(client: JobClient) -> str:
            limit = client.settings.max_payload
            send_signal(client.store, flow_id, name, value, max_payload=limit)
            found = flows_of(client.store).find(flow_id)
            return PURGED if found is None else found.status.value

        # Without the value, which is an argument of the step that follows.
        detail = f"the signal {name[:_MOST_NAME]!r}"
        if reason:
            detail += f": {checked_reason(reason)}"
        return await self._actions.recorded(actor, SIGNAL_FLOW, flow_id, detail, send)


def _change(action: FlowAction, flow_id: str, ticks: Callable[[], float], client: JobClient) -> str:
    store = client.store
    if action.event is None:
        purge_flow(store, flow_id, seconds=SECONDS, ticks=ticks)
        return PURGED
    return decide(store, flow_id, action.event, seconds=SECONDS, ticks=ticks).status.value
