"""Fault scripts for the synthetic provider: what each of its calls does.

A step is a word, with a number where it needs one:

- ``ok`` answers; ``slow:0.2`` answers after that many seconds, unless the attempt's time is up
  before; ``hang:60`` ignores the attempt's time.
- ``timeout``, ``refused`` and ``reset`` fail as sockets do; ``http:503`` as an HTTP client does,
  ``http:429:2.5`` with a Retry-After.
- a reason code, such as ``auth_failed`` or ``rate_limited:2.5``, fails with that canonical error.
- ``garbage`` answers with something else than a dict; ``crash`` raises an exception without a
  mapping rule.

``slow:0.2+http:503`` takes its time first.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ergon_framework.errors import ConfigurationError
from ergon_framework.providers.errors import ERROR_OF

_PLAIN = frozenset({"ok", "timeout", "refused", "reset", "garbage", "crash"})
_TIMED = frozenset({"slow", "hang"})


class Fault(NamedTuple):
    """One step, read."""

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
