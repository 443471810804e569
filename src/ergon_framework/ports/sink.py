"""Where notices go. An engine call without a sink builds none of them."""

from __future__ import annotations

from contextvars import Context
from typing import Protocol

from ergon_framework.ports.context import Attempt
from ergon_framework.ports.notice import Notice


class Sink(Protocol):
    """A listener of one or more engine calls.

    Both methods are synchronous, must not block, and are called from any worker thread or from the
    event loop. What they raise is logged once and never fails the work.
    """

    def emit(self, notice: Notice) -> None:
        """Take note of something that happened."""

    def enter(self, attempt: Attempt, context: Context) -> None:
        """User code is about to run in ``context``: make a span current in there.

        ``attempt.note`` and ``attempt.run.note`` belong to the sink.
        """
