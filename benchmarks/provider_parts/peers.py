"""What others put around a call: tenacity, pybreaker, aiobreaker, limits and stamina.

Each has the settings that ours has: three attempts, exponential waits, five failures in a row, one
fixed window per tenant and provider. Packages are imported where they are needed: what is not
installed is left out of the race.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from provider_parts.calls import ANSWER, PAYLOAD, TENANT, AsyncCall, Call

TRANSIENT = (TimeoutError, ConnectionError)


def answer(_payload: dict[str, Any]) -> dict[str, Any]:
    """The call that everything is put around."""
    return ANSWER


async def aanswer(_payload: dict[str, Any]) -> dict[str, Any]:
    """The same as a coroutine."""
    return ANSWER


def plain() -> Call:
    """Nothing around it."""
    return lambda: answer(PAYLOAD)


def retry_breaker_limiter(work: Callable[[dict[str, Any]], Any] = answer) -> Call:
    """tenacity's decorator around pybreaker, behind limits: as their manuals show it."""
    import tenacity

    breaker, take = _breaker(), _limiter()

    @tenacity.retry(**_policy())
    def tried(payload: dict[str, Any]) -> Any:
        return breaker.call(work, payload)

    def call() -> Any:
        take()
        return tried(PAYLOAD)

    return call


def reused_retry_breaker_limiter(work: Callable[[dict[str, Any]], Any] = answer) -> Call:
    """The same with one ``Retrying`` for all calls, which spares it a copy for each."""
    import tenacity

    breaker, take = _breaker(), _limiter()
    retrying = tenacity.Retrying(**_policy())

    def call() -> Any:
        take()
        return retrying(breaker.call, work, PAYLOAD)

    return call


def async_retry_breaker(*, is_limited: bool) -> AsyncCall:
    """tenacity around aiobreaker, behind limits or not."""
    import aiobreaker
    import tenacity

    breaker = aiobreaker.CircuitBreaker(fail_max=5)
    take = _alimiter() if is_limited else None

    @tenacity.retry(**_policy())
    async def tried(payload: dict[str, Any]) -> Any:
        return await breaker.call_async(aanswer, payload)

    async def call() -> Any:
        if take is not None:
            await take()
        return await tried(PAYLOAD)

    return call


def stamina() -> Call:
    """Retries alone."""
    import stamina as package

    @package.retry(on=TRANSIENT, attempts=3, timeout=60.0)
    def tried(payload: dict[str, Any]) -> Any:
        return answer(payload)

    return lambda: tried(PAYLOAD)


def open_breaker() -> Call:
    """A pybreaker that is open: it raises, and whoever calls it catches that."""
    import pybreaker

    breaker = pybreaker.CircuitBreaker(fail_max=1, reset_timeout=3600)
    breaker.open()

    def call() -> bool:
        try:
            breaker.call(answer, PAYLOAD)
        except pybreaker.CircuitBreakerError:
            return True
        return False

    return call


def exhausted_limiter() -> Call:
    """limits with nothing left."""
    take = _limiter(limit=1)
    take()

    def call() -> bool:
        try:
            take()
        except PermissionError:
            return True
        return False

    return call


def breaker_only(work: Callable[[dict[str, Any]], Any]) -> Call:
    """A pybreaker alone."""
    breaker = _breaker()
    return lambda: breaker.call(work, PAYLOAD)


def limiter_only() -> Call:
    """A unit of limits in memory."""
    return _limiter()


def _policy() -> dict[str, Any]:
    import tenacity

    return {
        "stop": tenacity.stop_after_attempt(3),
        "wait": tenacity.wait_exponential(multiplier=0.5, max=8),
        "retry": tenacity.retry_if_exception_type(TRANSIENT),
        "reraise": True,
        "sleep": _skip,
    }


def _skip(_seconds: float) -> None:
    """Instead of sleeping: only the retrying itself is measured."""


def _breaker() -> Any:
    import pybreaker

    return pybreaker.CircuitBreaker(fail_max=5, reset_timeout=30)


def _limiter(limit: int = 10**9) -> Call:
    from limits import RateLimitItemPerYear
    from limits.storage import MemoryStorage
    from limits.strategies import FixedWindowRateLimiter

    limiter, item = FixedWindowRateLimiter(MemoryStorage()), RateLimitItemPerYear(limit)

    def take() -> None:
        if not limiter.hit(item, TENANT, "noop"):
            raise PermissionError

    return take


def _alimiter() -> Callable[[], Awaitable[None]]:
    from limits import RateLimitItemPerYear
    from limits.aio.storage import MemoryStorage
    from limits.aio.strategies import FixedWindowRateLimiter

    limiter, item = FixedWindowRateLimiter(MemoryStorage()), RateLimitItemPerYear(10**9)

    async def take() -> None:
        if not await limiter.hit(item, TENANT, "noop"):
            raise PermissionError

    return take
