from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Literal
from uuid import UUID

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ergon_framework.executor import InvalidArgumentsError, JobContext
from ergon_framework.executor.binding import Binding

pytestmark = pytest.mark.req("JOBS:executor", "X23")

SECRET = "secret-value"  # noqa: S105


class Colour(Enum):
    RED = "red"


class Box(msgspec.Struct):
    width: int


class Node(msgspec.Struct):
    next: Node | None


@dataclass
class Bag:
    names: list[str]


class Model(pydantic.BaseModel):
    count: int


class Picky:
    def __init__(self) -> None:
        self.context = JobContext(job_id="j")


def call(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Bind as a request would, and call."""
    bound, named = Binding("h", function).bind(args, kwargs, Picky())
    return function(*bound, **named)


def refusal(function: Callable[..., Any], *args: Any, **kwargs: Any) -> str:
    """Why these arguments cannot be bound."""
    with pytest.raises(InvalidArgumentsError) as caught:
        Binding("h", function).bind(args, kwargs, Picky())
    return str(caught.value)


def everything(
    a: Any, b: Any = 2, /, c: Any = 3, *more: Any, d: Any, e: Any = 5, **rest: Any
) -> Any:
    """A parameter of each kind."""
    return a, b, c, more, d, e, rest


def test_arguments_find_their_parameters_as_in_a_call() -> None:
    """Binding gives what Python would."""
    assert call(everything, 1, d=4) == (1, 2, 3, (), 4, 5, {})
    assert call(everything, 1, 9, 8, 7, 6, d=4, e=0, z=1) == (1, 9, 8, (7, 6), 4, 0, {"z": 1})
    assert call(everything, 1, c=8, d=4) == (1, 2, 8, (), 4, 5, {})


@given(
    st.lists(st.integers(), max_size=5),
    st.dictionaries(st.sampled_from(["c", "d", "e", "z"]), st.integers()),
)
def test_binding_agrees_with_python(args: list[int], kwargs: dict[str, int]) -> None:
    """What Python calls is bound to the same; what it refuses is refused."""
    try:
        expected = everything(*args, **kwargs)
    except TypeError:
        refusal(everything, *args, **kwargs)
    else:
        assert call(everything, *args, **kwargs) == expected


def test_what_does_not_fit_is_told_by_name() -> None:
    """Missing, unknown, doubled and superfluous arguments have their own words."""

    def plain(path: str, width: int = 1) -> None: ...

    assert refusal(plain) == "the argument 'path' is missing"
    assert refusal(plain, "a", depth=1) == "there is no argument 'depth'"
    assert refusal(plain, "a", path="b") == "the argument 'path' was given twice"
    assert refusal(plain, 1, 2, 3) == "3 positional arguments were given, at most 2 are taken"
    assert refusal(plain, "a", **{"x" * 999: 1}).endswith("…'")


def test_a_positional_only_parameter_has_no_name() -> None:
    """It cannot be given by name, unless to **kwargs."""

    def plain(path: str, /) -> None: ...

    assert "no argument 'path'" in refusal(plain, path="a")
    assert call(everything, 1, a=2, d=3)[-1] == {"a": 2}


@pytest.mark.parametrize(
    ("hint", "sent", "expected"),
    [
        (int, 3, 3),
        (float, 3, 3.0),
        (str | None, None, None),
        (list[int], [1], [1]),
        (tuple[int, str], [1, "a"], (1, "a")),
        (set[int], [1, 1], {1}),
        (dict[str, float], {"a": 1}, {"a": 1.0}),
        (datetime, "2025-01-01T00:00:00Z", datetime(2025, 1, 1, tzinfo=UTC)),
        (UUID, "00000000-0000-0000-0000-000000000001", UUID(int=1)),
        (bytes, "aGk=", b"hi"),
        (Colour, "red", Colour.RED),
        (Literal["a", "b"], "b", "b"),
        (Box, {"width": 1}, Box(1)),
        (Bag, {"names": ["a"]}, Bag(["a"])),
        (Model, {"count": 1}, Model(count=1)),
        (list[Model], [{"count": 1}], [Model(count=1)]),
        (Any, {"x": 1}, {"x": 1}),
        (object, [1], [1]),
    ],
)
def test_values_become_the_annotated_type(hint: Any, sent: Any, expected: Any) -> None:
    """JSON is turned into what the handler declares."""

    def handler(value: Any) -> Any:
        return value

    handler.__annotations__["value"] = hint
    assert call(handler, sent) == expected
    assert call(handler, value=sent) == expected


@pytest.mark.parametrize(
    ("hint", "sent"),
    [
        (int, SECRET),
        (int, True),
        (int, 1.5),
        (str, 3),
        (bool, 1),
        (list[int], [SECRET]),
        (dict[str, int], {SECRET: SECRET}),
        (datetime, SECRET),
        (UUID, SECRET),
        (bytes, SECRET),
        (Colour, SECRET),
        (Literal["a"], SECRET),
        (Box, {"width": SECRET}),
        (Bag, {"names": [3]}),
        (Bag, {}),
        (Model, {"count": SECRET}),
        (list[Model], [{"count": SECRET}]),
        (Picky, {}),
        (Box | None, [SECRET]),
    ],
)
def test_a_wrong_value_is_refused_without_being_shown(hint: Any, sent: Any) -> None:
    """The message names the argument and what was expected, never what came."""

    def handler(value: Any) -> Any:
        return value

    handler.__annotations__["value"] = hint
    told = refusal(handler, sent)
    assert told.startswith("the argument 'value': ")
    assert SECRET not in told


def test_the_rest_is_typed_too() -> None:
    """*args and **kwargs have types like any other."""

    def handler(*more: Box, **rest: int) -> Any:
        return more, rest

    assert call(handler, {"width": 1}, a=1) == ((Box(1),), {"a": 1})
    assert "'more'" in refusal(handler, 1)
    assert "'rest'" in refusal(handler, a="x")


def test_a_nested_flaw_says_where() -> None:
    """The path leads to the wrong value."""

    def handler(boxes: list[Box]) -> None: ...

    told = refusal(handler, [{"width": 1}, {"width": "x"}])
    assert told == "the argument 'boxes': Expected `int`, got `str` - at `$.boxes[1].width`"


@pytest.mark.parametrize("place", ["first", "middle", "last", "keyword", "optional"])
def test_the_context_is_injected_wherever_it_stands(place: str) -> None:
    """A parameter annotated JobContext takes no argument of the request."""

    def first(job: JobContext, a: int, b: int) -> Any:
        return job.job_id, a, b

    def middle(a: int, job: JobContext, b: int) -> Any:
        return job.job_id, a, b

    def last(a: int, b: int, job: JobContext) -> Any:
        return job.job_id, a, b

    def keyword(a: int, b: int, *, job: JobContext) -> Any:
        return job.job_id, a, b

    def optional(a: int, b: int = 2, job: JobContext | None = None) -> Any:
        return job and job.job_id, a, b

    handler = {each.__name__: each for each in (first, middle, last, keyword, optional)}[place]
    assert call(handler, 1, 2) == ("j", 1, 2)
    assert call(handler, b=2, a=1) == ("j", 1, 2)
    assert "no argument 'job'" in refusal(handler, 1, 2, job={})


def test_a_context_before_the_rest_keeps_its_place() -> None:
    """Nothing that is sent can slip into it."""

    def handler(a: int, job: JobContext, *more: int) -> Any:
        return a, job.job_id, more

    assert call(handler, 1, 2, 3) == (1, "j", (2, 3))


def test_wrapped_functions_methods_and_partials_are_read() -> None:
    """The signature is that of the function within."""

    def logged(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        return wrapper

    class Shop:
        def sell(self, box: Box) -> Any:
            return box

        def __call__(self, box: Box) -> Any:
            return box

    @logged
    def handler(box: Box) -> Any:
        return box

    def two(box: Box, times: int) -> Any:
        return box, times

    assert call(handler, {"width": 1}) == Box(1)
    assert call(Shop().sell, {"width": 1}) == Box(1)
    assert call(Shop(), {"width": 1}) == Box(1)
    assert call(functools.partial(two, times=2), {"width": 1}) == (Box(1), 2)


def test_nesting_without_end_is_refused() -> None:
    """A value too deep to be read is a wrong argument, not a crash."""
    deep: Any = {"next": None}
    for _ in range(100_000):
        deep = {"next": deep}

    def handler(node: Node) -> None: ...

    assert refusal(handler, deep) == "the argument 'node': nested too deeply"


@given(st.lists(st.integers() | st.text(max_size=3) | st.none(), max_size=4))
def test_by_position_and_by_name_are_the_same(values: list[Any]) -> None:
    """The short way for arguments that fill all places agrees with the long one."""

    def handler(one: int, two: str = "x", *, three: int = 3) -> None: ...

    binding = Binding("h", handler)

    def bound(args: list[Any], kwargs: dict[str, Any]) -> Any:
        try:
            return binding.bind(args, kwargs)
        except InvalidArgumentsError as error:
            return str(error)

    by_name = dict(zip(("one", "two"), values, strict=False))
    if len(values) <= 2:
        assert bound(values, {}) == bound([], by_name)
    else:
        assert "at most 2" in bound(values, {})


def test_a_full_house_of_positions_is_bound_as_in_a_call() -> None:
    """What has no name is not given by name, and what has only a name is not forgotten."""

    def nameless(a: int, /, b: int) -> Any:
        return a, b

    def named(a: int, *, b: int) -> Any:
        return a, b

    assert call(nameless, 1, 2) == (1, 2)
    assert call(named, 1, b=2) == (1, 2)
    assert refusal(named, 1) == "the argument 'b' is missing"
