"""Validates the values of options, at the line of the program that sets them.

Each function returns a phrase that may follow the name of the option, or an empty text. They do
without pydantic: a program that only declares handlers should start faster than pydantic can be
imported.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

MAX_SHOWN = 60
"""Characters of a value that a message repeats."""
MAX_DIGITS = 30
MAX_COUNT = 2**31 - 1
"""What an integer column of 32 bits holds; larger counts are mistakes."""
MAX_PROCESSES = 1024
"""Processes of one task or executor; more are a mistake that would stop the machine."""


def shown(value: object) -> str:
    """The value as a message repeats it: in short, whatever object it is."""
    if isinstance(value, int) and abs(value) >= 10**MAX_DIGITS:
        return f"a number of more than {MAX_DIGITS} digits"
    try:
        text = repr(value)
    except Exception:
        text = f"<{type(value).__name__}>"
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"


def is_number(value: object) -> bool:
    """Whether a value is a finite number that fits a float. A bool is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number of hundreds of digits
        return False


def count_problem(value: Any, least: int = 1, most: int | None = None) -> str:
    """What is wrong with a whole number of ``least`` or more."""
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if is_whole and least <= value <= (MAX_COUNT if most is None else most):
        return ""
    is_large = is_whole and value > least
    bounds = f"of {least} or more" if most is None else f"from {least} to {most}"
    if most is None and is_large:
        bounds = f"of at most {MAX_COUNT}"
    return f"must be a whole number {bounds}, not {shown(value)}"


def number_problem(
    value: Any, least: float = 0.0, most: float | None = None, *, is_above: bool = False
) -> str:
    """What is wrong with a number of ``least`` or more; ``is_above`` leaves out the bound."""
    is_fine = is_number(value) and (value > least if is_above else value >= least)
    if is_fine and (most is None or value <= most):
        return ""
    bounds = f"above {least:g}" if is_above else f"of {least:g} or more"
    if most is not None:
        bounds = f"from {least:g} to {most:g}"
    return f"must be a number {bounds}, not {shown(value)}"


def switch_problem(value: object) -> str:
    """What is wrong with a truth value: ``"no"`` would count as true."""
    return "" if isinstance(value, bool) else f"must be True or False, not {shown(value)}"


def word_problem(value: object, choices: Sequence[str]) -> str:
    """What is wrong with one of a few words."""
    if isinstance(value, str) and value in choices:
        return ""
    return f"must be {' or '.join(map(repr, choices))}, not {shown(value)}"


def or_none(problem: Callable[[Any], str]) -> Callable[[Any], str]:
    """Make a check also accept None."""
    return lambda value: "" if value is None else problem(value)
