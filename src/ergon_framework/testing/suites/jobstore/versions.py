"""Checks of queues that are pinned to a version: only workers of that version claim from them."""

from __future__ import annotations

from contextlib import closing
from typing import Any

from ergon_framework.core.job import HandlerMissing, JobStatus
from ergon_framework.jobs.stores.memory import MemoryJobStore
from ergon_framework.ports.jobstore import Queue
from ergon_framework.ports.transfer import QueueRecord, records_of
from ergon_framework.testing.suites.framework import Check, register
from ergon_framework.testing.suites.jobstore.under_test import (
    FAILS_ONCE,
    SUCCEEDED,
    WAIT,
    JobStoreSubject,
    same,
)

CHECKS: list[Check[JobStoreSubject]] = []
check = register(CHECKS)


def _settings(s: JobStoreSubject, name: str) -> Queue | None:
    return next((each for each in s.store.queues() if each.name == name), None)


@check()
def pinned_queue_is_left_to_its_version(s: JobStoreSubject) -> None:
    """Workers of another version, or of none, get nothing of it; other queues are for all."""
    s.store.set_queue("one", pinned_version="2")
    s.put("a", "b", queue="one")
    s.put("c", queue="two")
    same(s.ids(9, version="1"), ["c"], "claimed by another version")
    same(s.ids(9), [], "claimed by a worker without a version")
    same(s.ids(9, queues=("one",), version="1"), [], "when asked for this queue alone")
    routed: dict[str, Any] = {"default": "", "routes": {"one": "python"}}
    same(s.ids(9, version="1", **routed), [], "when the queue has a route")
    same(s.ids(1, version="2"), ["a"], "claimed by the version")
    s.store.set_queue("one", pinned_version=None)
    same(s.ids(9, version="1"), ["b"], "when it is pinned no more")


@check()
def pin_is_kept_beside_limits(s: JobStoreSubject) -> None:
    """Both hold, and a change of one leaves the other alone; tokens that were taken stay taken."""
    s.store.set_queue("one", pinned_version="2", max_active=1)
    s.put("a", "b", "c", queue="one")
    s.store.set_queue("one", max_active=3, rate=1.0, burst=2)
    same(s.ids(9, version="1"), [], "claimed by another version")
    same(s.ids(9, version="2"), ["a", "b"], "claimed by the version")
    same(s.ids(9, version="2"), [], "claimed without tokens")
    found = _settings(s, "one")
    same(found and (found.pinned_version, found.max_active), ("2", 3), "settings")
    same(found and found.is_paused, False, "paused, after a worker of another version has asked")
    s.store.set_queue("one", is_paused=True)
    s.store.set_queue("one", is_paused=False)
    same(s.store.set_queue("one", burst=3).pinned_version, "2", "the version, after other changes")


@check()
def pin_holds_where_keys_take_turns(s: JobStoreSubject) -> None:
    """A queue that limits each of its limit keys is left to its version, too."""
    s.store.set_queue("one", pinned_version="2", key_max_active=1, key_rate=1.0)
    s.put("a", "b", queue="one", limit_key="k")
    s.put("c", queue="one", limit_key="l")
    same(s.ids(9, version="1"), [], "claimed by another version")
    same(sorted(s.ids(9, version="2")), ["a", "c"], "claimed by the version")
    found = _settings(s, "one")
    kept = found and (found.pinned_version, found.key_max_active, found.key_rate, found.is_paused)
    same(kept, ("2", 1, 1.0, False), "settings")


@check()
def pin_holds_in_the_lane_of_a_handler(s: JobStoreSubject) -> None:
    """A worker of another version does not get a job for whose handler it was waited."""
    s.put("a", handler="resize", queue="one")
    s.must(s.take("a"), HandlerMissing("", "resize"))
    s.store.set_queue("one", pinned_version="2")
    handlers = {"python": ("resize",)}
    same(s.ids(9, version="1", handlers=handlers), [], "claimed by another version")
    same(s.ids(9, version="2"), [], "claimed without the handler")
    same(s.ids(9, version="2", handlers=handlers), ["a"], "claimed by the version")


@check()
def job_that_runs_is_not_affected_by_a_pin(s: JobStoreSubject) -> None:
    """Whoever holds it settles it; when it is tried again, that is left to the version."""
    s.put("a", "b", queue="one")
    first, second = s.claim(2, version="1")
    s.store.set_queue("one", pinned_version="2")
    same(s.must(first, SUCCEEDED, keep=60.0).status, JobStatus.COMPLETED, "the end of one")
    s.must(second, FAILS_ONCE)
    s.clock.forward(WAIT)
    same(s.ids(9, version="1"), [], "tried again by the version that had it")
    same(s.ids(9, version="2"), ["b"], "tried again by the version of the queue")


@check()
def queue_of_another_version_is_not_left(s: JobStoreSubject) -> None:
    """A worker has nothing left to do there, and does not come back for it by itself."""
    s.store.set_queue("one", pinned_version="2")
    s.put("a", queue="one")
    s.put("later", queue="one", delay=900.0)
    found = s.settle_and_claim((), 9, version="1")[1]
    same((found.more, found.next_at), (False, None), "left for another version")
    found = s.settle_and_claim((), {"python": 0}, version="2")[1]
    same(found.more, True, "left for the version")


@check()
def job_that_waits_for_its_key_is_not_left(s: JobStoreSubject) -> None:
    """The same for a job of the queue that waits for its limit key."""
    s.store.set_queue("one", pinned_version="2")
    s.put("a", "b", queue="one", limit_key="k", limit=1)
    s.take("a", version="2")
    same(s.ids(9, version="2"), [], "claimed of a key that is taken")
    same(s.settle_and_claim((), 9, version="1")[1].more, False, "left for another version")
    same(s.settle_and_claim((), 9, version="2")[1].more, True, "left for the version")


@check("reopen")
def pin_survives(s: JobStoreSubject) -> None:
    """A new process finds it."""
    s.store.set_queue("one", pinned_version="2")
    s.put("a", queue="one")
    s.reopen()
    same(s.ids(9, version="1"), [], "claimed by another version")
    found = _settings(s, "one")
    same(found and found.pinned_version, "2", "the version")


@check()
def new_job_of_a_pinned_queue_is_left_alone(s: JobStoreSubject) -> None:
    """The pin may be older than the queue's first job, and outlive its last."""
    s.store.set_queue("one", pinned_version="2")
    for job_id in ("a", "b"):
        s.put(job_id, queue="one")
        same(s.ids(9, version="1"), [], f"{job_id!r}, claimed by another version")
        s.must(s.take(job_id, version="2"), SUCCEEDED, keep=60.0)


@check()
def pinned_queues_are_listed(s: JobStoreSubject) -> None:
    """Those with a pin alone, with their versions; whoever warns of missing versions reads them."""
    same(dict(s.store.pinned_queues()), {}, "of no queue")
    s.put("a", queue="plain")
    s.store.set_queue("limited", max_active=1)
    s.store.set_queue("one", pinned_version="2.0-ä")
    s.store.set_queue("two", pinned_version="1", is_paused=True)
    same(dict(s.store.pinned_queues()), {"one": "2.0-ä", "two": "1"}, "pinned")
    s.store.set_queue("one", pinned_version=None)
    same(dict(s.store.pinned_queues()), {"two": "1"}, "after one was unpinned")


@check("moving")
def pins_are_copied(s: JobStoreSubject) -> None:
    """The new store leaves a queue to the same version; where the settings go, the pin goes."""
    own = records_of(s.store)
    with closing(MemoryJobStore(s.clock)) as other:
        other.set_queue("one", pinned_version="2")
        own.load(records_of(other).dump(QueueRecord, None, 9))
        same(own.dump(QueueRecord, None, 9), records_of(other).dump(QueueRecord, None, 9), "copied")
    s.put("a", queue="one")
    same(s.ids(9, version="1"), [], "claimed by another version")
    own.discard(own.dump(QueueRecord, None, 9))
    same(dict(s.store.pinned_queues()), {}, "pinned, after the settings were discarded")
    same(s.ids(9, version="1"), ["a"], "claimed by another version then")
