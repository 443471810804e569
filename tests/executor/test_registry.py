from __future__ import annotations

import functools
import subprocess
from dataclasses import dataclass
from typing import Any

import pytest

from ergon_framework.errors import ErgonError, HookError, WiringError
from ergon_framework.executor import (
    HandlerNotFoundError,
    InvalidArgumentsError,
    Registry,
)

pytestmark = pytest.mark.req("JOBS:executor")


@dataclass
class Size:
    width: int
    height: int


def test_a_handler_is_registered_under_its_own_name_or_a_given_one() -> None:
    """The decorator works bare, called, and with a name."""
    registry = Registry()

    @registry.handler
    def bare() -> None: ...

    @registry.handler()
    def called() -> None: ...

    @registry.handler("images.resize")
    def named() -> None: ...

    assert registry.names == ["bare", "called", "images.resize"]
    assert "bare" in registry
    assert "named" not in registry


def test_the_function_stays_what_it_was() -> None:
    """A decorated handler is called directly as the plain function it is."""
    registry = Registry()

    def double(number: int) -> int:
        return 2 * number

    assert registry.handler("double")(double) is double
    assert registry.handler("twice")(double) is double
    assert double(2) == 4


def test_two_handlers_of_one_name_are_refused() -> None:
    """The second registration says so; the first stays."""
    registry = Registry()
    registry.add(len, "size")
    with pytest.raises(WiringError, match=r"two handlers named 'size'.*functools\.wraps"):
        registry.add(str, "size")


@pytest.mark.parametrize("name", ["", " padded ", "line\nbreak", "nul\0", "\x1b[31m", 7])
def test_a_name_that_nobody_could_send_is_refused(name: Any) -> None:
    """Names are printable text."""
    with pytest.raises(WiringError):
        Registry().handler(name)(lambda: None)


@pytest.mark.parametrize("what", [7, None, staticmethod(len)])
def test_what_cannot_be_called_is_refused(what: Any) -> None:
    """A handler is a function."""
    with pytest.raises(HookError):
        Registry().add(what, "x")


def test_generators_are_refused() -> None:
    """A handler gives one value, now."""

    def stream() -> Any:
        yield 1

    async def astream() -> Any:
        yield 1

    class Generating:
        def __call__(self) -> Any:
            yield 1

    for each in (stream, astream, Generating()):
        with pytest.raises(HookError, match="generator"):
            Registry().add(each)


def test_the_colour_is_found_through_partials_and_objects() -> None:
    """What will return a coroutine counts as async."""

    async def wait(_seconds: float) -> None: ...

    class Waiter:
        async def __call__(self) -> None: ...

    registry = Registry()
    registry.add(functools.partial(wait, 1))
    registry.add(Waiter(), "waiter")
    registry.add(len)
    assert [registry.find(name).is_async for name in registry.names] == [False, True, True]  # type: ignore[union-attr]
    assert registry.has_async
    assert registry.has_sync


def test_hooks_that_need_arguments_are_refused() -> None:
    """Nobody could give them any."""
    registry = Registry()
    with pytest.raises(HookError, match="needs arguments"):
        registry.on_startup(lambda settings: settings)  # type: ignore[type-var]
    with pytest.raises(HookError, match="cannot be called"):
        registry.on_shutdown("close")  # type: ignore[type-var]


def test_check_says_what_a_handler_could_not_take() -> None:
    """A wrong call is refused where it is made, without running anything."""
    registry = Registry()
    ran = []

    @registry.handler("resize")
    def resize(path: str, size: Size, *, quality: int = 80) -> None:
        ran.append(path)

    registry.check("resize", ["a.png", Size(1, 2)], {"quality": 3})
    registry.check("resize", ["a.png", {"width": 1, "height": 2}])
    for args, kwargs in (
        (["a.png"], {}),
        (["a.png", Size(1, 2)], {"quality": "high"}),
        (["a.png", Size(1, 2), 3], {}),
        (["a.png", object()], {}),
        (["a.png", {"width": "wide", "height": 2}], {}),
    ):
        with pytest.raises(InvalidArgumentsError):
            registry.check("resize", args, kwargs)
    assert not ran


def test_check_helps_with_a_misspelt_name() -> None:
    """The error names the handler that was probably meant."""
    registry = Registry()
    registry.add(len, "resize")
    with pytest.raises(HandlerNotFoundError, match="did you mean 'resize'"):
        registry.check("resise")


def test_prepare_refuses_annotations_that_cannot_be_read() -> None:
    """A wrong signature is told at the start, not by the first job."""
    registry = Registry()

    def broken(path: str) -> None: ...

    broken.__annotations__["path"] = "NoSuchType"
    registry.add(broken)
    with pytest.raises(HookError, match="annotation of the handler 'broken'"):
        registry.prepare()


def test_prepare_refuses_types_that_json_cannot_become() -> None:
    """Two kinds of object cannot be told apart."""
    registry = Registry()

    @dataclass
    class Other:
        depth: int

    def odd(value: Any) -> None: ...

    odd.__annotations__["value"] = Size | Other
    registry.add(odd)
    with pytest.raises(HookError, match="cannot take its argument 'value'"):
        registry.prepare()


def test_a_function_without_a_signature_is_refused() -> None:
    """Some builtins do not say what they take."""
    registry = Registry()
    registry.add(dict.pop, "pop")
    registry.add(subprocess.Popen, "popen")
    registry.add(iter, "iter")
    with pytest.raises(ErgonError, match="has no readable signature"):
        registry.prepare()
