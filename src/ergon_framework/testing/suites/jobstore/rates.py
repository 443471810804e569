"""What the rate of a queue and the rate of each limit key of a queue promise alike.

Each function needs a queue ``q`` that was given a rate. ``fields`` are those of the jobs that it
adds there.
"""

from __future__ import annotations

from typing import Any

from ergon_framework.testing.suites.drivers import START
from ergon_framework.testing.suites.framework import expect
from ergon_framework.testing.suites.jobstore.under_test import (
    RELEASED,
    SUCCEEDED,
    JobStoreSubject,
    same,
)


def expect_token_every_other_second(s: JobStoreSubject, **fields: Any) -> None:
    """With a rate of 0.5 and a burst of 1, one job starts every other second."""
    s.put(*(f"job-{n}" for n in range(9)), queue="q", **fields)
    came = []
    for _ in range(8):  # 1.0 s each: a token every other time
        came.append(len(s.claim(9)))
        s.clock.forward(1.0)
    same(came, [1, 0, 1, 0, 1, 0, 1, 0], "claimed each second")


def expect_instant_of_next_token(s: JobStoreSubject, **fields: Any) -> None:
    """With a rate of 3 and a burst of 2, a claim says when the next token comes, and it does."""
    s.put(*(f"job-{n}" for n in range(12)), queue="q", **fields)
    same(len(s.claim(9)), 2, "at first")
    for _ in range(9):
        claimed = s.settle_and_claim((), 9)[1]
        same(claimed.jobs, [], "without a token")
        at = claimed.next_at
        expect(at is not None and START < at <= s.store.now() + 0.34, f"next_at is {at}")
        s.clock.to(at or 0.0)
        same(len(s.claim(9)), 1, "at the instant given")
    expect(s.store.now() < START + 3.01, "nine jobs at three per second took longer")


def expect_token_for_every_start(s: JobStoreSubject, **fields: Any) -> None:
    """With a rate of 0.1 and a burst of 2, a job that is delivered twice takes two tokens."""
    s.put("a", "b", queue="q", **fields)
    s.ended("a", RELEASED)
    s.ended("a", SUCCEEDED)
    same(s.ids(9), [], "the third start")
    s.clock.forward(10.0)
    same(s.ids(9), ["b"], "ten seconds later")
