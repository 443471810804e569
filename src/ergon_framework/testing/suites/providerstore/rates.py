"""Checks of the rates of the last hour: what counts, for how long, and how exactly."""

from __future__ import annotations

from math import ceil
from random import Random

from ergon_framework.ports.providerstore import AttemptRow
from ergon_framework.testing.suites.framework import Check, expect, register
from ergon_framework.testing.suites.providerstore.subject import (
    CLOCK,
    DEAD,
    FAILED,
    HOUR,
    LANE,
    MINUTE,
    RETRY,
    SUCCESS,
    Subject,
    near,
    same,
)

CHECKS: list[Check[Subject]] = []
check = register(CHECKS)

# Roll-ups are by the minute: an attempt is surely counted for 59 minutes, and surely not after 61.


@check()
def success_rate_is_of_executions(s: Subject) -> None:
    """The rate is of calls that ended: a dead letter is a failure, a retry in between nothing."""
    s.ran(RETRY, RETRY, SUCCESS, SUCCESS, SUCCESS)
    same(s.rates()[0], 1.0, "with retries only")
    s.ran(RETRY, FAILED)
    same(s.rates()[0], 0.75, "with a failure")
    s.ran(DEAD)
    near(s.rates()[0], 3 / 5, "with a dead letter")


@check()
def no_rate_without_an_ending(s: Subject) -> None:
    """There is no success rate before a call has ended, though there are durations."""
    s.must_swap(0, s.opened())
    same(s.rates(), (None, None), "of a lane without attempts")
    s.ran(RETRY, duration_ms=70)
    same(s.rates(), (None, 70), "of a lane with retries")


@check()
def nothing_but_failures(s: Subject) -> None:
    """A rate of zero is told as zero, not as unknown."""
    s.ran(FAILED, DEAD, duration_ms=0)
    same(s.rates(), (0.0, 0), "the rates")


@check()
def refused_calls_do_not_count(s: Subject) -> None:
    """Calls that a gate refused count neither as failures nor as fast answers."""
    s.ran(SUCCESS, duration_ms=400)
    codes = ("circuit_open", "quota_exhausted", "rate_limited") * 20
    s.record(*(s.refused(code) for code in codes))
    same(s.rates(), (1.0, 400), "the rates")


@check()
def refused_calls_alone_are_no_rate(s: Subject) -> None:
    """A lane of which only refused calls are known has no rates."""
    s.record(s.refused(), s.refused())
    same(s.rates(), (None, None), "the rates")


@check()
def p95_is_the_nearest_rank(s: Subject) -> None:
    """Of few durations, the 95th percentile is the one of the nearest rank, exactly."""
    order = Random(5)  # noqa: S311 - the same each time
    for count, wanted in ((1, 1031), (10, 10_310), (19, 19_589), (20, 19_589), (100, 97_945)):
        key = LANE._replace(capability=f"of {count}")
        durations = [1031 * n for n in range(1, count + 1)]
        order.shuffle(durations)
        s.record(*(s.attempt(key=key, duration_ms=each) for each in durations))
        same(s.rates(key)[1], wanted, f"p95 of {count}")


@check()
def p95_has_failures_and_retries(s: Subject) -> None:
    """How long an attempt took counts however it ended."""
    s.ran(*[SUCCESS] * 4, duration_ms=10)
    s.ran(RETRY, duration_ms=500)
    same(s.rates()[1], 500, "with a retry")
    s.ran(FAILED, duration_ms=600)
    same(s.rates()[1], 600, "with a failure")
    s.ran(DEAD, duration_ms=700)
    same(s.rates()[1], 700, "with a dead letter")


@check()
def p95_of_many(s: Subject) -> None:
    """Of many durations, the 95th percentile is right within two in a hundred."""
    for scale in (1, 37, 9001):
        key = LANE._replace(capability=f"times {scale}")
        s.record(*(s.attempt(key=key, duration_ms=scale * n) for n in range(1, 1001)))
        near(s.rates(key)[1], 950 * scale, f"p95 times {scale}", within=19 * scale)


@check()
def minutes_add_up(s: Subject) -> None:
    """Attempts of all minutes of the hour are counted together, exactly."""
    s.record(
        *(
            s.attempt(
                SUCCESS if n % 5 else FAILED,
                created_at=s.start - n * MINUTE,
                duration_ms=1009 * (n + 1),
            )
            for n in range(50)
        )
    )
    same(s.rates(), (0.8, 1009 * ceil(50 * 0.95)), "the rates")


@check()
def old_attempts_do_not_count(s: Subject) -> None:
    """Attempts that were made more than an hour ago are on record, and in no rate."""
    old = s.attempt(FAILED, created_at=s.start - HOUR - 5 * MINUTE, correlation_id="c")
    s.record(old, s.attempt(created_at=s.start - 50 * MINUTE))
    same(s.store.attempts_of("c"), [old], "the attempts")
    same(s.rates(), (1.0, 20), "the rates")
    key = LANE._replace(capability="long ago")
    s.ran(FAILED, created_at=s.start - 2 * HOUR, key=key)
    same(s.rates(key), (None, None), "the rates where all are old")


@check()
def late_attempts_count(s: Subject) -> None:
    """Attempts that come in late, as after the store was away, count as of when they were made."""
    s.ran(SUCCESS)
    same(s.rates()[0], 1.0, "at first")
    for n, minutes in enumerate((40, 20, 3, 20), 2):
        s.ran(FAILED, created_at=s.start - minutes * MINUTE)
        near(s.rates()[0], 1 / n, f"after one of {minutes} minutes ago came in")


@check(CLOCK)
def rates_fade_without_traffic(s: Subject) -> None:
    """When nobody calls any more, the rates stay for most of an hour, and then there are none."""
    s.ran(SUCCESS, FAILED, duration_ms=30)
    for minutes in (1, 20, 37):
        s.clock.forward(minutes * MINUTE)
        same(s.rates(), (0.5, 30), "within the hour")
    s.clock.forward(4 * MINUTE)
    same(s.rates(), (None, None), "after the hour")


@check(CLOCK)
def rates_move_with_the_hour(s: Subject) -> None:
    """What is older than an hour makes way for what came since."""
    s.ran(FAILED, FAILED, duration_ms=900)
    s.clock.forward(30 * MINUTE)
    s.ran(SUCCESS, SUCCESS, created_at=s.clock(), duration_ms=10)
    same(s.rates(), (0.5, 900), "half an hour later")
    s.clock.forward(32 * MINUTE)
    same(s.rates(), (1.0, 10), "an hour later")


@check(CLOCK)
def rates_survive_a_clock_that_is_set_back(s: Subject) -> None:
    """A clock that steps back an hour and forth again leaves the rates right in the end."""
    s.ran(SUCCESS, FAILED)
    same(s.rates()[0], 0.5, "at first")
    s.clock.forward(-HOUR)
    expect(s.rates()[0] in {None, 0.5}, f"an hour before, the rate is {s.rates()[0]}")
    s.ran(FAILED, FAILED, created_at=s.clock() + 10 * MINUTE)
    s.rates()
    s.clock.forward(HOUR)
    same(s.rates()[0], 0.25, "afterwards")


@check(CLOCK)
def rates_are_those_of_the_attempts(s: Subject) -> None:
    """However calls, late news, silence and looks at the summary alternate, the rates are right."""
    dice = Random(11)  # noqa: S311 - the same each time
    rows: list[AttemptRow] = []
    for _ in range(60):
        s.clock.forward(5 * MINUTE * dice.choice((0, 0, 0, 1, 1, 3, 9)))
        fresh = [
            s.attempt(
                dice.choice((SUCCESS, SUCCESS, RETRY, FAILED, DEAD)),
                created_at=s.clock() - MINUTE * (2.5 + 5 * dice.choice((0, 0, 0, 2, 7, 11, 13))),
                duration_ms=dice.randrange(5000),
            )
            for _ in range(dice.choice((0, 1, 1, 4)))
        ]
        rows += fresh
        s.record(*fresh, *dice.sample(rows, min(len(rows), 2)))
        if rows and dice.random() < 0.7:
            same(s.rates(), _scanned(rows, s.clock()), "rates, and those of a scan")


def _scanned(rows: list[AttemptRow], now: float) -> tuple[float | None, int | None]:
    recent = [row for row in rows if row.created_at > now - HOUR]
    ended = [row.outcome == SUCCESS for row in recent if row.outcome != RETRY]
    durations = sorted(row.duration_ms for row in recent)
    rate = sum(ended) / len(ended) if ended else None
    return rate, durations[ceil(0.95 * len(durations)) - 1] if durations else None
