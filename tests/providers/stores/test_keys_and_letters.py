from __future__ import annotations

import pytest

from ergon_framework.errors import StoreError
from ergon_framework.ports.providerstore import (
    ClaimState,
    KeyClaimResult,
    LetterStatus,
    ProviderStore,
    RecordBatch,
)
from ergon_framework.providers.delivery.owner_locks import OWNER_LOCKS, new_owner
from tests.providers.stores.conftest import Opener
from tests.providers.stores.store_factory import START, HandClock, letter, race

NAME = ("tenant", "key")


def claim(store: ProviderStore, owner: str, fingerprint: str = "print") -> KeyClaimResult:
    """For ten seconds, to be remembered for a hundred."""
    return store.claim(*NAME, fingerprint, owner, 10, 100)


@pytest.mark.req("PEF:A-16", "PEF:T-3")
def test_a_key_has_one_holder(store: ProviderStore, clock: HandClock) -> None:
    """The second is told until when the first may hold it."""
    assert claim(store, "one") == KeyClaimResult(ClaimState.MINE, "one", START + 10)
    assert claim(store, "two") == KeyClaimResult(ClaimState.RUNNING, lease_expires_at=START + 10)
    assert store.claim("other", "key", "print", "two", 10, 100).state is ClaimState.MINE


@pytest.mark.req("PEF:A-16")
def test_the_holder_may_claim_again(store: ProviderStore, clock: HandClock) -> None:
    """One who does not know whether its claim was written asks again, and holds it for longer."""
    claim(store, "one")
    clock.at += 4
    assert claim(store, "one") == KeyClaimResult(ClaimState.MINE, "one", START + 14)


@pytest.mark.req("PEF:A-16")
def test_a_success_is_replayed(store: ProviderStore) -> None:
    """Who comes later gets the result, and does not call."""
    claim(store, "one")
    assert store.finish(*NAME, "one", {"rank": [1, {"ü": None}]}, None)
    found = claim(store, "two")
    assert (found.state, found.result) == (ClaimState.REPLAY, {"rank": [1, {"ü": None}]})
    assert claim(store, "two", "another").state is ClaimState.CONFLICT
    assert not store.finish(*NAME, "one", {}, None)


@pytest.mark.req("PEF:A-16")
def test_a_failure_for_good_is_told(store: ProviderStore) -> None:
    """Who comes later gets the reason."""
    claim(store, "one")
    assert store.finish(*NAME, "one", None, "auth_failed", "no such user")
    found = claim(store, "two")
    assert found.state is ClaimState.FAILED
    assert (found.reason_code, found.error_message) == ("auth_failed", "no such user")


@pytest.mark.req("PEF:A-16")
def test_a_failure_that_may_pass_frees_the_key(store: ProviderStore) -> None:
    """The same request may be made again; another one still may not."""
    claim(store, "one")
    assert store.finish(*NAME, "one", None, "timeout", may_run_again=True)
    assert claim(store, "two", "another").state is ClaimState.CONFLICT
    assert claim(store, "two").state is ClaimState.MINE
    assert not store.finish(*NAME, "one", {}, None)
    assert store.finish(*NAME, "two", {}, None)


@pytest.mark.req("PEF:A-16")
def test_a_lease_that_ran_out_is_taken_over(store: ProviderStore, clock: HandClock) -> None:
    """The old holder's end no longer counts."""
    claim(store, "one")
    clock.at = START + 10
    assert claim(store, "two") == KeyClaimResult(ClaimState.MINE, "two", START + 20)
    assert not store.finish(*NAME, "one", {"late": True}, None)
    assert store.finish(*NAME, "two", {}, None)


@pytest.mark.req("PEF:A-16")
@pytest.mark.usefixtures("own_place")
@pytest.mark.parametrize("jump", [3600.0, 10 * 365 * 86_400.0])
def test_a_living_owner_keeps_its_key_when_the_clock_is_set_forward(
    jump: float, store: ProviderStore, clock: HandClock
) -> None:
    """For what is left of its lease by a clock that nobody sets; a dead one is taken over from."""
    owner = new_owner("a call")
    held = OWNER_LOCKS.acquire("a call", owner, 10)
    assert held is not None
    assert claim(store, owner).state is ClaimState.MINE
    clock.at = START + jump
    found = claim(store, "two")
    assert found.state is ClaimState.RUNNING
    assert clock.at + 5 < found.lease_expires_at <= clock.at + 10
    assert claim(store, "three", "another").state is ClaimState.CONFLICT
    held.release()
    clock.at += 11
    found = claim(store, "two")
    assert (found.state, found.taken_from) == (ClaimState.MINE, owner)
    assert claim(store, "two").taken_from == ""


@pytest.mark.req("PEF:A-16")
def test_a_key_is_forgotten_in_time_though_the_clock_was_set_back(
    store: ProviderStore, clock: HandClock
) -> None:
    """A success that was written by a clock years ahead is remembered for as long as was asked."""
    clock.at = START + 10**8
    claim(store, "one")
    store.finish(*NAME, "one", {}, None)
    clock.at = START
    assert claim(store, "two").state is ClaimState.REPLAY
    clock.at = START + 99
    assert claim(store, "two").state is ClaimState.REPLAY
    clock.at = START + 101
    assert claim(store, "two").state is ClaimState.MINE


@pytest.mark.req("PEF:A-16")
def test_a_key_is_forgotten(store: ProviderStore, clock: HandClock) -> None:
    """After its time it is as if it had never been, for any request."""
    claim(store, "one")
    store.finish(*NAME, "one", {}, None)
    clock.at = START + 100
    assert claim(store, "two", "another").state is ClaimState.MINE
    assert store.prune(START + 100) == 0
    assert store.prune(START + 1000) == 1


@pytest.mark.req("PEF:A-16")
def test_only_a_holder_can_finish(store: ProviderStore) -> None:
    """A key that nobody or somebody else holds is not ended."""
    assert not store.finish(*NAME, "one", {}, None)
    claim(store, "one")
    assert not store.finish(*NAME, "two", {}, None)


@pytest.mark.req("PROVIDERS:badinput")
def test_a_result_that_is_no_json_is_refused(store: ProviderStore) -> None:
    """It is said what can be kept, and the key stays as it was."""
    claim(store, "one")
    with pytest.raises(StoreError, match="result cannot be kept as JSON"):
        store.finish(*NAME, "one", {"a": object()}, None)
    assert claim(store, "two").state is ClaimState.RUNNING


@pytest.mark.req("PEF:A-16", "PEF:T-3")
def test_one_of_twenty_racing_claims_wins(opened: Opener, clock: HandClock) -> None:
    """For a new key, and for one whose lease ran out."""
    stores = [opened(), opened()]

    def take(number: int) -> ClaimState:
        return claim(stores[number % 2], f"{clock.at}-{number}").state

    for _ in range(2):
        states = race(20, take)
        assert sorted(states) == [ClaimState.MINE, *[ClaimState.RUNNING] * 19]
        clock.at += 10


@pytest.mark.req("PEF:A-19", "PEF:D-1")
def test_letters_come_back_as_they_were_written(store: ProviderStore) -> None:
    """Every field, the newest first."""
    full = letter(
        2,
        campaign_id="c",
        http_status=503,
        retryable=True,
        traceparent="00-1-2-01",
        redrive_count=2,
        has_secrets=True,
        payload=None,
    )
    store.record(RecordBatch([], [letter(1), full, letter(3)]))
    found = store.letters()
    assert [each.letter for each in found] == [letter(3), full, letter(1)]
    assert {each.status for each in found} == {LetterStatus.PENDING}
    assert [each.letter for each in store.letters(limit=1)] == [letter(3)]
    assert [each.letter for each in store.letters(ids=["letter-1", "none"])] == [letter(1)]
    assert store.letters(tenant_id="other") == []
    assert store.letters(statuses=[LetterStatus.PUBLISHED]) == []


@pytest.mark.req("PEF:A-19")
def test_a_letter_goes_its_way_once(store: ProviderStore, clock: HandClock) -> None:
    """Each step counts only from where it may be taken, and leaves its instant."""
    store.record(RecordBatch([], [letter(1), letter(2)]))
    pending, published = LetterStatus.PENDING, LetterStatus.PUBLISHED
    assert [each.letter for each in store.due_letters(pending)] == [letter(1), letter(2)]
    assert [each.letter for each in store.due_letters(pending, 1)] == [letter(1)]
    assert store.move_letter("letter-1", published, when=[pending])
    assert not store.move_letter("letter-1", published, when=[pending])
    assert not store.move_letter("none", published, when=[pending])
    assert not store.move_letter("letter-2", published, when=[])
    clock.at += 5
    assert store.move_letter("letter-1", LetterStatus.REDRIVE, when=[pending, published])
    assert store.move_letter("letter-1", LetterStatus.REDRIVEN, when=[LetterStatus.REDRIVE])
    [found] = store.letters(statuses=[LetterStatus.REDRIVEN])
    assert (found.published_at, found.redriven_at) == (START, START + 5)
    assert [each.letter for each in store.due_letters(pending)] == [letter(2)]


@pytest.mark.req("PEF:A-19")
def test_letters_are_deleted_by_name(store: ProviderStore) -> None:
    """As many as there were."""
    store.record(RecordBatch([], [letter(1), letter(2)]))
    assert store.delete_letters([]) == 0
    assert store.delete_letters(["letter-1", "letter-1", "none"]) == 1
    assert [each.letter for each in store.letters()] == [letter(2)]


@pytest.mark.req("PEF:A-19")
def test_only_settled_letters_are_pruned(store: ProviderStore) -> None:
    """One that was not published yet is kept, however old."""
    store.record(RecordBatch([], [letter(1), letter(2)]))
    store.move_letter("letter-2", LetterStatus.DISCARDED, when=[LetterStatus.PENDING])
    assert store.prune(START + 100) == 1
    assert [each.letter for each in store.letters()] == [letter(1)]
