"""A process that does everything with a store, and says what it was promised. It dies on the way.

Each line on standard output is written with one call, before or after a promise of the store.
"""

from __future__ import annotations

import os
import sys

from ergon_framework.jobs.store_urls import open_store
from ergon_framework.ports.jobstore import FullJobStore, LeaseRenewal, NewJob, WorkerRecord
from ergon_framework.ports.transfer import JobRecord, RecordStore, records_of
from ergon_framework.testing.suites.drivers import HandClock
from ergon_framework.testing.suites.jobstore.under_test import SUCCEEDED, JobStoreSubject, ask

ROUNDS = 6


def main(url: str, *keys: str) -> None:
    """Go through a few rounds with jobs that have such keys."""
    store = open_store(url)
    store.heartbeat(WorkerRecord(id="w", host="h", pid=1, version="1", started_at=0.0))
    [at] = [each.next_at for each in store.schedules()]
    assert at is not None
    for n in range(ROUNDS):
        add(store, n, keys)
        fire(store, at + n)
        work(store)
        store.prune(10)
        store.set_queue("q", max_active=n + 1)
        records = records_of(store)
        assert isinstance(records, RecordStore)
        records.load(records.dump(JobRecord, None, 100))
    say("end")


def add(store: FullJobStore, n: int, keys: tuple[str, ...]) -> None:
    """Add the batch of a round."""
    ids = [f"{n}-{m}" for m in range(3)]
    say("adding", *ids)
    limits = dict(zip(ids, "012", strict=True)) if "limit" in keys else {}
    unique = {each: f"u{each}" for each in ids} if "unique" in keys else {}
    store.add(
        [
            NewJob(id=i, handler="work", limit_key=limits.get(i), unique_key=unique.get(i))
            for i in ids
        ]
    )
    say("added", *ids)


def fire(store: FullJobStore, at: float) -> None:
    """Add what a schedule says."""
    if store.fire("cron", at, at + 1, [NewJob(id=f"cron-{at}", handler="work")]):
        say("fired", f"cron-{at}")


def work(store: FullJobStore) -> None:
    """Claim two jobs and settle them."""
    subject = JobStoreSubject(store, HandClock(), None, 15.0)
    jobs = store.settle_and_claim([], ask(2))[1].jobs
    say("claimed", *(job.id for job in jobs))
    store.renew([LeaseRenewal(job.key, job.id, job.fence, True) for job in jobs], 30.0)
    told = [subject.told(job, SUCCEEDED, keep=600.0, result=b"1") for job in jobs]
    say("settling", *(job.id for job in jobs))
    applied, _ = store.settle_and_claim(told, None)
    assert all(applied)
    say("settled", *(job.id for job in jobs))


def say(*words: str) -> None:
    """Write a line."""
    os.write(1, (" ".join(words) + "\n").encode())


if __name__ == "__main__":
    main(*sys.argv[1:])
