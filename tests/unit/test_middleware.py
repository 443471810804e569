"""Middleware around handlers of both colours, and what is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from ergon_framework.errors import HookError, WiringError
from ergon_framework.ports.middleware import (
    HandlerKind,
    MiddlewareStack,
    await_through,
    call_through,
)
from ergon_framework.ports.unit_of_work import UnitOfWork

UNIT = UnitOfWork("job", "1", "resize")


def around(stack: MiddlewareStack, *, is_async: bool = False) -> tuple[Any, ...]:
    """What surrounds a job's handler."""
    return stack.around(HandlerKind.JOB, "resize", is_async=is_async)


def test_the_first_one_is_the_outermost() -> None:
    """Middleware is entered in the order in which it was added."""
    stack, seen = MiddlewareStack(), []

    @stack.add
    def outer(unit: UnitOfWork, call_next: Any) -> Any:
        seen.append(f"outer {unit.name}")
        return call_next() + 1

    @stack.add
    def inner(unit: UnitOfWork) -> Iterator[None]:
        seen.append(f"inner {unit.id}")
        yield
        seen.append("inner ends")

    assert call_through(around(stack), UNIT, lambda: 41) == 42
    assert seen == ["outer resize", "inner 1", "inner ends"]


def test_a_generator_surrounds_async_handlers_as_well() -> None:
    """One form serves both colours, and sees what the handler raises."""
    stack, seen = MiddlewareStack(), []

    @stack.add
    def noted(unit: UnitOfWork) -> Iterator[None]:
        try:
            yield
        except KeyError:
            seen.append(unit.id)
            raise

    async def handler() -> int:
        raise KeyError("x")

    with pytest.raises(KeyError):
        asyncio.run(await_through(around(stack, is_async=True), UNIT, handler))
    assert seen == ["1"]


def test_an_async_one_awaits_the_next() -> None:
    """The form for async handlers."""
    stack = MiddlewareStack()

    @stack.add
    async def doubled(unit: UnitOfWork, call_next: Any) -> Any:
        return 2 * await call_next()

    async def handler() -> int:
        return 21

    assert asyncio.run(await_through(around(stack, is_async=True), UNIT, handler)) == 42


def test_a_colour_that_does_not_fit_is_refused_and_not_left_out() -> None:
    """A check that is silently not made would be worse than an error."""
    stack = MiddlewareStack()

    def checked(unit: UnitOfWork, call_next: Any) -> Any:
        return call_next()

    stack.add(checked)
    with pytest.raises(
        HookError, match=r"'checked' is plain .* async handler 'resize'.*only=\"sync"
    ):
        around(stack, is_async=True)
    restricted = MiddlewareStack()
    restricted.add(checked, only="sync")
    assert around(restricted, is_async=True) == ()
    assert len(around(restricted)) == 1


def test_it_surrounds_the_kinds_that_it_was_added_for() -> None:
    """Consumers, jobs and provider calls can be told apart."""
    stack = MiddlewareStack()

    def checked(unit: UnitOfWork, call_next: Any) -> Any:
        return call_next()

    stack.add(checked, kinds=("consumer",))
    assert around(stack) == ()
    assert len(stack.around(HandlerKind.CONSUMER, "orders", is_async=False)) == 1
    with pytest.raises(WiringError, match=r"cannot surround 'jobs'.*consumer, job, provider"):
        stack.add(checked, kinds=("jobs",))


def test_a_function_with_other_parameters_is_refused() -> None:
    """Said when it is added, not at the first unit."""
    with pytest.raises(HookError, match=r"'lonely' does not take 2 arguments.*unit, call_next"):
        MiddlewareStack().add(lonely)


def lonely() -> None:
    """No middleware."""
