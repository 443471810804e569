"""Explains why a job waits, was retried, died or ran twice, in sentences made from what is
recorded.

A pure function: its caller has read the job, its queue and the workers from the store.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ergon_framework.core.failure import Failure, Kind
from ergon_framework.core.job import (
    CANCELLED_RUNNING,
    DISCARDED,
    EDITED,
    HANDLER_MISSING,
    REPLACED,
    WHY_ENDED,
    JobStatus,
    route,
)
from ergon_framework.core.rfc3339 import format_rfc3339
from ergon_framework.core.text import (
    counted,
    duration,
    failure_text,
    first_names,
    indented,
    one_line,
    toml_table,
)
from ergon_framework.core.unique import is_held
from ergon_framework.jobs.views import (
    SILENT_AFTER,
    entries,
    executor_of,
    last_entry_with,
    progress_of,
    progress_text,
)
from ergon_framework.ports.flow import CANCELLED_BY_FLOW
from ergon_framework.ports.jobstore import CancelRequest, Job, JobAdmin, Queue, WorkerRecord
from ergon_framework.storage.urls import pasteable

if TYPE_CHECKING:
    from ergon_framework.jobs.settings import JobsSettings

MAX_EVENTS = 10
"""How many events of a long history are listed; ``ergon jobs show`` has the rest."""


@dataclass(frozen=True, slots=True)
class Starters:
    """What an operator can start for a job that no worker takes."""

    executors: Collection[str] | None = None
    """The executors that the settings define; ``ergon worker`` runs them. None: not known."""
    script: Path | None = None
    """The script that the job names as its executor, if it was found."""


UNKNOWN = Starters()


class StepWhy(NamedTuple):
    """What is to be said about a job as a step of a flow."""

    sentences: Sequence[str] = ()
    is_stopped: bool = False  # No more steps of its flow will start.


NO_STEP = StepWhy()


def explain_job(
    job: Job,
    queue: Queue | None,
    workers: Sequence[WorkerRecord],
    now: float,
    settings: JobsSettings,
    options: str = "",
    starters: Starters = UNKNOWN,
    step: StepWhy = NO_STEP,
    token_at: float | None = None,
) -> list[str]:
    """Sentences: first the state of the job and its reason, then what led there.

    ``options`` name the store in commands. ``step`` says what a step waits for, and which flow it
    belongs to. ``token_at`` is when its limit key has a token again: see :func:`token_of`.
    """
    flow = step.sentences
    if step.is_stopped and job.status in (JobStatus.PENDING, JobStatus.RETRYING):
        return [*flow, *_past(job, options)]
    if is_bound(job):
        return [*flow, *_expiry(job), *_past(job, options)]
    start = _starting(job, starters, options, queue.pinned_version if queue is not None else None)
    seen = _Circumstances(job, queue, workers, now, settings, options, start, step, token_at)
    return [*_state(seen), *flow, *_past(job, options), *_trace(job)]


def is_bound(job: Job) -> bool:
    """Whether it waits for other steps or for a signal, and could not be claimed."""
    step = job.step
    is_waiting = job.status is JobStatus.PENDING and step is not None
    return is_waiting and step is not None and bool(step.join_id or step.signal)


class _Circumstances(NamedTuple):
    """A job, and everything that its state depends on; see :func:`explain_job`."""

    job: Job
    queue: Queue | None
    workers: Sequence[WorkerRecord]
    now: float
    settings: JobsSettings
    options: str
    start: str  # how to start a worker that would run it
    step: StepWhy
    token_at: float | None


def _state(seen: _Circumstances) -> Iterator[str]:
    job, now = seen.job, seen.now
    match job.status:
        case JobStatus.PENDING | JobStatus.RETRYING if job.run_at > now:
            yield _later(job, now, seen.settings)
        case JobStatus.PENDING | JobStatus.RETRYING:
            yield from _due(seen)
        case JobStatus.ACTIVE:
            yield from _running(job, seen.workers, now, seen.start)
        case JobStatus.COMPLETED:
            yield f"{_completed(job)}, after {counted(job.attempts, 'attempt')}."
        case JobStatus.FAILED:
            yield from _died(job)
            if not seen.step.is_stopped:  # A step of a stopped flow cannot come back alone.
                requeue = pasteable("dlq requeue", job.id, seen.options)
                yield f"This sends it back with fresh counters:  {requeue}"
        case JobStatus.CANCELLED:
            yield f"It was cancelled{_at(job.finished_at)}{_cancelled_for(job)}."
    yield from _expiry(job)
    yield from _unique(job, now)


def _expiry(job: Job) -> Iterator[str]:
    if job.expires_at is not None and not job.status.is_final:
        yield f"If it is not started before {format_rfc3339(job.expires_at)}, it expires."


def _unique(job: Job, now: float) -> Iterator[str]:
    """Which unique key it holds, and until when."""
    rule, key = job.unique, f"the unique key {job.unique_key!r}"
    if job.unique_key is None:
        return
    if rule is None:
        if not job.status.is_final:
            yield f"It holds {key} until it ends."
        return
    until = rule.until(job.created_at)
    if not is_held(job.status, rule.ended_states, until, now):
        if job.status is JobStatus.ACTIVE:
            yield f"It held {key} while it waited; another job may have it now."
        return
    if until is None:
        yield f"It holds {key} until it begins to run."
    elif job.status.is_final:
        yield f"It holds {key} until {format_rfc3339(until)}: no other job with it is added before."
    elif now < until:
        ends = " or ".join(rule.ended_states)
        yield f"It holds {key} until it ends, and if {ends}, until {format_rfc3339(until)}."
    else:
        yield f"It holds {key} until it ends."


# ---- where it stands ----


def _later(job: Job, now: float, settings: JobsSettings) -> str:
    when = f"at {format_rfc3339(job.run_at)}, in {duration(job.run_at - now)}"
    failure = job.last_error
    if failure is not None and failure.kind is Kind.HELD and job.why == failure.code:
        reason = _reason(failure)
        return f"It is held{reason}; it is looked at again {when}. No attempt was charged."
    if job.status is JobStatus.RETRYING and failure is not None:
        most = settings.rule(job.max_attempts).retry.attempts
        reason = _reason(failure)
        return f"Attempt {job.attempts} of {most} failed{reason}; the next one is due {when}."
    return f"It is scheduled for later: it is due {when}."


def _due(seen: _Circumstances) -> Iterator[str]:
    job, queue, now = seen.job, seen.queue, seen.now
    yield f"It has been due for {duration(now - job.run_at)} and waits."
    alive = [each for each in seen.workers if now - each.seen_at < SILENT_AFTER]
    version = None if queue is None else queue.pinned_version
    is_served = True
    if queue is not None and version is not None:
        yield from _pinned(queue, version, alive, seen.start, seen.options)
        alive = [each for each in alive if each.app_version == version]
        is_served = bool(alive)
    reasons = [*_held_by_queue(queue, seen.options), *_held_by_key(job, queue, now, seen.token_at)]
    if is_served:
        of_version = "" if version is None else " of that version"
        reasons += _held_by_workers(job, alive, now, seen.settings, seen.start, of_version)
    yield from reasons
    if is_served and not reasons:
        ahead = queue.counts.get(JobStatus.PENDING.value, 0) if queue is not None else 0
        are_more = " or more" if queue is not None and "pending" in queue.more else ""
        others = f"; {ahead:,}{are_more} jobs are pending in its queue" if ahead > 1 else ""
        yield f"Nothing holds it: it is run when a slot is free{others}."


def _pinned(
    queue: Queue, version: str, alive: Sequence[WorkerRecord], start: str, options: str
) -> Iterator[str]:
    """To which version a queue is pinned, and which versions live workers run."""
    text = f"Its queue {queue.name!r} is pinned to version {version!r}"
    unpin = pasteable("queues unpin", queue.name, options)
    lifted = f"This lets workers of any version take its jobs:  {unpin}"
    if not alive:
        yield f"{text}, and no worker is alive. {start}"
        yield lifted
        return
    versions: dict[str, list[str]] = {}
    for each in alive:
        versions.setdefault(each.app_version, []).append(each.id)
    told = "; ".join(
        f"{found!r}: {first_names(names)}" if found else f"without a version: {first_names(names)}"
        for found, names in sorted(versions.items())
    )
    yield f"{text}. Living workers by version: {told}."
    if version not in versions:
        yield f"None of them runs version {version!r}. {start}"
        yield lifted


def _held_by_queue(queue: Queue | None, options: str) -> Iterator[str]:
    if queue is None:
        return
    if queue.is_paused:
        resume = pasteable("queues resume", queue.name, options)
        yield f"Its queue {queue.name!r} is paused. This starts it again:  {resume}"
    active = queue.counts.get(JobStatus.ACTIVE.value, 0)
    if queue.max_active is not None and active >= queue.max_active:
        yield f"Its queue {queue.name!r} may run {queue.max_active} at once, and {active} run now."
    if queue.rate is not None:
        yield f"Its queue {queue.name!r} is limited to {queue.rate:g} jobs per second."


def token_of(job: Job, store: JobAdmin) -> float | None:
    """When the limit key that a job waits for has a token again, by the limits of its queue."""
    if not job.is_limited or job.limit_key is None:
        return None
    return store.key_wakes_at(job.queue, job.limit_key)


def _held_by_key(
    job: Job, queue: Queue | None, now: float, token_at: float | None
) -> Iterator[str]:
    if job.is_limited and job.limit_key is not None:
        yield _held_by_own_key(job, queue, now, token_at)
    if job.is_solo:
        yield (
            "It was in a process that died with several jobs in hand, so it is run alone,"
            " when a process has nothing else to do."
        )


def _held_by_own_key(job: Job, queue: Queue | None, now: float, token_at: float | None) -> str:
    """Which limit of its key holds a job back, and until when."""
    if queue is not None and queue.key_rate is not None and token_at is not None:
        return (
            f"Its queue {queue.name!r} starts {queue.key_rate:g} jobs of each limit key per second,"
            f" and {job.limit_key!r} has the next token at {format_rfc3339(max(token_at, now))}."
        )
    if queue is not None and queue.key_max_active is not None:
        most = "one job" if queue.key_max_active == 1 else f"{queue.key_max_active} jobs"
        return (
            f"Its queue {queue.name!r} runs at most {most} of each limit key at once, and as many"
            f" of {job.limit_key!r} run now."
        )
    if queue is not None and queue.key_rate is not None:
        return f"Its turn at the limit key {job.limit_key!r} comes with the next claim."
    most = "one job" if job.limit == 1 else f"{job.limit} jobs"
    return f"Only {most} with the limit key {job.limit_key!r} may run at once."


def _held_by_workers(
    job: Job,
    alive: Sequence[WorkerRecord],
    now: float,
    settings: JobsSettings,
    start: str,
    of_version: str,
) -> Iterator[str]:
    """``alive``: the live workers that may claim from its queue."""
    executor = executor_of(job, settings)
    if not alive:
        yield f"No worker is alive. {start}"
        return
    takers = [each for each in alive if each.queues is None or job.queue in each.queues]
    if not takers:
        yield f"No living worker{of_version} takes the queue {job.queue!r}."
        return
    pools = [
        (each, status)
        for each in takers
        for name, status in each.executors.items()
        if name == executor or not executor
    ]
    if not pools:
        yield f"No living worker{of_version} that takes its queue has the executor {executor!r}."
        if not any(executor in each.executors for each in alive):
            yield _waits_for(job, executor, settings)
        return
    if "#" in job.executor and not any(job.executor in each.serves for each, _ in pools):
        yield from _waits_for_handler(job, sorted({each.id for each, _ in pools}), settings)
        return
    yield from _held_by_pools([status for _, status in pools if isinstance(status, dict)], now)


def _waits_for(job: Job, executor: str, settings: JobsSettings) -> str:
    start = f"start a worker with {toml_table('executors', executor)}, or the script of this name"
    if not job.executor or settings.executor_wait is None:
        return f"It waits until one has: {start}."
    return (
        f"It waits until one has, and is dead-lettered (unknown_executor) when none had for"
        f" {duration(settings.executor_wait)}: {start}."
    )


def _waits_for_handler(job: Job, looked: Sequence[str], settings: JobsSettings) -> Iterator[str]:
    handler = route(job.executor)[1]
    yield (
        f"No worker has said that it has the handler {handler!r}. Those that have its executor"
        f" looked: {first_names(looked)}."
    )
    start = "start a worker of a version that has it"
    if settings.executor_wait is None:
        yield f"It waits until one has: {start}."
        return
    yield (
        f"It waits until one has, and is dead-lettered (handler_not_found) when none had for"
        f" {duration(settings.executor_wait)}: {start}."
    )


def _held_by_pools(pools: Sequence[dict[str, Any]], now: float) -> Iterator[str]:
    broken = [each for each in pools if each.get("failed_starts") and not each.get("slots")]
    if broken and len(broken) == len(pools):
        first = min(broken, key=lambda each: float(each.get("opens_at") or 0.0))
        reason = str(first.get("reason") or "its process does not start")
        again = max(now, float(first.get("opens_at") or 0.0))
        yield (
            f"Its executor does not start ({reason}; {counted(first['failed_starts'], 'time')}"
            f" so far) and is tried again at {format_rfc3339(again)}."
            " No attempt is charged meanwhile."
        )
    elif pools and all(each.get("slots") == 0 for each in pools):
        flying = sum(int(each.get("in_flight", 0)) for each in pools)
        if flying:
            yield f"All slots of its executor are taken: {counted(flying, 'job')} in flight."
        else:
            yield "Its executor is starting."


def _starting(job: Job, starters: Starters, options: str, version: str | None) -> str:
    """How to start a worker for it. The jobs of a script run only in that script's own worker."""
    executor = job.executor.partition("#")[0] or route(job.handler)[0]
    quoted = None if version is None else shlex.quote(version)
    if not executor and starters.executors is not None and not starters.executors:
        return (
            "No executor is defined that could run it: add [executors.NAME] with a command to"
            " ergon.toml and start ergon worker, or run a script with an App on this store."
        )
    if not executor or executor in (starters.executors or ()):
        own = "" if quoted is None else f" --version {quoted}"
        return f"This starts one:  ergon worker{own}{options}"
    if starters.script is not None:
        own = "" if quoted is None else f"ERGON_JOBS__VERSION={quoted} "
        run = f"ergon run {shlex.quote(str(starters.script))}"
        return f"This starts that of its script:  {own}{run}"
    table = toml_table("executors", executor)
    own = "" if version is None else " of that version"
    return f"Run the script that declares it, {executor!r}, or a worker with {table}{own}."


def _running(job: Job, workers: Sequence[WorkerRecord], now: float, start: str) -> Iterator[str]:
    since = "" if job.claimed_at is None else f" for {duration(now - job.claimed_at)}"
    yield f"It runs: the worker {job.worker!r} has held it{since}."
    progress = progress_of(job, workers)
    if progress is not None:
        text = progress_text(progress) or "a sign of life"
        yield f"Its handler reported {text} at {progress['at']}."
    request = job.cancel_request
    if request is not None:
        yield f"{_asked(request)}; its worker ends it, unless it completes first."
    if job.lease_expires_at is not None and job.lease_expires_at < now:
        late = duration(now - job.lease_expires_at)
        yield f"That worker's lease ended {late} ago; the next worker to look takes the job over."
        if not any(now - each.seen_at < SILENT_AFTER for each in workers):
            yield f"No worker is alive to do so. {start}"


def _died(job: Job) -> Iterator[str]:
    reason = WHY_ENDED.get(job.why, job.why or "nobody recorded why")
    yield f"It is dead-lettered{_since(job.finished_at)}, because {reason}."
    if job.last_error is not None and job.why != "expired":
        failure = job.last_error
        yield f"Its last failure was {failure_text(failure.code, failure.message)}."


def _completed(job: Job) -> str:
    if job.why == DISCARDED:
        return f"Its handler discarded it{_at(job.finished_at)}: it is done, without a result"
    return f"It completed{_at(job.finished_at)}"


def _cancelled_for(job: Job) -> str:
    if job.why == REPLACED:
        return f", because a newer job with the unique key {job.unique_key!r} took its place"
    if job.why == CANCELLED_BY_FLOW:
        return ", because its flow was stopped"
    if job.why == CANCELLED_RUNNING:
        return " while it ran"
    if job.why == EDITED:
        return ", because it was sent back with other arguments"
    return f" ({job.why})" if job.why else ""


def _asked(request: CancelRequest) -> str:
    who = request.by or "Somebody"
    when = f" at {request.at}" if request.at else ""
    why = f", because: {one_line(request.reason)}" if request.reason else ""
    return f"{who} asked for its cancellation{when}{why}"


# ---- what led there ----


def _past(job: Job, options: str) -> Iterator[str]:
    events = list(entries(job))
    names = [each.get("event") for each in events]
    lost = names.count("lost")
    if lost and (job.deliveries > 1 or "requeued" in names):
        yield (
            f"It may have run more than once: {counted(lost, 'delivery')} ended without an outcome,"
            " and nobody knows how far the handler had come."
        )
    shown = events[-MAX_EVENTS:]
    if len(events) > len(shown):
        show = pasteable("jobs show", job.id, options)
        yield f"{len(events) - len(shown)} older events are left out. This shows them:  {show}"
    for event in shown:
        yield _event(event)
    if job.excused:
        yield f"{counted(job.excused, 'delivery')} did not count, being nobody's fault."


def _trace(job: Job) -> Iterator[str]:
    """Where the last failed attempt failed, line by line."""
    for name, what in _DETAIL_TITLES.items():
        entry = last_entry_with(job, name)
        if entry is not None:
            yield what.format(attempt=entry.get("attempt", "?"))
            yield from indented(str(entry[name])).split("\n")


_DETAIL_TITLES = {
    "traceback": "Attempt {attempt} failed here:",
    "output": "The process of attempt {attempt} wrote last:",
}
_EVENTS = {
    "completed": "it completed",
    "signalled": "its signal came",
    DISCARDED: "its handler discarded it",
    "failed": "attempt {attempt} failed",
    "held": "a gate held it",
    "released": "it was given back without a charge",
    "lost": "delivery {delivery} was lost",
    "expired": "it expired",
    "unserved": "it was given up, because no worker had what it needs",
    "cancelled": "it was cancelled",
    "hurried": "somebody asked for it to run at once",
    "rescheduled": "somebody let it run at another time",
    "requeued": "somebody sent it back with fresh counters",
    EDITED: "somebody sent it back with other arguments",
}


def _event(entry: dict[str, Any]) -> str:
    word = str(entry.get("event", "something happened"))
    known = {"attempt": entry.get("attempt", "?"), "delivery": entry.get("delivery", "?")}
    text = _EVENTS.get(word, word).format(**known)
    if word == "released" and entry.get("why") == "executor_not_up":
        text += ", because its executor ended before it had read the request"
    if word == "released" and entry.get("why") == HANDLER_MISSING:
        text = "it was left to workers that have its handler"
    if word == "released" and entry.get("status") == JobStatus.FAILED:
        text = "it was given up without a charge"
    if word == "failed" and entry.get("attempt") == 0:
        text = "it was refused without an attempt"
    if entry.get("code"):
        text += f": {failure_text(entry['code'], entry.get('message'))}"
    elif entry.get("message"):
        text += f": {entry['message']}"
    if entry.get("by"):
        text += f" by {entry['by']}"
    if entry.get("became"):
        text += f" as the job {entry['became']}"
    if entry.get("reason"):
        text += f": {one_line(str(entry['reason']))}"
    if entry.get("lost_by"):
        text += f" (held by the worker {entry['lost_by']!r})"
    if entry.get("delay"):
        text += f"; due again {duration(float(entry['delay']))} later"
    return f"{entry.get('at', 'At an unknown time')}: {text}."


def _reason(failure: Failure) -> str:
    return f" ({failure_text(failure.code, failure.message)})"


def _at(instant: float | None) -> str:
    return "" if instant is None else f" at {format_rfc3339(instant)}"


def _since(instant: float | None) -> str:
    return "" if instant is None else f" since {format_rfc3339(instant)}"
