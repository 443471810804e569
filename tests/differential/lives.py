"""Random lives of a pair of stores, one after another, until so many operations are done."""

from __future__ import annotations

from collections.abc import Iterator

from tests.differential.engines import Engine
from tests.differential.facts import FactTwins
from tests.differential.jobs import JobTwins
from tests.differential.places import open_facts, open_jobs
from tests.differential.twins import Twins

OPERATIONS = 1000
"""Of one life: it ends before the histories of the two grow long and every look slow."""
FORGETS_KEYS = {"postgres"}
"""Where only the process that claimed a job knows beforehand that its end frees a limit key."""


def twins(store: str, engine: Engine, seed: int) -> Twins:
    """The model and a fresh store of that name."""
    what, _, name = store.partition("-")
    place = engine.place()
    if what == "jobs":
        return JobTwins(
            store,
            seed,
            lambda clock: open_jobs(place, clock),
            forgets_keys=name in FORGETS_KEYS,
        )
    return FactTwins(store, seed, lambda clock: open_facts(place, clock), place.zone)


def live(store: str, engine: Engine, seeds: Iterator[int], wanted: int) -> int:
    """A life per seed; how many operations there were."""
    done = 0
    while done < wanted:
        pair = twins(store, engine, next(seeds))
        try:
            pair.live(min(OPERATIONS, wanted - done))
        finally:
            pair.close()
        done += pair.done
    return done
