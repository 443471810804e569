"""The options of connectors: the types that their annotations say, and the bounds of numbers.

The options of a connector are the keyword arguments of its class. So a connector declares each
option once: its annotation says what a text in a URL becomes, and ``takes_options`` the bounds of a
number. What cannot be meant is refused before anything is made of it.
"""

from __future__ import annotations

import functools
import inspect
import math
import sys
import types
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from os import PathLike
from typing import Any, ParamSpec, Union, get_args, get_origin, get_type_hints

from ergon_framework.errors import ConfigurationError

P = ParamSpec("P")
LONGEST = 1e9
"""Seconds. No lock of Python waits much longer, and nobody means it."""
_SWITCHES = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
_KINDS = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}
_PLACES = frozenset({"url", "node", "store"})
"""What these may be, and what to write, connectors say themselves. They may hold a password."""


@dataclass(frozen=True, slots=True)
class Bound:
    """Which numbers an option takes: those from ``least`` to ``most``."""

    least: float
    most: float = sys.float_info.max
    is_above: bool = False
    """Whether ``least`` itself is too little."""

    def holds(self, number: float) -> bool:
        """Whether it takes a number; NaN is none."""
        is_enough = number > self.least if self.is_above else number >= self.least
        return is_enough and number <= self.most

    def refuse(self, name: str, number: float) -> ConfigurationError:
        """The error for a number out of bounds."""
        least, most = _shown(self.least), _shown(self.most)
        if number > self.least:
            problem, instead = f"at most {most}", f"{most} or less"
        elif self.is_above:
            problem, instead = f"above {least}", f"more than {least}"
        else:
            problem, instead = f"at least {least}", f"{least} or more"
        remedy = f"give {name} {instead}, or leave it out"
        return _refused(name, f"{name} must be {problem}, not {_shown(number)}", remedy)


COUNT = Bound(1)
SECONDS = Bound(0, LONGEST)
"""Seconds, or None."""
SOME_SECONDS = Bound(0, LONGEST, is_above=True)
COMMON: Mapping[str, Bound] = {
    "wait": SECONDS,
    "max_in_flight": COUNT,
    "max_in_flight_bytes": COUNT,
    "max_message_bytes": COUNT,
}
"""Options that mean the same in every connector that has them."""


def takes_options(
    *, may_be_empty: Iterable[str] = (), **bounds: Bound
) -> Callable[[Callable[P, None]], Callable[P, None]]:
    """A decorator of a connector's ``__init__``: it refuses options that cannot be meant.

    These are names that are none of its options, values of another type, numbers that are out of
    ``bounds``, and texts that are empty although the option has another default: those of variables
    that are not set.
    """

    def decorate(make: Callable[P, None]) -> Callable[P, None]:
        @functools.wraps(make)
        def checked(*args: P.args, **kwargs: P.kwargs) -> None:
            names = list(inspect.signature(make).parameters)
            given = {**dict(zip(names[1:], args[1:], strict=False)), **kwargs}
            check_given(make, given)
            make(*args, **kwargs)

        make.bounds = {**COMMON, **bounds}  # type: ignore[attr-defined]
        make.may_be_empty = frozenset(may_be_empty)  # type: ignore[attr-defined]
        return checked

    return decorate


def seconds_of(name: str, value: object) -> float:
    """The time that one call was given: a number of seconds, which is not negative."""
    number = float(_of_kinds(name, value, (float,)))
    bound = Bound(0, sys.float_info.max)
    if not bound.holds(number):
        raise bound.refuse(name, number)
    return number


def declared_options(factory: Callable[..., Any]) -> dict[str, tuple[type, ...]]:
    """The arguments of a connector, each with the types it may have."""
    return _declared(_maker(factory))


def typed_options(factory: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Options with their types: texts, which URLs and variables give, become what each takes."""
    maker = _maker(factory)
    declared = _declared(maker)
    refuse_unknown(given, declared)
    found = {name: _typed(name, value, declared[name]) for name, value in given.items()}
    for name, value in found.items():
        _check_value(maker, name, value)
    return found


def refuse_unknown(given: Collection[str], declared: Mapping[str, Any]) -> None:
    """Refuse a name that is no option, with the one that was meant."""
    for name in given:
        if name not in declared:
            # One that is given was not meant: every URL has an option of its own name.
            near = get_close_matches(name, [each for each in declared if each not in given], 1)
            known = f"known options are {', '.join(each for each in declared if each != 'url')}"
            hint = f"did you mean {near[0]!r}?" if near else known
            raise _refused(name, f"unknown option {name[:32]!r}", hint)


def _maker(factory: Callable[..., Any]) -> Any:
    maker = inspect.getattr_static(factory, "__init__") if isinstance(factory, type) else factory
    return inspect.unwrap(maker)


@functools.cache
def _declared(maker: Callable[..., Any]) -> dict[str, tuple[type, ...]]:
    hints = get_type_hints(maker)
    names = [name for name in inspect.signature(maker).parameters if name != "self"]
    return {name: tuple(_plain(hints.get(name, str))) for name in names}


def _plain(hint: Any) -> Iterable[type]:
    if get_origin(hint) in (Union, types.UnionType):
        return [each for part in get_args(hint) for each in _plain(part)]
    origin = get_origin(hint)
    return [type(get_args(hint)[0]) if origin is not None and get_args(hint) else hint]


def check_given(factory: Callable[..., Any], given: Mapping[str, Any]) -> None:
    """Refuse what code gave a connector; no text is taken for a number here."""
    maker = _maker(factory)
    declared = _declared(maker)
    refuse_unknown(given, declared)
    for name, value in given.items():
        if name not in _PLACES:
            _of_kinds(name, value, declared[name])
            _check_value(maker, name, value)


def _of_kinds(name: str, value: Any, kinds: tuple[type, ...]) -> Any:
    """The value, which must have one of these types as far as they are plain."""
    is_plain = any(each in _KINDS for each in kinds) and Any not in kinds
    if not is_plain or (isinstance(value, PathLike) and str in kinds):
        return value
    if isinstance(value, str) and str not in kinds:
        raise _mistyped(name, kinds, value)
    return _typed(name, value, kinds)


def _check_value(maker: Any, name: str, value: Any) -> None:
    """Refuse a number that is out of bounds, and a text that is empty."""
    bound = getattr(maker, "bounds", COMMON).get(name)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if bound is not None and is_number and not bound.holds(value):
        raise bound.refuse(name, value)
    if value == "" and isinstance(value, str) and name not in _PLACES:
        default = inspect.signature(maker).parameters[name].default
        # What is required, connectors look at themselves, and say what to write.
        if default not in ("", inspect.Parameter.empty) and name not in getattr(
            maker, "may_be_empty", ()
        ):
            remedy = f"give {name} a value; if it comes from a variable, see that it is set"
            raise _refused(name, f"{name} is empty", remedy)


def _typed(name: str, value: Any, kinds: tuple[type, ...]) -> Any:
    """The value of an option; texts, which URLs and variables give, become what it takes."""
    if Any in kinds or (value is None and type(None) in kinds):
        return value
    if isinstance(value, str) and str not in kinds:
        return _parsed(name, value, kinds)
    fits = any(kind in kinds for kind in type(value).__mro__ if kind is not object)
    if fits and not (isinstance(value, bool) and bool not in kinds) and not _is_nan(value):
        return value
    if isinstance(value, int) and not isinstance(value, bool) and float in kinds:
        return _as_float(name, value, kinds)
    if not any(kind in _KINDS for kind in kinds):
        return value  # an object that only code can give
    raise _mistyped(name, kinds, value)


def _as_float(name: str, value: int, kinds: tuple[type, ...]) -> float:
    try:
        return float(value)
    except OverflowError:
        raise _mistyped(name, kinds, value) from None


def _parsed(name: str, text: str, kinds: tuple[type, ...]) -> Any:
    try:
        if bool in kinds:
            return _SWITCHES[text.lower()]
        if int in kinds:
            return int(text)
        if float in kinds and not _is_nan(number := float(text)):
            return number
    except (KeyError, ValueError):
        pass  # the text may be a secret in the wrong place, so it is not shown
    raise _mistyped(name, kinds)


def _is_nan(value: Any) -> bool:
    """Whether it is the number that is above and below nothing: no bound would hold it."""
    return isinstance(value, float) and math.isnan(value)


_UNSHOWN = object()


def _mistyped(name: str, kinds: tuple[type, ...], value: object = _UNSHOWN) -> ConfigurationError:
    wanted = " or ".join(_KINDS[each] for each in kinds if each in _KINDS) or "something else"
    but = "" if value is _UNSHOWN else f", not {_shown(value)}"
    return _refused(name, f"{name} must be {wanted}{but}", f"give {name} {wanted}")


def _shown(value: object) -> str:
    """A value as an error tells it: short, and of what is not plain the type alone."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 64:
        return f"a number of {value.bit_length()} bits"
    if value is None or isinstance(value, str | int | float):
        text = repr(value)
        return text if len(text) <= 24 else f"{text[:23]}…"
    return type(value).__name__


def _refused(name: str, problem: str, remedy: str) -> ConfigurationError:
    return ConfigurationError(problem, remedy=remedy, details={"key": [name]})
