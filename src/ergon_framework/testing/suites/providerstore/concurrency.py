"""Checks of many threads on one store, and of two stores on the same data."""

from __future__ import annotations

from functools import partial

from msgspec.structs import replace

from ergon_framework.core.circuit_breaker import Breaker
from ergon_framework.core.quota import QuotaUsage
from ergon_framework.ports.providerstore import (
    ClaimState,
    LaneHealth,
    LaneState,
    LetterStatus,
    ProviderStore,
    RecordBatch,
)
from ergon_framework.testing.suites.framework import Check, expect, register
from ergon_framework.testing.suites.providerstore.under_test import (
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
    ProviderStoreSubject,
    near,
    same,
)

CHECKS: list[Check[ProviderStoreSubject]] = []
check = register(CHECKS)


@check()
def one_swap_wins(s: ProviderStoreSubject) -> None:
    """Of many threads that swap at one version, one succeeds, and its circuit is the one there."""
    version = 0
    for _ in range(5):
        circuits = [Breaker(failures=n, generation=version) for n in range(12)]
        answers = s.together(
            [partial(s.store.compare_and_set, LANE, version, each) for each in circuits]
        )
        same(sum(answers), 1, f"swaps that succeeded at version {version}")
        found = s.store.lane_state(LANE)
        same(found.breaker, circuits[answers.index(True)], "the circuit")
        version = found.version


@check()
def no_swap_is_lost(s: ProviderStoreSubject) -> None:
    """Failures that many threads count by reading and swapping are all counted."""

    def count(times: int) -> None:
        while times:
            found = s.store.lane_state(LANE)
            more = replace(found.breaker, failures=found.breaker.failures + 1)
            times -= s.store.compare_and_set(LANE, found.version, more)

    s.together([partial(count, 5)] * 6)
    same(s.store.lane_state(LANE).breaker.failures, 30, "failures")


@check()
def latest_cooldown_wins(s: ProviderStoreSubject) -> None:
    """Of many cooldowns at once the latest holds, and nobody is answered with less than its own."""
    for first in range(6):
        key = LANE._replace(capability=f"lane-{first}")
        wanted = [s.start + 7.0 * ((first + n * 5) % 12) for n in range(12)]
        answers = s.together([partial(s.store.extend_cooldown, key, until) for until in wanted])
        expect(all(a >= w for a, w in zip(answers, wanted, strict=True)), f"answers {answers}")
        same(s.store.lane_state(key).cooldown_until, max(wanted), "the cooldown")


@check()
def last_unit_is_granted_once(s: ProviderStoreSubject) -> None:
    """Of many threads that ask for the last unit at once, one gets it."""
    for n in range(5):
        key = LANE._replace(capability=f"lane-{n}")
        s.take(9, key=key)
        answers = s.together([partial(s.reserve, key=key)] * 12)
        same(sum(each.is_granted for each in answers), 1, "granted")
        same(s.lane(key).account, QuotaUsage(s.window(), 10, 10), "the account")


@check()
def first_use_loses_no_unit(s: ProviderStoreSubject) -> None:
    """Threads that open a window at once share one account, and each unit is granted once."""
    for n in range(5):
        key = LANE._replace(capability=f"lane-{n}")
        answers = s.together([partial(s.reserve, key=key, limit=8)] * 14)
        used = sorted(each.account.used for each in answers if each.is_granted)
        same(used, list(range(1, 9)), "units used after each grant")
        same(s.lane(key).account, QuotaUsage(s.window(), 8, 8), "the account")


@check()
def enough_for_all_is_granted_to_all(s: ProviderStoreSubject) -> None:
    """Threads that open a window at once are all served while there is enough."""
    for n in range(10):
        key = LANE._replace(capability=f"lane-{n}")
        answers = s.together([partial(s.reserve, key=key, limit=12)] * 12)
        refused = [each.account for each in answers if not each.is_granted]
        same(refused, [], "accounts of those who were refused")
        same(s.lane(key).account, QuotaUsage(s.window(), 12, 12), "the account")


@check()
def units_are_granted_whole(s: ProviderStoreSubject) -> None:
    """Threads that ask for several units get all of theirs or none."""
    answers = s.together([partial(s.reserve, 3, limit=20)] * 12)
    used = sorted(each.account.used for each in answers if each.is_granted)
    same(used, [3, 6, 9, 12, 15, 18], "units used after each grant")
    same(s.take(2, limit=20), 20, "used with the rest")


@check()
def refunds_and_reservations(s: ProviderStoreSubject) -> None:
    """Threads that take and give back never use more than the limit, and leave nothing taken."""

    def borrow() -> int:
        most = 0
        for _ in range(6):
            answer = s.reserve(2, limit=6)
            most = max(most, answer.account.used)
            if answer.is_granted:
                s.store.refund(LANE, s.window(), 2)
        return most

    expect(max(s.together([borrow] * 6)) <= 6, "more was used than the limit")
    same(s.lane().account, QuotaUsage(s.window(), 6, 0), "the account")


@check()
def roll_over_among_threads(s: ProviderStoreSubject) -> None:
    """While one window gives way to the next, neither gives more than its limit."""

    def ask(window: int) -> list[float]:
        answers = [s.reserve(window=window, limit=7) for _ in range(4)]
        return [each.account.window.start for each in answers if each.is_granted]

    granted = [
        start for part in s.together([partial(ask, n % 2) for n in range(10)]) for start in part
    ]
    old, new = (granted.count(s.window(n).start) for n in (0, 1))
    expect(old <= 7, f"the old window gave {old} of 7")
    same((new, len(granted)), (7, old + new), "units of the new window, and of both")
    same(s.must_refuse(limit=7).account, QuotaUsage(s.window(1), 7, 7), "the account afterwards")


@check()
def no_attempt_is_lost(s: ProviderStoreSubject) -> None:
    """Attempts that many threads write at once, into one minute of one lane, are all counted."""
    batches = [[s.attempt(correlation_id="c") for _ in range(3)] for _ in range(11)]
    batches.append([s.attempt(FAILED, correlation_id="c", duration_ms=77)])
    s.together([partial(s.record, *rows) for rows in batches])
    same(len(s.store.attempts_of("c")), 34, "attempts")
    near(s.rates()[0], 33 / 34, "the success rate")


@check()
def batch_is_written_once(s: ProviderStoreSubject) -> None:
    """A batch that many threads write at once is there once, and counts once."""
    rows = [s.attempt(correlation_id="c"), s.attempt(DEAD, correlation_id="c")]
    letters = [s.letter(1), s.letter(2)]
    s.together([lambda: s.record(*rows, letters=letters)] * 8)
    same(len(s.store.attempts_of("c")), 2, "attempts")
    same(len(s.store.letters()), 2, "letters")
    s.ran(SUCCESS)
    near(s.rates()[0], 2 / 3, "the success rate after one more")


@check()
def batches_of_many_lanes_do_not_lock_each_other(s: ProviderStoreSubject) -> None:
    """Threads that write the same lanes and letters in any order all get through."""
    lanes = [LANE._replace(capability=f"lane-{n}") for n in range(6)]

    def work(number: int) -> None:
        order = lanes[number:] + lanes[:number]
        if number % 2:
            order.reverse()
        for _ in range(3):
            s.record(*(s.attempt(key=key) for key in order))
            for key in order[:2]:
                s.store.extend_cooldown(key, s.start + number)

    s.together([partial(work, n) for n in range(6)])
    s.record(*(s.attempt(FAILED, key=key) for key in lanes))
    for key in lanes:
        near(s.rates(key)[0], 18 / 19, f"the success rate of {key.capability}")


@check()
def summary_while_others_write(s: ProviderStoreSubject) -> None:
    """A summary that is read while others write is possible at every instant."""

    def write() -> None:
        for _ in range(8):
            s.ran(SUCCESS, FAILED)
            s.reserve(limit=100)

    def read() -> list[LaneHealth]:
        return [lane for _ in range(15) for lane in s.store.health(TENANT)]

    *_, one, two = s.together([write, write, write, read, read])
    expect({lane.success_rate_1h for lane in one + two} <= {0.5, None}, "a rate cannot be")
    same((s.rates()[0], s.lane().account), (0.5, QuotaUsage(s.window(), 100, 24)), "in the end")


@check()
def one_claim_wins(s: ProviderStoreSubject) -> None:
    """Of many threads that claim a new key at once, one gets it."""
    for n in range(5):
        key = f"key-{n}"
        answers = s.together([partial(s.claim, f"owner-{m}", key=key) for m in range(12)])
        states = sorted(each.state for each in answers)
        same(states, [ClaimState.MINE] + [ClaimState.RUNNING] * 11, "the claims")
        [mine] = [each for each in answers if each.state is ClaimState.MINE]
        same(s.finish(mine.owner, {}, key=key), True, "whether its owner could finish")


@check(CLOCK)
def one_takes_over(s: ProviderStoreSubject) -> None:
    """Of many threads that find a lease over, one gets the key."""
    for n in range(5):
        key = f"key-{n}"
        s.must_claim("gone", key=key)
        s.clock.forward(LEASE + 1.0)
        answers = s.together([partial(s.claim, f"owner-{m}", key=key) for m in range(12)])
        states = sorted(each.state for each in answers)
        same(states, [ClaimState.MINE] + [ClaimState.RUNNING] * 11, "the claims")


@check()
def one_end_is_told(s: ProviderStoreSubject) -> None:
    """Of many threads that end one call at once, one is believed, and its result is kept."""
    s.must_claim("me")
    answers = s.together([partial(s.finish, "me", {"n": n}) for n in range(8)])
    same(sum(answers), 1, "ends that were recorded")
    same(s.claim("you").result, {"n": answers.index(True)}, "the result")


@check(BESIDE)
def gates_are_shared(s: ProviderStoreSubject) -> None:
    """A circuit or cooldown that one process writes holds for the other at once."""
    other = s.beside()
    same((s.store.lane_state(LANE), other.lane_state(LANE)), (LaneState(), LaneState()), "at first")
    version = s.must_swap(0, s.probing())
    s.store.extend_cooldown(LANE, s.start + 60.0)
    same(other.lane_state(LANE), s.store.lane_state(LANE), "the standing")
    same(other.compare_and_set(LANE, version, s.opened()), True, "whether the other could swap")
    same(
        s.store.compare_and_set(LANE, version, Breaker()), False, "whether the first could after it"
    )
    same(s.store.lane_state(LANE).breaker, s.opened(), "the circuit")
    same(
        other.extend_cooldown(LANE, s.start + 5.0),
        s.start + 60.0,
        "a shorter cooldown of the other",
    )


@check(BESIDE)
def budget_is_shared(s: ProviderStoreSubject) -> None:
    """Two processes take from one budget, and know of each other's windows."""
    other = s.beside()
    s.take(6)
    same(other.reserve(LANE, s.window(), 10, 4).account.used, 10, "used by both")
    s.must_refuse()
    other.refund(LANE, s.window(), 1)
    same(s.take(1), 10, "used after a refund")
    other.reserve(LANE, s.window(1), 10, 10)
    same(
        s.must_refuse().account, QuotaUsage(s.window(1), 10, 10), "the account of the newer window"
    )


@check(BESIDE)
def budget_is_exact_among_processes(s: ProviderStoreSubject) -> None:
    """Threads of two processes get exactly what there is."""
    stores = s.store, s.beside()

    def ask(store: ProviderStore) -> int:
        return sum(store.reserve(LANE, s.window(), 50, 1).is_granted for _ in range(8))

    granted = s.together([partial(ask, stores[n % 2]) for n in range(10)])
    same(sum(granted), 50, "granted")
    same(s.lane().account, QuotaUsage(s.window(), 50, 50), "the account")


@check(BESIDE)
def one_process_swaps(s: ProviderStoreSubject) -> None:
    """Of threads of two processes that swap at one version, one succeeds."""
    stores = s.store, s.beside()
    for _ in range(3):
        version = s.store.lane_state(LANE).version
        calls = [
            partial(stores[n % 2].compare_and_set, LANE, version, Breaker(failures=n))
            for n in range(8)
        ]
        answers = s.together(calls)
        same(sum(answers), 1, "swaps that succeeded")
        same(stores[1].lane_state(LANE).breaker.failures, answers.index(True), "whose it is")


@check(BESIDE)
def records_are_shared(s: ProviderStoreSubject) -> None:
    """What one process records the other finds, and does not record again."""
    other = s.beside()
    row = s.attempt(DEAD, correlation_id="c")
    s.record(row, letters=[s.letter(1)])
    same(other.attempts_of("c"), [row], "the attempts")
    other.record(RecordBatch([row, s.attempt(correlation_id="d")], [s.letter(1), s.letter(2)]))
    same(s.store.attempts_of("c"), [row], "the attempts, written by both")
    same(len(s.store.letters()), 2, "letters")
    same(s.rates()[0], 0.5, "the success rate")


@check(BESIDE)
def rates_are_shared(s: ProviderStoreSubject) -> None:
    """A process that has looked at the rates sees what another adds, also to earlier minutes."""
    other = s.beside()
    s.ran(SUCCESS)
    same((s.rates()[0], s.lane(store=other).success_rate_1h), (1.0, 1.0), "at first")
    ages = (0.0, 0.0, 30.0, 10.0, 0.0, 55.0, 30.0)
    for n, minutes in enumerate(ages, 2):
        late = s.attempt(FAILED, created_at=s.start - minutes * MINUTE)
        (other if n % 2 else s.store).record(RecordBatch([late]))
        near(s.rates()[0], 1 / n, "the success rate")
        near(s.lane(store=other).success_rate_1h, 1 / n, "the success rate for the other")


@check(BESIDE)
def rates_add_up_among_processes(s: ProviderStoreSubject) -> None:
    """Attempts that threads of two processes write into one minute are all counted."""
    stores = s.store, s.beside()

    def write(number: int) -> None:
        for _ in range(3):
            stores[number % 2].record(RecordBatch([s.attempt(), s.attempt()]))

    s.together([partial(write, n) for n in range(8)])
    s.ran(FAILED)
    near(s.rates()[0], 48 / 49, "the success rate")


@check(BESIDE)
def keys_are_shared(s: ProviderStoreSubject) -> None:
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
def one_process_claims(s: ProviderStoreSubject) -> None:
    """Of threads of two processes that claim a key, one gets it."""
    stores = s.store, s.beside()
    for n in range(4):
        answers = s.together(
            partial(stores[m % 2].claim, TENANT, f"k{n}", "same", f"owner-{m}", LEASE, KEEP)
            for m in range(8)
        )
        same(sum(each.state is ClaimState.MINE for each in answers), 1, "holders")


@check(BESIDE, CLOCK)
def key_is_taken_over_from_a_process(s: ProviderStoreSubject) -> None:
    """A process that died leaves its key to another when the lease is over."""
    other = s.beside()
    s.must_claim("me")
    s.store.close()
    s.clock.forward(LEASE + 1.0)
    claim = other.claim(TENANT, "k", "same", "you", LEASE, KEEP)
    same(claim.state, ClaimState.MINE, "the claim of the other")
    same(other.finish(TENANT, "k", "me", {}, None), False, "whether the dead one could finish")


@check(BESIDE)
def letters_are_shared(s: ProviderStoreSubject) -> None:
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
def closing_one_leaves_the_other(s: ProviderStoreSubject) -> None:
    """A process that ends takes nothing with it."""
    s.must_swap(0, s.probing())
    s.store.extend_cooldown(LANE, s.start + 60.0)
    s.take(4)
    row = s.attempt(DEAD, correlation_id="c")
    s.record(row, letters=[s.letter(1)])
    s.must_claim("me")
    s.finish("me", {"n": 1})
    before = s.store.lane_state(LANE), s.store.health(TENANT), s.store.letters()
    s.store.close()
    other = s.beside()
    same((other.lane_state(LANE), other.health(TENANT), other.letters()), before, "what is there")
    same(other.attempts_of("c"), [row], "the attempts")
    claim = other.claim(TENANT, "k", "same", "you", LEASE, KEEP)
    same(claim.result, {"n": 1}, "the result")
    expect(other.compare_and_set(LANE, before[0].version, s.opened()), "a swap was refused")
    same(other.reserve(LANE, s.window(), 10, 6).account.used, 10, "used")
