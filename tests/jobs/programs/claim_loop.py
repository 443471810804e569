"""A process that claims and settles as fast as it can, and prints what it got."""

from __future__ import annotations

import sys

from ergon_framework.jobs.store_urls import open_store
from ergon_framework.ports.jobstore import Settlement
from ergon_framework.testing.suites.drivers import HandClock
from ergon_framework.testing.suites.jobstore.under_test import SUCCEEDED, JobStoreSubject, ask

if __name__ == "__main__":
    store = open_store(sys.argv[1])
    subject = JobStoreSubject(store, HandClock(), None, 15.0)
    print("ready", flush=True)
    sys.stdin.readline()
    told: list[Settlement] = []
    misses = 0
    while misses < 20:  # others may hold all that is left, or all that a queue may run
        applied, claimed = store.settle_and_claim(told, ask(7))
        assert all(applied)
        misses = 0 if claimed.jobs else misses + 1
        for job in claimed.jobs:
            print(job.id, job.deliveries)
        told = [subject.told(job, SUCCEEDED, keep=600.0) for job in claimed.jobs]
