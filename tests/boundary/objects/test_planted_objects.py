"""The behaviour suite for object stores rejects every planted bug."""

from __future__ import annotations

import pytest

from ergon_framework.ports.objectstore import ObjectStore
from ergon_framework.testing.suites.objectstore import (
    OBJECT_STORE_CHECKS,
    ObjectStoreSuiteError,
    exercise_object_store,
)
from tests.boundary.objects import planted_objects as planted

PLANTED = [
    (planted.ShowsBytesEarly, "nothing_is_visible_before_the_end"),
    (planted.KeepsTheCallersBuffer, "buffer_may_be_used_again"),
    (planted.BelievesEverything, "other_digest_is_refused"),
    (planted.KeepsTheRefused, "nothing_of_a_refused_upload_is_kept"),
    (planted.FilesUnderTheExpected, "refused_upload_harms_nothing"),
    (planted.RefusesTheSecond, "same_bytes_again_are_fine"),
    (planted.RefusesTheSecond, "same_bytes_at_once"),
    (planted.RefusesEmpty, "empty_blob_is_a_blob"),
    (planted.AbortDeletes, "abort_is_always_fine"),
    (planted.AbortsOnce, "abort_is_always_fine"),
    (planted.NeverEnds, "ended_upload_takes_nothing"),
    (planted.OneBufferForAll, "uploads_do_not_mix"),
    (planted.OneBufferForAll, "different_bytes_at_once"),
    (planted.CountsCalls, "size_counts_what_was_taken"),
    (planted.DropsTheTail, "large_blob_by_pieces"),
    (planted.GivesTooMuch, "read_gives_no_more_than_asked"),
    (planted.SeeksForwards, "download_goes_on_from_anywhere"),
    (planted.WrapsAround, "nothing_lies_behind_the_end"),
    (planted.OnePlaceForAll, "downloads_are_independent"),
    (planted.TellsWhatIsLeft, "download_knows_its_size"),
    (planted.FindsByPrefix, "digest_is_no_path"),
    (planted.VerifiesTheSize, "changed_byte_is_found"),
    (planted.VerifiesNoSize, "other_size_is_a_problem"),
    (planted.NamesNoBlob, "missing_blob_is_a_problem"),
    (planted.TrustsWhatIsThere, "putting_again_repairs"),
    (planted.RemembersTheSize, "truncated_blob_is_found"),
    (planted.NeverGoesOn, "cut_upload_goes_on"),
    (planted.KeepsWrongParts, "wrong_part_is_refused_and_forgotten"),
    (planted.ForgetsWhatItIsFor, "partial_holds_to_its_digest"),
    (planted.AbortKeepsTheRest, "aborted_partial_is_thrown_away"),
    (planted.TwoShareAFile, "two_may_send_the_same"),
    (planted.OnePartForAll, "parts_do_not_mix"),
    (planted.LeavesARest, "finished_partial_leaves_no_rest"),
    (planted.DeletesBlindly, "deleted_blob_is_gone"),
    (planted.DeletesNeighbours, "deleting_leaves_the_others"),
    (planted.ListsParts, "every_blob_is_listed_once"),
    (planted.SweepsTheYoung, "sweep_leaves_the_young"),
    (planted.SweepsNothing, "sweep_removes_what_was_left_behind"),
    (planted.SweepsTheLiving, "sweep_leaves_uploads_that_live"),
    (planted.SweepsBlobs, "sweep_leaves_blobs"),
    (planted.CopiesEverything, "copies_what_is_asked_for"),
    (planted.CopiesAndCleans, "copies_what_is_asked_for"),
    (planted.CopiesWhatItFinds, "copy_tells_what_is_missing"),
    (planted.CopiesDamage, "damage_is_not_copied"),
    (planted.ServesWhenClosed, "closed_store_refuses"),
    (planted.ClosesOnce, "closes_twice"),
]
REQUIRED = {check.name for check in OBJECT_STORE_CHECKS if check.required}


def test_an_honest_store_passes() -> None:
    """The store all bugs are planted in is itself without fault."""
    report = exercise_object_store(planted.Honest, damage=planted.damage)
    report.raise_for_failures(recommended=True)


@pytest.mark.req("BOUNDARY:objects")
@pytest.mark.parametrize(("bug", "check"), PLANTED, ids=lambda each: getattr(each, "__name__", ""))
def test_a_planted_bug_is_rejected(bug: type[planted.Honest], check: str) -> None:
    """Each bug is rejected, by the required check that is about it."""
    assert check in REQUIRED
    with pytest.raises(ObjectStoreSuiteError) as caught:
        exercise_object_store(bug, damage=planted.damage, only={check})
    assert caught.value.report.failed == (check,)


@pytest.mark.parametrize("check", ["blobs_survive", "cut_upload_goes_on_elsewhere"])
def test_a_forgetful_store_is_rejected(check: str) -> None:
    """A store that is empty when it is opened anew has not kept its word."""

    def reopen(store: ObjectStore) -> ObjectStore:
        store.close()
        return planted.Honest(lambda: 0.0)

    with pytest.raises(ObjectStoreSuiteError) as caught:
        exercise_object_store(planted.Honest, reopen=reopen, only={check})
    assert caught.value.report.failed == (check,)


def test_a_store_whose_deletions_do_not_last_is_rejected() -> None:
    """What was deleted is back when the store is opened anew."""
    made: dict[bytes, bytes] = {}

    class Remembers(planted.Honest):
        def keep(self, digest: bytes, data: bytes) -> None:
            super().keep(digest, data)
            made[digest] = data

    def reopen(store: ObjectStore) -> ObjectStore:
        store.close()
        again = planted.Honest(lambda: 0.0)
        again.blobs.update(made)
        return again

    with pytest.raises(ObjectStoreSuiteError) as caught:
        exercise_object_store(Remembers, reopen=reopen, only={"deletions_survive"})
    assert caught.value.report.failed == ("deletions_survive",)


def test_a_bug_is_rejected_among_all_checks() -> None:
    """The whole suite goes on after a failed check, and the report has them all."""
    report = exercise_object_store(planted.BelievesEverything, raises=False)
    assert {"other_digest_is_refused", "abort_is_always_fine"} <= set(report.failed)
    assert {"what_was_put_is_there", "closes_twice"} <= set(report.passed)
