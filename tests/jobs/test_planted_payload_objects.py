"""Bugs planted into what keeps payloads in an object store: the suite finds each of them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ergon_framework.app.move import payloads
from ergon_framework.errors import PayloadKeyError
from ergon_framework.jobs import (
    archiver,
    claims,
    object_sweep,
    payload_codec_store,
    payload_objects,
)
from ergon_framework.jobs.payload_codec import object_of
from ergon_framework.jobs.payload_objects import ObjectName, PayloadObjects
from ergon_framework.jobs.stores.memory import MemoryJobStore
from ergon_framework.ports.jobstore import Job
from ergon_framework.storage.objectstore.filesystem import FilesystemObjectStore
from tests.jobs import payload_object_suite as suite
from tests.jobs.payload_object_suite import Place

Plant = Callable[[pytest.MonkeyPatch], None]


def sweeps_results(patch: pytest.MonkeyPatch) -> None:
    """A sweep that looks at arguments only."""

    def objects_in(job: Job) -> Iterator[bytes]:
        name = object_of(job.args)
        if name is not None:
            yield name.digest

    patch.setattr(object_sweep, "objects_in", objects_in)


def spares_all_of_a_job(patch: pytest.MonkeyPatch) -> None:
    """A sweep that asks for the job, and not whether its row names the object."""

    def unnamed(store: Any, owners: Any) -> set[bytes]:
        return {digest for digest, job_id in owners.items() if store.find(job_id) is None}

    patch.setattr(object_sweep, "unnamed", unnamed)


def takes_every_store_for_its_own(patch: pytest.MonkeyPatch) -> None:
    """Objects that do not say of which store their jobs are."""
    patch.setattr(payload_objects, "store_tag", lambda _store: "store")


def sweeps_the_young(patch: pytest.MonkeyPatch) -> None:
    """A sweep that does not ask how old an object is."""
    patch.setattr(FilesystemObjectStore, "put_before", lambda self, _at: self.digests())


def writes_the_row_first(patch: pytest.MonkeyPatch) -> None:
    """A name is given out for what is not there yet."""

    def write(_self: PayloadObjects, content: bytes) -> ObjectName:
        return ObjectName(hashlib.sha256(content).digest(), len(content))

    patch.setattr(PayloadObjects, "write", write)


def lends_objects_to_extended_jobs(patch: pytest.MonkeyPatch) -> None:
    """Arguments go out although another job will have them."""

    class Nothing:
        EXTEND = object()

    patch.setattr(payload_codec_store, "OnDuplicate", Nothing)


def keeps_objects_of_duplicates(patch: pytest.MonkeyPatch) -> None:
    """What was written for a job that was not stored is left to the sweep."""
    patch.setattr(payload_codec_store, "remove_objects", lambda _jobs, _codec: None)


def fires_into_the_object_store(patch: pytest.MonkeyPatch) -> None:
    """The thread that renews leases writes the arguments of schedules there."""
    patch.setattr(payload_codec_store, "encoded_in_rows", payload_codec_store.encoded_jobs)


def archives_names(patch: pytest.MonkeyPatch) -> None:
    """The archive gets the row as it is."""
    patch.setattr(archiver, "inlined_job", lambda job, _codec, _lost: job)


def archives_without_what_is_lost(patch: pytest.MonkeyPatch) -> None:
    """A job without its payload is archived as if nothing was missing."""
    patch.setattr(archiver, "_refuse_lost", payload_codec_store.log_lost)


def copies_names(patch: pytest.MonkeyPatch) -> None:
    """So does whoever moves or exports."""
    patch.setattr(payloads, "inlined_job", lambda job, _codec: job)


def gives_up_on_a_missing_object(patch: pytest.MonkeyPatch) -> None:
    """A job whose object cannot be had is a dead letter."""
    patch.setattr(claims, "PayloadObjectError", PayloadKeyError)


def trusts_the_disk(patch: pytest.MonkeyPatch) -> None:
    """What is read is not compared with its digest."""

    class Trusting:  # noqa: PLW1641 - nobody asks for its hash
        def __init__(self, content: bytes = b"") -> None:
            self._real = hashlib.sha256(content)

        def __eq__(self, _other: object) -> bool:
            return True

        def digest(self) -> Trusting:
            return self

        def hexdigest(self) -> str:
            return self._real.hexdigest()

    class Module:
        sha256 = Trusting

    patch.setattr(payload_objects, "hashlib", Module)


def fetches_results_of_any_size(patch: pytest.MonkeyPatch) -> None:
    """Sizes are looked at when everything is in memory."""
    patch.setattr(payload_codec_store, "object_of", lambda _payload: None)


def looks_once(patch: pytest.MonkeyPatch) -> None:
    """A sweep that believes the clock of the machine at its first look."""
    real = object_sweep.ObjectSweep

    def hasty(*given: Any, **options: Any) -> object_sweep.ObjectSweep:
        return real(*given, **options | {"interval": 0.0})

    patch.setattr(object_sweep, "ObjectSweep", hasty)


PLANTED: list[tuple[Plant, Callable[[Place], None]]] = [
    (sweeps_results, suite.a_sweep_removes_what_no_row_names),
    (spares_all_of_a_job, suite.a_late_result_does_not_touch_the_first),
    (spares_all_of_a_job, suite.erasing_lets_a_sweep_remove_the_object),
    (takes_every_store_for_its_own, suite.a_sweep_spares_other_stores),
    (sweeps_the_young, suite.a_sweep_spares_what_is_young),
    (writes_the_row_first, suite.an_object_is_there_before_its_row),
    (lends_objects_to_extended_jobs, suite.an_extended_job_keeps_its_arguments),
    (keeps_objects_of_duplicates, suite.duplicates_leave_no_object),
    (fires_into_the_object_store, suite.a_fire_needs_no_object_store),
    (archives_names, suite.the_archive_has_whole_jobs),
    (archives_names, suite.an_archive_waits_for_the_object_store),
    (archives_without_what_is_lost, suite.an_archive_holds_what_is_lost),
    (copies_names, suite.a_copy_has_whole_jobs),
    (copies_names, suite.a_copy_without_the_setting_is_refused),
    (gives_up_on_a_missing_object, suite.an_object_may_come_back),
    (gives_up_on_a_missing_object, suite.whoever_lacks_the_setting_holds_the_job),
    (trusts_the_disk, suite.damage_is_a_dead_letter),
    (trusts_the_disk, suite.a_lost_result_is_named_to_the_next_step),
    (fetches_results_of_any_size, suite.results_that_are_too_large_are_not_fetched),
    (looks_once, suite.a_clock_that_jumps_costs_no_object),
]


@pytest.mark.req("JOBS:store")
@pytest.mark.parametrize(
    ("plant", "check"), PLANTED, ids=[f"{p.__name__}-{c.__name__}" for p, c in PLANTED]
)
def test_a_planted_bug_is_rejected(
    plant: Plant, check: Callable[[Place], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The check passes without the bug, see the suite; with it, it does not."""
    plant(monkeypatch)
    with pytest.raises((Exception, pytest.fail.Exception)):
        check(Place(MemoryJobStore(), tmp_path))
