"""Connectors with one realistic bug each: the suite must reject every one, for the right reason."""

from __future__ import annotations

import pytest

from ergon_framework.testing.suites import (
    CONNECTOR_CHECKS,
    ConnectorSuiteError,
    exercise_connector,
)
from tests.connectors import planted_delivery as delivery
from tests.connectors import planted_faults as faults
from tests.connectors import planted_settlement as settlement

PLANTED: list[tuple[type[delivery.Honest], str]] = [
    (delivery.OverDelivers, "batch_size_is_respected"),
    (delivery.LastInFirstOut, "first_in_first_out"),
    (delivery.LosesTheRest, "delivers_everything"),
    (delivery.DeliversTwice, "no_double_delivery"),
    (delivery.NeverRunsDry, "runs_dry"),
    (delivery.DropsRepeatedIds, "same_id_twice_is_delivered_twice"),
    (delivery.RawDicts, "delivers_transactions_only"),
    (delivery.EmptyIds, "ids_are_never_empty"),
    (delivery.OneInsteadOfMany, "batch_is_iterable_or_none"),
    (delivery.ReusesItsList, "batches_are_independent"),
    (delivery.IsACoroutine, "fetch_has_the_right_colour"),
    (delivery.ChokesOnSettings, "unknown_settings_lose_nothing"),
    (delivery.OneThreadOnly, "fetches_from_any_thread"),
    (delivery.DropsMetadata, "keeps_metadata"),
    (delivery.DropsCorrelation, "keeps_correlation_id"),
    (delivery.DropsTrace, "keeps_trace_id"),
    (delivery.DropsSource, "keeps_source"),
    (delivery.DropsParent, "keeps_parent_id"),
    (delivery.StampsItsOwnTime, "keeps_created_at"),
    (delivery.SplitsOnLineSeparators, "keeps_unicode"),
    (delivery.NumbersAreFloats, "keeps_numbers_exactly"),
    (delivery.EmptyMeansMissing, "keeps_empty_payloads"),
    (delivery.ShortTexts, "keeps_the_id"),
    (delivery.DeliversMutable, "delivered_transactions_are_immutable"),
    (delivery.WritesSomething, "unserialisable_payload_is_refused"),
    (delivery.SwallowsTheUnserialisable, "unserialisable_payload_is_refused"),
    (delivery.ComplainsWithoutAName, "unserialisable_payload_is_refused"),
    (delivery.ClearsOnError, "refused_payload_loses_nothing"),
    (delivery.NeedsAList, "dispatch_accepts_any_iterable"),
    (delivery.ChokesOnNothing, "dispatching_nothing_is_fine"),
    (settlement.LosesOnRelease, "release_redelivers"),
    (settlement.RedeliversAfterAck, "ack_forgets"),
    (settlement.NackForgets, "nack_keeps_the_reason"),
    (settlement.NackRequeues, "nack_does_not_redeliver"),
    (settlement.NewIdOnRedelivery, "release_keeps_the_envelope"),
    (settlement.ReleasesEverything, "release_leaves_the_others_alone"),
    (settlement.ReleasesOnce, "releases_again_and_again"),
    (settlement.ReleasesToTheEnd, "release_restores_order"),
    (settlement.SettlesById, "same_ids_settle_separately"),
    (settlement.RacesOnRelease, "settles_concurrently"),
    (settlement.ParksForNothing, "parked_waits_for_its_time"),
    (settlement.ParksForEver, "parked_comes_back"),
    (settlement.ParksACopy, "parked_comes_back"),
    (settlement.ParksOnce, "parks_again_and_again"),
    (settlement.CountsEverything, "counts_what_waits"),
    (settlement.LookingTakes, "finds_by_id"),
    (settlement.FindsAnything, "does_not_find_the_unknown"),
    (settlement.AlwaysIll, "is_healthy_when_fresh"),
    (settlement.ClosesOnce, "closes_twice"),
]
LESSER: list[tuple[type[delivery.Honest], str]] = [
    (delivery.PartialDispatch, "dispatch_is_all_or_nothing"),
    (settlement.ReleasesTwice, "second_settlement_does_no_harm"),
    (settlement.ReleaseAfterAck, "contradicting_settlement_changes_nothing"),
    (settlement.ReleasesTheParked, "parking_settles_once"),
    (settlement.EmptyWhenClosed, "fetch_after_close_is_refused"),
    (delivery.AnyBatchSize, "batch_size_below_one_is_refused"),
    (delivery.SharesPayloads, "dispatch_takes_a_snapshot"),
    (delivery.RedeliversTheSameObject, "redelivery_is_pristine"),
    (delivery.TakesAnything, "refuses_what_is_no_transaction"),
    (settlement.AcksTheUnknown, "settling_the_unknown_is_refused"),
    (settlement.ComplainsAboutTheSecondAck, "settlement_is_idempotent"),
    (settlement.AlwaysWell, "is_unhealthy_when_closed"),
]


FAULTS: list[tuple[type[faults.HonestBroker], str]] = [
    (faults.AcksOnDelivery, "redelivers_after_a_crash"),
    (faults.DeliversAllAgain, "redelivers_after_a_crash"),
    (faults.RewritesWhatIsLeft, "redelivery_after_a_crash_is_the_same"),
    (faults.ParksInMemory, "parked_outlives_its_consumer"),
    (faults.SettlesByTag, "lost_channel_is_never_settled_twice"),
    (faults.AnyErrorWhenLost, "lost_channel_is_never_settled_twice"),
    (faults.AcksOnDelivery, "lost_channel_is_never_settled_twice"),
    (faults.NeverConnectsAgain, "goes_on_after_a_cut"),
    (faults.SendsIntoTheVoid, "dispatches_after_a_cut"),
    (faults.ChokesOnMalformed, "malformed_never_blocks"),
    (faults.SkipsMalformed, "malformed_never_blocks"),
    (faults.CallsMalformedNothing, "malformed_flood_is_not_an_empty_source"),
    (faults.CountsMalformedOnly, "malformed_is_kept_with_its_reason"),
    (faults.TagsAreIds, "foreign_message_is_work"),
    (faults.DropsForeignHeaders, "foreign_message_is_work"),
    (faults.DropsForeignHeaders, "foreign_trace_is_taken_up"),
    (faults.EnvelopeInTheBody, "other_programs_can_read_it"),
]
UNIQUE: list[tuple[type[delivery.Honest], str]] = [
    (delivery.Honest, "same_again_changes_nothing"),
    (delivery.ForgetsWhatIsDone, "same_again_changes_nothing"),
    (delivery.TakesTheFirstOnly, "other_content_under_an_id_is_refused"),
    (delivery.RefusesWithoutAName, "other_content_under_an_id_is_refused"),
]


def all_but(check: str) -> list[str]:
    """The names of the other checks."""
    return [each.name for each in CONNECTOR_CHECKS if each.name != check]


def test_an_honest_connector_passes() -> None:
    """The connector all bugs are planted in is itself without fault."""
    report = exercise_connector(delivery.Honest, order="strict")
    report.raise_for_failures(recommended=True)
    assert set(report.skipped) == {check for _, check in FAULTS}


def test_an_honest_connector_to_a_broker_passes() -> None:
    """The one that bears faults wrongly is itself without fault, and leaves no check out."""
    report = exercise_connector(faults.HonestBroker, order="strict", faults=faults.FAULTS)
    report.raise_for_failures(recommended=True)
    assert report.skipped == ()


@pytest.mark.parametrize(("bug", "check"), FAULTS, ids=lambda each: getattr(each, "__name__", ""))
def test_a_fault_that_is_borne_wrongly_is_rejected(
    bug: type[faults.HonestBroker], check: str
) -> None:
    """Each bug that only a fault of the broker shows is rejected by the check about it."""
    with pytest.raises(ConnectorSuiteError) as caught:
        exercise_connector(bug, faults=faults.FAULTS, skip=all_but(check), patience=0.3)
    assert caught.value.report.failed == (check,)


@pytest.mark.req("R0-N", "R1-S1", "R1-ID2")
@pytest.mark.parametrize(("bug", "check"), PLANTED, ids=lambda each: getattr(each, "__name__", ""))
def test_a_planted_bug_is_rejected(bug: type[delivery.Honest], check: str) -> None:
    """Each bug is rejected, by the check that is about it."""
    with pytest.raises(ConnectorSuiteError) as caught:
        exercise_connector(bug, order="strict", skip=all_but(check), patience=0.5)
    assert caught.value.report.failed == (check,)


def test_an_honest_connector_of_unique_ids_passes() -> None:
    """One that keeps ids apart for ever is exercised with checks of its own."""
    report = exercise_connector(delivery.Unique, order="strict", ids="unique")
    report.raise_for_failures(recommended=True)
    assert set(report.skipped) == {check for _, check in FAULTS}
    assert {check for _, check in UNIQUE} <= set(report.passed)
    assert "same_ids_settle_separately" not in report.passed


@pytest.mark.parametrize(("bug", "check"), UNIQUE, ids=lambda each: getattr(each, "__name__", ""))
def test_a_planted_bug_of_unique_ids_is_rejected(bug: type[delivery.Honest], check: str) -> None:
    """Whoever promises unique ids is held to it."""
    with pytest.raises(ConnectorSuiteError) as caught:
        exercise_connector(bug, ids="unique", skip=all_but(check))
    assert caught.value.report.failed == (check,)


@pytest.mark.parametrize(("bug", "check"), LESSER, ids=lambda each: getattr(each, "__name__", ""))
def test_a_lesser_bug_is_named(bug: type[delivery.Honest], check: str) -> None:
    """A broken recommendation is in the report, and rejected on request."""
    report = exercise_connector(bug, order="strict", skip=all_but(check))
    assert report.failed == (check,)
    with pytest.raises(ConnectorSuiteError, match=check):
        report.raise_for_failures(recommended=True)


def test_a_bug_is_rejected_among_all_checks() -> None:
    """The whole suite goes on after a failed check, and the report has them all."""
    report = exercise_connector(
        settlement.LosesOnRelease, order="strict", raises=False, patience=0.3
    )
    assert {"release_redelivers", "settles_concurrently"} <= set(report.failed)
    assert {"ack_forgets", "closes_twice"} <= set(report.passed)


def test_a_fetch_that_hangs_is_rejected() -> None:
    """A connector that waits for work inside the fetch fails; the suite does not hang with it."""
    try:
        report = exercise_connector(
            delivery.BlocksOnEmpty,
            skip=all_but("empty_fetch_is_prompt"),
            patience=0.05,
            raises=False,
        )
    finally:
        delivery.BlocksOnEmpty.woken.set()
    assert report.failed == ("empty_fetch_is_prompt",)
    assert "did not return within 0.05 s" in report.failures()[0].reason


def test_an_honest_async_connector_passes() -> None:
    """The asyncio twin is without fault too."""
    exercise_connector(settlement.HonestAsync, colour="async").raise_for_failures(recommended=True)


@pytest.mark.parametrize(
    ("bug", "check"),
    [
        (settlement.WrongColour, "fetch_has_the_right_colour"),
        (settlement.LosesOnCancel, "cancelled_fetch_loses_nothing"),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_a_planted_async_bug_is_rejected(bug: type[settlement.HonestAsync], check: str) -> None:
    """Bugs that only asyncio can have are found."""
    report = exercise_connector(bug, skip=all_but(check), raises=False, patience=1.0)
    assert report.failed == (check,)


def test_a_fetch_that_blocks_the_loop_is_named() -> None:
    """A coroutine that blocks is told from one that waits."""
    try:
        report = exercise_connector(
            settlement.BlocksTheLoop,
            skip=all_but("loop_stays_responsive"),
            patience=0.05,
            raises=False,
        )
    finally:
        settlement.BlocksTheLoop.woken.set()
    assert report.failed == ("loop_stays_responsive",)
