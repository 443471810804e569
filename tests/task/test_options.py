"""The short options of a consumer, and the policy that they stand for."""

from __future__ import annotations

from typing import Any

import pytest

from ergon_framework.connector.memory import MemoryConnector
from ergon_framework.errors import WiringError
from ergon_framework.ports.transaction import Transaction
from ergon_framework.task.functions import consumer
from ergon_framework.task.mixins.policies import ConsumerPolicy, RetryPolicy
from ergon_framework.task.options import consumer_policy


def test_each_option_is_a_field_of_the_policy() -> None:
    """What is not said keeps its default."""
    options = {
        "attempts": 3,
        "timeout": 5,
        "backoff": 0.5,
        "backoff_cap": 2.0,
        "limit": 7,
        "streaming": True,
        "transaction_timeout": 60,
        "loop_timeout": 90,
        "fetch_attempts": 4,
        "extra": {"shard": 1},
    }
    retry = {"max_attempts": 3, "timeout": 5, "backoff": 0.5, "backoff_cap": 2.0}
    whole = {
        "loop": {"limit": 7, "streaming": True, "transaction_timeout": 60, "timeout": 90},
        "steps": {
            "process": {"retry": retry},
            "fetch": {"retry": {"max_attempts": 4}, "extra": {"shard": 1}},
        },
    }
    assert consumer_policy("charge", options) == ConsumerPolicy.model_validate(whole)
    assert consumer_policy("charge", {}) == ConsumerPolicy()


@pytest.mark.parametrize(
    ("options", "size", "mode"),
    [
        ({"concurrency": 8}, 8, "continuous"),
        ({"concurrency": 8, "prefetch": 50}, 50, "continuous"),
        ({"concurrency": 8, "mode": "batch"}, 8, "batch"),
        ({"concurrency": 1}, 1, "batch"),
        ({"prefetch": 50}, 50, "batch"),
        ({"concurrency": 8, "policy": {"loop": {"batch": {"size": 3}}}}, 3, "continuous"),
        ({"policy": {"loop": {"concurrency": {"value": 8}}}}, 8, "continuous"),
    ],
)
def test_concurrency_says_how_workers_are_fed_unless_somebody_else_does(
    options: dict[str, Any], size: int, mode: str
) -> None:
    """A policy alone says no such thing: its fetches ask for exactly ``batch.size``."""
    loop = consumer_policy("charge", options).loop
    assert (loop.batch.size, loop.mode) == (size, mode)


def test_a_policy_may_be_added_to_and_not_contradicted() -> None:
    """Saying the same twice is no contradiction."""
    retry = RetryPolicy(max_attempts=3)
    policy = ConsumerPolicy.model_validate({"steps": {"process": {"retry": retry}}})
    made = consumer_policy("charge", {"policy": policy, "attempts": 3, "timeout": 5})
    assert made.steps.process.retry == RetryPolicy(max_attempts=3, timeout=5)
    with pytest.raises(
        WiringError, match=r"'attempts' of the consumer 'charge' contradicts steps.process.retry"
    ):
        consumer_policy("charge", {"policy": policy, "attempts": 4})


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"atempts": 3}, "has no option 'atempts' .did you mean 'attempts'."),
        ({"max_attempts": 3}, "has no option 'max_attempts' .did you mean 'attempts'."),
        ({"zzz": 3}, "known options: attempts, timeout"),
        ({"attempts": 0}, "attempts: max_attempts must be at least 1, not 0"),
        ({"timeout": -1}, "timeout must be greater than 0, not -1"),
        ({"concurrency": 0}, "concurrency: value must be at least 1"),
        ({"linger": 1.0}, "has a linger and no batch"),
        ({"batch": 0}, "'batch' .* from 1 to 10000, not 0"),
        ({"batch": 5, "linger": -1}, "'linger' .* must be seconds, not -1"),
        ({"batch": 5, "policy": {"loop": {"concurrency": {"value": 2}}}}, "'batch' .* contradicts"),
        ({"batch": 5, "linger": 5, "timeout": 5}, "waits 5 s for a batch to fill"),
        ({"batch": 5, "linger": 9, "transaction_timeout": 5}, "and its units have 5 s in all"),
        ({"policy": 5}, "the policy of the consumer 'charge' is int"),
        ({"policy": {"loop": {"limt": 5}}}, "did you mean 'limit'"),
        ({"batch": 2000}, "would need 2000 threads"),
    ],
)
def test_a_wrong_option_is_refused_where_the_function_is_declared(options: Any, text: str) -> None:
    """The message names the option and what is allowed."""
    with pytest.raises(WiringError, match=text):

        @consumer(MemoryConnector(), **options)
        def charge(order: dict[str, Any]) -> None: ...


def test_a_batch_for_a_function_that_takes_one_unit_is_refused() -> None:
    """Whoever meant to fetch many at once is told the other option."""

    @consumer(MemoryConnector([Transaction("t1", {})]), batch=5)
    def charge(order: dict[str, Any]) -> None: ...

    with pytest.raises(TypeError, match="say prefetch instead of batch"):
        charge.run()
