"""What commands tell the terminal: exit codes, and lines that are said and logged.

Imports nothing heavy: every command needs it, also those that only refuse something.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from enum import IntEnum

from ergon_framework.core.text import whole_record


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


_followed: list[logging.Handler] = []
"""What writes the log as objects to the standard error stream, if anything does."""


def follow(handler: logging.Handler) -> None:
    """Format lines of the terminal like this log handler, as long as it is in use."""
    _followed[:] = [handler]


def log_line(text: str, level: int = logging.INFO) -> str | None:
    """The text as a record of the log; None when that is written for people, or elsewhere.

    It is shown whatever the level of the log is: who asked for few records still wants to know.
    """
    for handler in _followed:
        if handler in logging.getLogger().handlers and handler.formatter is not None:
            record = logging.LogRecord("ergon", level, "", 0, text, None, None)
            return handler.formatter.format(record)
    return None


def say(text: str, level: int = logging.INFO) -> None:
    """Write one line to the standard error stream, past every buffer; it may be closed."""
    line = log_line(text, level) or whole_record(f"ergon: {text}")
    with suppress(OSError):
        os.write(2, f"{line}\n".encode())
