"""Waiting for an instant of the real clock."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from ergon_framework.engine.clocks import SYSTEM_CLOCK, sleep_until


class Interrupted(BaseException):
    """What the handler of a signal raises: Ctrl-C, or the time limit of a task queue."""


def _interrupt(*_: object) -> None:
    raise Interrupted


@pytest.fixture
def alarm() -> Iterator[None]:
    """A signal that raises."""
    before = signal.signal(signal.SIGALRM, _interrupt)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("alarm")
def test_a_signal_that_comes_as_a_wait_ends_is_what_is_raised() -> None:
    """Whoever catches it finds it, and no complaint about a lock in its place."""
    for number in range(1500):
        moment = 0.0002
        try:
            signal.setitimer(signal.ITIMER_REAL, moment + (number % 60 - 10) * 2e-6)
            sleep_until(SYSTEM_CLOCK, SYSTEM_CLOCK.now() + moment)
            signal.setitimer(signal.ITIMER_REAL, 0)
        except Interrupted:
            continue
