"""Checks of flows: steps wait for others, each end counts once, and failures go by the policy."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec

from ergon_framework.core.flow import CancelFlow, FlowStatus, OnFailure, RetryFlow, SkipFailed
from ergon_framework.core.job import (
    CancelRequested,
    JobStatus,
    LeaseExpired,
    RequeueRequested,
    RunRequested,
)
from ergon_framework.core.unique import OnDuplicate, UniqueRule
from ergon_framework.errors import DuplicateJobError, JobNotFoundError, JobStateError
from ergon_framework.jobs.client import JobClient
from ergon_framework.jobs.flow_client import EnqueuedFlow, flows_of
from ergon_framework.jobs.flows import FlowPlanner, plan_after
from ergon_framework.jobs.newjob import new_job
from ergon_framework.ports.flow import Flow, SignalOutcome, step_id
from ergon_framework.ports.jobstore import FlowStore, Search, Settlement
from ergon_framework.storage.conflicts import ConflictError
from ergon_framework.testing.suites.framework import Check, expect, fail, register
from ergon_framework.testing.suites.jobstore.under_test import (
    DAY,
    FAILS_FOR_GOOD,
    FAILS_ONCE,
    LEASE,
    SUCCEEDED,
    WAIT,
    JobStoreSubject,
    ids_of,
    same,
)

CHECKS: list[Check[JobStoreSubject]] = []
check = register(CHECKS)

MANY = 1_203
"""Steps that take more than two slices."""
TAKEN, UNKNOWN = SignalOutcome.TAKEN, SignalOutcome.UNKNOWN
TOO_LATE, SIGNALLED = SignalOutcome.TOO_LATE, SignalOutcome.SIGNALLED
_CANCELLED, _COMPLETED, _PENDING = JobStatus.CANCELLED, JobStatus.COMPLETED, JobStatus.PENDING


def _client(s: JobStoreSubject) -> JobClient:
    return JobClient(store=s.store)


def _flows(s: JobStoreSubject) -> FlowStore:
    return flows_of(s.store)


def _flow(s: JobStoreSubject, flow_id: str) -> Flow:
    flow = _flows(s).find(flow_id)
    return fail(f"the flow {flow_id!r} is gone") if flow is None else flow


def _chain(s: JobStoreSubject, *parts: Any, **options: Any) -> EnqueuedFlow:
    return _client(s).chain(*parts, **options).enqueue()


def _group(s: JobStoreSubject, number: int, then: Any = "last", **options: Any) -> EnqueuedFlow:
    return _client(s).group(["work"] * number, then=then, **options).enqueue()


def _ids(flow: str, *numbers: int) -> list[str]:
    return [step_id(flow, each) for each in numbers]


def _statuses(s: JobStoreSubject, flow: str) -> list[str]:
    found = {each.id: each.status.value for each in s.store.search(Search(flow=flow))}
    return [found[step_id(flow, n)] for n in range(1, len(found) + 1)]


def _settle_all(s: JobStoreSubject, seen: Any = SUCCEEDED) -> int:
    """Run everything that can be claimed, in few exchanges; how many it were."""
    done = 0
    told: list[Settlement] = []
    while True:
        applied, found = s.settle_and_claim(told, 200)
        expect(all(applied), "a report of a step was not applied")
        if not found.jobs:
            return done
        done += len(found.jobs)
        told = [s.told(job, seen, result=b"1", keep=DAY) for job in found.jobs]


# ---- waiting and counting -----------------------------------------------------------------------


@check("flows")
def chain_goes_step_by_step(s: JobStoreSubject) -> None:
    """A step is due when the one before it has completed, in the very exchange that says so."""
    flow = _chain(s, "a", "b", "c")
    for number in (1, 2, 3):
        (job,) = s.claim(5)
        same(job.id, step_id(flow, number), "the step whose turn it is")
        same(s.ids(5), [], "steps beside it")
        s.must(job, SUCCEEDED, result=b"1")
    state = _flow(s, flow).state
    same((state.status, state.completed, state.unfinished), ("completed", 3, 0), "the flow")


@check("flows")
def released_step_is_claimed_at_once(s: JobStoreSubject) -> None:
    """The exchange that settles a step brings the next one."""
    flow = _chain(s, "a", "b")
    job = s.take(step_id(flow, 1))
    _, found = s.settle_and_claim([s.told(job, SUCCEEDED)], 5)
    same(ids_of(found.jobs), _ids(flow, 2), "what came with the settlement")


@check("flows")
def waiting_step_is_pending(s: JobStoreSubject) -> None:
    """It says that it waits, is counted in its queue, and nobody can hurry it."""
    flow = _chain(s, "a", "b")
    job = s.get(step_id(flow, 2))
    same(job.status, _PENDING, "the status of a step that waits")
    expect(job.step is not None and job.step.join_id is not None, "it waits at no join")
    same([dict(each.counts) for each in s.store.queues()], [{"pending": 2}], "counts")
    expect(not s.settle(job, RunRequested()), "a step that waits was hurried")
    same(s.ids(5), _ids(flow, 1), "what can be claimed")


@check("flows")
def steps_are_found_by_their_tags(s: JobStoreSubject) -> None:
    """Also one that waits for others; none is purged under its flow, and all leave with it."""
    handler = {"handler": "a", "tags": ["x"], "metadata": {"k": "v"}}
    flow = _chain(s, handler, {**handler, "handler": "b"}, "plain")
    found = [job.id for job in s.store.search(Search(tags=("x",), metadata={"k": "v"}))]
    same(found, _ids(flow, 2, 1), "by tag")
    while jobs := s.claim(1):
        s.must(jobs[0], SUCCEEDED, keep=1.0)
    done = list(s.store.search(Search(tags=("x",))))
    same(s.store.purge(done), 0, "purged under their flow")
    s.clock.forward(2 * DAY)
    s.store.prune(100)
    same(s.store.count(Search(tags=("x",))), 0, "after their flow has gone")


@check("flows")
def last_of_a_group_starts_what_follows(s: JobStoreSubject) -> None:
    """Not before, whether they end one by one or together."""
    flow = _group(s, 4)
    jobs = s.claim(10)
    same(ids_of(jobs), _ids(flow, 1, 2, 3, 4), "the group")
    s.must(jobs[0], SUCCEEDED)
    same(s.ids(5), [], "what follows came after the first of the group")
    s.store.settle_and_claim([s.told(each, SUCCEEDED) for each in jobs[1:3]], None)
    same(s.ids(5), [], "what follows came before the last of the group")
    s.must(jobs[3], SUCCEEDED)
    same(s.ids(5), _ids(flow, 5), "what follows")


@check("flows")
def siblings_that_end_at_once_count_once_each(s: JobStoreSubject) -> None:
    """Of several threads that settle the last steps of a group, one starts what follows."""
    flow = _group(s, 24)
    told = [s.told(each, SUCCEEDED) for each in s.claim(24)]
    calls = [partial(s.store.settle_and_claim, told[n::8], None) for n in range(8)]
    answers = s.together(calls)
    same([applied for applied, _ in answers], [[True] * 3] * 8, "all applied")
    same(s.ids(5), _ids(flow, 25), "what follows")
    same(s.ids(5), [], "what follows a second time")
    same(_flow(s, flow).state.unfinished, 1, "steps left")


@check("flows")
def late_report_of_a_step_does_not_count(s: JobStoreSubject) -> None:
    """A report that comes twice, or after a rescue, opens no join."""
    flow = _group(s, 2)
    first, second = s.claim(2)
    told = s.told(first, SUCCEEDED)
    same(s.store.settle_and_claim([told], None)[0], [True], "the first report")
    s.store.settle_and_claim([told, told], None)  # a store that can tell may answer that it was
    same(s.ids(5), [], "what follows came too early")
    s.clock.forward(LEASE + 1.0)
    s.must(s.get(second.id), LeaseExpired(), if_expired=True)
    expect(not s.settle(second, SUCCEEDED), "a report after a rescue was applied")
    expect(step_id(flow, 3) not in s.ids(5), "what follows came after a rescue")
    same(_flow(s, flow).state.completed, 1, "steps that have completed")


@check("flows")
def reports_of_many_steps_count_once_each(s: JobStoreSubject) -> None:
    """In one call with many others: one that comes twice, one that fails, one that is stale."""
    flow = _group(s, 10, on_failure="continue")
    jobs = s.claim(10)
    told = [s.told(each, SUCCEEDED, is_step=True, keep=DAY) for each in jobs[:8]]
    failed = s.told(jobs[8], FAILS_FOR_GOOD, is_step=True)
    earlier = msgspec.structs.replace(jobs[9], fence=jobs[9].fence - 1)
    stale = s.told(earlier, SUCCEEDED, is_step=True, keep=DAY)
    again = msgspec.structs.replace(told[0])
    applied, _ = s.store.settle_and_claim([*told, failed, stale, again], None)
    # Of the one that came again: a store that can tell may answer that it was applied.
    same(applied[:-1], [True] * 9 + [False], "answers")
    same(s.ids(5), [], "what follows came too early")
    state = _flow(s, flow).state
    same((state.unfinished, state.completed, state.failed), (2, 8, 1), "counts")
    s.must(jobs[9], SUCCEEDED)
    same(s.ids(5), _ids(flow, 11), "what follows")


@check("flows")
def groups_follow_groups(s: JobStoreSubject) -> None:
    """Every step of the second waits for all of the first, and a nested chain for its own part."""
    client = _client(s)
    first = client.group([client.chain("a", "b"), "c"])
    flow = client.chain(first, client.group(["d", "e"])).enqueue()
    same(s.ids(9), _ids(flow, 1, 3), "the beginning")
    for number in (1, 3):
        s.must(s.get(step_id(flow, number)), SUCCEEDED)
    same(s.ids(9), _ids(flow, 2), "the rest of the nested chain")
    s.must(s.get(step_id(flow, 2)), SUCCEEDED)
    same(s.ids(9), _ids(flow, 4, 5), "the second group")


@check("flows")
def empty_group_holds_nobody_up(s: JobStoreSubject) -> None:
    """What follows a group without members starts."""
    flow = _group(s, 0)
    same(s.ids(5), _ids(flow, 1), "what follows")


@check("flows")
def delay_of_a_step_begins_with_its_release(s: JobStoreSubject) -> None:
    """However long its predecessors took."""
    flow = _chain(s, "a", {"handler": "b", "delay": 60.0})
    s.clock.forward(500.0)
    job = s.take(step_id(flow, 1))
    _, found = s.settle_and_claim([s.told(job, SUCCEEDED)], 5)
    same(found.jobs, [], "a step that was to wait a minute")
    s.clock.forward(59.0)
    same(s.ids(5), [], "the same after 59 seconds")
    s.clock.forward(1.0)
    same(s.ids(5), _ids(flow, 2), "the same after a minute")


@check("flows")
def step_is_due_though_the_clock_was_ahead_when_it_was_added(s: JobStoreSubject) -> None:
    """Or when it was brought back; one that was planned for an instant waits until then."""
    planned = {"handler": "b", "run_at": s.clock() + 60.0}
    flows = [_chain(s, "a", each) for each in ("b", "b", planned)]
    _client(s).flow(flows[1]).cancel()
    s.clock.forward(5.0)
    _client(s).flow(flows[1]).retry()
    s.clock.forward(-3600.0)
    s.store.shorten_waits()
    first = [job for job in s.claim(9) if job.id.endswith(".1")]
    for job in first:
        s.must(job, SUCCEEDED)
    due = [flow for flow in flows if s.get(step_id(flow, 2)).run_at <= s.clock()]
    same(due, flows[:2], "flows whose second step is due")
    same(s.ids(9), [step_id(each, 2) for each in flows[:2]], "what can be claimed")


@check("flows", "reopen")
def flow_survives_a_new_process(s: JobStoreSubject) -> None:
    """What waits, waits on; what was counted stays counted."""
    flow = _group(s, 2)
    s.must(s.claim(1)[0], SUCCEEDED)
    s.reopen()
    same(_flow(s, flow).state.completed, 1, "steps that have completed")
    s.must(s.claim(1)[0], SUCCEEDED)
    same(s.ids(5), _ids(flow, 3), "what follows")


@check("flows")
def flow_is_stored_whole_or_not_at_all(s: JobStoreSubject) -> None:
    """A flow one of whose ids is taken leaves nothing behind."""
    client = _client(s)
    made, steps = FlowPlanner(client.chain("a", "b")).plan(lambda handler, *_: new_job(handler))
    s.put(steps[1].id)
    try:
        _flows(s).add(made, steps)
    except DuplicateJobError:
        pass
    else:
        fail("a second job of one id was added")
    same(_flows(s).find(made.id), None, "the flow")
    same(s.store.find(steps[0].id), None, "its first step")


# ---- failures -----------------------------------------------------------------------------------


@check("flows")
def failure_cancels_what_waits(s: JobStoreSubject) -> None:
    """Steps that run end by themselves; with the last of them the flow has failed."""
    client = _client(s)
    flow = client.chain(client.group(["a", "b", "c"]), "d").enqueue()
    running, failing = s.claim(2)
    s.must(failing, FAILS_FOR_GOOD)
    same(_statuses(s, flow), ["active", "failed", "cancelled", "cancelled"], "steps")
    same(_flow(s, flow).status, FlowStatus.FAILING, "the flow while a step runs")
    s.must(running, SUCCEEDED)
    same(_flow(s, flow).status, FlowStatus.FAILED, "the flow at its end")
    same(s.ids(5), [], "what can be claimed")


@check("flows")
def step_of_a_stopped_flow_is_not_tried_again(s: JobStoreSubject) -> None:
    """An attempt that fails while its flow stops is the last one."""
    flow = _group(s, 2)
    first, second = s.claim(2)
    s.must(first, FAILS_FOR_GOOD)
    s.settle(second, FAILS_ONCE)
    same(_statuses(s, flow), ["failed", "cancelled", "cancelled"], "steps")
    same(_flow(s, flow).status, FlowStatus.FAILED, "the flow")


@check("flows")
def failure_may_be_passed_over(s: JobStoreSubject) -> None:
    """With ``continue`` what follows starts all the same, and the flow completes."""
    flow = _group(s, 2, on_failure="continue")
    first, second = s.claim(2)
    s.must(first, FAILS_FOR_GOOD)
    s.must(second, SUCCEEDED)
    s.ended(step_id(flow, 3))
    state = _flow(s, flow).state
    same((state.status, state.failed, state.completed), ("completed", 1, 2), "the flow")


@check("flows")
def held_flow_waits_for_a_decision(s: JobStoreSubject) -> None:
    """With ``hold`` other steps go on, what follows waits, and a retried step counts once."""
    flow = _group(s, 2, on_failure="hold")
    first, second = s.claim(2)
    failed = s.must(first, FAILS_FOR_GOOD)
    s.must(second, SUCCEEDED)
    same((_flow(s, flow).status, s.ids(5)), (FlowStatus.HELD, []), "the flow, what follows")
    s.must(failed, RequeueRequested())
    same(_flow(s, flow).status, FlowStatus.RUNNING, "the flow after a retry of the step")
    s.ended(step_id(flow, 1))
    s.ended(step_id(flow, 3))
    same(_flow(s, flow).status, FlowStatus.COMPLETED, "the flow at its end")


@check("flows")
def skipping_lets_a_flow_go_on(s: JobStoreSubject) -> None:
    """What follows starts without the step that failed, also in a flow that was stopped."""
    for policy in ("hold", "cancel"):
        flow = _chain(s, "a", "b", on_failure=policy)
        s.ended(step_id(flow, 1), FAILS_FOR_GOOD)
        _flows(s).apply(flow, SkipFailed())
        s.ended(step_id(flow, 2))
        state = _flow(s, flow).state
        same((state.status, state.failed), ("completed", 1), f"the flow ({policy})")


@check("flows")
def retry_brings_back_what_the_flow_cancelled(s: JobStoreSubject) -> None:
    """The failed step is due; those behind it wait as before; completed ones are not run again."""
    client = _client(s)
    flow = client.chain(client.group(["a", "b"]), "c", "d").enqueue()
    first, second = s.claim(2)
    s.must(first, SUCCEEDED)
    s.must(second, FAILS_FOR_GOOD)
    same(_flow(s, flow).status, FlowStatus.FAILED, "the flow")
    _flows(s).apply(flow, RetryFlow())
    same(_statuses(s, flow), ["completed", "pending", "pending", "pending"], "steps")
    for number in (2, 3, 4):
        s.ended(step_id(flow, number))
    state = _flow(s, flow).state
    same((state.status, state.completed, state.uncounted), ("completed", 4, 0), "the flow")


@check("flows")
def cancelled_flow_ends_with_what_runs(s: JobStoreSubject) -> None:
    """Its steps that wait are cancelled, and a retry brings them back."""
    flow = _chain(s, "a", "b", "c")
    job = s.take(step_id(flow, 1))
    _flows(s).apply(flow, CancelFlow())
    same(_statuses(s, flow), ["active", "cancelled", "cancelled"], "steps")
    s.must(job, SUCCEEDED)
    same(_flow(s, flow).status, FlowStatus.CANCELLED, "the flow at its end")
    same(s.ids(5), [], "what can be claimed")
    _flows(s).apply(flow, RetryFlow())
    s.ended(step_id(flow, 2))
    s.ended(step_id(flow, 3))
    same(_flow(s, flow).status, FlowStatus.COMPLETED, "the flow after a retry")


@check("flows")
def step_of_a_stopped_flow_does_not_come_back_alone(s: JobStoreSubject) -> None:
    """Its successors are cancelled: it would run for nothing."""
    flow = _chain(s, "a", "b")
    failed = s.ended(step_id(flow, 1), FAILS_FOR_GOOD)
    expect(not s.settle(failed, RequeueRequested()), "a step of a failed flow came back")
    same(s.status(failed.id), JobStatus.FAILED, "its status")


@check("flows")
def cancelling_a_step_is_a_failure(s: JobStoreSubject) -> None:
    """One that waits may be cancelled by itself, and the policy decides."""
    flow = _chain(s, "a", "b", "c")
    s.must(s.get(step_id(flow, 2)), CancelRequested())
    same(_statuses(s, flow), ["cancelled", "cancelled", "cancelled"], "steps")
    same(_flow(s, flow).status, FlowStatus.FAILED, "the flow")


@check("flows")
def step_expires_while_it_waits(s: JobStoreSubject) -> None:
    """The expiry of a step holds also while it waits for others."""
    flow = _chain(s, "a", {"handler": "b", "expires_in": 100.0})
    s.take(step_id(flow, 1))
    s.clock.forward(101.0)
    s.store.prune(100)
    same(s.status(step_id(flow, 2)), JobStatus.FAILED, "the step")
    same(_flow(s, flow).status, FlowStatus.FAILING, "the flow")


# ---- signals ------------------------------------------------------------------------------------


@check("flows")
def signal_completes_its_step(s: JobStoreSubject) -> None:
    """It is never claimed; the value is its result, and what follows starts."""
    client = _client(s)
    flow = client.chain(client.wait_for_signal("ok"), "b").enqueue()
    same(s.ids(5), [], "what can be claimed before")
    same(_flows(s).signal(flow, "other", b"1"), UNKNOWN, "a signal that nobody waits for")
    same(_flows(s).signal(flow, "ok", b'"yes"'), TAKEN, "the signal")
    job = s.get(step_id(flow, 1))
    same((job.status, job.result), (_COMPLETED, b'"yes"'), "the step")
    same(s.ids(5), _ids(flow, 2), "what follows")
    same(_flows(s).signal(flow, "ok", b"2"), UNKNOWN, "the signal a second time")


@check("flows")
def early_signal_is_kept(s: JobStoreSubject) -> None:
    """It completes its step as soon as that is reached; a second value does not replace it."""
    client = _client(s)
    flow = client.chain("a", client.wait_for_signal("ok"), "b").enqueue()
    same(_flows(s).signal(flow, "ok", b"7"), TAKEN, "an early signal")
    same(_flows(s).signal(flow, "ok", b"8"), SIGNALLED, "another value for the same step")
    same(_flows(s).signal(flow, "ok", b"7"), TAKEN, "the same value once more")
    same(s.status(step_id(flow, 2)), _PENDING, "its step")
    s.ended(step_id(flow, 1))
    same(s.get(step_id(flow, 2)).result, b"7", "its result")
    same(s.ids(5), _ids(flow, 3), "what follows")


@check("flows")
def early_signal_outlives_the_stop_of_its_flow(s: JobStoreSubject) -> None:
    """A flow that failed or was cancelled and is retried has the signal that was sent to it."""
    client = _client(s)
    for stop in ("fail", "cancel"):
        flow = client.chain("a", client.wait_for_signal("ok"), "b").enqueue()
        same(_flows(s).signal(flow, "ok", b"7"), TAKEN, f"an early signal ({stop})")
        if stop == "fail":
            s.ended(step_id(flow, 1), FAILS_FOR_GOOD)
        else:
            _flows(s).apply(flow, CancelFlow())
        same(_statuses(s, flow)[1:], ["cancelled", "cancelled"], f"steps that waited ({stop})")
        same(dict(_flows(s).results(_ids(flow, 2))), {}, f"results of the cancelled ({stop})")
        _flows(s).apply(flow, RetryFlow())
        same(s.status(step_id(flow, 2)), _PENDING, f"its step after the retry ({stop})")
        same(_flows(s).signal(flow, "ok", b"8"), SIGNALLED, f"another value ({stop})")
        s.ended(step_id(flow, 1))
        job = s.get(step_id(flow, 2))
        same((job.status, job.result), (_COMPLETED, b"7"), f"its step when reached ({stop})")
        same(s.ids(5), _ids(flow, 3), f"what follows ({stop})")


@check("flows")
def early_signal_completes_a_step_that_comes_back(s: JobStoreSubject) -> None:
    """At once, where what the step waited for has come while it was cancelled."""
    client = _client(s)
    for decision in ("retry", "skip", "step"):
        policy = "hold" if decision == "step" else "cancel"
        gate = client.wait_for_signal("ok", timeout=60.0)
        flow = client.chain("a", gate, "b", on_failure=policy).enqueue()
        same(_flows(s).signal(flow, "ok", b"7"), TAKEN, f"an early signal ({decision})")
        first = s.take(step_id(flow, 1))
        if decision == "retry":
            _flows(s).apply(flow, CancelFlow())
        elif decision == "step":
            s.must(s.get(step_id(flow, 2)), CancelRequested())
        s.must(first, FAILS_FOR_GOOD if decision == "skip" else SUCCEEDED)
        same(s.status(step_id(flow, 2)), _CANCELLED, f"its step ({decision})")
        s.clock.forward(100.0)
        if decision == "step":
            s.must(s.get(step_id(flow, 2)), RunRequested())
        else:
            _flows(s).apply(flow, RetryFlow() if decision == "retry" else SkipFailed())
        job = s.get(step_id(flow, 2))
        same((job.status, job.result), (_COMPLETED, b"7"), f"its step after that ({decision})")
        s.ended(step_id(flow, 3))
        same(_flow(s, flow).status, FlowStatus.COMPLETED, f"the flow ({decision})")


@check("flows")
def signal_that_was_taken_is_not_asked_for_again(s: JobStoreSubject) -> None:
    """A retry runs what failed; the step that had its signal stays completed, with the value."""
    client = _client(s)
    flow = client.chain(client.wait_for_signal("ok"), "b").enqueue()
    same(_flows(s).signal(flow, "ok", b"7"), TAKEN, "the signal")
    s.ended(step_id(flow, 2), FAILS_FOR_GOOD)
    same(_flow(s, flow).status, FlowStatus.FAILED, "the flow")
    _flows(s).apply(flow, RetryFlow())
    same(_statuses(s, flow), ["completed", "pending"], "steps after the retry")
    same(dict(_flows(s).results(_ids(flow, 1))), {step_id(flow, 1): b"7"}, "the value")
    same(_flows(s).signal(flow, "ok", b"8"), UNKNOWN, "the signal a second time")
    same(s.ids(5), _ids(flow, 2), "what can be claimed")


@check("flows")
def signal_has_a_time_limit(s: JobStoreSubject) -> None:
    """It runs from when the step is reached, and then the step fails."""
    client = _client(s)
    flow = client.chain("a", client.wait_for_signal("ok", timeout=60.0)).enqueue()
    s.clock.forward(100.0)
    s.ended(step_id(flow, 1))
    s.clock.forward(59.0)
    s.store.prune(100)
    same(s.status(step_id(flow, 2)), _PENDING, "the step after 59 seconds")
    s.clock.forward(2.0)
    s.store.prune(100)
    same(s.status(step_id(flow, 2)), JobStatus.FAILED, "the step after its time")
    same(_flow(s, flow).status, FlowStatus.FAILED, "the flow")


@check("flows")
def signal_comes_too_late(s: JobStoreSubject) -> None:
    """When the time limit is over it is refused, though nobody has ended the step; that fails."""
    client = _client(s)
    for number, limit in enumerate((60.0, 0.5)):
        flow = client.chain(client.wait_for_signal("ok", timeout=limit), "b").enqueue()
        s.clock.forward(limit)
        same(_flows(s).signal(flow, "ok", b"1"), TOO_LATE, f"a late signal ({number})")
        same(_statuses(s, flow), ["failed", "cancelled"], f"the steps ({number})")
        same(_flow(s, flow).status, FlowStatus.FAILED, f"the flow ({number})")
        same(_flows(s).signal(flow, "ok", b"1"), UNKNOWN, f"a signal after the end ({number})")


@check("flows")
def claim_tells_the_first_expiry(s: JobStoreSubject) -> None:
    """A step that waits for a signal is never claimed: whoever claims learns when its time ends."""
    client = _client(s)
    same(s.settle_and_claim()[1].expires_at, None, "expires_at in an empty store")
    client.chain(client.wait_for_signal("late", timeout=90.0)).enqueue()
    flow = client.chain("a", client.wait_for_signal("ok", timeout=60.0)).enqueue()
    claimed = s.settle_and_claim((), 5)[1]
    same(claimed.expires_at, s.clock() + 90.0, "expires_at before the other step is reached")
    told = [s.told(claimed.jobs[0], SUCCEEDED)]
    same(s.settle_and_claim(told)[1].expires_at, s.clock() + 60.0, "expires_at after that")
    same(_flows(s).signal(flow, "ok", b"1"), TAKEN, "the signal")
    same(s.settle_and_claim()[1].expires_at, s.clock() + 90.0, "expires_at after the signal")


@check("flows")
def signal_is_for_one_step(s: JobStoreSubject) -> None:
    """The one that waits, or the first that will: earlier versions let two have the same name."""
    client = _client(s)
    draft = client.chain("a", client.wait_for_signal("ok"), "b", client.wait_for_signal("2"), "c")
    for is_early in (True, False):
        flow, steps = FlowPlanner(draft).plan(lambda handler, *_: new_job(handler))
        place = msgspec.structs.replace(steps[3].step or fail("no step"), signal="ok")
        steps[3] = msgspec.structs.replace(steps[3], step=place)
        _flows(s).add(flow, steps)
        if is_early:
            same(_flows(s).signal(flow.id, "ok", b"1"), TAKEN, "a signal before the first")
        s.ended(step_id(flow.id, 1))
        if not is_early:
            same(_flows(s).signal(flow.id, "ok", b"1"), TAKEN, "a signal for the first")
        s.ended(step_id(flow.id, 3))
        wanted = ["completed", "completed", "completed", "pending", "pending"]
        same(_statuses(s, flow.id), wanted, "the steps after one signal")
        same(s.ids(5), [], "what can be claimed after one signal")
        same(_flows(s).signal(flow.id, "ok", b"2"), TAKEN, "a signal for the second")
        same(s.ids(5), _ids(flow.id, 5), "what can be claimed after two signals")


# ---- jobs that are there ------------------------------------------------------------------------


@check("flows")
def job_waits_for_jobs_that_are_there(s: JobStoreSubject) -> None:
    """For one that runs, one that waits and one that has completed; each keeps its result."""
    s.put("done", "runs", "waits")
    s.ended("done", result=b"1", keep=DAY)
    running = s.take("runs")
    added = _client(s).enqueue("b", after=["done", "runs", "waits"])
    s.ended("waits", keep=DAY)
    same((s.status(added), s.ids(5)), (_PENDING, []), "the job while another runs")
    s.must(running, SUCCEEDED, keep=DAY)
    same(s.ids(5), [added], "what follows")
    same(dict(_flows(s).results(["done", "gone"])), {"done": b"1"}, "results")


@check("flows")
def failed_job_is_dealt_with_at_once(s: JobStoreSubject) -> None:
    """What waits for it is cancelled, starts or is held, by the policy."""
    wanted = {"cancel": _CANCELLED, "continue": _PENDING, "hold": _PENDING}
    for policy, status in wanted.items():
        s.put(f"bad-{policy}")
        s.ended(f"bad-{policy}", FAILS_FOR_GOOD)
        added = _client(s).enqueue("b", after=[f"bad-{policy}"], on_failure=policy)
        same(s.status(added), status, f"what waits for a failed job ({policy})")
        same(s.ids(5), [added] if policy == "continue" else [], f"what starts ({policy})")


@check("flows")
def retry_leaves_what_another_job_took_the_place_of(s: JobStoreSubject) -> None:
    """Its old arguments must not run again."""
    client, then = _client(s), new_job("then")
    key: dict[str, Any] = {"unique_key": "k", "unique": UniqueRule()}
    s.put("old", **key)
    flow, step = plan_after(then, ["old"], None, OnFailure.CANCEL)
    _flows(s).add(flow, [step])
    s.put("new", **key, on_duplicate=OnDuplicate.REPLACE)
    same(s.get("old").why, "replaced", "why it was cancelled")
    (new,) = s.claim(5)
    s.must(new, SUCCEEDED, keep=DAY)
    same(_flow(s, flow.id).status, FlowStatus.FAILED, "the flow")
    client.flow(flow.id).retry()
    same((s.status("old"), s.ids(5)), (_CANCELLED, []), "the old job after a retry")
    same(_flow(s, flow.id).status, FlowStatus.FAILED, "the flow after a retry")
    client.flow(flow.id).skip()
    same(s.ids(5), [then.id], "what follows after a skip")


@check("flows")
def edited_job_is_not_waited_for(s: JobStoreSubject) -> None:
    """It was edited since the client looked, which has to look again: another does its work now."""
    client = _client(s)
    s.put("there", "old")
    s.must(s.take("there"), SUCCEEDED, keep=DAY)
    s.ended("old", FAILS_FOR_GOOD)
    made = client.edit_and_requeue("old", [2])
    flow, step = plan_after(new_job("then"), ["there", "old"], None, OnFailure.CANCEL)
    try:
        _flows(s).add(flow, [step])
    except ConflictError:
        pass
    else:
        fail("a job waits for one that was edited")
    same((_flows(s).search((), 5), s.store.find(step.id)), ([], None), "what was stored")
    same(s.get("there").step, None, "the other job's flow")
    added = client.enqueue("then", after=["there", "old"])
    s.ended(made, SUCCEEDED)
    same(s.ids(5), [added], "what follows the job that it became")


@check("flows")
def step_that_comes_back_has_its_key_again(s: JobStoreSubject) -> None:
    """A job that holds it only while it waits, and that another job was made to wait for."""
    key: dict[str, Any] = {"unique_key": "k", "unique": UniqueRule()}
    s.put("a", **key)
    s.ended("a", FAILS_FOR_GOOD)
    added = _client(s).enqueue("b", after=["a"])
    [flow] = _flows(s).search((), 2)
    _flows(s).apply(flow.id, RetryFlow())
    same([s.status("a"), s.status(added)], [_PENDING, _PENDING], "both, after a retry")
    again = s.put("later", **key, on_duplicate=OnDuplicate.EXISTING)
    same([each.id for each in again], ["a"], "who has the key")
    s.ended("a", FAILS_FOR_GOOD)
    s.put("later", **key)
    _flows(s).apply(flow.id, RetryFlow())
    same(s.status("a"), JobStatus.FAILED, "the step while another job has its key")


@check("flows")
def unknown_job_cannot_be_waited_for(s: JobStoreSubject) -> None:
    """Nothing is added."""
    s.put("a")
    try:
        _client(s).enqueue("b", after=["a", "nobody"])
    except JobNotFoundError:
        pass
    else:
        fail("a job waits for one that is not there")
    same(s.store.count(Search()), 1, "jobs")


# ---- many, and keeping --------------------------------------------------------------------------


@check("flows")
def many_steps_are_released_and_counted(s: JobStoreSubject) -> None:
    """However many wait at one join: none is forgotten, and what follows comes once."""
    client = _client(s)
    flow = client.chain("a", client.group(["b"] * MANY, then="c")).enqueue()
    same(_settle_all(s), MANY + 2, "steps that were run")
    state = _flow(s, flow).state
    same((state.status, state.completed), ("completed", MANY + 2), "the flow")


@check("flows")
def many_steps_are_cancelled_and_retried(s: JobStoreSubject) -> None:
    """In slices, which claims and retention go on with."""
    client = _client(s)
    flow = client.chain("a", client.group(["b"] * MANY)).enqueue()
    _flows(s).apply(flow, CancelFlow())
    for _ in range(5):
        s.store.prune(100)
    state = _flow(s, flow).state
    same((state.status, state.cancelled), ("cancelled", MANY + 1), "the flow")
    _flows(s).apply(flow, RetryFlow())
    same(_settle_all(s), MANY + 1, "steps that were run after a retry")
    same(_flow(s, flow).status, FlowStatus.COMPLETED, "the flow after a retry")


@check("flows")
def step_of_a_stopping_flow_is_not_claimed(s: JobStoreSubject) -> None:
    """From the commit that stops the flow on, also where no slice has come to the step yet."""
    for stop in ("cancel", "fail", "hold"):
        flow = _group(s, MANY, on_failure="hold" if stop == "hold" else "cancel")
        first, second = s.claim(2)
        other = s.put(f"other-{stop}")[0].id
        if stop != "cancel":
            s.must(first, FAILS_FOR_GOOD)
        if stop != "fail":
            _flows(s).apply(flow, CancelFlow())
        same(s.ids(3), [other], f"what can be claimed ({stop})")
        while _flows(s).sweep(flow):
            same(s.ids(3), [], f"what can be claimed between two slices ({stop})")
        s.must(second, SUCCEEDED)
        if stop == "cancel":
            s.must(first, SUCCEEDED)
        state = _flow(s, flow).state
        wanted = FlowStatus.FAILED if stop == "fail" else FlowStatus.CANCELLED
        cancelled = MANY + 1 - 2
        same((state.status, state.cancelled), (wanted, cancelled), f"the flow ({stop})")


@check("flows")
def steps_that_wait_for_no_other_are_found(s: JobStoreSubject) -> None:
    """Among all steps of a flow, those that have been released."""
    flow = _group(s, 3, then="last")
    found = Search(flow=flow, statuses=(_PENDING,), is_released=True)
    same(sorted(ids_of(s.store.search(found))), _ids(flow, 1, 2, 3), "released steps")
    same(s.store.count(found), 3, "how many they are")
    same(s.store.count(Search(flow=flow)), 4, "all steps")


@check("flows")
def steps_are_kept_with_their_flow(s: JobStoreSubject) -> None:
    """Until it has ended, and as long as the step that asks for most; they cannot go alone."""
    flow = _chain(s, "a", "b", "c")
    first = s.ended(step_id(flow, 1), keep=10.0)
    s.clock.forward(1_000.0)
    s.store.prune(100)
    same(s.store.purge([first]), 0, "steps that were purged alone")
    s.ended(step_id(flow, 2), keep=500.0)
    s.ended(step_id(flow, 3), keep=10.0)
    s.clock.forward(499.0)
    s.store.prune(100)
    same(s.store.count(Search(flow=flow)), 3, "steps before the flow may go")
    s.clock.forward(2.0)
    s.store.prune(2)
    s.store.prune(100)
    same((_flows(s).find(flow), s.store.count(Search())), (None, 0), "what is left")


@check("flows")
def flow_without_jobs_is_kept(s: JobStoreSubject) -> None:
    """One of no steps, and one of signals alone: for as long as results are."""
    empty = _group(s, 0, then=None)
    signal = _client(s).wait_for_signal("approved")
    approval = _client(s).chain(signal).enqueue()
    approval.signal("approved", "by Ada")
    s.clock.forward(DAY - WAIT)
    s.store.prune(100)
    same((empty.result(), approval.result()), ([], "by Ada"), "what they returned after a day")
    s.clock.forward(2 * WAIT)
    s.store.prune(100)
    s.store.prune(100)
    same((_flows(s).search((), 10), s.store.count(Search())), ([], 0), "what is left")


@check("flows")
def flow_is_purged_when_asked(s: JobStoreSubject) -> None:
    """One that has ended, with its steps, however long it was to be kept; and no other."""
    flow, other = _chain(s, "a"), _chain(s, "b")
    s.ended(step_id(flow, 1), keep=DAY)
    _flows(s).purge(flow)
    try:
        _flows(s).purge(other)
    except JobStateError:
        pass
    else:
        fail("a flow that has not ended was purged")
    s.store.prune(100)
    same([each.id for each in _flows(s).search((), 10)], [other], "the flows that are left")
    same(s.store.count(Search()), 1, "the steps that are left")


@check("flows")
def flows_are_found(s: JobStoreSubject) -> None:
    """By id and by state, the newest first; their joins know whom they wait for."""
    first, second = _chain(s, "a", name="one"), _chain(s, "b", "c")
    s.ended(step_id(first, 1))
    same([each.id for each in _flows(s).search((), 10)], [second, first], "all flows")
    done = _flows(s).search((FlowStatus.COMPLETED,), 10)
    same([(each.id, each.name) for each in done], [(str(first), "one")], "completed ones")
    same(_flows(s).find("nobody"), None, "a flow that is not there")
    (join, _) = _flows(s).joins(second)
    same((join.remaining, msgspec.json.decode(join.members)), (1, [1]), "the first join")
    same(s.clock() + WAIT > _flow(s, second).created_at, True, "created_at")
