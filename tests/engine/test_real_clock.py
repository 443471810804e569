"""Waiting for an instant of the real clock."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from ergon_framework.engine.clocks import SYSTEM_CLOCK, sleep_until


class Interrupted(BaseException):
    """What the handler of a signal raises: Ctrl-C, or the time limit of a task queue."""


class Alarm:
    """A timer whose signal raises while it is armed.

    The kernel may give the signal to another thread. Then it can reach Python after the timer was
    switched off, and must not raise outside of what the test catches.
    """

    def __init__(self) -> None:
        self.armed = False

    def ring(self, *_: object) -> None:
        if self.armed:
            self.armed = False
            raise Interrupted

    def set(self, seconds: float) -> None:
        self.armed = True
        signal.setitimer(signal.ITIMER_REAL, seconds)

    def switch_off(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        self.armed = False


@pytest.fixture
def alarm() -> Iterator[Alarm]:
    """An alarm that is off when the test ends."""
    made = Alarm()
    before = signal.signal(signal.SIGALRM, made.ring)
    yield made
    made.switch_off()
    signal.signal(signal.SIGALRM, before)


def test_a_signal_that_comes_as_a_wait_ends_is_what_is_raised(alarm: Alarm) -> None:
    """Whoever catches it finds it, and no complaint about a lock in its place."""
    for number in range(1500):
        moment = 0.0002
        try:
            alarm.set(moment + (number % 60 - 10) * 2e-6)
            sleep_until(SYSTEM_CLOCK, SYSTEM_CLOCK.now() + moment)
            alarm.switch_off()
        except Interrupted:
            continue
