"""The pages of flows: the list, and one flow with its drawing, its steps and what it waits for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from ergon_framework.core.flow import FlowStatus
from ergon_framework.core.job import JobStatus
from ergon_framework.jobs.flow_client import found_flow
from ergon_framework.jobs.flow_why import explain_flow, flow_view, plan_tree, total
from ergon_framework.ports.flow import Flow, step_id
from ergon_framework.ports.jobstore import FullJobStore, Job, Search
from ergon_framework.web import flow_actions
from ergon_framework.web.addresses import address_of
from ergon_framework.web.backends import JobBackend
from ergon_framework.web.console.flow_graph import (
    Counts,
    Steps,
    drawing,
    layout_of,
    with_others,
)
from ergon_framework.web.console.formatting import Chip
from ergon_framework.web.flow_actions import flow_actions_for, signals_of
from ergon_framework.web.job_routes import found_jobs, shown_job, workers_of
from ergon_framework.web.responses import cursor_text, page

FLOW_COLUMNS = (
    "id",
    "name",
    "status",
    "on_failure",
    "steps",
    "completed",
    "failed",
    "cancelled",
    "unfinished",
    "created_at",
    "changed_at",
)
STEP_COLUMNS = (
    "id",
    "status",
    "handler",
    "queue",
    "attempts",
    "last_error.code",
    "created_at",
    "finished_at",
)
MOST_READ = 400
"""How many steps of a flow are read one by one. In a larger flow, only those of small boxes are."""
MOST_IN_BOX = 20
"""How many steps of a box are read one by one. The steps of a larger box are counted."""
MOST_COUNTED = 6
"""How many large boxes are counted; each takes some queries."""

_STATUS = {
    FlowStatus.RUNNING: Chip("run", "running"),
    FlowStatus.HELD: Chip("warn", "held"),
    FlowStatus.FAILING: Chip("bad", "failing"),
    FlowStatus.CANCELLING: Chip("wait", "being cancelled"),
    FlowStatus.COMPLETED: Chip("ok", "completed"),
    FlowStatus.FAILED: Chip("bad", "failed"),
    FlowStatus.CANCELLED: Chip("wait", "cancelled"),
}


def flow_chip(status: str) -> Chip:
    """The state of a flow."""
    return _STATUS[FlowStatus(status)]


def flows_document(
    source: JobBackend, statuses: Sequence[FlowStatus], limit: int, cursor: str | None = None
) -> dict[str, Any]:
    """A page of flows, in one of these states or in any, and the filter."""
    found = flow_actions.flows_document(source, statuses, limit, cursor)
    return {**found, "filter": {"status": [each.value for each in statuses]} if statuses else {}}


def flow_document(
    source: JobBackend,
    flow_id: str,
    statuses: Sequence[JobStatus],
    limit: int,
    below: int | None = None,
) -> dict[str, Any]:
    """One flow: the reasons for its state, its drawing, and a page of its steps."""
    with source.opened() as client:
        store = client.store
        flow = found_flow(store, flow_id)
        wanted = Search(flow=flow.id, statuses=tuple(statuses), below=below)
        found = found_jobs(client, wanted, limit + 1)
        shown = found[:limit]
        workers = workers_of(client, shown)
        items = [shown_job(client, job, is_whole=False, workers=workers) for job in shown]
        more = cursor_text(shown[-1].key) if len(found) > limit else None
        return {
            **flow_view(flow),
            "sentences": explain_flow(flow, store, ""),
            "actions": [each.name for each in flow_actions_for(flow.status, flow.state)],
            "signals": signals_of(flow, store),
            "graph": _graph(flow, store),
            "filter": {"status": [each.value for each in statuses]} if statuses else {},
            # The last step first, as everywhere, unless all of them can be listed in their order.
            **page(items if below or more else items[::-1], more),
        }


def _drawable(flow: Flow) -> Mapping[str, Any]:
    """The flow as it was written; empty if that cannot be drawn. Its steps are then drawn without
    it.

    No program of ours writes such a plan.
    """
    tree = plan_tree(flow)
    try:
        with_others(tree, flow.id, ())
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError):
        return {}
    return tree


def _graph(flow: Flow, store: FullJobStore) -> dict[str, Any]:
    tree = _drawable(flow)
    is_small = total(flow) <= MOST_READ
    read: dict[str, Job] = {}
    if is_small:
        read = {job.id: job for job in store.search(Search(flow=flow.id), MOST_READ)}
        tree = with_others(tree, flow.id, list(read)[::-1])
    layout = layout_of(tree)
    counted: dict[Steps, Counts] = {}
    unknown: list[Steps] = []
    for box in layout.boxes:
        is_known = box.steps.first or box.steps.ids
        is_read = is_known and (is_small or box.steps.number <= MOST_IN_BOX)
        (counted.setdefault(box.steps, {}) if is_read else unknown.append(box.steps))
    if not is_small:
        ids = tuple(each for steps in counted for each in steps.all_ids(flow.id))
        read = {job.id: job for job in store.search(Search(ids=ids), len(ids))} if ids else {}
    for steps in counted:
        counted[steps] = _tally(steps.all_ids(flow.id), read)
    if len(unknown) == 1:
        counted[unknown[0]] = _left(flow, store, counted.values())
    else:
        counted |= {each: _between(flow, store, each) for each in unknown[:MOST_COUNTED]}

    def link(steps: Steps) -> str | None:
        if steps.number == 1:
            job_id = next(steps.all_ids(flow.id), "")
            return address_of("/jobs", job_id) if job_id in read else None
        failed = counted.get(steps, {}).get(JobStatus.FAILED, 0)
        return f"/flows/{quote(flow.id)}{'?status=failed' if failed else ''}#steps"

    return drawing(layout, lambda steps: counted.get(steps, {}), link)


def _tally(ids: Iterable[str], read: Mapping[str, Job]) -> Counts:
    found: dict[str, int] = {}
    for each in ids:
        if each in read:
            status = read[each].status.value
            found[status] = found.get(status, 0) + 1
    return found


def _left(flow: Flow, store: FullJobStore, others: Iterable[Counts]) -> Counts:
    """The counts of the flow less the steps of the other boxes, which needs hardly a query."""
    state = flow.state
    active, retrying = (
        store.count(Search(flow=flow.id, statuses=(status,)))
        for status in (JobStatus.ACTIVE, JobStatus.RETRYING)
    )
    all_of_them = {
        JobStatus.COMPLETED: state.completed,
        JobStatus.FAILED: state.failed,
        JobStatus.CANCELLED: state.cancelled,
        JobStatus.ACTIVE: active,
        JobStatus.RETRYING: retrying,
        JobStatus.PENDING: state.unfinished - active - retrying,
    }
    drawn = list(others)
    return {
        status.value: max(0, count - sum(each.get(status, 0) for each in drawn))
        for status, count in all_of_them.items()
    }


def _between(flow: Flow, store: FullJobStore, steps: Steps) -> Counts:
    """The number of steps from a box's first to its last, because steps are stored in order."""
    if not steps.first:
        return {}
    ends = (step_id(flow.id, steps.first), step_id(flow.id, steps.first + steps.count))
    keys = {job.id: job.key for job in store.search(Search(ids=ends), 2)}
    if ends[0] not in keys:
        return {}
    found = {}
    for status in JobStatus:
        if status is JobStatus.PENDING:
            continue
        below, above = (
            store.count(Search(flow=flow.id, statuses=(status,), below=keys.get(each)))
            for each in ends
        )
        found[status.value] = above - below
    found[JobStatus.PENDING.value] = max(0, steps.count - sum(found.values()))
    return found
