"""Checks of two stores on the same data, as two processes have them."""

from __future__ import annotations

from functools import partial

from ergon_framework.core.breaker import Breaker
from ergon_framework.core.quota import Account
from ergon_framework.ports.providerstore import (
    Batch,
    ClaimState,
    LetterStatus,
    ProviderStore,
    Standing,
)
from ergon_framework.testing.suites.framework import Check, expect, register
from ergon_framework.testing.suites.providerstore.subject import (
    BESIDE,
    CLOCK,
    DEAD,
    FAILED,
    KEEP,
    LANE,
    LEASE,
    MINUTE,
    SUCCESS,
    TENANT,
    Subject,
    near,
    same,
)

CHECKS: list[Check[Subject]] = []
check = register(CHECKS)


@check(BESIDE)
def gates_are_shared(s: Subject) -> None:
    """A circuit or cooldown that one process writes holds for the other at once."""
    other = s.beside()
    same((s.store.standing(LANE), other.standing(LANE)), (Standing(), Standing()), "at first")
    version = s.must_swap(0, s.probing())
    s.store.cool(LANE, s.start + 60.0)
    same(other.standing(LANE), s.store.standing(LANE), "the standing")
    same(other.swap(LANE, version, s.opened()), True, "whether the other could swap")
    same(s.store.swap(LANE, version, Breaker()), False, "whether the first could after it")
    same(s.store.standing(LANE).breaker, s.opened(), "the circuit")
    same(other.cool(LANE, s.start + 5.0), s.start + 60.0, "a shorter cooldown of the other")


@check(BESIDE)
def budget_is_shared(s: Subject) -> None:
    """Two processes take from one budget, and know of each other's windows."""
    other = s.beside()
    s.take(6)
    same(other.reserve(LANE, s.window(), 10, 4).account.used, 10, "used by both")
    s.must_refuse()
    other.refund(LANE, s.window(), 1)
    same(s.take(1), 10, "used after a refund")
    other.reserve(LANE, s.window(1), 10, 10)
    same(s.must_refuse().account, Account(s.window(1), 10, 10), "the account of the newer window")


@check(BESIDE)
def budget_is_exact_among_processes(s: Subject) -> None:
    """Threads of two processes get exactly what there is."""
    stores = s.store, s.beside()

    def ask(store: ProviderStore) -> int:
        return sum(store.reserve(LANE, s.window(), 50, 1).is_granted for _ in range(8))

    granted = s.together([partial(ask, stores[n % 2]) for n in range(10)])
    same(sum(granted), 50, "granted")
    same(s.lane().account, Account(s.window(), 50, 50), "the account")


@check(BESIDE)
def one_process_swaps(s: Subject) -> None:
    """Of threads of two processes that swap at one version, one succeeds."""
    stores = s.store, s.beside()
    for _ in range(3):
        version = s.store.standing(LANE).version
        calls = [partial(stores[n % 2].swap, LANE, version, Breaker(failures=n)) for n in range(8)]
        answers = s.together(calls)
        same(sum(answers), 1, "swaps that succeeded")
        same(stores[1].standing(LANE).breaker.failures, answers.index(True), "whose it is")


@check(BESIDE)
def records_are_shared(s: Subject) -> None:
    """What one process records the other finds, and does not record again."""
    other = s.beside()
    row = s.attempt(DEAD, correlation_id="c")
    s.record(row, letters=[s.letter(1)])
    same(other.attempts_of("c"), [row], "the attempts")
    other.record(Batch([row, s.attempt(correlation_id="d")], [s.letter(1), s.letter(2)]))
    same(s.store.attempts_of("c"), [row], "the attempts, written by both")
    same(len(s.store.letters()), 2, "letters")
    same(s.rates()[0], 0.5, "the success rate")


@check(BESIDE)
def rates_are_shared(s: Subject) -> None:
    """A process that has looked at the rates sees what another adds, also to earlier minutes."""
    other = s.beside()
    s.ran(SUCCESS)
    same((s.rates()[0], s.lane(store=other).success_rate_1h), (1.0, 1.0), "at first")
    ages = (0.0, 0.0, 30.0, 10.0, 0.0, 55.0, 30.0)
    for n, minutes in enumerate(ages, 2):
        late = s.attempt(FAILED, created_at=s.start - minutes * MINUTE)
        (other if n % 2 else s.store).record(Batch([late]))
        near(s.rates()[0], 1 / n, "the success rate")
        near(s.lane(store=other).success_rate_1h, 1 / n, "the success rate for the other")


@check(BESIDE)
def rates_add_up_among_processes(s: Subject) -> None:
    """Attempts that threads of two processes write into one minute are all counted."""
    stores = s.store, s.beside()

    def write(number: int) -> None:
        for _ in range(3):
            stores[number % 2].record(Batch([s.attempt(), s.attempt()]))

    s.together([partial(write, n) for n in range(8)])
    s.ran(FAILED)
    near(s.rates()[0], 48 / 49, "the success rate")


@check(BESIDE)
def keys_are_shared(s: Subject) -> None:
    """A key that one process holds the other does not get, and the result it does."""
    other = s.beside()
    claim = partial(other.claim, TENANT, "k", "same", "you", LEASE, KEEP)
    s.must_claim("me")
    same(claim().state, ClaimState.RUNNING, "the claim while it runs")
    same(other.finish(TENANT, "k", "you", {}, None), False, "whether the other could finish")
    s.finish("me", {"n": 1})
    found = claim()
    same((found.state, found.result), (ClaimState.REPLAY, {"n": 1}), "the claim afterwards")


@check(BESIDE)
def one_process_claims(s: Subject) -> None:
    """Of threads of two processes that claim a key, one gets it."""
    stores = s.store, s.beside()
    for n in range(4):
        answers = s.together(
            partial(stores[m % 2].claim, TENANT, f"k{n}", "same", f"owner-{m}", LEASE, KEEP)
            for m in range(8)
        )
        same(sum(each.state is ClaimState.MINE for each in answers), 1, "holders")


@check(BESIDE, CLOCK)
def key_is_taken_over_from_a_process(s: Subject) -> None:
    """A process that died leaves its key to another when the lease is over."""
    other = s.beside()
    s.must_claim("me")
    s.store.close()
    s.clock.forward(LEASE + 1.0)
    claim = other.claim(TENANT, "k", "same", "you", LEASE, KEEP)
    same(claim.state, ClaimState.MINE, "the claim of the other")
    same(other.finish(TENANT, "k", "me", {}, None), False, "whether the dead one could finish")


@check(BESIDE)
def letters_are_shared(s: Subject) -> None:
    """A letter that one process moves or deletes is so for the other."""
    other = s.beside()
    s.bury(1, 2)
    pending, published = LetterStatus.PENDING, LetterStatus.PUBLISHED
    same(other.move_letter("letter-1", published, when=[pending]), True, "whether it moved")
    same(s.move(1, published, pending), False, "whether it moved again")
    same(s.stored(1).status, published, "its status")
    same(other.delete_letters(["letter-2"]), 1, "deleted")
    same(len(s.store.letters()), 1, "letters")


@check(BESIDE)
def closing_one_leaves_the_other(s: Subject) -> None:
    """A process that ends takes nothing with it."""
    s.must_swap(0, s.probing())
    s.store.cool(LANE, s.start + 60.0)
    s.take(4)
    row = s.attempt(DEAD, correlation_id="c")
    s.record(row, letters=[s.letter(1)])
    s.must_claim("me")
    s.finish("me", {"n": 1})
    before = s.store.standing(LANE), s.store.health(TENANT), s.store.letters()
    s.store.close()
    other = s.beside()
    same((other.standing(LANE), other.health(TENANT), other.letters()), before, "what is there")
    same(other.attempts_of("c"), [row], "the attempts")
    claim = other.claim(TENANT, "k", "same", "you", LEASE, KEEP)
    same(claim.result, {"n": 1}, "the result")
    expect(other.swap(LANE, before[0].version, s.opened()), "a swap was refused")
    same(other.reserve(LANE, s.window(), 10, 6).account.used, 10, "used")
