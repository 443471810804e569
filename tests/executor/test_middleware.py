"""Middleware around the jobs of an executor."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest

from ergon_framework.errors import Discard, HookError
from ergon_framework.executor import Registry, current_job
from ergon_framework.ports.middleware import MiddlewareStack
from ergon_framework.ports.unit_of_work import UnitOfWork
from tests.executor.link import Link, in_seconds, request

pytestmark = pytest.mark.req("JOBS:executor")


def registry_of_both(notes: list[str]) -> Registry:
    """A plain handler and an async one."""
    registry = Registry()

    @registry.handler
    def work(word: str) -> str:
        notes.append(word)
        return word

    @registry.handler
    async def work_async(word: str) -> str:
        notes.append(word)
        return word

    return registry


@pytest.mark.parametrize("name", ["work", "work_async"])
def test_a_generator_surrounds_handlers_of_both_colours(name: str) -> None:
    """It is told which job runs, inside of which it runs itself."""
    notes = list[str]()
    registry = registry_of_both(notes)

    @registry.middleware
    def tagged(unit: UnitOfWork) -> Iterator[None]:
        job = current_job()
        notes.append(f"{unit.kind} {unit.name} {unit.id} {unit.attempt} {job and job.job_id}")
        yield
        notes.append("after")

    with Link(registry) as link:
        assert link.ask(name, "word", job_id="j")["result"] == "word"
    assert notes == [f"job {name} j 1 j", "word", "after"]


def test_the_first_is_the_outermost_and_may_change_what_comes_back() -> None:
    """Functions of each colour, for handlers of that colour."""
    notes = list[str]()
    registry = registry_of_both(notes)

    @registry.middleware(only="sync")
    def louder(unit: UnitOfWork, call_next: Callable[[], Any]) -> Any:
        return call_next().upper()

    @registry.middleware(only="async")
    async def quoted(unit: UnitOfWork, call_next: Callable[[], Awaitable[Any]]) -> Any:
        return f"<{await call_next()}>"

    @registry.middleware(only="async")
    async def inner(unit: UnitOfWork) -> AsyncIterator[None]:
        notes.append("inner")
        yield

    with Link(registry) as link:
        assert link.ask("work", "a")["result"] == "A"
        assert link.ask("work_async", "b")["result"] == "<b>"
    assert notes == ["a", "inner", "b"]


@pytest.mark.parametrize("name", ["work", "work_async"])
def test_what_middleware_raises_is_the_outcome(name: str) -> None:
    """The handler is not called; the words of a handler mean the same here."""
    notes = list[str]()
    registry = registry_of_both(notes)

    @registry.middleware
    def refuse(unit: UnitOfWork) -> Iterator[None]:
        if unit.kind == "job":
            raise Discard("not today")
        yield

    with Link(registry) as link:
        told = link.ask(name, "word")
        assert (told["status"], told["error_type"]) == ("success", "discarded")
        refused = link.ask(name)
        assert refused["error_type"] == "invalid_arguments"  # refused before any middleware
    assert notes == []


def test_a_failure_passes_through_it() -> None:
    """Whoever surrounds a handler sees what it raised."""
    registry, notes = Registry(), list[str]()

    @registry.middleware
    def seen(unit: UnitOfWork) -> Iterator[None]:
        try:
            yield
        except LookupError as error:
            notes.append(repr(error))
            raise

    @registry.handler
    def fail() -> None:
        raise LookupError("x")

    with Link(registry) as link:
        assert link.ask("fail")["error_type"] == "LookupError"
    assert notes == ["LookupError('x')"]


def test_an_async_handler_is_cancelled_through_its_middleware() -> None:
    """At its deadline, as without; what follows the yield is run."""
    import asyncio

    registry, notes = Registry(), list[str]()

    @registry.middleware
    async def around(unit: UnitOfWork) -> AsyncIterator[None]:
        try:
            yield
        finally:
            notes.append("left")

    @registry.handler
    async def wait() -> None:
        await asyncio.sleep(60)

    with Link(registry) as link:
        link.send(request("wait", _deadline=in_seconds(0.1)))
        assert link.outcome()["status"] == "timeout"
    assert notes == ["left"]


def test_middleware_of_the_wrong_colour_is_told_at_the_start() -> None:
    """And not by a job; the remedy says how to restrict it."""
    registry = registry_of_both([])

    @registry.middleware
    async def inner(unit: UnitOfWork) -> AsyncIterator[None]:
        yield

    with pytest.raises(HookError, match="'inner' is async and cannot surround the plain handler"):
        registry.prepare()


def test_an_application_shares_its_middleware() -> None:
    """That for other kinds of handlers is left to them."""
    stack, notes = MiddlewareStack(), list[str]()

    def noted(unit: UnitOfWork) -> Iterator[None]:
        notes.append(unit.kind)
        yield

    stack.add(noted)
    stack.add(lambda unit, call_next: 1 // 0, ("consumer",))
    registry = Registry(middleware=stack)
    registry.add(lambda: 1, "one")
    with Link(registry) as link:
        assert link.ask("one")["result"] == 1
    assert notes == ["job"]
