"""How often and after which waits a provider is called again."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from ergon_framework.core.retry import Backoff, RetryRule
from ergon_framework.errors import ConfigurationError
from ergon_framework.providers.decisions import RETRYABLE_KINDS
from ergon_framework.providers.finite import is_finite

if TYPE_CHECKING:
    from ergon_framework.providers.gates.retrying import RetryOutcome

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Exponential waits with a cap, and a symmetric jitter that comes after the cap.

    The wait after the failed attempt ``n`` (from 1) is ``min(max_delay, base * 2**(n-1))``, times a
    number between ``1 - jitter_ratio`` and ``1 + jitter_ratio``. A provider that says when to come
    back is never called earlier, and at most ``max_retry_after_seconds`` later.
    """

    max_attempts: int = 3
    base_delay_seconds: float = 0.5
    max_delay_seconds: float = 8.0
    jitter_ratio: float = 0.2
    max_retry_after_seconds: float | None = 3600.0

    def __post_init__(self) -> None:
        if isinstance(self.max_attempts, bool) or not isinstance(self.max_attempts, int):
            raise ConfigurationError(f"max_attempts must be an integer, not {self.max_attempts!r}")
        if self.max_attempts < 1:
            raise ConfigurationError(
                f"max_attempts must be at least 1, not {self.max_attempts}",
                remedy="1 means a single attempt without a retry",
            )
        _check_seconds("base_delay_seconds", self.base_delay_seconds)
        _check_seconds("max_delay_seconds", self.max_delay_seconds)
        if self.max_retry_after_seconds is not None:
            _check_seconds("max_retry_after_seconds", self.max_retry_after_seconds)
        _check_seconds("jitter_ratio", self.jitter_ratio)
        if self.jitter_ratio >= 1:
            raise ConfigurationError(
                f"jitter_ratio must be below 1, not {self.jitter_ratio}",
                remedy="0.2 means up to twenty per cent more or less",
            )

    def delay_seconds(self, attempt: int, dice: float | None = None) -> float:
        """The wait after the failed attempt ``attempt`` (from 1), with its jitter.

        ``dice`` in [0, 1) chooses the place in the window of the jitter; by default it is rolled.
        """
        rolled = random.random() if dice is None else dice  # noqa: S311 - jitter
        return self.backoff.delay(attempt - 1, rolled)

    @property
    def backoff(self) -> Backoff:
        """The same as the core's document. A cap of zero means none there, but no wait here."""
        base = self.base_delay_seconds if self.max_delay_seconds else 0.0
        low, high = 1 - self.jitter_ratio, 1 + self.jitter_ratio
        return Backoff(base, 2.0, self.max_delay_seconds, low, high)

    @property
    def rule(self) -> RetryRule:
        """The same as the core's document."""
        return RetryRule(
            attempts=self.max_attempts,
            backoff=self.backoff,
            on=RETRYABLE_KINDS,
            max_retry_after=self.max_retry_after_seconds,
            asked_spread=self.jitter_ratio,
        )

    def run(self, call: Callable[[], T], *, deadline: float | None = None) -> RetryOutcome[T]:
        """Use the policy alone: call until it succeeds or is not worth it, and say how it went.

        Whatever ``call`` raises is mapped to a canonical error; only retryable ones are retried,
        and no wait begins that would reach ``deadline``, an instant of ``time.monotonic``.
        """
        from ergon_framework.providers.gates.retrying import run_with_retries

        return run_with_retries(self.rule, call, deadline)


def _check_seconds(name: str, value: Any) -> None:
    if not is_finite(value) or value < 0:
        raise ConfigurationError(f"{name} must be a number of 0 or more, not {value!r}")
