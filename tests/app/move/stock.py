"""Stores with something of everything in them, and a look at whether two hold the same."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from ergon_framework.app.move.fencing import FencedStore
from ergon_framework.app.move.run import Asked, MoveReport, run
from ergon_framework.app.move.transfer import digest_of
from ergon_framework.app.store_location import StoreLocation
from ergon_framework.boundary.store_urls import open_fact_store
from ergon_framework.core.claim import ClaimRequest
from ergon_framework.jobs.store_urls import open_store
from ergon_framework.ports.factstore import OUTBOUND, FactStore
from ergon_framework.ports.jobstore import FullJobStore
from ergon_framework.ports.transfer import FACT_KINDS, JOB_KINDS, records_of
from ergon_framework.testing.suites.drivers import HandClock
from ergon_framework.testing.suites.factstore import records as fact_checks
from ergon_framework.testing.suites.factstore.under_test import FactStoreSubject as FactSubject
from ergon_framework.testing.suites.factstore.under_test import Ways
from ergon_framework.testing.suites.factstore.under_test import new as new_fact
from ergon_framework.testing.suites.jobstore import records as job_checks
from ergon_framework.testing.suites.jobstore.under_test import JobStoreSubject as JobSubject
from ergon_framework.testing.suites.jobstore.under_test import new as new_job
from tests import fork_server

ZONE = "plant-a"
WAIT = 60


def with_jobs(url: str, work: Callable[[JobSubject], Any] = job_checks.fill) -> str:
    """A job store in which something was done; its URL."""
    clock = HandClock()
    with closing(open_store(url, clock=clock)) as store:
        work(JobSubject(store, clock, None, WAIT))
    return url


def facts_in(folder: Path) -> str:
    """The URL of the facts in a folder."""
    return f"sqlite:///{folder}/facts.db"


def with_facts(url: str, work: Callable[[FactSubject], Any] = fact_checks.fill) -> str:
    """A fact store in which something was done; its URL."""
    clock = HandClock()
    with closing(open_fact_store(url, zone=ZONE, clock=clock)) as store:
        work(FactSubject(store, clock, Ways(), WAIT))
    return url


def add(store: FullJobStore, name: str) -> None:
    """What a producer does."""
    store.add([new_job(name)])


def claim(store: FullJobStore) -> list[str]:
    """What a worker does."""
    ask = ClaimRequest(worker="w", slots={"python": 5}, lease=30.0, default="python")
    return [job.id for job in store.settle_and_claim([], ask)[1].jobs]


def append(store: FactStore, name: str) -> None:
    """What a producer of facts does."""
    store.append(OUTBOUND, [new_fact(name)])


def moved(source: str | Path, target: str | Path, **how: Any) -> MoveReport:
    """Move, without watching."""
    return run(Asked(StoreLocation(str(source)), StoreLocation(str(target)), **how), lambda _: None)


def fenced(source: object, target: object) -> tuple[FencedStore, FencedStore]:
    """Two stores as one run of a move writes them."""
    return FencedStore(records_of(source), "source"), FencedStore(records_of(target), "target")


def copied(outcome: MoveReport) -> dict[str, int]:
    """How many of each kind were copied, those left out of which none was."""
    return {each.kind: each.copied for each in outcome.moved if each.copied}


def discarded(outcome: MoveReport) -> dict[str, int]:
    """How many of each kind were taken away, those left out of which none was."""
    return {each.kind: each.discarded for each in outcome.moved if each.discarded}


def job_sums(url: str) -> dict[str, Any]:
    """What a job store holds, by kind."""
    with closing(open_store(url, read_only=True)) as store:
        archive = records_of(store)
        return {kind.__name__: digest_of(archive, kind) for kind in JOB_KINDS}


def fact_sums(url: str) -> dict[str, Any]:
    """What a fact store holds, by kind."""
    with closing(open_fact_store(url, zone=ZONE, read_only=True)) as store:
        archive = records_of(store)
        return {kind.__name__: digest_of(archive, kind) for kind in FACT_KINDS}


def ergon(*arguments: str, failpoints: str = "") -> subprocess.CompletedProcess[str]:
    """Run the command as a process."""
    return fork_server.run(
        [sys.executable, "-m", "ergon_framework.cli", *arguments],
        env=os.environ | {"ERGON_FAILPOINTS": failpoints},
        capture_output=True,
        text=True,
        check=False,
        timeout=WAIT,
    )
