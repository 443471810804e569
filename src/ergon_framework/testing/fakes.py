"""Fakes for what a program under test talks to: functions of a provider, and zones.

The function of a provider follows a script. Everything around it stays as it is: retries, circuits,
quotas and records. A zone is a real one, in memory.
"""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, Self

from ergon_framework.engine.clocks import SYSTEM_CLOCK, use_clock
from ergon_framework.errors import WiringError
from ergon_framework.testing.scripted import act, act_async

if TYPE_CHECKING:
    from ergon_framework.boundary.client.transport import Transport
    from ergon_framework.providers.calls import FunctionCall


class FakeCall:
    """Stands in for a function of a provider while it is entered.

    Each attempt takes the next answer, and the last one repeats: a value to return, an exception to
    raise, ``Takes(seconds, then)``, or a function that is called without arguments.
    """

    def __init__(self, call: FunctionCall, *answers: Any) -> None:
        if not answers:
            raise WiringError(
                f"the fake of {call.operation!r} has no answer", remedy="give one, None for None"
            )
        self._call = call
        self._answers = answers
        self._lock = threading.Lock()
        self._original = call.signature.function
        self.calls: list[dict[str, Any]] = []
        """The arguments of each attempt, the injected ones included."""

    def __enter__(self) -> Self:
        self._call.provider.close()  # its circuit and its quota begin anew
        self._call.signature.function = self._scripted()
        return self

    def __exit__(self, *_error: object) -> None:
        self._call.signature.function = self._original
        self._call.provider.close()

    def _scripted(self) -> Callable[..., Any]:
        if self._call.is_async:

            @functools.wraps(self._original)
            async def scripted(**given: Any) -> Any:
                return await act_async(self._next(given))
        else:

            @functools.wraps(self._original)
            def scripted(**given: Any) -> Any:
                return act(self._next(given))

        return scripted

    def _next(self, given: dict[str, Any]) -> Any:
        with self._lock:
            self.calls.append(given)
            return self._answers[min(len(self.calls), len(self._answers)) - 1]


_readers = itertools.count()


class FakeZone:
    """The facts of a zone, for a test to look at."""

    def __init__(self, name: str, transport: Transport) -> None:
        self.name = name
        self._transport = transport

    def facts(self, to: str | None = None) -> list[dict[str, Any]]:
        """All facts that were published so far, in order; with ``to`` those for one zone."""
        # In real time: a reader keeps its lease in a thread, for which virtual time would rush on.
        return copy_context().run(self._read, to)

    def _read(self, to: str | None) -> list[dict[str, Any]]:
        from ergon_framework.connector.boundary.connector import BoundaryConnector

        use_clock(SYSTEM_CLOCK)
        consumer = f"test-{next(_readers)}"  # a new one begins with the first fact
        source = BoundaryConnector(self._transport, consumer=consumer, log="outbound", view=to)
        found: list[dict[str, Any]] = []
        try:
            while page := source.fetch_transactions(100):
                for each in page:
                    found.append(each.payload)
                    source.ack(each)
        finally:
            source.close()
        return found
