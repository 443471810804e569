"""Provider stores with one realistic bug each: the suite must reject every one, and say why."""

from __future__ import annotations

import pytest

from ergon_framework.testing import (
    PROVIDER_STORE_CHECKS,
    ProviderStoreSuiteError,
    exercise_provider_store,
)
from tests.providers.suite import planted_circuits as gates
from tests.providers.suite import planted_dead_letters as letters
from tests.providers.suite import planted_records as records

PLANTED: list[tuple[type[gates.Honest], str]] = [
    (gates.ForgetsProbes, "circuit_comes_back_whole"),
    (gates.WholeSeconds, "circuit_comes_back_whole"),
    (gates.WholeSeconds, "summary_tells_the_circuit"),
    (gates.LastWriterWins, "stale_swap_changes_nothing"),
    (gates.SwapsWithoutALock, "one_swap_wins"),
    (gates.SwapsWithoutALock, "no_swap_is_lost"),
    (gates.SwapsWithoutALock, "one_process_swaps"),
    (gates.SavesAWriting, "every_swap_grows_the_version"),
    (gates.InsertsAtAnyVersion, "swap_ahead_changes_nothing"),
    (gates.SwapForgetsTheFailure, "failure_comes_with_its_swap"),
    (gates.LastFailureWrittenHolds, "failure_of_a_swap_does_not_hide_a_later_one"),
    (gates.SwapEndsTheCooldown, "swap_keeps_the_cooldown"),
    (gates.CountsEveryWriting, "cooling_spoils_no_swap"),
    (gates.CountsEveryWriting, "cooling_keeps_the_circuit"),
    (gates.NewLaneIsVersionOne, "recording_spoils_no_swap"),
    (gates.JoinsNames, "circuits_are_apart"),
    (gates.CircuitForAllTenants, "circuits_are_apart"),
    (gates.KeepsItsOwnView, "gates_are_shared"),
    (gates.LastCooldownHolds, "cooldown_is_never_shortened"),
    (gates.LastCooldownHolds, "latest_cooldown_wins"),
    (gates.FirstCooldownHolds, "cooldown_is_prolonged"),
    (gates.EchoesTheCooldown, "cooldown_is_never_shortened"),
    (gates.SuccessEndsTheCooldown, "recording_keeps_the_cooldown"),
    (gates.ChecksThenTakes, "last_unit_is_granted_once"),
    (gates.ChecksThenTakes, "units_are_granted_whole"),
    (gates.FirstUseResets, "first_use_loses_no_unit"),
    (gates.OneOpener, "enough_for_all_is_granted_to_all"),
    (gates.OpensOlderWindows, "older_window_is_not_opened"),
    (gates.OpensOlderWindows, "older_window_is_not_asked_again"),
    (gates.OpensOlderWindows, "clock_that_is_set_back"),
    (gates.OpensOlderWindows, "roll_over_among_threads"),
    (gates.NewestWindowHolds, "window_of_a_clock_that_ran_ahead"),
    (gates.TakesWhatIsLeft, "all_units_or_none"),
    (gates.FirstCallerIsNotCounted, "more_than_the_limit_is_refused"),
    (gates.FirstLimitHolds, "raised_limit_holds"),
    (gates.FirstLimitHolds, "lowered_limit_holds"),
    (gates.ForgivesTheExcess, "lowered_limit_holds"),
    (gates.RefundsWithoutEnd, "refund_stops_at_nothing_used"),
    (gates.RefundNeedsAnAccount, "refund_of_nothing_known"),
    (gates.RefundsTheNewest, "refund_goes_to_its_own_window"),
    (gates.RefundsTheNewest, "refund_opens_no_window"),
    (gates.RefundsNothing, "refund_is_for_others"),
    (gates.RefundsNothing, "refunds_and_reservations"),
    (gates.BudgetForAllTenants, "budgets_are_apart"),
    (gates.LastInstantIsIncluded, "window_ends_in_the_summary"),
    (gates.BudgetPerProcess, "budget_is_exact_among_processes"),
    (gates.BudgetPerProcess, "budget_is_shared"),
    (records.ForgetsTheCampaign, "attempt_comes_back_whole"),
    (records.RoundsInstants, "attempt_comes_back_whole"),
    (records.NewestAttemptFirst, "attempts_come_in_order"),
    (records.OrderOfWriting, "attempts_of_one_instant"),
    (records.CountsAgain, "batch_may_be_written_again"),
    (records.CountsAgain, "batch_is_written_once"),
    (records.LeavesOutTheBatch, "batch_that_is_partly_there"),
    (records.ReplacesRows, "row_is_never_changed"),
    (records.TwoTransactions, "bad_batch_leaves_nothing"),
    (records.LetterByLetter, "bad_batch_leaves_nothing"),
    (records.AddsWithoutALock, "no_attempt_is_lost"),
    (records.FailureErasesTheSuccess, "failure_keeps_the_last_success"),
    (records.SuccessErasesTheError, "success_keeps_the_last_error"),
    (records.LatestIsTheLastWritten, "latest_is_the_latest_made"),
    (records.RefusalIsAnError, "refused_call_is_no_error_of_the_provider"),
    (records.RetriesAreFailures, "success_rate_is_of_executions"),
    (records.DeadLettersAreNothing, "success_rate_is_of_executions"),
    (records.RefusalsAreAttempts, "refused_calls_do_not_count"),
    (records.RefusalsAreAttempts, "refused_calls_alone_are_no_rate"),
    (records.CountedOnArrival, "old_attempts_do_not_count"),
    (records.FailuresTakeNoTime, "p95_has_failures_and_retries"),
    (records.CoarseBuckets, "p95_is_the_nearest_rank"),
    (records.CoarseBuckets, "p95_of_many"),
    (records.UnknownIsZero, "no_rate_without_an_ending"),
    (records.ZeroIsUnknown, "nothing_but_failures"),
    (records.FrozenRates, "rates_fade_without_traffic"),
    (records.FrozenRates, "rates_move_with_the_hour"),
    (records.OwnRatesOnly, "rates_are_shared"),
    (records.RatesOfTheLastMinute, "minutes_add_up"),
    (records.RatesOfTheLastMinute, "late_attempts_count"),
    (records.RatesOfTheLastMinute, "rates_are_those_of_the_attempts"),
    (records.ShowsEverybody, "tenants_see_their_own_lanes"),
    (records.ShowsEverybody, "unknown_tenant_has_no_lanes"),
    (records.AnyOrder, "lanes_come_in_order"),
    (records.HealthRowsOnly, "lane_with_a_budget_alone"),
    (records.DatesWhatIsRead, "updated_at_is_the_last_writing"),
    (records.PrunesThroughTheInstant, "old_attempts_are_pruned"),
    (records.PrunesAtOnce, "pruning_is_bounded"),
    (records.PrunesAtOnce, "pruning_letters_is_bounded"),
    (records.PrunesWhatWaits, "settled_letters_are_pruned"),
    (records.PrunesKeysByAge, "forgotten_keys_are_pruned"),
    (records.PrunesKeysWithTheRecords, "keys_may_be_pruned_sooner"),
    (records.PrunesRecordsWithTheKeys, "keys_may_be_pruned_sooner"),
    (records.PrunesBudgets, "pruning_reopens_no_window"),
    (records.PrunesLanes, "pruning_leaves_the_gates_alone"),
    (records.AnswersWhenClosed, "closed_store_refuses"),
    (records.RaisesItsOwn, "closed_store_refuses"),
    (records.ClosesOnce, "closes_twice"),
    (records.OwnTime, "clock_is_the_one_given"),
    (letters.KeysForAllTenants, "keys_are_apart"),
    (letters.KeysWithoutCase, "keys_are_apart"),
    (letters.NoFingerprint, "key_of_another_request_is_a_conflict"),
    (letters.NoFingerprint, "conflict_outlives_the_lease"),
    (letters.LeasesForEver, "lease_is_over"),
    (letters.LeasesByTheClockAlone, "lease_heals_after_the_clock_was_set_back"),
    (letters.FreedByTheClockAlone, "freed_key_is_free_whatever_the_clock"),
    (letters.LeaseStands, "own_claim_prolongs_the_lease"),
    (letters.OwnKeyIsRunning, "own_key_is_mine_again"),
    (letters.ClaimsWithoutALock, "one_claim_wins"),
    (letters.ClaimsWithoutALock, "one_process_claims"),
    (letters.TakesOverWithoutALock, "one_takes_over"),
    (letters.NeverForgets, "forgotten_key_is_new"),
    (letters.ForgetsTheRunning, "running_call_is_not_forgotten"),
    (letters.AnybodyFinishes, "former_holder_is_told"),
    (letters.AnybodyFinishes, "stranger_ends_nothing"),
    (letters.LateIsLost, "late_end_counts_when_nobody_else_came"),
    (letters.EndsAgain, "end_is_told_once"),
    (letters.EndsAgain, "one_end_is_told"),
    (letters.FailureIsForgotten, "failure_for_good_is_told"),
    (letters.FailureIsForGood, "failure_that_may_run_again"),
    (letters.FreedKeyIsStillOwned, "freed_key_is_nobodys"),
    (letters.ForgetsTheNote, "note_on_a_result_comes_back"),
    (letters.MarksLargeResults, "long_results_and_messages"),
    (letters.KeepsReferences, "result_is_a_copy"),
    (letters.EmptyIsNone, "success_without_a_result"),
    (letters.OldestFirst, "newest_letter_comes_first"),
    (letters.NewestIsDueFirst, "oldest_letter_is_due_first"),
    (letters.IgnoresTheTask, "due_letters_of_some_tasks"),
    (letters.IgnoresTheTenant, "letters_by_tenant"),
    (letters.AnyOfTheFilters, "filters_hold_together"),
    (letters.LimitsBeforeItFilters, "oldest_letter_is_due_first"),
    (letters.PendingAgain, "letter_written_again_is_left_out"),
    (letters.NullPayloadIsEmpty, "unset_fields_stay_unset"),
    (letters.ForgetsTheTrace, "letter_comes_back_whole"),
    (letters.GivesAwayItsOwn, "payload_is_a_copy"),
    (letters.MovesFromAnywhere, "letter_moves_only_when"),
    (letters.MovesWithoutALock, "one_relay_moves_a_letter"),
    (letters.ForgetsThePublishing, "instants_of_a_letter"),
    (letters.CountsWhatWasAsked, "deleting_counts_what_was_there"),
    (letters.DeletesOnPaper, "deleted_letter_is_gone"),
]
CLUMSY = ("AttributeError", "IndexError", "KeyError", "NameError", "TypeError", "ValueError")
"""How a bug ends that no longer fits the store it is planted in."""
REQUIRED = {check.name for check in PROVIDER_STORE_CHECKS if check.required}


@pytest.mark.req("PROVIDERS:storage")
def test_an_honest_store_passes() -> None:
    """The store all bugs are planted in is itself without fault, and nothing is left out."""
    report = exercise_provider_store(gates.Honest, open_beside=gates.Honest.beside)
    report.raise_for_failures(recommended=True)
    assert not report.skipped


@pytest.mark.req("PROVIDERS:storage")
@pytest.mark.parametrize(("bug", "check"), PLANTED, ids=lambda each: getattr(each, "__name__", ""))
def test_a_planted_bug_is_rejected(bug: type[gates.Honest], check: str) -> None:
    """Each bug is rejected, by the required check that is about it."""
    assert check in REQUIRED
    with pytest.raises(ProviderStoreSuiteError) as caught:
        exercise_provider_store(bug, open_beside=bug.beside, only={check}, patience=5.0)
    assert caught.value.report.failed == (check,)
    [result] = caught.value.report.results
    assert not result.reason.startswith(CLUMSY), "the bug is not the one that was meant"


@pytest.mark.req("PROVIDERS:storage")
def test_a_bug_is_rejected_among_all_checks() -> None:
    """The whole suite goes on after a failed check, and the report has them all."""
    report = exercise_provider_store(gates.RefundsNothing, raises=False)
    assert {"refund_is_for_others", "refunds_and_reservations"} <= set(report.failed)
    assert {"first_units_are_taken", "closes_twice"} <= set(report.passed)
