"""Every attempt is given the payload as the caller gave it."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from enum import StrEnum
from typing import Any
from uuid import UUID

import pytest

from ergon_framework.providers.base import ProviderBase
from ergon_framework.providers.runner import ProviderTaskRunner
from ergon_framework.testing import VirtualClock
from tests.providers.scripted import PLAIN, acall, call
from tests.providers.scripted_tasks import call as task_call

pytestmark = pytest.mark.req("PEF:B-4", "PEF:R-6")

Meddle = Callable[[dict[str, Any]], Any]


class Meddler(ProviderBase):
    """Does something to its payload and fails, until its last attempt."""

    provider_name, capability = "meddler", "test"

    def __init__(self, meddle: Meddle, **options: Any) -> None:
        super().__init__(retry_policy=PLAIN, **options)
        self.meddle = meddle
        self.seen: list[Any] = []

    def _execute_impl(self, *, payload: dict[str, Any], **_: Any) -> Any:
        self.seen.append(copy.deepcopy(payload))
        self.meddle(payload)
        if len(self.seen) < 3:
            raise TimeoutError
        return {}


class AsyncMeddler(Meddler):
    """The same in the other colour."""

    async def _execute_impl(self, **given: Any) -> Any:
        return super()._execute_impl(**given)


def overwrite(payload: dict[str, Any]) -> None:
    """At the top."""
    payload["a"] = 99
    payload["more"] = 1


def grow(payload: dict[str, Any]) -> None:
    """Further down."""
    payload["deep"]["list"].append(99)


def spoil(payload: dict[str, Any]) -> None:
    """With what JSON cannot say."""
    payload["deep"]["list"].append(object())


@pytest.mark.parametrize("meddle", [overwrite, grow, spoil, dict.clear])
@pytest.mark.parametrize("kind", [Meddler, AsyncMeddler])
@pytest.mark.parametrize("is_async", [False, True])
def test_what_an_attempt_does_to_it_no_other_sees(
    clock: VirtualClock, kind: type[Meddler], meddle: Meddle, is_async: bool
) -> None:
    """It goes under one idempotency key, so it is one request."""
    given = {"a": 1, "deep": {"list": [1, 2]}}
    provider = kind(meddle)
    payload = copy.deepcopy(given)
    if is_async:
        assert clock.run(acall(provider, payload=payload)).success
    else:
        assert call(provider, payload=payload).success
    assert provider.seen == [given] * 3


def test_the_callers_own_dict_stays_as_it_is(clock: VirtualClock) -> None:
    """At its top, which a copy for each attempt costs next to nothing."""
    payload: dict[str, Any] = {"a": 1}
    call(Meddler(overwrite, clock=clock), payload=payload)
    assert payload == {"a": 1}


def test_what_is_left_alone_keeps_its_types(clock: VirtualClock) -> None:
    """JSON would make a text of an instant, and a list of a tuple."""
    payload = OrderedDict(at=datetime(2026, 1, 1, tzinfo=UTC), pair=(1, 2))
    provider = Meddler(overwrite, clock=clock)
    call(provider, payload=payload)
    assert [(type(each), each) for each in provider.seen] == [(OrderedDict, payload)] * 3


class Colour(StrEnum):
    """Equal to its text, which JSON would make of it."""

    RED = "red"


@dataclass
class Line:
    """What a caller may put into a payload."""

    tags: list[str]


def inner() -> Any:
    """One of a class that only this function knows, which cannot be pickled."""

    @dataclass
    class Inner:
        tags: list[str]

    return Inner(["a"])


@pytest.mark.parametrize(
    "given",
    [
        datetime(2026, 1, 1, tzinfo=UTC),
        Decimal("1.50"),
        UUID(int=7),
        b"raw",
        (1, (2,)),
        {3, 4},
        {5: "five"},
        Colour.RED,
        Line(["a"]),
        inner(),
    ],
    ids=lambda given: type(given).__name__,
)
@pytest.mark.parametrize("is_async", [False, True])
def test_what_changes_beside_it_keeps_its_types(
    clock: VirtualClock, given: object, is_async: bool
) -> None:
    """A retry works with what the first attempt worked with."""
    kind = AsyncMeddler if is_async else Meddler
    provider = kind(grow, clock=clock)
    payload = {"x": [given], "deep": {"list": [1]}, "top": given}
    if is_async:
        assert clock.run(acall(provider, payload=payload)).success
    else:
        assert call(provider, payload=payload).success
    assert provider.seen == [{"x": [given], "deep": {"list": [1]}, "top": given}] * 3
    assert {type(each["x"][0]) for each in provider.seen} == {type(given)}
    assert {type(each["top"]) for each in provider.seen} == {type(given)}


def test_what_the_caller_changes_meanwhile_no_attempt_sees(clock: VirtualClock) -> None:
    """Types included, where nothing lies deeper."""
    payload: dict[str, Any] = {"at": datetime(2026, 1, 1, tzinfo=UTC)}
    given = payload.copy()
    provider = Meddler(lambda _: payload.clear(), clock=clock)
    call(provider, payload=payload)
    assert provider.seen == [given] * 3


class Viewer(Meddler):
    """One whose payload cannot be copied as a whole."""

    def _execute_impl(self, *, payload: dict[str, Any], **_: Any) -> Any:
        self.seen.append({**payload, "deep": copy.deepcopy(payload["deep"])})
        self.meddle(payload)
        if len(self.seen) < 3:
            raise TimeoutError
        return {}


def test_what_cannot_be_copied_is_given_as_json_has_it(clock: VirtualClock) -> None:
    """Better than what the first attempt left."""
    view = memoryview(b"ab")
    provider = Viewer(grow, clock=clock)
    call(provider, payload={"view": view, "deep": {"list": [1]}})
    assert provider.seen == [
        {"view": view, "deep": {"list": [1]}},
        *[{"view": "YWI=", "deep": {"list": [1]}}] * 2,
    ]


def test_a_task_has_one_payload_too(clock: VirtualClock) -> None:
    """And its dead letter as well."""
    provider = Meddler(grow, clock=clock)
    given = {"deep": {"list": [1]}}
    ProviderTaskRunner(provider, task_name="t").run(task_call(copy.deepcopy(given)))
    assert provider.seen == [given] * 3
