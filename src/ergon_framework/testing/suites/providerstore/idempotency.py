"""Checks of idempotency keys: one holder at a time, and how a call under a key ends."""

from __future__ import annotations

from typing import Any

from ergon_framework.ports.providerstore import ClaimState, KeyClaimResult, ResultNote
from ergon_framework.testing.suites.framework import Check, register
from ergon_framework.testing.suites.providerstore.under_test import (
    CLOCK,
    DAY,
    HOUR,
    KEEP,
    LEASE,
    OTHER_TENANT,
    ProviderStoreSubject,
    near,
    same,
)

CHECKS: list[Check[ProviderStoreSubject]] = []
check = register(CHECKS)


@check()
def new_key_is_mine(s: ProviderStoreSubject) -> None:
    """Whoever comes first has the key, under its name and for the lease it asked for."""
    found = s.must_claim("me")
    same((found.owner, found.result, found.reason_code), ("me", None, None), "the claim")
    near(found.lease_expires_at, s.start + LEASE, "lease_expires_at", within=s.patience)


@check()
def held_key_is_running(s: ProviderStoreSubject) -> None:
    """Others are told that the key is held, and until when, and change nothing."""
    mine = s.must_claim("me")
    for owner in ("you", "they", "you"):
        found = s.claim(owner, lease=5 * LEASE)
        same((found.state, found.result), (ClaimState.RUNNING, None), "the claim")
        near(found.lease_expires_at, mine.lease_expires_at, "the lease", within=1e-5)
    same(s.finish("you", {}), False, "whether one of them could finish")
    same(s.finish("me", {}), True, "whether the holder could finish")


@check()
def own_key_is_mine_again(s: ProviderStoreSubject) -> None:
    """The holder that asks again, as after a redelivery, still has the key."""
    s.must_claim("me")
    s.must_claim("me")
    same(s.claim("you").state, ClaimState.RUNNING, "the claim of another")
    same(s.finish("me", {}), True, "whether the holder could finish")


@check(CLOCK)
def own_claim_prolongs_the_lease(s: ProviderStoreSubject) -> None:
    """The lease of a holder that asks again counts from then on."""
    s.must_claim("me")
    s.clock.forward(LEASE - 1.0)
    same(s.must_claim("me").lease_expires_at, s.start + 2 * LEASE - 1.0, "lease_expires_at")
    s.clock.forward(LEASE - 2.0)
    same(s.claim("you").state, ClaimState.RUNNING, "the claim of another, after the first lease")


@check()
def key_of_another_request_is_a_conflict(s: ProviderStoreSubject) -> None:
    """A key that is used for another request is refused, and the holder keeps it."""
    s.must_claim("me", "this")
    for owner in ("you", "me"):
        same(s.claim(owner, "that"), KeyClaimResult(ClaimState.CONFLICT), f"the claim of {owner}")
    same(s.finish("me", {"n": 1}), True, "whether the holder could finish")
    same(s.claim("you", "that").state, ClaimState.CONFLICT, "the claim after the end")
    same(s.claim("you", "this").result, {"n": 1}, "the result")


@check()
def failed_key_of_another_request_is_a_conflict(s: ProviderStoreSubject) -> None:
    """A key whose call failed for good is not free for another request either."""
    s.must_claim("me", "this")
    s.finish("me", None, "bad_request", "no")
    same(s.claim("you", "that").state, ClaimState.CONFLICT, "the claim")
    same(s.claim("you", "this").reason_code, "bad_request", "the reason")


@check(CLOCK)
def lease_is_over(s: ProviderStoreSubject) -> None:
    """Until the lease is over nobody else gets the key, afterwards the next one does."""
    s.must_claim("me")
    s.clock.forward(LEASE - 1.0)
    same(s.claim("you").state, ClaimState.RUNNING, "a second before the end")
    s.clock.forward(2.0)
    found = s.must_claim("you", lease=7.0)
    same((found.owner, found.lease_expires_at), ("you", s.clock() + 7.0), "the claim")
    same(s.claim("they").state, ClaimState.RUNNING, "the claim of a third")


@check(CLOCK)
def lease_heals_after_the_clock_was_set_back(s: ProviderStoreSubject) -> None:
    """A lease from before counts from then on: it holds for as long as was asked, and no longer."""
    s.must_claim("me")
    s.clock.forward(-DAY)
    found = s.claim("you", lease=5 * LEASE)
    same(found.state, ClaimState.RUNNING, "the claim after the clock was set back")
    near(found.lease_expires_at, s.clock() + LEASE, "the lease", within=1e-5)
    s.clock.forward(LEASE - 1.0)
    same(s.claim("you").state, ClaimState.RUNNING, "a second before the end")
    s.clock.forward(2.0)
    s.must_claim("you")
    same(s.finish("me", {}), False, "whether the former holder could finish")


@check(CLOCK)
def freed_key_is_free_whatever_the_clock(s: ProviderStoreSubject) -> None:
    """A key that was let go has no lease that a clock which is set back could bring to life."""
    s.must_claim("me")
    same(s.finish("me", None, None, may_run_again=True), True, "whether it could be freed")
    s.clock.forward(-HOUR)
    s.must_claim("you")


@check(CLOCK)
def former_holder_is_told(s: ProviderStoreSubject) -> None:
    """Whoever has lost the key cannot end the call of the one who has it now."""
    s.must_claim("me")
    s.clock.forward(LEASE + 1.0)
    s.must_claim("you")
    same(s.finish("me", {"whose": "mine"}), False, "whether the former holder could finish")
    same(s.finish("me", None, "timeout", may_run_again=True), False, "… or free the key")
    same(s.claim("they").state, ClaimState.RUNNING, "the claim of a third")
    same(s.claim("me").state, ClaimState.RUNNING, "the claim of the former holder")
    same(s.finish("you", {"whose": "yours"}), True, "whether the holder could finish")
    same(s.claim("me").result, {"whose": "yours"}, "the result")


@check(CLOCK)
def late_end_counts_when_nobody_else_came(s: ProviderStoreSubject) -> None:
    """A holder that is late, but whose key nobody took, can still say how it ended."""
    s.must_claim("me")
    s.clock.forward(LEASE + 100.0)
    same(s.finish("me", {"n": 1}), True, "whether it could")
    same(s.claim("you").result, {"n": 1}, "the result")


@check(CLOCK)
def conflict_outlives_the_lease(s: ProviderStoreSubject) -> None:
    """A holder that vanished leaves its key to those with the same request alone."""
    s.must_claim("me", "this")
    s.clock.forward(LEASE + 1.0)
    same(s.claim("you", "that").state, ClaimState.CONFLICT, "the claim for another request")
    s.must_claim("you", "this")


@check(CLOCK)
def forgotten_key_is_new(s: ProviderStoreSubject) -> None:
    """A key is remembered as long as was asked, and then it is free for any request."""
    s.must_claim("me", "this")
    s.finish("me", {"n": 1})
    s.clock.forward(KEEP - 60.0)
    same(s.claim("you", "this").state, ClaimState.REPLAY, "shortly before the end")
    same(s.claim("you", "that").state, ClaimState.CONFLICT, "… for another request")
    s.clock.forward(120.0)
    same(s.must_claim("you", "that").result, None, "the result after the end")
    same(s.finish("you", {"n": 2}), True, "whether the new holder could finish")
    same(s.claim("me", "that").result, {"n": 2}, "the new result")


@check(CLOCK)
def running_call_is_not_forgotten(s: ProviderStoreSubject) -> None:
    """A key is held for its lease, though it was to be remembered for less."""
    s.must_claim("me", lease=100.0, keep=10.0)
    s.clock.forward(50.0)
    same(s.claim("you").state, ClaimState.RUNNING, "the claim of another")
    same(s.finish("me", {}), True, "whether the holder could finish")


@check()
def keys_are_apart(s: ProviderStoreSubject) -> None:
    """Tenants share no keys, and keys that look alike are different."""
    s.must_claim("me", "this")
    for others in ({"tenant_id": OTHER_TENANT}, {"key": "K"}, {"key": "k "}, {"key": "k" * 255}):
        s.must_claim("you", "that", **others)
        same(s.finish("you", {"of": "others"}, **others), True, "whether it could be finished")
    same(s.claim("you", "this").state, ClaimState.RUNNING, "the claim")
    same(s.finish("me", {"of": "mine"}), True, "whether the holder could finish")
    same(s.claim("you", "this").result, {"of": "mine"}, "the result")


@check()
def success_is_replayed(s: ProviderStoreSubject) -> None:
    """Whoever comes after a success, its holder included, gets the result and not the key."""
    result: dict[str, Any] = {
        "items": [1, 2.5, None, True, {"deep": ["naïve 漢字 🍵", "\0", ""]}],
        "big": 1 << 53,
        "empty": {},
    }
    s.must_claim("me")
    same(s.finish("me", result), True, "whether the holder could finish")
    for owner in ("you", "me", "you"):
        found = s.claim(owner)
        same((found.state, found.result), (ClaimState.REPLAY, result), f"the claim of {owner}")
        same((found.reason_code, found.error_message), (None, None), "its reason")


@check()
def success_without_a_result(s: ProviderStoreSubject) -> None:
    """A success whose result was not kept is a success all the same, and an empty one is empty."""
    s.must_claim("me")
    s.finish("me", None)
    found = s.claim("you")
    same((found.state, found.result), (ClaimState.REPLAY, None), "without a result")
    s.must_claim("me", key="other")
    s.finish("me", {}, key="other")
    same(s.claim("you", key="other").result, {}, "with an empty one")


@check()
def note_on_a_result_comes_back(s: ProviderStoreSubject) -> None:
    """Why a result was not kept is told to whoever comes, and the note on a kept one as well."""
    for note in ResultNote:
        for result in (None, {"n": 1}):
            key = f"{note.value} {result}"
            s.must_claim("me", key=key)
            same(s.finish("me", result, key=key, result_note=note), True, "whether it could finish")
            found = s.claim("you", key=key)
            told = found.state, found.result, found.result_note
            same(told, (ClaimState.REPLAY, result, note), "what is told")
    s.must_claim("me")
    s.finish("me", {"n": 1})
    same(s.claim("you").result_note, None, "the note on a result that is kept as it was")


@check()
def failure_for_good_is_told(s: ProviderStoreSubject) -> None:
    """Whoever comes after a failure for good gets its reason, and not the key."""
    s.must_claim("me")
    same(s.finish("me", None, "bad_request", "no such 🍵"), True, "whether it could finish")
    for owner in ("you", "me"):
        found = s.claim(owner)
        told = found.state, found.result, found.reason_code, found.error_message
        same(told, (ClaimState.FAILED, None, "bad_request", "no such 🍵"), f"told to {owner}")


@check()
def failure_that_may_run_again(s: ProviderStoreSubject) -> None:
    """A key that was freed is there for the next, with nothing left of the try before."""
    s.must_claim("me")
    same(s.finish("me", None, "timeout", "late", may_run_again=True), True, "whether it was freed")
    found = s.must_claim("you")
    same((found.owner, found.reason_code, found.error_message), ("you", None, None), "the claim")
    same(s.claim("me").state, ClaimState.RUNNING, "the claim of the one before")
    same(s.finish("you", {"n": 2}), True, "whether the next could finish")
    same(s.claim("me").result, {"n": 2}, "the result")


@check()
def freed_key_is_nobodys(s: ProviderStoreSubject) -> None:
    """Whoever freed a key cannot end the call under it any more."""
    s.must_claim("me")
    s.finish("me", None, "timeout", may_run_again=True)
    same(s.finish("me", {"n": 1}), False, "whether it could")
    s.must_claim("me")
    same(s.finish("me", {"n": 1}), True, "whether it could with a claim of its own")


@check()
def end_is_told_once(s: ProviderStoreSubject) -> None:
    """What has ended does not end in another way."""
    s.must_claim("me")
    s.finish("me", {"n": 1})
    same(s.finish("me", {"n": 2}), False, "a second success")
    same(s.finish("me", None, "timeout"), False, "a failure after it")
    same(s.finish("me", None, "timeout", may_run_again=True), False, "freeing it")
    same(s.claim("you").result, {"n": 1}, "the result")


@check()
def stranger_ends_nothing(s: ProviderStoreSubject) -> None:
    """Nobody ends a call whose key is another's, or nobody's."""
    same(s.finish("me", {}), False, "of a key that nobody has claimed")
    s.must_claim("me")
    for owner in ("you", "", "Me"):
        same(s.finish(owner, {}), False, f"as {owner!r}")
    same(s.finish("me", {}, tenant_id=OTHER_TENANT), False, "of another tenant")
    same(s.finish("me", {}, key="other"), False, "of another key")
    same(s.claim("you").state, ClaimState.RUNNING, "the claim of another")


@check()
def result_that_is_no_json(s: ProviderStoreSubject) -> None:
    """A result that cannot be kept is an error, and the key is still held."""
    s.must_claim("me")
    s.must_fail(lambda: s.finish("me", {"what": object()}), "a result that is no JSON")
    same(s.claim("you").state, ClaimState.RUNNING, "the claim of another")
    same(s.finish("me", None), True, "whether the holder could finish without it")


@check()
def result_is_a_copy(s: ProviderStoreSubject) -> None:
    """What the caller and its followers do with a result does not reach the store."""
    result = {"items": [1]}
    s.must_claim("me")
    s.finish("me", result)
    result["items"].append(2)
    first = s.claim("you").result or {}
    first["items"].append(3)
    same(s.claim("you").result, {"items": [1]}, "the result")


@check()
def long_results_and_messages(s: ProviderStoreSubject) -> None:
    """A large result comes back whole; a long message at least begins as it did."""
    result = {"text": "🍵" * 1_000_000, "password": "s3cret"}
    s.must_claim("me")
    s.finish("me", result)
    same(s.claim("you").result, result, "the result")
    s.must_claim("me", key="other")
    s.finish("me", None, "internal_error", "why? " * 5000, key="other")
    message = s.claim("you", key="other").error_message or ""
    same(message[:500], "why? " * 100, "how the message begins")
