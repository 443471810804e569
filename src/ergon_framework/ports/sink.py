"""Where notices go. An engine call without a sink builds none of them."""

from __future__ import annotations

from contextvars import Context
from typing import Any, Protocol, runtime_checkable

from ergon_framework.core.failure import Failure
from ergon_framework.ports.context import Attempt, Call
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


@runtime_checkable
class LifecycleSink(Protocol):
    """What a sink may have besides, to be told of lifecycles without a Notice around each event.

    An engine that finds these methods calls them instead of :meth:`Sink.emit` for
    ``transaction.began``, ``attempt.ended`` and ``transaction.ended``, with the same rules.
    """

    def enter(self, attempt: Attempt, context: Context) -> None:
        """As in :class:`Sink`."""

    def began(self, call: Call, run: Any) -> None:
        """A lifecycle started, at ``run.began_at``."""

    def left(
        self,
        attempt: Attempt,
        at: float,
        failure: Failure | None,
        exception: BaseException | None,
        result: Any,
    ) -> None:
        """A hook returned, raised or ran out of time."""

    def ended(
        self,
        call: Call,
        run: Any,
        at: float,
        ending: str,
        failure: Failure | None,
        handler_failure: Failure | None,
    ) -> None:
        """A lifecycle reached its one outcome."""
