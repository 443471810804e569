"""Typed payloads: which types are made from which payloads, and what is told of those that fail."""

from __future__ import annotations

import enum
import uuid
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, TypedDict

import attrs
import msgspec
import pydantic
import pytest

from ergon_framework.connector.memory import MemoryConnector
from ergon_framework.errors import HookError
from ergon_framework.ports.transaction import Transaction
from ergon_framework.task.functions import FunctionConsumer


class StructOrder(msgspec.Struct):
    amount: int


@dataclass
class DataOrder:
    amount: int
    lines: list[StructOrder] = field(default_factory=list)
    when: datetime | None = None

    def __post_init__(self) -> None:
        if self.amount == -1:
            raise ValueError(f"{self.lines} is a secret")


@attrs.define
class AttrsOrder:
    amount: int


class DictOrder(TypedDict):
    amount: int


class Line(pydantic.BaseModel):
    price: int


class ModelOrder(pydantic.BaseModel):
    amount: int
    lines: list[Line] = []
    notes: dict[str, int] = {}
    when: datetime | None = None

    @pydantic.field_validator("amount")
    @classmethod
    def _is_small(cls, value: int) -> int:
        if value > 1000:
            raise ValueError(f"{value} is too much of a secret")
        return value


class Colour(enum.Enum):
    RED = "red"


def consumed(hint: Any, payload: Any) -> tuple[list[Any], str]:
    """What a function with this annotation got, or why it got nothing."""
    got = []

    def take(payload: Any) -> None:
        got.append(payload)

    take.__annotations__ = {"payload": hint}
    queue = MemoryConnector([Transaction("t1", payload)])
    FunctionConsumer(take, queue, options={"attempts": 3}).run()
    return got, queue.dead[0][1] if queue.dead else ""


@pytest.mark.parametrize(
    ("hint", "made"),
    [
        (StructOrder, StructOrder(5)),
        (DataOrder, DataOrder(5)),
        (AttrsOrder, AttrsOrder(5)),
        (DictOrder, {"amount": 5}),
        (ModelOrder, ModelOrder(amount=5)),
        (dict[str, int], {"amount": 5}),
        (StructOrder | None, StructOrder(5)),
    ],
)
def test_a_type_is_made_from_a_mapping_from_json_and_taken_as_it_is(hint: Any, made: Any) -> None:
    """Text and bytes are read as JSON; what has the type already is not made anew."""
    for payload in ({"amount": 5}, '{"amount": 5}', b'{"amount": 5}', made):
        assert consumed(hint, payload) == ([made], "")


@pytest.mark.parametrize(
    ("hint", "payload", "made"),
    [
        (str, "5", "5"),
        (bytes, b"5", b"5"),
        (str | None, "null", "null"),
        (int, "5", 5),
        (list[int], b"[1, 2]", [1, 2]),
        (Colour, "red", Colour.RED),
        (Literal["a"], "a", "a"),
        (
            uuid.UUID,
            "12345678123456781234567812345678",
            uuid.UUID(int=0x12345678 * (2**96 + 2**64 + 2**32 + 1)),
        ),
        (datetime, "2026-01-31T12:00:00Z", datetime(2026, 1, 31, 12, tzinfo=UTC)),
        (Path, "a/b.png", Path("a/b.png")),
        (list[Path], b'["a.png"]', [Path("a.png")]),
        (Any, "{", "{"),
        (object, b"{", b"{"),
    ],
)
def test_text_is_read_as_json_only_where_the_type_is_not_text_itself(
    hint: Any, payload: Any, made: Any
) -> None:
    """An enum, an id and an instant are written as text, and are made from it."""
    assert consumed(hint, payload) == ([made], "")


@pytest.mark.parametrize(
    ("hint", "payload", "reason"),
    [
        (StructOrder, {"amount": "secret"}, "amount: Expected `int`, got `str`"),
        (StructOrder, b'{"amount": "secret"}', "amount: Expected `int`, got `str`"),
        (StructOrder, {}, "Object missing required field `amount`"),
        (AttrsOrder, {"amount": None}, "amount: Expected `int`, got `null`"),
        (DataOrder, {"amount": 1, "lines": [{"amount": "secret"}]}, "lines[0].amount: Expected"),
        (DataOrder, {"amount": -1}, "refused with ValueError"),
        (DataOrder, "secret {", "JSON is malformed"),
        (DataOrder, b"\xff\xfe", "JSON is malformed"),
        (dict[str, StructOrder], {"secret": {"amount": "secret"}}, "[...].amount: Expected"),
        (Literal["a"], "secret", "Invalid enum value"),
        (ModelOrder, {"amount": "secret"}, "amount: Input should be a valid integer"),
        (ModelOrder, {"amount": 2000}, "amount: refused by a validator"),
        (ModelOrder, {"amount": 1, "lines": [{"price": "secret"}]}, "lines.0.price: Input should"),
        (ModelOrder, {"amount": 1, "notes": {"secret": "secret"}}, "notes.[...]: Input should"),
        (ModelOrder, {"amount": 1, "when": "secret"}, "when: datetime_from_date_parsing"),
        (list[ModelOrder], [{"amount": "secret"}], "[0]: amount: Input should be a valid"),
    ],
)
def test_a_failure_names_the_field_and_shows_no_value(hint: Any, payload: Any, reason: str) -> None:
    """Neither in the reason nor in anything else that the source is told."""
    got, told = consumed(hint, payload)
    assert got == []
    assert reason in told
    assert told.startswith("InvalidPayloadError: the payload is no ")
    assert "secret" not in told


def test_a_deeply_nested_payload_is_refused_like_any_other() -> None:
    """Nothing but the transaction fails."""
    got, told = consumed(list[list[Any]], b"[" * 100_000)
    assert got == []
    assert "the payload is no list[list[Any]]" in told


def test_a_type_that_no_payload_can_have_is_refused_before_anything_is_fetched() -> None:
    """Two structs in one union cannot be told apart."""
    with pytest.raises(
        HookError, match=r"cannot take a payload of the type StructOrder \| DataOrder"
    ):
        consumed(StructOrder | DataOrder, {"amount": 1})
