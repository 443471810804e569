"""The short options of a consumer, and the policy that they stand for."""

from __future__ import annotations

from typing import Any

import pytest

from ergon_framework import App
from ergon_framework.connector.memory import MemoryConnector
from ergon_framework.errors import WiringError
from ergon_framework.ports.transaction import Transaction
from ergon_framework.task.functions import consumer
from ergon_framework.task.mixins.policies import ConsumerPolicy, RetryPolicy
from ergon_framework.task.options import ConsumerOptions, consumer_policy, option_path


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
        ({"attempts": 0}, "'attempts' .* whole number of 1 or more, not 0 .*attempts=3"),
        ({"attempts": True}, "'attempts' .* whole number of 1 or more, not True"),
        ({"timeout": -1}, "'timeout' .* must be a number above 0, not -1 .*timeout=5.0"),
        ({"timeout": "5"}, "'timeout' .* must be a number above 0, not '5'"),
        ({"concurrency": 0}, "'concurrency' .* whole number from 1 to 100000, not 0"),
        ({"concurrency": "8"}, "'concurrency' .* whole number from 1 to 100000, not '8'"),
        ({"backoff": float("nan")}, "'backoff' .* must be a number of 0 or more, not nan"),
        ({"backoff_multiplier": 0.5}, "'backoff_multiplier' .* number of 1 or more, not 0.5"),
        ({"jitter": 2}, "'jitter' .* must be a number from 0 to 1, not 2"),
        ({"streaming": "no"}, "'streaming' .* must be True or False, not 'no'"),
        ({"mode": "fast"}, "'mode' .* must be 'batch' or 'continuous', not 'fast'"),
        ({"extra": {"batch_size": 1}}, "'extra' .* must not hold 'batch_size'"),
        ({"linger": 1.0}, "has a linger and no batch"),
        ({"batch": 0}, "'batch' .* from 1 to 10000, not 0"),
        ({"batch": 5, "linger": -1}, "'linger' .* must be a number from 0 to .*, not -1"),
        ({"batch": 5, "concurrency": 20_000}, "'concurrency' .* is 20000 batches"),
        ({"batch": 5, "policy": {"loop": {"concurrency": {"value": 2}}}}, "'batch' .* contradicts"),
        ({"batch": 5, "linger": 5, "timeout": 5}, "waits 5 s for a batch to fill"),
        ({"batch": 5, "linger": 9, "transaction_timeout": 5}, "and its units have 5 s in all"),
        ({"policy": 5}, "the policy of the consumer 'charge' is int"),
        ({"policy": {"loop": {"limt": 5}}}, "did you mean 'limit'"),
        ({"batch": 2000}, "would need 2000 threads"),
    ],
)
def test_a_wrong_option_is_refused_where_the_function_is_declared(options: Any, text: str) -> None:
    """The message names the option and what is allowed; also in an App, which asks no pydantic."""

    def charge(order: dict[str, Any]) -> None: ...

    for declared in (consumer, App("memory://").consumer):
        with pytest.raises(WiringError, match=text):
            declared(MemoryConnector(), **options)(charge)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (MemoryConnector, r"the class MemoryConnector.*make one: MemoryConnector\(\.\.\.\)"),
        (5, "a consumer was given a int to consume from .*fetch_transactions"),
        ("", "a consumer was given an empty name"),
        (None, "was given None to consume from; is a variable unset"),
    ],
)
def test_what_is_no_source_is_refused_where_it_is_declared(source: Any, text: str) -> None:
    """And not when the consumer runs."""
    with pytest.raises(WiringError, match=text):
        App("memory://").consumer(source)
    wrong: Any = 5
    with pytest.raises(WiringError, match="5 cannot name a consumer"):
        App("memory://").consumer(MemoryConnector(), name=wrong)(lambda order: None)


def test_the_short_options_refuse_what_the_policy_refuses() -> None:
    """Two tables of bounds that agree: the decorator's own, and the fields of the policy."""
    numbers = (-1, 0, 0.5, 1, 2, float("nan"), float("inf"))
    values: list[Any] = [None, *numbers, "engine", "batch", {}, []]
    options = ConsumerOptions.__annotations__.keys() - {"batch", "linger", "policy"}
    for name in sorted(options):
        for value in values:
            if name in ("payload_copies", "streaming") and value in (0, 1):
                continue  # a policy takes them for false and true, as variables write them
            table: dict[str, Any] = {}
            node = table
            *path, last = option_path(name)
            for key in path:
                node = node.setdefault(key, {})
            node[last] = value
            assert _is_refused({name: value}) == _is_refused({"policy": table}), (name, value)


def _is_refused(options: dict[str, Any]) -> bool:
    try:
        consumer_policy("charge", options)
    except WiringError:
        return True
    return False


def test_a_batch_for_a_function_that_takes_one_unit_is_refused() -> None:
    """Whoever meant to fetch many at once is told the other option."""

    @consumer(MemoryConnector([Transaction("t1", {})]), batch=5)
    def charge(order: dict[str, Any]) -> None: ...

    with pytest.raises(TypeError, match="say prefetch instead of batch"):
        charge.run()
