"""Which jobs count as duplicates of one another, as users say it.

::

    client.enqueue("report", kwargs={"customer": 42}, unique=Unique(fields=["customer"], period=60))

A key is made of the handler and what :class:`Unique` names, as a digest of canonical JSON, so that
large arguments make no large keys. How long a job holds its key is decided in ``core/unique.py``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import msgspec

from ergon_framework.core.option_values import is_number, shown
from ergon_framework.core.unique import NOT_ENDED, STATES, WAITING_ONLY, UniqueRule
from ergon_framework.errors import JobError
from ergon_framework.ports.job_fields import TEN_YEARS, refusal, text

BY = ("args", "handler")
MAX_FIELDS = 50
_MAX_NAME = 100
_REMEDY = 'write for example Unique(by="args"), Unique(fields=["customer"]) or Unique(key="k")'
_canonical = msgspec.json.Encoder(order="sorted").encode
_text = text()
_NOTHING = object()


@dataclass(frozen=True, slots=True, kw_only=True)
class Unique:
    """What makes two jobs the same, and for how long; give one of ``by``, ``fields`` and ``key``.

    With none of them, jobs of one handler with the same arguments are the same. ``period`` is a
    number of seconds from when a job was added, during which it holds its key even if it completes
    earlier. ``states`` says which states count: by default ``pending`` and ``active``, and with a
    period ``completed`` as well.
    """

    by: str | None = None
    fields: Sequence[str] = ()
    key: str | None = None
    period: float | timedelta | None = None
    states: Iterable[str] | str | None = None

    def __post_init__(self) -> None:
        given = [name for name in ("by", "fields", "key") if getattr(self, name) not in (None, ())]
        if len(given) > 1:
            raise _refusal(f"has both {given[0]} and {given[1]}", "give one of the two")
        if not given:
            object.__setattr__(self, "by", "args")
        elif self.by is not None and self.by not in BY:
            raise _refusal(f"by is {shown(self.by)}, and not one of {', '.join(BY)}", _REMEDY)
        if self.key is not None:
            _text("unique", self.key)
        if self.fields == []:  # the default is (), and means that none were asked for
            raise _refusal("names no fields, which would make all jobs the same", _REMEDY)
        object.__setattr__(self, "fields", _fields(self.fields))
        object.__setattr__(self, "period", _period(self.period))
        object.__setattr__(self, "states", _states(self.states, self.period is not None))

    @property
    def rule(self) -> UniqueRule | None:
        """How long a job holds its key; None: until it ends."""
        states: tuple[str, ...] = tuple(self.states or ())
        if states == NOT_ENDED:
            return None
        period = self.period
        return UniqueRule(states, period if isinstance(period, float) else None)

    def bound(
        self,
        handler: str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        names: Sequence[str] | None = None,
    ) -> Unique:
        """The rule for one call, with its key."""
        key = self.key_for(handler, args, kwargs, names)
        return Unique(key=key, period=self.period, states=self.states)

    def key_for(
        self,
        handler: str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        names: Sequence[str] | None = None,
    ) -> str:
        """The key of a call, whose arguments are as they come back from JSON.

        ``names`` are those of the handler's positional parameters, None where it is not known here:
        then the call is taken as it stands, and fields are looked for among the named arguments.
        """
        if self.key is not None:
            return self.key
        parts: list[Any] = [handler]
        if self.by == "args":
            rest, named = _bound(args, kwargs, names)
            parts += [rest, named]
        elif self.fields:
            rest, named = _bound(args, kwargs, names)
            parts.append([[each, _field(each, named, rest, names)] for each in self.fields])
        digest = hashlib.sha256(_canonical(parts)).hexdigest()[:32]
        # The beginning is for people. Handlers with the same beginning differ in the digest, which
        # has the whole name.
        return f"{handler[:_MAX_NAME]}:{digest}"


def unique_option(value: Any) -> Unique:
    """What stands under ``unique``: a key, a :class:`Unique`, or a mapping with its fields."""
    if isinstance(value, Unique):
        return value
    if isinstance(value, str):
        return Unique(key=value)
    if not isinstance(value, Mapping):
        raise _refusal(f"must be text, not {type(value).__name__}, or a Unique", _REMEDY)
    known = Unique.__dataclass_fields__
    for name in value:
        if name not in known:
            raise _refusal(f"has no {shown(name)}", f"known are {', '.join(known)}")
    return Unique(**value)


def _bound(
    args: Sequence[Any], kwargs: Mapping[str, Any], names: Sequence[str] | None
) -> tuple[list[Any], dict[str, Any]]:
    """What has no name, and what has one."""
    known = list(names or ())[: len(args)]
    return list(args[len(known) :]), {**dict(zip(known, args, strict=False)), **kwargs}


def _field(
    path: str, named: Mapping[str, Any], rest: Sequence[Any], names: Sequence[str] | None
) -> Any:
    """The value of one field; one that is missing would make different calls the same."""
    first, *others = path.split(".")
    found: Any = named.get(first, _NOTHING)
    if found is _NOTHING and not others and names is not None and first in names:
        return None  # left to its default
    for each in others:
        found = found.get(each, _NOTHING) if isinstance(found, Mapping) else _NOTHING
    if found is not _NOTHING:
        return found
    if rest and names is None:
        raise _refusal(
            f"names the field {path!r}, and the call has arguments without names",
            f"pass {first!r} by name, or enqueue through the app that has the handler",
        )
    raise _refusal(f"names the field {path!r}, which this call does not have", "pass it, by name")


def _fields(value: Any) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise _refusal(f"fields is {shown(value)}", 'give a list: fields=["customer"]')
    if len(value) > MAX_FIELDS:
        raise _refusal(f"has {len(value)} fields, and the limit is {MAX_FIELDS}", "name fewer")
    for each in value:
        _text("unique", each)
        if not all(each.split(".")):
            raise _refusal(f"has the field {shown(each)}", 'write it like "order.id"')
    # In one order: two programs that name the same fields in another order mean the same key.
    return tuple(sorted(set(value)))


def _period(value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if not is_number(value) or not 0 < value <= TEN_YEARS:
        raise _refusal(f"has the period {shown(value)}", "give seconds above 0, up to ten years")
    return float(value)


def _states(value: Any, has_period: bool) -> tuple[str, ...]:
    if value is None:
        return (*NOT_ENDED, "completed") if has_period else NOT_ENDED
    if isinstance(value, bytes) or not isinstance(value, Iterable):
        raise _refusal(f"has the states {shown(value)}", f"name some of {', '.join(STATES)}")
    asked = (value,) if isinstance(value, str) else tuple(value)
    if not asked:
        raise _refusal("counts jobs in no state", "leave states out, or name some")
    for each in asked:
        if each not in STATES:
            raise _refusal(f"has the state {shown(each)}", f"known are {', '.join(STATES)}")
    found = tuple(each for each in STATES if each in asked)
    if found == WAITING_ONLY:
        if has_period:
            raise _refusal(
                "has a period, and counts no job that has ended", "leave out the period, or states"
            )
        return found
    if not set(NOT_ENDED) <= set(found):
        missing = next(each for each in NOT_ENDED if each not in found)
        raise _refusal(
            f"counts {found[-1]} jobs, but not {missing} ones",
            'write states="pending", or name pending, active and what else counts',
        )
    if found != NOT_ENDED and not has_period:
        raise _refusal(f"counts {found[-1]} jobs without a period", "say for how long: period=60")
    if found == NOT_ENDED and has_period:
        raise _refusal(
            "has a period, and counts no job that has ended",
            'name one in states, for example "completed", or leave out states',
        )
    return found


def _refusal(problem: str, remedy: str) -> JobError:
    return refusal("unique", problem, remedy)
