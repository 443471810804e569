"""What became of a job or of a transaction."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from ergon_framework.app.explain.call import lanes_holding
from ergon_framework.app.explain.explanation import Explanation, Question, sentences
from ergon_framework.app.explain.fact import explain_fact
from ergon_framework.app.jobs import JobSetup, setup_of
from ergon_framework.app.settings.stores import has_jobs, place_of
from ergon_framework.core.failure import Kind
from ergon_framework.core.rfc3339 import format_rfc3339
from ergon_framework.core.text import duration, failure_text, one_sentence
from ergon_framework.errors import ErgonError, JobNotFoundError, TransactionException
from ergon_framework.jobs.client import JobClient
from ergon_framework.jobs.flow_why import explain_flow, what_a_step_waits_for
from ergon_framework.jobs.store_urls import open_store
from ergon_framework.jobs.views import executor_of
from ergon_framework.jobs.why import Starters, explain_job, token_of
from ergon_framework.ports.jobstore import FlowStore, Job
from ergon_framework.ports.journal import JournalEntry
from ergon_framework.ports.notice import CATALOGUE
from ergon_framework.storage.urls import file_of


def explain_job_id(asked: Question) -> Iterator[Explanation]:
    """The job of this id, or what the journal still knows of it."""
    setup = setup_of(asked.settings, asked.store)
    if not setup.url or setup.url.lower().startswith("memory:"):
        return
    place = f"the jobs in {place_of(setup.url)}"
    if not has_jobs(setup.url):
        asked.looked.append(f"{place}, where there are none yet")
        return
    with (
        closing(open_store(setup.url, read_only=True)) as store,
        JobClient(settings=setup.jobs, store=store) as client,
    ):
        asked.looked.append(place)
        try:
            found = client.find(asked.unit)
        except JobNotFoundError:
            archived = list(_archived(asked, setup))
            yield from archived or _gone(asked)
            return
        (queue,) = store.look_at_queues([found.queue])
        options = asked.options(setup.url)
        starters = Starters(setup.executors, _script(setup.url, executor_of(found, setup.jobs)))
        step = what_a_step_waits_for(found, store, options)
        why = explain_job(
            found,
            queue,
            store.workers(),
            store.now(),
            client.settings,
            options,
            starters,
            step,
            token_of(found, store),
        )
        gates = list(_gates(asked, found, store.now()))
        yield Explanation("job", found.id, found.status.value, [why[0], *gates, *why[1:]])


def explain_flow_id(asked: Question) -> Iterator[Explanation]:
    """The flow of this id."""
    setup = setup_of(asked.settings, asked.store)
    is_kept = setup.url and not setup.url.lower().startswith("memory:") and has_jobs(setup.url)
    if not is_kept:
        return
    with closing(open_store(setup.url, read_only=True)) as store:
        flows: FlowStore | None = getattr(store, "flows", None)
        found = None if flows is None else flows.find(asked.unit)
        if found is not None:
            why = explain_flow(found, store, asked.options(setup.url))
            yield Explanation("flow", found.id, found.status.value, why)


def _script(url: str, name: str) -> Path | None:
    """The script of this name beside its store, where most are; others are somewhere unknown."""
    file = file_of(url)
    if file is None or not name or Path(name).name != name:
        return None
    script = file.absolute().parent / f"{name}.py"
    return script if script.is_file() else None


def _gates(asked: Question, job: Job, now: float) -> Iterator[str]:
    """Which gate of which provider holds a parked job, and until when."""
    failure = job.last_error
    if job.status.is_final or failure is None or failure.kind is not Kind.HELD or job.run_at <= now:
        return
    names = {job.id, job.correlation_id or job.id}
    yield from lanes_holding(asked, names)


def _archived(asked: Question, setup: JobSetup) -> Iterator[Explanation]:
    """What the archive has of a job that retention has deleted."""
    if setup.jobs.archive is None:
        return
    from ergon_framework.jobs.archive_files import JobArchive  # few have one

    archive = JobArchive(Path(setup.jobs.archive.folder))
    asked.looked.append(f"the archive in {archive.path}")
    found = archive.find(asked.unit)
    if found is None or found.kind != "job":
        return
    job = found.job()
    lead = f"It was archived at {found.archived_at} and deleted from the store: {found.file}."
    why = explain_job(job, None, (), job.finished_at or job.created_at, setup.jobs)
    yield Explanation("job", job.id, job.status.value, [lead, *why])


def _gone(asked: Question) -> Iterator[Explanation]:
    entries = [each for each in asked.entries if each.name.startswith(("job.", "lease."))]
    if entries:
        lead = "It is not in the store any more; this is what was told about it."
        yield Explanation("job", asked.unit, "gone", [lead, *sentences(entries)])


_ENDS = {
    "succeeded": "It succeeded{where}",
    "failed": "It failed{where}",
    "timed_out": "It ran out of time{where}",
    "aborted": "It was cut off{where} when its call was stopped, and was handed back without an"
    " outcome",
    "discarded": "It was discarded{where} by its hook, which counts as done",
    "parked": "It was parked{where}, since a gate was closed",
}
_FINAL = frozenset({"succeeded", "discarded", "failed", "timed_out", "duplicate"})
_UNSEEN = (
    "What came then was not told here: a success in another process is in the journal only with"
    " journal_all = true under [telemetry]."
)
_OVER = {("job", "completed"): "completed", ("fact", "confirmed"): "confirmed by all who read it"}


def explain_transaction(asked: Question) -> Iterator[Explanation]:
    """What the journal has of a transaction with this id."""
    entries = [each for each in asked.entries if _is_of_engine(each)]
    if not entries:
        return
    status, last = status_of(entries), entries[-1]
    why = list(_why(entries))
    if status != "succeeded":
        why += _elsewhere(asked)
    if status not in _FINAL:
        why.append(_UNSEEN)
    why += sentences(_once_each(entries), _phrase)
    as_of = None if status in _FINAL else format_rfc3339(last.at)
    yield Explanation("transaction", asked.unit, status, why, as_of)


def _elsewhere(asked: Question) -> Iterator[str]:
    """Whether the job or fact that it may have come from is done with."""
    for explainer in (explain_job_id, explain_fact):
        with suppress(ErgonError):  # told where that kind is explained
            for each in explainer(asked):
                over = _OVER.get((each.kind, each.status))
                if over is not None:
                    text = f"The {each.kind} of this id is {over}"
                    yield f"{text}: if it came from there, it is over."


def status_of(entries: Sequence[JournalEntry]) -> str:
    """The status by its last entry in the journal."""
    last = entries[-1]
    if last.name == "transaction.ended":
        return str(last.fields.get("ending", "ended"))
    return {
        "retry.scheduled": "retrying",
        "transaction.stranded": "stranded",
        "transaction.duplicate": "duplicate",
        "settlement.failed": "unsettled",
    }.get(last.name, "running")


def _once_each(entries: Sequence[JournalEntry]) -> list[JournalEntry]:
    """The entries without failed attempts whose retry has an entry of its own."""
    again = {_which(each) for each in entries if each.name == "retry.scheduled"}
    return [each for each in entries if each.name != "attempt.ended" or _which(each) not in again]


def _which(entry: JournalEntry) -> tuple[str, object, object]:
    return entry.source, entry.fields.get("phase"), entry.fields.get("attempt")


def _phrase(entry: JournalEntry) -> str:
    fields = entry.fields
    failure = fields.get("failure") or {}
    because = f" ({_cause(failure)})" if failure else ""
    attempt = f"attempt {fields.get('attempt')} of {fields.get('phase')} failed{because}"
    if entry.name == "attempt.ended":
        held = f"{fields.get('phase')} was held by a gate{because}"
        return held if failure.get("kind") == "held" else attempt
    if entry.name == "retry.scheduled":
        return f"{attempt}; the next was due {duration(float(fields.get('delay') or 0.0))} later"
    if entry.name == "transaction.ended":
        return f"it ended as {str(fields.get('ending')).replace('_', ' ')}"
    return ""


def _is_of_engine(entry: JournalEntry) -> bool:
    known = CATALOGUE.get(entry.name)
    return known is not None and known.part == "engine"


def _why(entries: Sequence[JournalEntry]) -> Iterator[str]:
    last = entries[-1]
    task = next((each.fields["task"] for each in entries if each.fields.get("task")), "")
    where = f" in task {task}" if task else ""
    failure = last.fields.get("failure") or {}
    because = f": {_cause(failure)}" if failure else ""
    retries = sum(each.name == "retry.scheduled" for each in entries)
    if last.name == "transaction.ended":
        end = _ENDS.get(str(last.fields.get("ending")), "It ended{where}")
        yield f"{end.format(where=where)}{because}."
        if last.fields.get("ending") == "parked":
            again = f"its source was to bring it again{_later(failure)}"
            yield f"Being held by a gate counts as no attempt; {again}."
        if retries:
            yield f"It was tried again {retries} {'time' if retries == 1 else 'times'} before."
    elif last.name == "retry.scheduled":
        delay = duration(float(last.fields.get("delay") or 0.0))
        phase = last.fields.get("phase", "its hook")
        yield f"Another attempt of {phase}{where} was to follow {delay} later{because}."
    else:
        yield f"It was last heard of{where}; it has no outcome that was told."


def _cause(failure: Mapping[str, Any]) -> str:
    """Why it failed. The code that a TransactionException has by default says nothing."""
    code, message = failure["code"], failure.get("message")
    if code == TransactionException.code and message:
        return one_sentence(message)
    return failure_text(code, message)


def _later(failure: Mapping[str, Any]) -> str:
    seconds = failure.get("retry_after")
    return "" if seconds is None else f" {duration(float(seconds))} later"
