"""Checks of how calls under a key end: replayed, failed for good, or free again."""

from __future__ import annotations

from typing import Any

from ergon_framework.ports.providerstore import ClaimState, ResultNote
from ergon_framework.testing.suites.framework import Check, register
from ergon_framework.testing.suites.providerstore.subject import (
    OTHER_TENANT,
    Subject,
    same,
)

CHECKS: list[Check[Subject]] = []
check = register(CHECKS)


@check()
def success_is_replayed(s: Subject) -> None:
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
def success_without_a_result(s: Subject) -> None:
    """A success whose result was not kept is a success all the same, and an empty one is empty."""
    s.must_claim("me")
    s.finish("me", None)
    found = s.claim("you")
    same((found.state, found.result), (ClaimState.REPLAY, None), "without a result")
    s.must_claim("me", key="other")
    s.finish("me", {}, key="other")
    same(s.claim("you", key="other").result, {}, "with an empty one")


@check()
def note_on_a_result_comes_back(s: Subject) -> None:
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
def failure_for_good_is_told(s: Subject) -> None:
    """Whoever comes after a failure for good gets its reason, and not the key."""
    s.must_claim("me")
    same(s.finish("me", None, "bad_request", "no such 🍵"), True, "whether it could finish")
    for owner in ("you", "me"):
        found = s.claim(owner)
        told = found.state, found.result, found.reason_code, found.error_message
        same(told, (ClaimState.FAILED, None, "bad_request", "no such 🍵"), f"told to {owner}")


@check()
def failure_that_may_run_again(s: Subject) -> None:
    """A key that was freed is there for the next, with nothing left of the try before."""
    s.must_claim("me")
    same(s.finish("me", None, "timeout", "late", may_run_again=True), True, "whether it was freed")
    found = s.must_claim("you")
    same((found.owner, found.reason_code, found.error_message), ("you", None, None), "the claim")
    same(s.claim("me").state, ClaimState.RUNNING, "the claim of the one before")
    same(s.finish("you", {"n": 2}), True, "whether the next could finish")
    same(s.claim("me").result, {"n": 2}, "the result")


@check()
def freed_key_is_nobodys(s: Subject) -> None:
    """Whoever freed a key cannot end the call under it any more."""
    s.must_claim("me")
    s.finish("me", None, "timeout", may_run_again=True)
    same(s.finish("me", {"n": 1}), False, "whether it could")
    s.must_claim("me")
    same(s.finish("me", {"n": 1}), True, "whether it could with a claim of its own")


@check()
def end_is_told_once(s: Subject) -> None:
    """What has ended does not end in another way."""
    s.must_claim("me")
    s.finish("me", {"n": 1})
    same(s.finish("me", {"n": 2}), False, "a second success")
    same(s.finish("me", None, "timeout"), False, "a failure after it")
    same(s.finish("me", None, "timeout", may_run_again=True), False, "freeing it")
    same(s.claim("you").result, {"n": 1}, "the result")


@check()
def stranger_ends_nothing(s: Subject) -> None:
    """Nobody ends a call whose key is another's, or nobody's."""
    same(s.finish("me", {}), False, "of a key that nobody has claimed")
    s.must_claim("me")
    for owner in ("you", "", "Me"):
        same(s.finish(owner, {}), False, f"as {owner!r}")
    same(s.finish("me", {}, tenant_id=OTHER_TENANT), False, "of another tenant")
    same(s.finish("me", {}, key="other"), False, "of another key")
    same(s.claim("you").state, ClaimState.RUNNING, "the claim of another")


@check()
def result_that_is_no_json(s: Subject) -> None:
    """A result that cannot be kept is an error, and the key is still held."""
    s.must_claim("me")
    s.must_fail(lambda: s.finish("me", {"what": object()}), "a result that is no JSON")
    same(s.claim("you").state, ClaimState.RUNNING, "the claim of another")
    same(s.finish("me", None), True, "whether the holder could finish without it")


@check()
def result_is_a_copy(s: Subject) -> None:
    """What the caller and its followers do with a result does not reach the store."""
    result = {"items": [1]}
    s.must_claim("me")
    s.finish("me", result)
    result["items"].append(2)
    first = s.claim("you").result or {}
    first["items"].append(3)
    same(s.claim("you").result, {"items": [1]}, "the result")


@check()
def long_results_and_messages(s: Subject) -> None:
    """A large result comes back whole; a long message at least begins as it did."""
    result = {"text": "🍵" * 1_000_000, "password": "s3cret"}
    s.must_claim("me")
    s.finish("me", result)
    same(s.claim("you").result, result, "the result")
    s.must_claim("me", key="other")
    s.finish("me", None, "internal_error", "why? " * 5000, key="other")
    message = s.claim("you", key="other").error_message or ""
    same(message[:500], "why? " * 100, "how the message begins")
