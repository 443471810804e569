"""Fact stores with one bug each: the suite must reject every one, for the right reason."""

from __future__ import annotations

import pytest

from ergon_framework.ports.factstore import FactStore
from ergon_framework.testing.suites.factstore import (
    FACT_STORE_CHECKS,
    FactStoreSuiteError,
    exercise_fact_store,
)
from ergon_framework.testing.suites.factstore.under_test import INBOX
from tests.boundary.suite import planted
from tests.boundary.suite import planted_losses as losses
from tests.boundary.suite import planted_readers as readers
from tests.boundary.suite.stores import damage_memory

PLANTED: list[tuple[type[planted.Honest], str]] = [
    (planted.CountsFromZero, "offsets_start_at_one"),
    (planted.UsesOffsetsUp, "refusals_leave_no_hole"),
    (planted.OneCounter, "logs_count_on_their_own"),
    (planted.SortsTheBatch, "batch_keeps_its_order"),
    (planted.AllOrNothing, "batch_answers_item_by_item"),
    (planted.Reformats, "bytes_are_untouched"),
    (planted.WholeSeconds, "recorded_at_is_the_stores_time"),
    (planted.ForgetsTheSource, "received_facts_lie_in_their_log"),
    (planted.AppendsWithoutALock, "threads_share_one_offset"),
    (planted.StoresDuplicates, "duplicate_answers_its_offset"),
    (planted.SwallowsConflicts, "conflict_stores_nothing"),
    (planted.OverwritesOnConflict, "conflict_stores_nothing"),
    (planted.LastEnvelopeWins, "first_envelope_stays"),
    (planted.KeyIsAString, "ids_are_told_apart"),
    (planted.IgnoresCase, "ids_are_told_apart"),
    (planted.IdsOfAllZones, "same_id_from_another_zone"),
    (planted.OneLedger, "same_id_in_another_log"),
    (planted.ShortDigests, "conflict_is_found_late_in_the_digest"),
    (planted.LedgerGoesWithThePayload, "ledger_outlives_the_payload"),
    (planted.LedgerGoesWithThePayload, "conflict_outlives_the_payload"),
    (planted.SearchesByName, "look_up_asks_outbound_first"),
    (planted.FullBeforeTheLedger, "full_log_answers_duplicates"),
    (planted.CapacityOnceABatch, "batch_fills_item_by_item"),
    (planted.TrustsTheFirstReference, "every_reference_counts"),
    (planted.IgnoresTheSize, "other_size_is_unfounded"),
    (planted.MarksTheRefused, "refused_fact_marks_nothing"),
    (planted.NeverMarks, "founded_fact_is_stored"),
    (planted.MarksOnlyTheNeeded, "unneeded_artifacts_are_marked_all_the_same"),
    (planted.MarksOnlyWhatIsThere, "names_are_marked_on_request"),
    (planted.HidesWhatIsThere, "other_digest_is_unfounded"),
    (planted.OverwritesObjects, "other_bytes_are_refused"),
    (planted.BindForgetsTheMark, "same_bytes_again_when_referenced"),
    (planted.UnbindsTheReferenced, "referenced_name_stays"),
    (planted.GivesSharedBytesAway, "shared_bytes_stay"),
    (planted.YoungOrphans, "orphans_are_old_and_alone"),
    (planted.BucketsOverlap, "names_are_listed_in_order"),
    (planted.DropsLargeFacts, "large_fact_still_goes_out"),
    (planted.PreviousOfTheLog, "each_fact_names_the_one_before"),
    (planted.PreviousOfThePage, "each_fact_names_the_one_before"),
    (planted.AlwaysThroughTheHead, "through_is_honest"),
    (planted.ThroughTheLastFact, "through_reaches_the_head"),
    (planted.ViewsIgnoreCase, "view_is_exact"),
    (planted.NoChain, "chain_depends_on_what_was_before"),
    (planted.CountsWhatIsGone, "logs_are_counted"),
    (planted.NeverFlawed, "damage_is_found"),
    (planted.AllFlawed, "sound_log_has_no_flaws"),
    (planted.LeavesDamage, "damaged_fact_is_repaired_by_a_duplicate"),
    (planted.LeavesDamage, "repaired_fact_is_given_out_on_release"),
    (planted.RepairsWithAnyEnvelope, "repaired_fact_keeps_its_envelope"),
    (planted.RepairsByConflicts, "conflict_repairs_nothing"),
    (planted.ReceivesWithoutRepair, "received_duplicate_repairs"),
    (planted.AnswersTooSoon, "answer_of_appending_soon_is_true"),
    (planted.ForgetsToAnswer, "closed_store_answers_an_append_soon"),
    (readers.TruncatesTheUnread, "unconfirmed_facts_stay"),
    (readers.WaitsForTheFastest, "slowest_consumer_counts"),
    (readers.WaitsForEverybody, "optional_consumer_does_not_count"),
    (readers.NobodyIsPermission, "nobody_is_no_permission"),
    (readers.DropsTheQuarantined, "set_aside_facts_stay"),
    (readers.SilentLoss, "loss_overrides_the_cursors"),
    (readers.EverythingIsLoss, "confirmed_facts_are_no_loss"),
    (readers.GapsAreForOperators, "consumer_is_told_of_the_gap"),
    (readers.SkipsWhatIsGone, "behind_what_is_kept_is_said"),
    (readers.ForgetsThePrevious, "previous_outlives_the_payload"),
    (readers.ReusesOffsets, "truncation_beyond_the_head"),
    (readers.AgeOfTheNewest, "age_stops_at_the_first_young_fact"),
    (readers.ConfirmsOnServing, "page_repeats_until_confirmed"),
    (readers.CursorGoesDown, "cursor_never_goes_down"),
    (readers.ConfirmsTheUnserved, "unserved_is_not_confirmed"),
    (readers.ConfirmsTheLastFactAlone, "empty_view_can_be_passed"),
    (readers.RecreatesConsumers, "same_consumer_again"),
    (readers.OtherViewIsFine, "other_view_is_refused"),
    (readers.StartsAtZero, "start_is_the_first_kept_fact"),
    (readers.LagOfTheLog, "lag_is_counted"),
    (readers.SeeksSilently, "seek_is_in_the_journal"),
    (readers.SeekKeepsTheLease, "seek_drops_the_lease"),
    (readers.SeekKeepsTheLease, "seek_is_not_undone_by_a_late_confirmation"),
    (readers.SeeksAnywhere, "seek_beyond_the_head"),
    (readers.AnybodyMayServe, "others_are_refused"),
    (readers.AnybodyMayConfirm, "others_cannot_confirm"),
    (readers.LeasesForEver, "lease_expires"),
    (readers.LeaseIsNotRenewed, "holder_renews"),
    (readers.AnybodyLetsGo, "only_the_holder_lets_go"),
    (readers.CountsLookers, "nameless_deliveries_do_not_count"),
    (readers.DeliveriesForEver, "progress_starts_the_count_anew"),
    (readers.SetsAnythingAside, "only_the_next_is_set_aside"),
    (readers.SetAsideBlocks, "set_aside_fact_makes_way"),
    (readers.ReleasesAnything, "wrong_ways_are_refused"),
    (readers.SettlesTheUnserved, "unserved_release_is_not_settled"),
    (readers.ReleasedOnce, "released_repeats_until_confirmed"),
    (readers.ReleasedSkips, "released_after_a_seek_skips_nothing"),
    (readers.ReleasedLast, "released_comes_first"),
    (readers.QuarantineOutlivesItsConsumer, "deleted_consumer_is_gone"),
    (readers.ReceivesTwice, "received_twice_is_stored_once"),
    (readers.LosesConflicts, "conflict_from_a_peer_is_set_aside"),
    (readers.LosesTheRefused, "refused_facts_are_set_aside"),
    (readers.PullBreaksTheSeal, "seal_is_sticky"),
    (readers.LateObjectsAreOrphans, "late_object_of_a_peer_is_no_orphan"),
    (readers.KeepsTheFrontier, "epoch_is_accepted"),
    (readers.EpochOpensTheSeal, "epoch_is_accepted"),
    (readers.OldestFirst, "journal_is_newest_first"),
    (readers.NeverWakes, "appends_wake"),
    (readers.WakesForNothing, "nothing_new_wakes_nobody"),
    (readers.WakesTooEarly, "woken_sees_the_facts"),
    (readers.GivesOutDamage, "page_ends_before_damage"),
    (readers.StopsAtDamage, "damaged_fact_is_passed"),
    (readers.TakesFactsWhenClosed, "closed_store_refuses"),
    (losses.NoPlaceForLosses, "loss_of_a_peer_lies_in_order"),
    (losses.LossesBehindTheFacts, "several_losses_of_a_peer"),
    (losses.OutcomesOfLosses, "outcomes_are_those_of_the_facts"),
    (losses.LossesDoNotMoveTheLink, "link_moves_with_a_loss"),
    (losses.LossesAreForOperators, "consumer_is_told_of_a_peer_loss"),
    (losses.TellsAheadOfTime, "peer_loss_comes_in_its_page"),
    (losses.TellsWithTheNextFact, "peer_loss_without_facts"),
    (losses.LossesAreInNoView, "views_are_told_of_a_peer_loss"),
    (losses.CountsLossesAsFacts, "peer_loss_is_no_fact"),
    (losses.LossIsNext, "fact_behind_a_peer_loss_is_next"),
    (losses.TellsTwice, "known_peer_loss_adds_nothing"),
    (losses.OneLossForAll, "peers_lose_on_their_own"),
    (losses.WidensWhatAPeerLost, "loss_here_is_not_that_of_a_peer"),
    (losses.LossesGoWithThePayload, "peer_loss_outlives_the_payload"),
    (losses.KeepsLossesForEver, "peer_loss_does_not_hold_retention_up"),
    (losses.LossesWakeNobody, "peer_loss_wakes"),
    (losses.LossesAreFlaws, "log_with_a_peer_loss_is_sound"),
    (losses.DamageHidesLosses, "damage_does_not_hide_a_loss"),
]
REQUIRED = {check.name for check in FACT_STORE_CHECKS if check.required}


def test_an_honest_store_passes() -> None:
    """The store all bugs are planted in is itself without fault."""
    report = exercise_fact_store(planted.Honest, corrupt=damage_memory)
    report.raise_for_failures(recommended=True)


@pytest.mark.req("BOUNDARY:store", "P6", "P9", "P12", "P15", "C2", "C9", "C11")
@pytest.mark.parametrize(("bug", "check"), PLANTED, ids=lambda each: getattr(each, "__name__", ""))
def test_a_planted_bug_is_rejected(bug: type[planted.Honest], check: str) -> None:
    """Each bug is rejected, by the required check that is about it."""
    assert check in REQUIRED
    with pytest.raises(FactStoreSuiteError) as caught:
        exercise_fact_store(bug, corrupt=damage_memory, only={check}, patience=0.5)
    assert caught.value.report.failed == (check,)


def test_a_store_that_forgets_losses_at_its_end_is_rejected() -> None:
    """What a peer lost must be told also by the next process."""

    def reopen(store: FactStore) -> FactStore:
        assert isinstance(store, planted.Honest)
        memory_log = store.memory_log(INBOX)
        memory_log.gaps = [gap for gap in memory_log.gaps if gap.source_first is None]
        return store

    for way, failed in ((lambda store: store, ()), (reopen, ("peer_losses_survive",))):
        report = exercise_fact_store(
            planted.Honest, reopen=way, only={"peer_losses_survive"}, raises=False
        )
        assert report.failed == failed


@pytest.mark.req("SCALE:move")
def test_a_store_that_an_overtaken_move_can_write_is_rejected() -> None:
    """It was stopped before it wrote, and another run has ended meanwhile."""
    check = "an_overtaken_move_writes_nothing"
    with pytest.raises(FactStoreSuiteError) as caught:
        exercise_fact_store(planted.DiscardsForAnyRun, only={check})
    assert caught.value.report.failed == (check,)


def test_a_bug_is_rejected_among_all_checks() -> None:
    """The whole suite goes on after a failed check, and the report has them all."""
    report = exercise_fact_store(readers.CursorGoesDown, raises=False)
    assert {"cursor_never_goes_down", "confirmation_below_the_cursor_stays_below"} <= set(
        report.failed
    )
    assert {"offsets_are_dense", "closes_twice"} <= set(report.passed)
