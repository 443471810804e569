"""Job stores with one realistic bug each: the suite must reject every one, for the right reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from ergon_framework.jobs.stores.sqlite import SqliteJobStore
from ergon_framework.testing.suites.jobstore import (
    JOB_STORE_CHECKS,
    JobStoreSuiteError,
    exercise_job_store,
)
from tests.jobs import planted_store_flows as flows
from tests.jobs import planted_store_keys as keys
from tests.jobs import planted_store_queues as queues
from tests.jobs import planted_store_retention as retention
from tests.jobs import planted_store_rows as on_disk
from tests.jobs import planted_store_transitions as moves
from tests.jobs import planted_store_unique as unique
from tests.jobs import planted_store_versions as versions
from tests.jobs import planted_stores as planted

PLANTED: list[tuple[type[planted.Honest], str]] = [
    (planted.AddsPartly, "add_is_all_or_nothing"),
    (planted.ForgetsTags, "keeps_every_field"),
    (planted.AnyTagWillDo, "search_by_tags"),
    (planted.TakesMetadataForTags, "search_by_metadata"),
    (planted.KeepsTagsOfTheGone, "tags_leave_with_their_job"),
    (planted.ErrorsByCodeAlone, "search_by_family_of_errors"),
    (planted.UntilIsIncluded, "search_by_time_of_creation"),
    (planted.OverwritesDuplicates, "duplicate_id_is_refused"),
    (planted.TidiesPayloads, "payload_is_untouched"),
    (planted.ForgetsTheTrace, "keeps_every_field"),
    (planted.FillsInDefaults, "unset_fields_stay_unset"),
    (planted.WholeSeconds, "created_at_is_the_stores_time"),
    (planted.IgnoresTheDelay, "delay_is_counted_from_now"),
    (planted.AddsBesideTheHolder, "held_key_answers_with_the_holder"),
    (planted.ReplacesTheRunning, "running_job_is_not_replaced"),
    (planted.IgnoresCase, "keys_are_told_apart"),
    (planted.KeyPerQueue, "key_is_held_across_queues"),
    (planted.KeyLeaksOnCancel, "key_is_freed_by_cancelling"),
    (planted.KeyFreeWhileRetrying, "key_is_held_while_retrying"),
    (planted.KeyOfTwo, "requeue_does_not_share_a_key"),
    (planted.AddsForTheMoved, "replaced_job_ends_with_the_one_in_its_place"),
    (planted.AddsForTheMoved, "step_is_not_replaced"),
    *unique.PLANTED,
    *queues.PLANTED,
    (planted.TiesById, "ties_go_by_order_of_adding"),
    (planted.OrderOfAddingOnly, "due_time_comes_before_order_of_adding"),
    (planted.LowestPriorityFirst, "higher_priority_comes_first"),
    (planted.ToTheEndOfTheLine, "released_job_keeps_its_place"),
    (planted.Starves, "no_queue_starves"),
    (planted.OneTooMany, "never_more_than_slots"),
    (planted.HeadOfLine, "slots_are_per_executor"),
    (planted.NoRoutes, "queue_has_a_route"),
    (planted.ClaimsTheUnknown, "job_waits_for_an_executor_that_nobody_has"),
    (planted.ForgetsExecutors, "executors_of_due_jobs_are_named"),
    (planted.HandsOutWhateverTheHandler, "job_without_its_handler_is_left_to_others"),
    (planted.ForgetsTheLane, "job_without_its_handler_is_left_to_others"),
    (planted.LanesHaveNoRoutes, "lane_of_a_handler_follows_the_executor_and_the_route"),
    (planted.TellsNoLanes, "claim_tells_which_handlers_are_waited_for"),
    (planted.LanesOfOthersAreMore, "job_for_a_handler_of_others_is_not_left"),
    (planted.LanesComeLast, "lane_of_a_handler_is_shared_by_priority_and_age"),
    (planted.LeavesTheLane, "job_stays_in_the_lane_of_its_handler"),
    (planted.LateReportMovesTheJob, "late_report_moves_no_job_to_a_lane"),
    (planted.ForgetsServedLanes, "handler_that_nobody_has_is_named_and_aged"),
    (planted.LanesHaveNoLimits, "lane_of_a_handler_keeps_limits"),
    (planted.StepsStayInTheirLane, "step_waits_for_its_handler"),
    (versions.IgnoresPins, "pinned_queue_is_left_to_its_version"),
    (versions.IgnoresPins, "queue_of_another_version_is_not_left"),
    (versions.IgnoresPins, "job_that_waits_for_its_key_is_not_left"),
    (versions.IgnoresPins, "new_job_of_a_pinned_queue_is_left_alone"),
    (versions.IgnoresPins, "pin_holds_where_keys_take_turns"),
    (versions.IgnoresPins, "pin_holds_in_the_lane_of_a_handler"),
    (versions.PinsForTheVersioned, "pinned_queue_is_left_to_its_version"),
    (versions.LimitsLiftThePin, "pin_is_kept_beside_limits"),
    (versions.PausesForAll, "pin_is_kept_beside_limits"),
    (versions.RefusesOtherVersions, "job_that_runs_is_not_affected_by_a_pin"),
    (versions.ListsEveryQueue, "pinned_queues_are_listed"),
    (versions.MovesNoPins, "pins_are_copied"),
    (versions.DiscardsNoPins, "pins_are_copied"),
    (planted.LosesTheUrgent, "jobs_that_wait_for_an_executor_are_found"),
    (planted.PausesNothing, "paused_queue_waits"),
    (planted.ClaimsWithoutALock, "claimers_never_share"),
    (planted.DeliversTheOutdated, "outdated_job_is_dead_lettered"),
    (planted.RoundsNextAt, "next_at_is_exact"),
    (planted.NeverMore, "more_says_that_something_due_is_left"),
    (planted.OthersAreMore, "more_is_about_own_executors"),
    (planted.LimitedIsNotMore, "more_counts_what_a_limit_holds_up"),
    (planted.PausedIsMore, "more_leaves_out_paused_queues"),
    (planted.DeliveriesNotCounted, "every_claim_counts_as_a_delivery"),
    (planted.ChargesAtTheClaim, "claiming_charges_nothing"),
    (planted.OneFence, "fence_grows"),
    (planted.WaitsFollowTheClock, "waits_heal_after_the_clock_was_set_back"),
    (planted.LeasesFollowTheClock, "lease_heals_after_the_clock_was_set_back"),
    (moves.SettlesUnfenced, "late_report_changes_nothing"),
    (moves.SettlesInAnyState, "settled_once"),
    (moves.SettlesById, "report_of_an_earlier_life_is_refused"),
    (moves.LateReportLeavesATrace, "late_report_changes_nothing"),
    (moves.RescuesTheRenewed, "rescue_takes_only_what_is_expired"),
    (moves.ClaimsBeforeItSettles, "released_job_can_be_claimed_in_the_same_call"),
    (moves.OneAnswerForAll, "each_settlement_has_its_answer"),
    (moves.NullIsNothing, "null_is_a_result"),
    (moves.RetriesAtOnce, "failure_is_tried_again_later"),
    (moves.ReleaseWipesTheError, "last_failure_is_kept"),
    (moves.ForgetsSolo, "solo_is_carried"),
    (moves.SoloForEver, "solo_is_carried"),
    (moves.NewestEntryFirst, "history_is_in_order"),
    (moves.EndlessHistory, "history_is_bounded"),
    (moves.KeepsForEver, "keep_sets_the_time_of_purging"),
    (moves.ReschedulesFromTheOldTime, "rescheduled_job_is_due_when_it_was_said"),
    (moves.RequeueKeepsCounters, "requeue_begins_anew"),
    (moves.RequeueKeepsThePurge, "requeue_begins_anew"),
    (moves.RequeueResetsTheFence, "requeue_keeps_the_fence"),
    (moves.RequeueKeepsTheExpiry, "requeued_expired_job_can_run"),
    (moves.NoQueueLimit, "queue_runs_no_more_than_its_limit"),
    (moves.RateIgnoresTime, "rate_gives_tokens_with_time"),
    (moves.SavesTokens, "rate_saves_no_more_than_its_burst"),
    (moves.KeyLimitPerQueue, "key_counts_across_queues"),
    (moves.LimitLeaksOnRelease, "key_is_freed_when_released"),
    (moves.LimitLeaksOnRescue, "key_is_freed_when_rescued"),
    (moves.LimitLeaksOnRetry, "key_is_freed_when_retrying"),
    (moves.LateReportFreesTheKey, "late_report_frees_no_key"),
    (moves.CancelledKeepsItsTurn, "cancelled_job_passes_its_turn_on"),
    (moves.KeyGoesToOneAlone, "paused_queue_does_not_keep_a_key"),
    (moves.KeyGoesToOneAlone, "queue_that_is_paused_late_does_not_keep_a_key"),
    (moves.KeyGoesToOneAlone, "queue_of_others_does_not_keep_a_key"),
    (moves.KeyGoesToOneAlone, "busy_executor_does_not_keep_a_key"),
    (moves.ResumedQueueIsForgotten, "resumed_queue_goes_on_with_its_key"),
    *keys.PLANTED,
    (moves.ChargesTwice, "renewal_charges_once"),
    (moves.ChargesAllAlike, "renewals_of_many_are_told_apart"),
    (moves.ChargesTheNext, "charge_belongs_to_one_delivery"),
    (moves.RenewsForAnybody, "stale_holder_is_told"),
    (moves.RenewsOnPaper, "renewed_job_is_not_overdue"),
    (moves.AllAreOverdue, "overdue_are_the_expired_ones"),
    (moves.ForgetsWhoAsked, "cancel_request_reaches_the_holder"),
    (moves.LastWhoAsksCounts, "first_cancel_request_stays"),
    (moves.CancelsAnyClaim, "cancel_request_belongs_to_one_claim"),
    (moves.GivesBackTheCancelled, "cancelled_job_does_not_wait_again"),
    (moves.CancelsTheCompleted, "completion_wins_over_a_cancel_request"),
    (moves.CancelsQuietly, "cancel_request_rings"),
    (moves.PagesByOffset, "filter_holds_while_jobs_move"),
    (moves.OldestFirst, "newest_come_first"),
    (moves.PurgesTheMoved, "moved_jobs_are_not_purged"),
    (moves.SweepsAll, "sweep_is_bounded"),
    (moves.SweepsNoOutdated, "sweep_ends_what_is_outdated"),
    (moves.RemembersTheDead, "worker_that_is_gone_is_not_listed"),
    (planted.ForgetsProgress, "worker_tells_again"),
    (planted.AddsProgressUp, "worker_tells_again"),
    (moves.ListsTheEnded, "what_a_worker_leaves_behind_is_kept_apart"),
    (moves.FiresTwice, "schedule_fires_once"),
    (moves.FiresThePaused, "next_schedules_are_the_earliest"),
    (moves.FiresOrFails, "schedule_skips_jobs_that_are_there"),
    (moves.NeverRings, "ring_before_the_wait_counts"),
    (moves.RingsForever, "silence_is_silent"),
    (moves.TakesJobsWhenClosed, "closed_store_refuses"),
    (moves.ClosesOnce, "closes_twice"),
    (flows.OpensOneEarly, "last_of_a_group_starts_what_follows"),
    (flows.OpensOneEarly, "groups_follow_groups"),
    (flows.CountsWithoutAFence, "late_report_of_a_step_does_not_count"),
    (flows.CountsWithoutAFence, "reports_of_many_steps_count_once_each"),
    (flows.StartsWhatFollowsTwice, "siblings_that_end_at_once_count_once_each"),
    (flows.ReleasesLater, "released_step_is_claimed_at_once"),
    (flows.LetsStepsBeHurried, "waiting_step_is_pending"),
    (flows.DelaysFromTheBeginning, "delay_of_a_step_begins_with_its_release"),
    (flows.StartsWhenItWasAdded, "step_is_due_though_the_clock_was_ahead_when_it_was_added"),
    (flows.StoresHalfAFlow, "flow_is_stored_whole_or_not_at_all"),
    (flows.AlwaysContinues, "failure_cancels_what_waits"),
    (flows.CancelsWhatRuns, "failure_cancels_what_waits"),
    (flows.HoldsNothing, "held_flow_waits_for_a_decision"),
    (flows.NeverContinues, "failure_may_be_passed_over"),
    (flows.TriesAgainInAStoppedFlow, "step_of_a_stopped_flow_is_not_tried_again"),
    (flows.SkipsOnPaper, "skipping_lets_a_flow_go_on"),
    (flows.RetriesTheFailedAlone, "retry_brings_back_what_the_flow_cancelled"),
    (flows.WaitsForTheEdited, "edited_job_is_not_waited_for"),
    (flows.RetriesOldArguments, "retry_leaves_what_another_job_took_the_place_of"),
    (flows.BringsBackSingleSteps, "step_of_a_stopped_flow_does_not_come_back_alone"),
    (flows.IgnoresCancelledSteps, "cancelling_a_step_is_a_failure"),
    (flows.StepsNeverExpire, "step_expires_while_it_waits"),
    (flows.TakesAnySignal, "signal_completes_its_step"),
    (flows.OpensEveryGate, "signal_is_for_one_step"),
    (flows.TakesTheLatestSignal, "early_signal_is_kept"),
    (flows.SignalsAreNeverLate, "signal_comes_too_late"),
    (flows.TellsNoExpiry, "claim_tells_the_first_expiry"),
    (flows.LosesEarlySignals, "early_signal_is_kept"),
    (flows.StopsWithoutSignals, "early_signal_outlives_the_stop_of_its_flow"),
    (flows.WaitsForWhatHasCome, "early_signal_completes_a_step_that_comes_back"),
    (flows.AsksForSignalsAgain, "signal_that_was_taken_is_not_asked_for_again"),
    (flows.SignalsRunOutFromTheBeginning, "signal_has_a_time_limit"),
    (flows.WaitsForTheWaitingAlone, "job_waits_for_jobs_that_are_there"),
    (flows.DoesNotLookAtFailures, "failed_job_is_dealt_with_at_once"),
    (flows.ReleasesOneSlice, "many_steps_are_released_and_counted"),
    (flows.CancelsOneSlice, "many_steps_are_cancelled_and_retried"),
    (flows.StopsWhatIsSwept, "step_of_a_stopping_flow_is_not_claimed"),
    (flows.FindsWhatWaits, "steps_that_wait_for_no_other_are_found"),
    (flows.PurgesWhatGoesOn, "flow_is_purged_when_asked"),
    (flows.KeepsFlowsAsLongAsJobsAlone, "flow_without_jobs_is_kept"),
    (flows.PurgesStepsAlone, "steps_are_kept_with_their_flow"),
    (flows.LoadsNoJoins, "flows_can_be_copied_out_and_in"),
    (flows.LoadsNoWork, "flows_can_be_copied_out_and_in"),
    (flows.LoadsNoWork, "loaded_flows_go_on"),
    (flows.LoadsResultsOfTheCompletedAlone, "loaded_step_has_the_signal_that_came_early"),
    (flows.StartsStepsThatWaited, "loaded_flows_go_on"),
    (flows.DoesNotParkJoins, "loaded_flow_can_be_retried"),
    (flows.LoadsAtTheEnd, "changed_flows_stay_where_they_stand"),
    (flows.DiscardsStepsToo, "changed_flows_stay_where_they_stand"),
    (retention.KeepsTheExpiredAsItPleases, "expired_jobs_are_kept_as_settings_say"),
    (retention.KeepsTheExpiredAsItPleases, "flows_that_stop_are_kept_as_settings_say"),
    (retention.KeepsAllQueuesAlike, "expired_jobs_are_kept_as_settings_say"),
    (retention.KeepsAllQueuesAlike, "replaced_jobs_are_kept_as_settings_say"),
    (retention.KeepsAllQueuesAlike, "jobs_cancelled_while_they_run_are_kept_as_settings_say"),
    (retention.RipeBeforeItsTime, "prunable_jobs_are_those_kept_long_enough"),
    (retention.RipeHidesTheDead, "prunable_jobs_are_those_kept_long_enough"),
    (retention.RipeWithoutResults, "prunable_jobs_are_those_kept_long_enough"),
    (retention.RipeTakesThemOut, "prunable_jobs_are_those_kept_long_enough"),
    (retention.RipeTakesAllOfThem, "prunable_jobs_come_in_slices"),
    (moves.PurgesTheMoved, "prunable_job_that_came_back_is_not_purged"),
    (retention.PrunesWhatIsToBeArchived, "prune_may_leave_what_is_to_be_archived"),
    (retention.PrunesWhatIsToBeArchived, "prune_may_leave_flows_that_are_to_be_archived"),
    (retention.RipeFlowsThatGoOn, "prunable_flows_are_those_kept_long_enough"),
    (retention.DeletesFlowsWhole, "flow_is_deleted_in_slices"),
    (retention.DeletesRetriedFlows, "flow_that_was_retried_is_not_deleted"),
    (retention.KeepsArguments, "erased_job_tells_nothing_of_its_subject"),
    (retention.KeepsKeys, "erased_job_tells_nothing_of_its_subject"),
    (retention.KeepsTags, "erased_job_tells_nothing_of_its_subject"),
    (retention.KeepsLineage, "erased_job_tells_nothing_of_its_subject"),
    (retention.KeepsMessages, "erased_job_tells_nothing_of_its_subject"),
    (retention.KeepsResults, "result_and_large_arguments_are_erased"),
    (retention.KeepsResults, "early_signal_is_erased_with_its_step"),
    (retention.ErasesWhatRuns, "only_what_has_ended_is_erased"),
]
REQUIRED = {check.name for check in JOB_STORE_CHECKS if check.required}


def test_an_honest_store_passes() -> None:
    """The store all bugs are planted in is itself without fault."""
    exercise_job_store(planted.Honest).raise_for_failures(recommended=True)


@pytest.mark.req("JOBS:store", "X11", "X12", "X16", "X17", "X18")
@pytest.mark.parametrize(("bug", "check"), PLANTED, ids=lambda each: getattr(each, "__name__", ""))
def test_a_planted_bug_is_rejected(bug: type[planted.Honest], check: str) -> None:
    """Each bug is rejected, by the required check that is about it."""
    assert check in REQUIRED
    with pytest.raises(JobStoreSuiteError) as caught:
        exercise_job_store(bug, only={check}, patience=0.5)
    assert caught.value.report.failed == (check,)


PLANTED_ON_DISK = [
    (on_disk.StopsAtARescue, "unreadable_running_job_stops_no_rescue"),
    (on_disk.StopsAtASearch, "unreadable_job_is_left_out_of_a_search"),
    (on_disk.StopsAtAClaim, "unreadable_job_is_not_in_the_way"),
    (on_disk.DeletesWhatItCannotRead, "unreadable_job_is_never_deleted"),
    (on_disk.TakesBackAnything, "unreadable_job_can_be_read_again"),
    (on_disk.ListsOnlyWhatItSetAside, "unreadable_job_that_nobody_set_aside_is_listed"),
]


@pytest.mark.req("JOBS:store")
@pytest.mark.parametrize(
    ("bug", "check"), PLANTED_ON_DISK, ids=lambda each: getattr(each, "__name__", "")
)
def test_a_planted_bug_on_disk_is_rejected(
    bug: type[SqliteJobStore], check: str, tmp_path: Path
) -> None:
    """Each bug in dealing with rows is rejected, by the required check that is about it."""
    assert check in REQUIRED
    with pytest.raises(JobStoreSuiteError) as caught:
        exercise_job_store(
            lambda clock: bug(tmp_path / "jobs.db", clock=clock), spoil=on_disk.spoil, only={check}
        )
    assert caught.value.report.failed == (check,)


@pytest.mark.req("SCALE:move")
@pytest.mark.parametrize("bug", [planted.LoadsForAnyRun, planted.MarksForAnyRun])
def test_a_store_that_an_overtaken_move_can_write_is_rejected(bug: type[planted.Honest]) -> None:
    """It was stopped before it wrote, and another run has ended meanwhile."""
    check = "an_overtaken_move_writes_nothing"
    with pytest.raises(JobStoreSuiteError) as caught:
        exercise_job_store(bug, only={check})
    assert caught.value.report.failed == (check,)


def test_a_bug_is_rejected_among_all_checks() -> None:
    """The whole suite goes on after a failed check, and the report has them all."""
    report = exercise_job_store(moves.RetriesAtOnce, raises=False)
    assert {"failure_is_tried_again_later", "held_job_is_parked"} <= set(report.failed)
    assert {"success_completes", "closes_twice"} <= set(report.passed)
