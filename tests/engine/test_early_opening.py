"""Stores that are opened before the first unit: how long that is waited for, and what stops it."""

from __future__ import annotations

import _thread
import threading
import time

import pytest

from ergon_framework.engine.time_limit import open_early


def test_a_busy_thread_does_not_make_the_wait_endless() -> None:
    """Only idle seconds count towards the limit, up to a bound."""
    is_over, is_opened = threading.Event(), threading.Event()

    def work() -> None:
        while not is_over.is_set():
            sum(range(20_000))

    busy = threading.Thread(target=work)
    busy.start()
    began_at = time.monotonic()
    try:
        open_early([lambda: is_opened.wait(60)], 0.1)
        assert time.monotonic() - began_at < 30
    finally:
        is_opened.set()
        is_over.set()
        busy.join()


def test_an_interrupt_stops_what_is_not_being_opened_yet() -> None:
    """Ctrl-C while the first store is opened: the others stay closed."""
    goes_on, opened = threading.Event(), threading.Event()

    def first() -> None:
        interrupting.start()
        assert goes_on.wait(30)

    interrupting = threading.Timer(0.2, _thread.interrupt_main)
    with pytest.raises(KeyboardInterrupt):
        open_early([first, opened.set], 20.0)
    goes_on.set()
    assert not opened.wait(0.5)
