"""What the exit code of a command means."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """The whole list; no command ends with another code."""

    DONE = 0
    FAILED = 1  # it was started and did not come to a good end
    REFUSED = 2  # wrong configuration or wrong use: nothing was started
    INTERRUPTED = 130  # SIGINT: 128 + 2
    TERMINATED = 143  # SIGTERM: 128 + 15


def of_signal(number: int) -> ExitCode:
    """The code of a process that a signal asked to end."""
    return ExitCode(128 + number)
