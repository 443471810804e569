"""Checks of claims: a key has one holder, who loses it when the lease is over."""

from __future__ import annotations

from ergon_framework.ports.providerstore import Claim, ClaimState
from ergon_framework.testing.suites.framework import Check, register
from ergon_framework.testing.suites.providerstore.subject import (
    CLOCK,
    DAY,
    HOUR,
    KEEP,
    LEASE,
    OTHER_TENANT,
    Subject,
    near,
    same,
)

CHECKS: list[Check[Subject]] = []
check = register(CHECKS)


@check()
def new_key_is_mine(s: Subject) -> None:
    """Whoever comes first has the key, under its name and for the lease it asked for."""
    found = s.must_claim("me")
    same((found.owner, found.result, found.reason_code), ("me", None, None), "the claim")
    near(found.lease_expires_at, s.start + LEASE, "lease_expires_at", within=s.patience)


@check()
def held_key_is_running(s: Subject) -> None:
    """Others are told that the key is held, and until when, and change nothing."""
    mine = s.must_claim("me")
    for owner in ("you", "they", "you"):
        found = s.claim(owner, lease=5 * LEASE)
        same((found.state, found.result), (ClaimState.RUNNING, None), "the claim")
        near(found.lease_expires_at, mine.lease_expires_at, "the lease", within=1e-5)
    same(s.finish("you", {}), False, "whether one of them could finish")
    same(s.finish("me", {}), True, "whether the holder could finish")


@check()
def own_key_is_mine_again(s: Subject) -> None:
    """The holder that asks again, as after a redelivery, still has the key."""
    s.must_claim("me")
    s.must_claim("me")
    same(s.claim("you").state, ClaimState.RUNNING, "the claim of another")
    same(s.finish("me", {}), True, "whether the holder could finish")


@check(CLOCK)
def own_claim_prolongs_the_lease(s: Subject) -> None:
    """The lease of a holder that asks again counts from then on."""
    s.must_claim("me")
    s.clock.forward(LEASE - 1.0)
    same(s.must_claim("me").lease_expires_at, s.start + 2 * LEASE - 1.0, "lease_expires_at")
    s.clock.forward(LEASE - 2.0)
    same(s.claim("you").state, ClaimState.RUNNING, "the claim of another, after the first lease")


@check()
def key_of_another_request_is_a_conflict(s: Subject) -> None:
    """A key that is used for another request is refused, and the holder keeps it."""
    s.must_claim("me", "this")
    for owner in ("you", "me"):
        same(s.claim(owner, "that"), Claim(ClaimState.CONFLICT), f"the claim of {owner}")
    same(s.finish("me", {"n": 1}), True, "whether the holder could finish")
    same(s.claim("you", "that").state, ClaimState.CONFLICT, "the claim after the end")
    same(s.claim("you", "this").result, {"n": 1}, "the result")


@check()
def failed_key_of_another_request_is_a_conflict(s: Subject) -> None:
    """A key whose call failed for good is not free for another request either."""
    s.must_claim("me", "this")
    s.finish("me", None, "bad_request", "no")
    same(s.claim("you", "that").state, ClaimState.CONFLICT, "the claim")
    same(s.claim("you", "this").reason_code, "bad_request", "the reason")


@check(CLOCK)
def lease_is_over(s: Subject) -> None:
    """Until the lease is over nobody else gets the key, afterwards the next one does."""
    s.must_claim("me")
    s.clock.forward(LEASE - 1.0)
    same(s.claim("you").state, ClaimState.RUNNING, "a second before the end")
    s.clock.forward(2.0)
    found = s.must_claim("you", lease=7.0)
    same((found.owner, found.lease_expires_at), ("you", s.clock() + 7.0), "the claim")
    same(s.claim("they").state, ClaimState.RUNNING, "the claim of a third")


@check(CLOCK)
def lease_heals_after_the_clock_was_set_back(s: Subject) -> None:
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
def freed_key_is_free_whatever_the_clock(s: Subject) -> None:
    """A key that was let go has no lease that a clock which is set back could bring to life."""
    s.must_claim("me")
    same(s.finish("me", None, None, may_run_again=True), True, "whether it could be freed")
    s.clock.forward(-HOUR)
    s.must_claim("you")


@check(CLOCK)
def former_holder_is_told(s: Subject) -> None:
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
def late_end_counts_when_nobody_else_came(s: Subject) -> None:
    """A holder that is late, but whose key nobody took, can still say how it ended."""
    s.must_claim("me")
    s.clock.forward(LEASE + 100.0)
    same(s.finish("me", {"n": 1}), True, "whether it could")
    same(s.claim("you").result, {"n": 1}, "the result")


@check(CLOCK)
def conflict_outlives_the_lease(s: Subject) -> None:
    """A holder that vanished leaves its key to those with the same request alone."""
    s.must_claim("me", "this")
    s.clock.forward(LEASE + 1.0)
    same(s.claim("you", "that").state, ClaimState.CONFLICT, "the claim for another request")
    s.must_claim("you", "this")


@check(CLOCK)
def forgotten_key_is_new(s: Subject) -> None:
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
def running_call_is_not_forgotten(s: Subject) -> None:
    """A key is held for its lease, though it was to be remembered for less."""
    s.must_claim("me", lease=100.0, keep=10.0)
    s.clock.forward(50.0)
    same(s.claim("you").state, ClaimState.RUNNING, "the claim of another")
    same(s.finish("me", {}), True, "whether the holder could finish")


@check()
def keys_are_apart(s: Subject) -> None:
    """Tenants share no keys, and keys that look alike are different."""
    s.must_claim("me", "this")
    for others in ({"tenant_id": OTHER_TENANT}, {"key": "K"}, {"key": "k "}, {"key": "k" * 255}):
        s.must_claim("you", "that", **others)
        same(s.finish("you", {"of": "others"}, **others), True, "whether it could be finished")
    same(s.claim("you", "this").state, ClaimState.RUNNING, "the claim")
    same(s.finish("me", {"of": "mine"}), True, "whether the holder could finish")
    same(s.claim("you", "this").result, {"of": "mine"}, "the result")
