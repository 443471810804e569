"""A provider that makes no calls: for trying things out, for tests and for rehearsals."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from ergon_framework.engine.clocks import current_clock, sleep_until
from ergon_framework.ports.clock import Clock
from ergon_framework.providers.base import ProviderBase
from ergon_framework.providers.errors import ERROR_OF
from ergon_framework.providers.execution import ProviderExecutionContext
from ergon_framework.providers.faults import Fault, FaultProfile

FaultScript: TypeAlias = FaultProfile | str | Sequence[str]

EVERY_OPERATION = "*"
"""In a mapping of scripts: the one for operations without their own."""


class SyntheticHTTPError(Exception):
    """What an HTTP client raises for a status that is an error."""

    def __init__(self, status_code: int, retry_after: float | None = None) -> None:
        super().__init__(status_code, retry_after)
        self.status_code = status_code
        self.headers = {} if retry_after is None else {"Retry-After": f"{retry_after:g}"}

    def __str__(self) -> str:
        return f"the synthetic provider answered with {self.status_code}"


class SyntheticProvider(ProviderBase):
    """Answers with the operation and a number, or fails as its script says.

    ``faults`` is a script as in :mod:`ergon_framework.providers.faults`, or one per operation:
    ``SyntheticProvider({"fetch": "ok timeout", "*": "ok"})``. Everything else is as for any
    provider. Nothing of a payload comes back.
    """

    provider_name = "synthetic"
    capability = "synthetic"

    def __init__(
        self,
        faults: FaultScript | Mapping[str, FaultScript] = "ok",
        *,
        provider_name: str | None = None,
        capability: str | None = None,
        clock: Clock | None = None,
        **options: Any,
    ) -> None:
        if provider_name is not None:
            self.provider_name = provider_name
        if capability is not None:
            self.capability = capability
        scripts = faults if isinstance(faults, Mapping) else {EVERY_OPERATION: faults}
        self._tracks = {operation: _Track(script) for operation, script in scripts.items()}
        self._fallback = self._tracks.setdefault(EVERY_OPERATION, _Track("ok"))
        self._clock = clock
        super().__init__(clock=clock, **options)

    @property
    def calls(self) -> int:
        """How often it was really called."""
        return sum(track.calls for track in self._tracks.values())

    def _execute_impl(
        self,
        *,
        tenant_id: str,
        campaign_id: str | None,
        operation: str,
        payload: dict[str, Any],
        context: ProviderExecutionContext,
    ) -> dict[str, Any]:
        number, faults = self._tracks.get(operation, self._fallback).next()
        for fault in faults:
            if fault.word in {"slow", "hang"}:
                self._wait(fault, context.attempt_timeout_seconds)
            elif fault.word == "garbage":
                return "<html>not what was agreed</html>"  # type: ignore[return-value]
            elif fault.word != "ok":
                raise _error(fault)
        return {"operation": operation, "call": number + 1, "attempt": context.attempt}

    def _wait(self, fault: Fault, limit: float | None) -> None:
        seconds = fault.seconds or 0.0
        is_cut = fault.word == "slow" and limit is not None and seconds > limit
        clock = self._clock or current_clock()
        sleep_until(clock, clock.now() + (limit or 0.0 if is_cut else seconds))
        if is_cut:
            raise TimeoutError(f"the synthetic provider needs {seconds:g} seconds")


class _Track:
    """One script and how far it is."""

    def __init__(self, script: FaultScript) -> None:
        self._profile = script if isinstance(script, FaultProfile) else FaultProfile(script)
        self._lock = threading.Lock()
        self.calls = 0

    def next(self) -> tuple[int, tuple[Fault, ...]]:
        with self._lock:
            number = self.calls
            self.calls += 1
        return number, self._profile.faults(number)


def _error(fault: Fault) -> Exception:
    if fault.word == "timeout":
        return TimeoutError("the synthetic provider does not answer")
    if fault.word == "refused":
        return ConnectionRefusedError("the synthetic provider refuses the connection")
    if fault.word == "reset":
        return ConnectionResetError("the synthetic provider broke the connection")
    if fault.word == "http":
        return SyntheticHTTPError(fault.status, fault.seconds)
    if fault.word == "crash":
        return RuntimeError("the synthetic provider crashed")
    return ERROR_OF[fault.word](
        f"the synthetic provider reports {fault.word}", retry_after_seconds=fault.seconds
    )
