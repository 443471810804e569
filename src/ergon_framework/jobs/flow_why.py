"""Explains what a flow, or one of its steps, waits for, in sentences made from what is recorded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import msgspec

from ergon_framework.core.flow import FlowStatus
from ergon_framework.core.job import EXPIRED, SUPERSEDED, JobStatus
from ergon_framework.core.rfc3339 import format_rfc3339
from ergon_framework.core.text import counted, failure_text
from ergon_framework.jobs.stores.erasure import missing_for_retry
from ergon_framework.jobs.views import decoded, moment
from ergon_framework.jobs.why import NO_STEP, StepWhy
from ergon_framework.ports.flow import Flow, Join, from_runs, step_id
from ergon_framework.ports.jobstore import FlowStore, FullJobStore, Job, Search
from ergon_framework.storage.urls import pasteable

MAX_NAMED = 3
"""How many steps are named one by one."""
MAX_LOOKED_AT = 1_000
"""How many steps of one join are read."""


def flow_view(flow: Flow) -> dict[str, Any]:
    """Everything that is known of a flow except its steps."""
    state = flow.state
    return {
        "id": flow.id,
        "name": flow.name or None,
        "status": flow.status.value,
        "on_failure": state.on_failure.value,
        "steps": total(flow),
        "completed": state.completed,
        "failed": state.failed,
        "cancelled": state.cancelled,
        "unfinished": state.unfinished,
        "created_at": moment(flow.created_at),
        "changed_at": moment(flow.changed_at),
        "purge_at": moment(flow.purge_at),
    }


def total(flow: Flow) -> int:
    """How many steps the flow has."""
    state = flow.state
    return state.unfinished + state.completed + state.failed + state.cancelled


# ---- a step -------------------------------------------------------------------------------------


def what_a_step_waits_for(job: Job, store: FullJobStore, options: str) -> StepWhy:
    """Which flow a step belongs to, and which steps it waits for."""
    flows: FlowStore | None = getattr(store, "flows", None)
    step = job.step
    if step is None or flows is None or (flow := flows.find(step.flow_id)) is None:
        return NO_STEP
    sentences: list[str] = []
    if step.signal is not None and job.status is JobStatus.FAILED and job.why == EXPIRED:
        sentences.append(f"The signal {step.signal!r} did not come within its time limit.")
    if flow.status.is_stopping:
        sentences += _stopped(job, flow, options)
    elif job.status is JobStatus.PENDING and step.join_id is not None:
        join = next((each for each in flows.joins(flow.id) if each.id == step.join_id), None)
        sentences += [] if join is None else _join(join, store)
    elif job.status is JobStatus.PENDING and step.signal is not None:
        sentences += _signal(job, flow, store.now(), options)
    title = f" ({flow.name})" if flow.name else ""
    show = pasteable("flows show", flow.id, options)
    sentences.append(f"It is a step of the flow {flow.id}{title}, which is {flow.status}:  {show}")
    return StepWhy(sentences, flow.status.is_stopping)


def _stopped(job: Job, flow: Flow, options: str) -> Iterator[str]:
    """What happens to a step of a flow that stops."""
    if job.status in (JobStatus.PENDING, JobStatus.RETRYING):
        yield "Its flow was stopped: no worker starts it any more, and it is cancelled."
    elif job.status is JobStatus.ACTIVE:
        yield "Its flow was stopped: it ends by itself, and is not tried again."
    elif job.why in SUPERSEDED:
        skip = pasteable("flows skip", flow.id, options)
        yield f"It does not come back with its flow. This lets the flow go on without it:  {skip}"
    elif job.status is not JobStatus.COMPLETED:
        retry = pasteable("flows retry", flow.id, options)
        yield f"It comes back with its flow:  {retry}"


def _join(join: Join, store: FullJobStore) -> Iterator[str]:
    ids = list(_member_ids(join))[:MAX_LOOKED_AT]
    left = [
        each
        for each in store.search(Search(ids=tuple(ids)))
        if each.status is not JobStatus.COMPLETED
    ]
    yield f"It waits for {counted(join.remaining, 'step')} before it."
    for each in sorted(left, key=_order)[:MAX_NAMED]:
        yield f"Step {each.id} ({each.handler}) is {_standing(each)}."


def _signal(job: Job, flow: Flow, now: float, options: str) -> Iterator[str]:
    name = "" if job.step is None or job.step.signal is None else job.step.signal
    if job.expires_at is not None and job.expires_at <= now:
        yield (
            f"It waited for the signal {name!r}, and the time limit is over since"
            f" {format_rfc3339(job.expires_at)}: the next worker to look lets it fail."
        )
        return
    until = "" if job.expires_at is None else f" until {format_rfc3339(job.expires_at)}"
    yield f"It waits for the signal {name!r}{until}; no worker runs it."
    send = pasteable("flows signal", flow.id, f" {name}{options}")
    yield f"This sends it:  {send}"


def _order(job: Job) -> tuple[bool, Any]:
    """Failed steps first, because they are the reason why nothing happens."""
    return not job.status.is_final, job.key


def _member_ids(join: Join) -> Iterator[str]:
    for each in from_runs(decoded(join.members) or []):
        yield step_id(join.flow_id, each) if isinstance(each, int) else str(each)


def _standing(job: Job) -> str:
    if job.status is JobStatus.FAILED and job.last_error is not None:
        return f"failed: {failure_text(job.last_error.code, job.last_error.message)}"
    return job.status.value


# ---- a flow -------------------------------------------------------------------------------------


def explain_flow(flow: Flow, store: FullJobStore, options: str) -> list[str]:
    """Sentences that say how far a flow is, what it waits for, and what can be done about it."""
    return list(_explained(flow, store, options))


def _explained(flow: Flow, store: FullJobStore, options: str) -> Iterator[str]:
    state = flow.state
    title = f"{flow.name}: " if flow.name else ""
    yield (
        f"{title}{state.completed} of {counted(total(flow), 'step')} completed,"
        f" {state.failed} failed, {state.cancelled} cancelled, {state.unfinished} left."
    )
    if state.failed:
        for each in store.search(Search(flow=flow.id, statuses=(JobStatus.FAILED,)), MAX_NAMED):
            why = pasteable("why", each.id, options)
            yield f"Step {each.id} ({each.handler}) {_standing(each)}.  {why}"
    if flow.status in (FlowStatus.HELD, FlowStatus.FAILED):
        yield from _superseded(flow, store)
    missing = _missing(flow, store)
    if missing is None:
        yield from _decisions(flow, options)
    else:
        yield f"It cannot be retried: the step {missing} was erased. Enqueue the flow again."
    if flow.purge_at is not None:
        yield f"It is kept until {format_rfc3339(flow.purge_at)}, with its steps."
    if flow.status in (FlowStatus.RUNNING, FlowStatus.HELD):
        yield from _under_way(flow, store, options)


def _superseded(flow: Flow, store: FullJobStore) -> Iterator[str]:
    """Steps that a retry does not run again."""
    cancelled = store.search(Search(flow=flow.id, statuses=(JobStatus.CANCELLED,)), MAX_LOOKED_AT)
    for each in islice((job for job in cancelled if job.why in SUPERSEDED), MAX_NAMED):
        yield (
            f"Step {each.id} ({each.handler}) was cancelled, because another job took its place:"
            " a retry leaves it, and only a skip goes on without it."
        )


def _decisions(flow: Flow, options: str) -> Iterator[str]:
    if flow.status is FlowStatus.HELD:
        yield "It is held until somebody decides."
    if flow.status in (FlowStatus.HELD, FlowStatus.FAILED, FlowStatus.FAILING):
        retry, skip = (pasteable(f"flows {word}", flow.id, options) for word in ("retry", "skip"))
        yield f"This tries the steps again that failed:  {retry}"
        yield f"This goes on without them:  {skip}"
    if flow.status is FlowStatus.HELD:
        yield f"This gives it up:  {pasteable('flows cancel', flow.id, options)}"
    if flow.status in (FlowStatus.FAILING, FlowStatus.CANCELLING):
        yield "Steps that wait are cancelled; those that run end by themselves."
    if flow.status is FlowStatus.CANCELLED:
        yield f"This brings it back:  {pasteable('flows retry', flow.id, options)}"


def _missing(flow: Flow, store: FullJobStore) -> str | None:
    """An erased step without which a stopped flow cannot go on; None while the flow goes on."""
    if flow.status not in (FlowStatus.FAILED, FlowStatus.CANCELLED):
        return None
    missing = missing_for_retry(store, flow.id)
    return None if missing is None else missing[0]


def _under_way(flow: Flow, store: FullJobStore, options: str) -> Iterator[str]:
    """Steps that have begun, a few by name and the rest by number, and steps that wait."""
    named: list[Job] = []
    others: list[str] = []
    waiting = flow.state.unfinished
    for status in (JobStatus.ACTIVE, JobStatus.RETRYING, JobStatus.PENDING):
        wanted = Search(flow=flow.id, statuses=(status,), is_released=True)
        number = store.count(wanted)
        found = list(store.search(wanted, min(number, MAX_NAMED - len(named))))
        named += sorted(found, key=lambda job: job.key)
        waiting -= number
        if number > len(found):
            others.append(f"{number - len(found):,} more are {status}")
    for each in named:
        if each.step is not None and each.step.signal is not None:
            yield from _signal(each, flow, store.now(), options)
        else:
            why = pasteable("why", each.id, options)
            yield f"Step {each.id} ({each.handler}) is {each.status}.  {why}"
    if waiting > 0:
        others.append(f"{waiting:,} wait for steps before them")
    if others:
        yield f"{', '.join(others)}."


# ---- as a tree ----------------------------------------------------------------------------------


def plan_tree(flow: Flow) -> Mapping[str, Any]:
    """The steps of a flow as they were planned; an empty tree if the plan cannot be read."""
    try:
        tree = msgspec.json.decode(flow.plan, type=dict[str, Any]).get("tree")
    except (ValueError, msgspec.MsgspecError):
        return {}
    return tree if isinstance(tree, dict) else {}


def tree_of(flow: Flow, steps: Sequence[Job]) -> list[str]:
    """The flow as it was written, one line for each part, with the states of its steps."""
    tree = plan_tree(flow)
    by_id = {job.id: job for job in steps}
    lines = list(_lines(tree, flow.id, by_id, 0))
    shown = set(_shown(tree, flow.id))
    others = [job for job in steps if job.id not in shown]
    return [*lines, *(_line(0, job.handler, [job], job.id) for job in others)]


def _lines(
    tree: Mapping[str, Any], flow_id: str, jobs: Mapping[str, Job], depth: int
) -> Iterator[str]:
    if "step" in tree:
        ids = _ids(tree, flow_id)
        title = tree["handler"] if len(ids) == 1 else f"{len(ids)} x {tree['handler']}"
        place = ids[0] if len(ids) == 1 else f"{ids[0]} …"
        yield _line(depth, title, [jobs[each] for each in ids if each in jobs], place)
    elif "chain" in tree:
        yield from _parts("chain", tree["chain"], flow_id, jobs, depth)
    elif "group" in tree:
        yield from _parts("group", tree["group"], flow_id, jobs, depth)
    elif "more" in tree:
        yield f"{'  ' * depth}and {tree['more']} more"
    elif "after" in tree:
        found = [jobs[each] for each in tree["after"] if each in jobs]
        yield _line(depth, f"{len(tree['after'])} jobs before it", found, "")
        job_id = tree["then"]["id"]
        then = [jobs[job_id]] if job_id in jobs else []
        yield _line(depth, tree["then"]["handler"], then, job_id)
        return
    if "then" in tree:
        yield f"{'  ' * depth}then"
        yield from _lines(tree["then"], flow_id, jobs, depth + 1)


def _parts(
    word: str, parts: Iterable[Any], flow_id: str, jobs: Mapping[str, Job], depth: int
) -> Iterator[str]:
    yield f"{'  ' * depth}{word}"
    for each in parts:
        yield from _lines(each, flow_id, jobs, depth + 1)


def _ids(tree: Mapping[str, Any], flow_id: str) -> list[str]:
    first = tree["step"]
    return [step_id(flow_id, first + n) for n in range(tree.get("count", 1))]


def _shown(tree: Any, flow_id: str) -> Iterator[str]:
    if isinstance(tree, list):
        for each in tree:
            yield from _shown(each, flow_id)
    elif "step" in tree:
        yield from _ids(tree, flow_id)
    else:
        yield from map(str, tree.get("after", ()))
        if "id" in tree:
            yield str(tree["id"])
        for name in ("chain", "group", "then"):
            if name in tree:
                yield from _shown(tree[name], flow_id)


def _line(depth: int, title: str, jobs: Sequence[Job], place: str) -> str:
    counts: dict[str, int] = {}
    for job in jobs:
        counts[job.status.value] = counts.get(job.status.value, 0) + 1
    if len(jobs) == 1:
        how = jobs[0].status.value
    else:
        how = ", ".join(f"{number} {status}" for status, number in counts.items())
    return "  ".join(part for part in (f"{'  ' * depth}{title}", how, place) if part)
