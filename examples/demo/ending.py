"""The end of the demo: what happened on the way, and what one may ask about it."""

from __future__ import annotations

import sys
from pathlib import Path

from rich.console import Console

from ergon_framework.jobs import Job, JobStatus

from .gauges import events
from .shipments import NO_CITY, Shipment
from .site import Site
from .sums import Ledger


def show_way(console: Console, ledger: Ledger, site: Site) -> None:
    """What the jobs and their histories tell, before it is added up."""
    twice = sum(Shipment(number + 1).is_told_twice for number in range(len(ledger.packed)))
    labels = [job for job in ledger.jobs if job.executor == "labels"]
    console.print()
    console.print("On the way:")
    for count, what in (
        (len(ledger.jobs) - len(labels), "jobs for the Python executor"),
        (len(labels), f"jobs for {'the Node executor' if site.has_node else 'labels, in Python'}"),
        (twice, "facts that the plant told twice, and that count once"),
        (
            len(_with(ledger, "lost")),
            "jobs whose process was killed, and that ran again",
        ),
        (
            len(_with(ledger, "held")),
            "jobs parked while the circuit was open, without a charge",
        ),
    ):
        console.print(f"{count:6} {what}")
    console.print()


def show_hints(console: Console, ledger: Ledger, site: Site, kept: Path | None) -> None:
    """Questions with real ids; two of them are asked here and now."""
    dead = Shipment(NO_CITY).id
    parked = _first(_with(ledger, "held"), without="lost")
    asked = [f"why {dead}", f"trace {parked}"]
    for words in asked:
        console.print()
        console.print(f"$ ergon {words}")
        console.print(site.run(*words.split()).rstrip())
    killed = _first(_with(ledger, "lost"), without="held")
    console.print()
    if kept is None:
        console.print("make demo ARGS='--keep DIR' leaves all of it in DIR; then ask on:")
    else:
        console.print(f"Everything is in {kept}. Ask on:")
    place = Path("DIR") if kept is None else kept
    for words, what in (
        (f"why {parked}", "a job that was parked"),
        (f"why {killed}", "a job whose process was killed"),
        ("dlq list", "what was given up"),
        ("tail --no-follow --name circuit", "when the circuit opened and closed"),
        ("serve", "all of it in a browser"),
    ):
        console.print(f"  {_program()} {words} --config {place / 'ergon.toml'}  # {what}")


def _program() -> str:
    """How ``ergon`` is called from here."""
    found = Path(sys.executable).with_name("ergon")
    if not found.exists():
        return "ergon"
    here = Path.cwd()
    return str(found.relative_to(here) if found.is_relative_to(here) else found)


def _with(ledger: Ledger, event: str) -> list[Job]:
    """The jobs to which this happened, the first one first."""
    return sorted((job for job in ledger.jobs if event in events(job)), key=lambda job: job.id)


def _first(jobs: list[Job], without: str) -> str:
    """One that was finished in the end, with not too much in between."""
    finished = [job for job in jobs if job.status is JobStatus.COMPLETED]
    plain = sorted(finished, key=lambda job: (without in events(job), len(job.history), job.id))
    return plain[0].id if plain else ""
