"""Two stores that are told the same by the dice of one seed, and must answer the same."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from ergon_framework.testing.suites.drivers import HandClock

LOOK_EVERY = 25
"""Operations between two comparisons of everything the stores hold."""


class DifferedError(AssertionError):
    """One of them said something else; the message says how to see it again."""


class Twins(ABC):
    """The model, another store, one clock for both, and a random life."""

    store: str
    """How the other store is called in ``python -m tests.differential STORE``."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.dice = random.Random(seed)  # noqa: S311 - to be repeatable
        self.clock = HandClock()
        self.done = 0

    @abstractmethod
    def acts(self) -> Sequence[Callable[[], None]]:
        """What may happen; what is there twice happens twice as often."""

    @abstractmethod
    def look(self) -> None:
        """Compare everything they hold."""

    @abstractmethod
    def close(self) -> None:
        """Let go of both."""

    def live(self, operations: int) -> None:
        """So many operations, with the same answers, and now and then the same state."""
        acts = self.acts()
        for _ in range(operations):
            self.done += 1
            self._checked(self.dice.choice(acts))
            if self.done % LOOK_EVERY == 0:
                self._checked(self.look)
        self._checked(self.look)

    def _checked(self, act: Callable[[], None]) -> None:
        try:
            act()
        except Exception as error:
            raise DifferedError(
                f"seed {self.seed}, operation {self.done}, {act.__name__}: {error}\n"
                f"again: python -m tests.differential {self.store} --seed {self.seed}"
            ) from error


def same(model: Any, other: Any) -> Any:
    """The answer of both."""
    if model != other:
        where, model, other = _difference("", model, other)
        raise AssertionError(f"{where} is {model!r:.300} in the model, {other!r:.300} in the other")
    return model


def _difference(where: str, model: Any, other: Any) -> tuple[str, Any, Any]:
    """The first place where two answers differ."""
    if isinstance(model, dict) and isinstance(other, dict) and model.keys() == other.keys():
        pairs = [(f"{where}.{name}", model[name], other[name]) for name in model]
    elif isinstance(model, list) and isinstance(other, list) and len(model) == len(other):
        pairs = [(f"{where}[{n}]", *pair) for n, pair in enumerate(zip(model, other, strict=True))]
    else:
        return where or "the answer", model, other
    return next(_difference(*pair) for pair in pairs if pair[1] != pair[2])
