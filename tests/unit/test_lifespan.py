"""Lifespans: what they yield is found by type, and what is refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from ergon_framework.errors import HookError, WiringError
from ergon_framework.ports.lifespan import Dependencies, DependencyScope


class Pool:
    is_open = True


class PostgresPool(Pool): ...


class Cache: ...


def pool() -> Iterator[PostgresPool]:
    """A plain lifespan."""
    made = PostgresPool()
    yield made
    made.is_open = False


async def both() -> AsyncIterator[tuple[Pool, Cache]]:
    """An async one, with two values."""
    async with asyncio.TaskGroup():  # refuses to be left by another task
        yield Pool(), Cache()


def opened(*functions: Any) -> tuple[Dependencies, DependencyScope]:
    """What declares these lifespans, and a scope to open them in."""
    dependencies = Dependencies()
    for each in functions:
        dependencies.add(each)
    return dependencies, DependencyScope(dependencies)


def test_a_value_is_injected_by_its_type_or_by_a_base_of_it() -> None:
    """A handler may ask for an interface and get what implements it."""
    dependencies, scope = opened(pool)
    kind = dependencies.injected(Pool)
    assert kind is PostgresPool
    assert dependencies.injected(Cache) is None
    assert dependencies.injected(str) is None
    (hooks,) = scope.hooks()
    hooks.open()
    found = scope.value(kind)
    assert found.is_open
    hooks.close()
    assert not found.is_open
    hooks.close()  # twice is fine


def test_an_async_one_is_closed_by_the_task_that_opened_it() -> None:
    """Task groups and cancel scopes demand it."""
    _, scope = opened(both)

    async def main() -> tuple[Any, Any]:
        (hooks,) = scope.hooks()
        await asyncio.create_task(hooks.open())
        values = scope.value(Pool), scope.value(Cache)
        await asyncio.create_task(hooks.close())
        return values

    first, second = asyncio.run(main())
    assert isinstance(first, Pool)
    assert isinstance(second, Cache)


def test_what_a_lifespan_raises_is_raised_to_whoever_opens_it() -> None:
    """A process whose lifespan fails must not begin to work."""

    async def broken() -> AsyncIterator[Pool]:
        if Pool.is_open:
            raise OSError("no route")
        yield Pool()

    _, scope = opened(broken)
    (hooks,) = scope.hooks()
    with pytest.raises(OSError, match="no route"):
        asyncio.run(hooks.open())


def test_a_value_that_is_not_open_is_told() -> None:
    """A handler that is called by hand, outside of a worker."""
    _, scope = opened(pool)
    with pytest.raises(WiringError, match="no PostgresPool is open"):
        scope.value(PostgresPool)


def test_two_values_that_fit_are_told() -> None:
    """Nothing is guessed."""
    dependencies, _ = opened(pool, both)
    assert dependencies.injected(Pool) is Pool  # the very type wins

    def other() -> Iterator[OtherPool]:
        yield OtherPool()

    ambiguous, _ = opened(pool, other)
    with pytest.raises(WiringError, match=r"Pool may be injected from .*OtherPool"):
        ambiguous.injected(Pool)


class OtherPool(Pool): ...


def test_what_it_yields_has_to_be_said() -> None:
    """A process that only enqueues opens nothing and must know it all the same."""

    def silent():  # type: ignore[no-untyped-def]
        yield Pool()

    def vague() -> Iterator[dict[str, str]]:
        yield {}

    def wrong() -> Pool:  # type: ignore[misc]
        yield Pool()

    asked = "does not say what it yields"
    for function, told in ((silent, asked), (vague, "no parameter"), (wrong, asked)):
        dependencies = Dependencies()
        with pytest.raises(HookError, match=told):
            dependencies.add(function)
        assert dependencies.lifespans == []
    with pytest.raises(HookError, match="no generator function"):
        Dependencies().add(Pool)


def test_types_may_be_defined_below_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be read by then is refused before anything runs."""

    def below() -> Iterator[Later]:  # type: ignore[name-defined]  # noqa: F821
        yield Cache()

    dependencies = Dependencies()
    dependencies.add(below)
    with pytest.raises(HookError, match="cannot be read: NameError"):
        dependencies.check()
    monkeypatch.setitem(globals(), "Later", Cache)
    dependencies.check()
    assert dependencies.injected(Cache) is Cache


def test_a_tuple_of_another_length_is_told() -> None:
    """The annotation and the values disagree."""

    def short() -> Iterator[tuple[Pool, Cache]]:
        yield Pool()  # type: ignore[misc]

    _, scope = opened(short)
    (hooks,) = scope.hooks()
    with pytest.raises(HookError, match="yields a Pool, and its annotation says 2 values"):
        hooks.open()


@pytest.mark.parametrize("has_flaw", [False, True], ids=["closes", "fails to close"])
@pytest.mark.parametrize("colour", ["sync", "async"])
def test_one_whose_values_are_refused_is_closed(colour: str, has_flaw: bool) -> None:
    """What it opened would stay open; the error is about its values whatever closing raises."""
    made = Pool()

    def close() -> None:
        made.is_open = False
        if has_flaw:
            raise OSError("the server has gone")

    def plain() -> Iterator[tuple[Pool, Cache]]:
        yield made  # type: ignore[misc]
        close()

    async def asynchronous() -> AsyncIterator[tuple[Pool, Cache]]:
        yield made  # type: ignore[misc]
        close()

    _, scope = opened(plain if colour == "sync" else asynchronous)
    (hooks,) = scope.hooks()
    open_it = hooks.open if colour == "sync" else lambda: asyncio.run(hooks.open())
    with pytest.raises(HookError, match="its annotation says 2 values"):
        open_it()
    assert not made.is_open
    assert not scope.has(Pool)


def test_code_below_a_handler_finds_what_its_worker_opened() -> None:
    """From the scope that has it open, and from none that is closed."""
    dependencies, scope = opened(pool)
    with pytest.raises(WiringError, match="no PostgresPool is open"):
        dependencies.value(PostgresPool)
    [hooks] = scope.hooks()
    hooks.open()
    assert dependencies.value(PostgresPool) is scope.value(PostgresPool)
    assert [dependencies.is_open(each) for each in dependencies.lifespans] == [True]
    hooks.close()
    with pytest.raises(WiringError, match="no PostgresPool is open"):
        dependencies.value(PostgresPool)
    assert [dependencies.is_open(each) for each in dependencies.lifespans] == [False]
