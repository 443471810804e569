"""A job, from its record in the store; what holds it, from the store of provider calls."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

from ergon_framework.app.explaining.answers import Asked, Explanation
from ergon_framework.app.explaining.call import lanes_holding
from ergon_framework.app.explaining.told import entries_told
from ergon_framework.app.jobs import setup_of
from ergon_framework.app.settings.stores import has_jobs, place_of
from ergon_framework.core.failure import Kind
from ergon_framework.errors import JobNotFoundError
from ergon_framework.jobs.client import JobClient
from ergon_framework.jobs.stores.opening import open_store
from ergon_framework.jobs.why import explain_job
from ergon_framework.ports.jobstore import Job


def explain_job_id(asked: Asked) -> Iterator[Explanation]:
    """The job of this id, or what the journal still knows of it."""
    setup = setup_of(asked.settings, asked.store)
    if not setup.url or setup.url.lower().startswith("memory:"):
        return
    asked.looked.append(f"the jobs in {place_of(setup.url)}")
    if not has_jobs(setup.url):
        return
    with (
        closing(open_store(setup.url, read_only=True)) as store,
        JobClient(settings=setup.jobs, store=store) as client,
    ):
        try:
            found = client.find(asked.unit)
        except JobNotFoundError:
            yield from _gone(asked)
            return
        queue = next((each for each in store.queues() if each.name == found.queue), None)
        why = explain_job(found, queue, store.workers(), store.now(), client.settings)
        gates = list(_gates(asked, found, store.now()))
        yield Explanation("job", found.id, found.status.value, [why[0], *gates, *why[1:]])


def _gates(asked: Asked, job: Job, now: float) -> Iterator[str]:
    """Which gate of which provider holds a parked job, and until when."""
    failure = job.last_error
    if job.status.is_final or failure is None or failure.kind is not Kind.HELD or job.run_at <= now:
        return
    names = {job.id, job.correlation_id or job.id}
    yield from lanes_holding(asked, names)


def _gone(asked: Asked) -> Iterator[Explanation]:
    told = [each for each in asked.entries if each.name.startswith(("job.", "lease."))]
    if told:
        lead = "It is not in the store any more; this is what was told about it."
        yield Explanation("job", asked.unit, "gone", [lead, *entries_told(told)])
