"""A provider that makes no calls and fails as a script says: for tests, and for trying things out.

A step of a script is a word, with a number where it needs one:

- ``ok`` answers; ``slow:0.2`` answers after 0.2 seconds, unless the attempt's deadline comes first;
  ``hang:60`` takes 60 seconds and ignores the attempt's deadline.
- ``timeout``, ``refused`` and ``reset`` fail as sockets do; ``http:503`` as an HTTP client does,
  ``http:429:2.5`` with a Retry-After.
- a reason code, such as ``auth_failed`` or ``rate_limited:2.5``, fails with that canonical error.
- ``garbage`` answers with something other than a dict; ``crash`` raises an exception without a
  mapping rule.

``slow:0.2+http:503`` waits before it fails.
"""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from ergon_framework.engine.clocks import current_clock, sleep_until
from ergon_framework.errors import ConfigurationError
from ergon_framework.ports.clock import Clock
from ergon_framework.providers.base import ProviderBase
from ergon_framework.providers.errors import ERROR_OF
from ergon_framework.providers.execution import ProviderExecutionContext

_PLAIN = frozenset({"ok", "timeout", "refused", "reset", "garbage", "crash"})
_TIMED = frozenset({"slow", "hang"})


class Fault(NamedTuple):
    """One parsed step of a script."""

    word: str
    seconds: float | None = None
    """A wait, or the pause the provider asks for."""
    status: int = 0


@dataclass(frozen=True, slots=True)
class FaultProfile:
    """What call after call does: the steps in turn, or drawn by chance.

    ``FaultProfile("ok timeout http:503")`` begins again after the last step, or stays there with
    ``cycles=False``. With ``weights`` each call draws a step; the same ``seed`` gives the same
    steps, call by call, however many threads call.
    """

    steps: str | Sequence[str] = "ok"
    cycles: bool = True
    weights: Sequence[float] | None = None
    seed: int = 0
    _script: tuple[tuple[Fault, ...], ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        steps = self.steps.split() if isinstance(self.steps, str) else self.steps
        if not steps:
            raise ConfigurationError("a fault profile has no steps", remedy="write at least 'ok'")
        if self.weights is not None:
            _check(self.weights, len(steps))
        object.__setattr__(self, "_script", tuple(_read(step) for step in steps))

    @classmethod
    def chances(cls, chances: Mapping[str, float], *, seed: int = 0) -> FaultProfile:
        """Each call draws a step: ``{"ok": 0.9, "timeout": 0.1}``."""
        return cls(tuple(chances), weights=tuple(chances.values()), seed=seed)

    def faults(self, call: int) -> tuple[Fault, ...]:
        """What the call with the 0-based number ``call`` does."""
        if self.weights is not None:
            dice = random.Random(self.seed * 1_000_003 + call)  # noqa: S311 - a script, not a secret
            return dice.choices(self._script, self.weights)[0]
        last = len(self._script) - 1
        return self._script[call % (last + 1) if self.cycles else min(call, last)]


def _check(weights: Sequence[float], steps: int) -> None:
    if len(weights) != steps:
        raise ConfigurationError(f"a fault profile has {steps} steps, but {len(weights)} weights")
    if not all(math.isfinite(each) and each >= 0 for each in weights) or not sum(weights):
        raise ConfigurationError(
            f"the weights of a fault profile must be 0 or more, and not all 0: {list(weights)}"
        )


def _read(step: str) -> tuple[Fault, ...]:
    return tuple(_fault(part, step) for part in step.split("+"))


def _fault(part: str, step: str) -> Fault:
    word, *values = part.split(":")
    try:
        numbers = [_seconds(value) for value in values]
        if word in _PLAIN and not numbers:
            return Fault(word)
        if word in _TIMED and len(numbers) == 1:
            return Fault(word, numbers[0])
        if word == "http" and len(numbers) in {1, 2} and 100 <= int(values[0]) <= 599:
            return Fault(word, numbers[1] if numbers[1:] else None, int(values[0]))
        if word in ERROR_OF and len(numbers) <= 1:
            return Fault(word, numbers[0] if numbers else None)
    except ValueError:
        pass  # a number that is none: the same as an unknown word
    raise ConfigurationError(
        f"{step!r} is no step of a fault profile",
        remedy="ok, slow:0.2, hang:60, timeout, refused, reset, http:503, http:429:2.5, garbage,"
        " crash, or a reason code such as rate_limited:2.5",
    )


def _seconds(text: str) -> float:
    number = float(text)
    if not math.isfinite(number) or number < 0:
        raise ValueError(text)
    return number


FaultScript: TypeAlias = FaultProfile | str | Sequence[str]

EVERY_OPERATION = "*"
"""The key of the script for operations without their own."""


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

    ``faults`` is a script as in :mod:`ergon_framework.providers.synthetic`, or one per operation:
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
    """A script and its next step."""

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
