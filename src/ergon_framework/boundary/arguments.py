"""Validates the constructor arguments of the boundary's classes.

A value of the wrong type would otherwise fail only at the first fact that uses it, or be ignored.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any

from ergon_framework.core.retry import Backoff, RetryRule
from ergon_framework.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class ArgumentRule:
    """What one argument has to be."""

    is_met: Callable[[Any], bool]
    remedy: str

    def check(self, name: str, value: object) -> None:
        """Refuse anything else."""
        if not self.is_met(value):
            raise ConfigurationError(f"{name} is {value!r}", remedy=self.remedy)

    @property
    def or_none(self) -> ArgumentRule:
        """The same rule, which also accepts None."""
        return ArgumentRule(lambda value: value is None or self.is_met(value), self.remedy)


def check_given(given: Mapping[str, Any], demands: Mapping[str, ArgumentRule]) -> None:
    """Check the arguments of a call against their rules."""
    for name, value in given.items():
        demands[name].check(name, value)


def of(kind: type, remedy: str) -> ArgumentRule:
    """An instance of a class."""
    return ArgumentRule(lambda value: isinstance(value, kind), remedy)


def one_of(*words: str) -> ArgumentRule:
    """One of the given words."""
    return ArgumentRule(
        lambda value: isinstance(value, str) and value in words, f"write {' or '.join(words)}"
    )


def _is_number(value: object, least: float) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return least <= value <= sys.float_info.max


def is_list(value: object) -> bool:
    """Whether a value is a sequence other than text, which would be read letter by letter."""
    return isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


TEXT = of(str, "give a text")
NAME = ArgumentRule(lambda value: isinstance(value, str) and bool(value), "give a text with a name")
FILE = ArgumentRule(lambda value: isinstance(value, str | PathLike), "give the path of a file")
FLAG = of(bool, "write True or False")
FUNCTION = ArgumentRule(callable, "give a function")
COUNT = ArgumentRule(_is_count, "give a whole number above 0")
COUNT_OR_NO_END = ArgumentRule(
    lambda value: _is_count(value) or (isinstance(value, float) and value == math.inf),
    "give a whole number above 0, or math.inf",
)
SECONDS = ArgumentRule(
    lambda value: _is_number(value, sys.float_info.min), "give seconds: a positive number"
)
SECONDS_OR_ZERO = ArgumentRule(lambda value: _is_number(value, 0.0), "give seconds, 0 for none")
A_BACKOFF = of(
    Backoff, "give a Backoff of ergon_framework.core.retry, for example Backoff(base=0.5, cap=30.0)"
)
A_RETRY = of(
    RetryRule, "give a RetryRule of ergon_framework.core.retry, for example RetryRule(attempts=4)"
)
TRANSPORT = ArgumentRule(
    lambda value: isinstance(value, str) or callable(getattr(value, "call", None)),
    "give the URL of a node, for example http://127.0.0.1:9443",
)
