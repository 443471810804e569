"""SIGINT and SIGTERM as one exception, for a command that has something to say before it ends."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from ergon_framework.app.console import ExitCode, of_signal

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StoppedError(BaseException):
    """Somebody asked the command to stop; no error of the work, so nothing takes it for one."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code: ExitCode = of_signal(number)


@contextmanager
def stoppable() -> Iterator[None]:
    """Raise :class:`StoppedError` at the first of the signals; the next one ends the process."""
    if threading.current_thread() is not threading.main_thread():
        yield  # where Python lets nobody handle signals
        return
    before = {number: signal.signal(number, _stop) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _stop(number: int, _frame: FrameType | None) -> None:
    for each in _SIGNALS:
        signal.signal(each, signal.SIG_DFL)  # to tidy up may take longer than somebody will wait
    raise StoppedError(number)
