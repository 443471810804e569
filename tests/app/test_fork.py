"""A process that forks while a thread of it is inside an App: the child goes on all the same."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from ergon_framework import App, Provider
from ergon_framework.jobs.totals import DrainTotals

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:This process:DeprecationWarning"),
]
WAIT = 30


class Slow(str):
    """A text that holds up whoever looks it up, and with it the lock that he holds."""

    __slots__ = ("go_on", "reached")
    reached: threading.Event
    go_on: threading.Event

    def __hash__(self) -> int:
        self.reached.set()
        self.go_on.wait(WAIT)
        return super().__hash__()


@contextmanager
def held_up(use: Callable[[str], object]) -> Iterator[None]:
    """A thread is inside ``use`` for as long as the block takes."""
    text = Slow("held")
    text.reached, text.go_on = threading.Event(), threading.Event()
    thread = threading.Thread(target=use, args=(text,))
    thread.start()
    try:
        assert text.reached.wait(WAIT)
        yield
    finally:
        text.go_on.set()
        thread.join(WAIT)


def in_child(work: Callable[[], bool]) -> None:
    """Run it in a forked child, which must come to an end and find it true."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.alarm(WAIT)
            code = 0 if work() else 2
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def test_an_app() -> None:
    """The child finds a zone while a thread, which only its parent has, looks for one."""
    app = App("memory://")
    with held_up(app.zone):
        in_child(lambda: app.zone("plant").name == "plant")


def test_a_provider() -> None:
    """The child makes its first call while a thread of its parent makes one."""
    reached, go_on = threading.Event(), threading.Event()

    def store() -> None:
        if threading.current_thread() is not threading.main_thread():
            reached.set()
            go_on.wait(WAIT)

    rates = Provider("rates", store=store)

    @rates.call
    def ask() -> int:
        return 7

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        assert reached.wait(WAIT)
        in_child(lambda: ask() == 7)
    finally:
        go_on.set()
        thread.join(WAIT)


def test_what_drains_count() -> None:
    """The child counts while a thread of its parent does."""
    totals = DrainTotals()
    totals.begin(0.0)

    def count() -> bool:
        totals.begin(0.0)
        totals.count("mail", "completed", 0.1)
        return True

    with held_up(lambda queue: totals.count(queue, "completed", 0.1)):
        in_child(count)
