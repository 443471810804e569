"""What type checkers say of provider calls; mypy reads this file, and nothing runs it.

pyright in its strict mode agrees with each line.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import assert_type

from ergon_framework.ports.lifespan import INJECTED
from ergon_framework.providers import Provider, ProviderExecutionResult


@dataclass
class Rate:
    """A typed result."""

    value: float


class Pool:
    """Something that a lifespan yields."""


rates = Provider("rates", capability="exchange", quota="1000/day", attempts=3, timeout=10)


@rates.call
def eur_usd(*, timeout: float) -> Rate:
    """Its caller gives nothing."""
    return Rate(timeout)


@rates.call
async def aeur_usd(*, timeout: float) -> Rate:  # noqa: ASYNC109 - what its attempt may take
    """The same in the other colour."""
    return Rate(timeout)


@rates.call
def quote(pair: str, amount: int = 1, *, timeout: float = 5.0, pool: Pool = INJECTED) -> Rate:
    """With a default for ``timeout`` all other arguments are checked."""
    return Rate(timeout + amount + len(pair) + id(pool))


@rates.call(operation="quotes", attempts=1)
async def aquote(pair: str) -> list[Rate]:
    """With options of its own."""
    return [Rate(len(pair))]


@rates.stream
def ticks(*, timeout: float) -> Iterator[int]:
    """A stream whose caller gives nothing."""
    yield round(timeout)


@rates.stream
async def news(topic: str) -> AsyncIterator[str]:
    """And an async one with an argument."""
    yield topic


def plain() -> None:
    """Calls on a thread."""
    assert_type(eur_usd(), Rate)
    assert_type(eur_usd.tenant("acme").campaign("spring")(), Rate)
    assert_type(quote("eur", amount=2), Rate)
    assert_type(quote.options(tenant="acme", attempts=1)("eur"), Rate)
    assert_type(quote.execute("eur"), ProviderExecutionResult)
    assert_type(quote.value_of(quote.execute("eur")), Rate)
    for item in ticks():
        assert_type(item, int)
    quote(5)  # type: ignore[arg-type]
    quote("eur", amout=2)  # type: ignore[call-arg]
    quote.options(queue="slow")  # type: ignore[call-arg]
    Provider("rates", time_out=5)  # type: ignore[call-arg]


async def asynchronous() -> None:
    """Calls on an event loop."""
    assert_type(await aeur_usd(), Rate)
    assert_type(await aquote("eur"), list[Rate])
    assert_type(await quote.aexecute("eur"), ProviderExecutionResult)
    async for item in news("fx"):
        assert_type(item, str)
    await aquote(5)  # type: ignore[arg-type]
    news(5)  # type: ignore[arg-type]
