"""Arguments arrive at their handler as they were given, or are refused before they are stored."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path, PurePosixPath
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import attrs
import msgspec
import pydantic
import pytest

from ergon_framework.executor import InvalidArgumentsError, Registry

pytestmark = pytest.mark.req("JOBS:executor")
BERLIN = ZoneInfo("Europe/Berlin")


class Colour(Enum):
    RED = "red"


@dataclass
class Refund:
    order: int


@dataclass
class Charge:
    order: int
    cents: int = 0


@dataclass
class PartialRefund(Refund):
    cents: int = 0


@dataclass
class Visit:
    at: datetime
    tags: tuple[str, ...] = ()
    more: Any = None
    cache: list[int] = field(default_factory=list, compare=False)


class Struct(msgspec.Struct):
    a: float
    b: Decimal = Decimal(0)


@attrs.define
class Attr:
    a: int


class Reading(pydantic.BaseModel):
    value: Any = None


class Aliased(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    a: int = pydantic.Field(alias="theA")
    _seen: int = pydantic.PrivateAttr(default=0)

    @pydantic.computed_field  # type: ignore[prop-decorator]
    @property
    def double(self) -> int:
        """Not sent: the model would refuse it."""
        return self.a * 2


class Shown(pydantic.BaseModel):
    a: int = pydantic.Field(serialization_alias="theA")


@dataclass
class Stored:
    at: Path


@dataclass
class Order:
    lines: list[Refund]
    at: date | None = None


def journey(hint: Any, value: Any) -> Any:
    """What a handler with a parameter of this type gets."""
    got: list[Any] = []

    def take(x: Any) -> None:
        got.append(x)

    take.__annotations__["x"] = hint
    registry = Registry()
    registry.handler(take)
    args, kwargs = registry.check("take", [value])
    told = json.loads(json.dumps([args, kwargs], allow_nan=False))
    handler = registry.find("take")
    assert handler is not None
    bound, named = handler.binding.bind(told[0], told[1])
    take(*bound, **named)
    return got[0]


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (Refund, Refund(7)),
        (list[Refund], [Refund(7), Refund(8)]),
        (dict[str, Refund], {"a": Refund(7)}),
        (Visit, Visit(datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN, fold=1), ("a",), {"b": [1]})),
        (datetime, datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN, fold=1)),
        (datetime, datetime(2026, 1, 1, tzinfo=UTC)),
        (Struct, Struct(0.1, Decimal("1.20"))),
        (Attr, Attr(3)),
        (Reading, Reading(value={"a": [1.5, None, "x"]})),
        (Aliased, Aliased(theA=1)),
        (Shown, Shown(a=1)),
        (Order, Order([Refund(7)], date(2026, 1, 1))),
        (Colour, Colour.RED),
        (UUID, UUID(int=7)),
        (date, date(2026, 1, 1)),
        (time, time(3, 4)),
        (timedelta, timedelta(seconds=1.5)),
        (set[str], {"a", "b"}),
        (bytes, b"\x00\xff"),
        (Path, Path("a/b.png")),
        (list[PurePosixPath | None], [PurePosixPath("/a"), None]),
        (Stored, Stored(Path("a.png"))),
        (Any, Refund(7)),
        (object, date(2026, 1, 1)),
    ],
)
def test_what_fits_arrives(hint: Any, value: Any) -> None:
    """Or in the form that JSON has for it, where the handler names no type."""
    got = journey(hint, value)
    if hint in (Any, object):
        assert got == msgspec.to_builtins(value)
    elif isinstance(value, datetime):
        assert got.timestamp() == value.timestamp()
    elif isinstance(value, Visit):
        assert (got.at.timestamp(), got.tags, got.more) == (
            value.at.timestamp(),
            value.tags,
            value.more,
        )
    else:
        assert got == value


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (Refund, Charge(7, 500)),
        (Refund, PartialRefund(7, 500)),
        (list[Refund], [Refund(1), Charge(7, 500)]),
        (dict[str, Refund], {"a": PartialRefund(7, 500)}),
        (Reading, Reading(value=math.nan)),
        (Reading, Reading(value=[math.inf])),
        (Visit, Visit(datetime(1890, 1, 1, tzinfo=BERLIN))),
        (datetime, datetime(1890, 1, 1, tzinfo=BERLIN)),
    ],
)
def test_what_would_arrive_as_another_value_is_refused(hint: Any, value: Any) -> None:
    """The error says which argument, and what the handler takes."""
    with pytest.raises(InvalidArgumentsError, match="the argument 'x'") as raised:
        journey(hint, value)
    assert raised.value.remedy


def test_a_model_names_the_fields_that_it_refuses() -> None:
    """Without their values."""
    with pytest.raises(InvalidArgumentsError) as raised:
        journey(Aliased, {"theA": "secret", "b": 1})
    assert "Not a valid `Aliased`: theA (int_parsing), b (extra_forbidden)" in str(raised.value)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (Order, {"lines": [{"order": 7}]}),
        (Order, {"lines": [Refund(7)]}),
        (list[Order], [{"lines": [{"order": 7}]}, Order([])]),
        (dict[str, list[date]], {"days": ["2026-01-01", date(2026, 1, 2)]}),
        (dict[str, list[date]], {"days": ["2026-01-01"]}),
    ],
)
def test_what_is_given_in_json_form_is_read_by_the_types_of_the_handler(
    hint: Any, value: Any
) -> None:
    """As a command line or another language gives it, at every depth."""
    got = journey(hint, value)
    assert msgspec.convert(msgspec.to_builtins(value), hint) == got


def test_a_unit_of_a_batch_handler_is_checked_like_any_argument() -> None:
    """By its position and by its name."""

    def take(units: list[Refund]) -> None: ...

    registry = Registry()
    registry.add(take, batch=10)
    assert registry.check("take", [Refund(7)]) == ([{"order": 7}], {})
    for args, kwargs in (([Charge(7, 500)], {}), ([], {"units": PartialRefund(7, 500)})):
        with pytest.raises(InvalidArgumentsError, match="the argument 'units' is a") as raised:
            registry.check("take", args, kwargs)
        assert "take(units:" in raised.value.remedy


def test_arguments_beyond_the_named_ones_are_checked_too() -> None:
    """Those of ``*refunds`` and of ``**more``."""

    def take(first: int, *refunds: Refund, **more: Refund) -> None: ...

    registry = Registry()
    registry.add(take)
    sent = registry.check("take", [1, Refund(7)], {"x": Refund(8)})
    assert sent == ([1, {"order": 7}], {"x": {"order": 8}})
    with pytest.raises(InvalidArgumentsError, match="'refunds' is a Charge"):
        registry.check("take", [1, Refund(7), Charge(7, 500)])
    with pytest.raises(InvalidArgumentsError, match="'more' is a Charge"):
        registry.check("take", [1], {"x": Charge(7, 500)})
