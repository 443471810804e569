"""From the policies' documents to the plain numbers of the core. Conversions only, no formula."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from pydantic import ValidationError

from ergon_framework.core.lifecycle import LifecycleRule, StepRule, Verb
from ergon_framework.core.loop import LoopRule, StopReason
from ergon_framework.core.retry import RFC_STEP_RETRIES, RFC_SUCCESS_RETRIES, Backoff, RetryRule
from ergon_framework.engine.plan import Bounds, EnginePlan, Hook, Hooks, Settlement
from ergon_framework.errors import WiringError
from ergon_framework.task.inputs import Input
from ergon_framework.task.mixins.policies import (
    ConsumerLoopPolicy,
    ConsumerPolicy,
    ConsumerSteps,
    ProducerLoopPolicy,
    ProducerPolicy,
    ProducerSteps,
    RetryPolicy,
)

logger = logging.getLogger("ergon.task")

Policy = TypeVar("Policy", ConsumerPolicy, ProducerPolicy)


def as_policy(model: type[Policy], given: object) -> Policy:
    """The policy of a call: the given one, a mapping of its fields, or the defaults."""
    if given is None:
        return model()
    if isinstance(given, model):
        return given
    if isinstance(given, Mapping):
        try:
            return model.model_validate(dict(given))
        except ValidationError as error:
            raise WiringError(f"invalid {model.__name__}: {error}") from error
    raise WiringError(
        f"the policy must be a {model.__name__}, not {type(given).__name__}",
        remedy=f"pass {model.__name__}(...) or a mapping with its fields",
    )


def consumer_plan(
    task: str,
    policy: ConsumerPolicy,
    hooks: Hooks,
    fetch: Callable[[int], Any],
    settlement: Settlement | None,
) -> EnginePlan:
    """A consume call, ready to be driven."""
    loop, steps = policy.loop, policy.steps
    _warn_about_small_batches(task, loop)
    parks = settlement is not None and _parks(settlement, loop)
    empty = loop.empty_queue
    return EnginePlan(
        role="consumer",
        task=task,
        fetch=fetch,
        hooks=_copying(hooks) if loop.payload_copies else hooks,
        lifecycle=_lifecycle(steps.process.retry, steps, loop, parks=parks),
        loop=LoopRule(
            size=loop.batch.size,
            concurrency=loop.concurrency.value,
            limit=loop.limit,
            streaming=loop.streaming,
            continuous=loop.mode == "continuous",
            empty=Backoff(empty.backoff, empty.backoff_multiplier, empty.backoff_cap),
            fetch=_retry(steps.fetch.retry),
            returns=settlement is not None and Verb.RELEASE in settlement.verbs,
        ),
        bounds=replace(_bounds(loop, steps.fetch.retry.timeout), release_grace=loop.release_grace),
        settlement=settlement,
        settings={
            **_settings(loop, steps, {"fetch": steps.fetch.retry, "process": steps.process.retry}),
            "streaming": loop.streaming,
            "mode": loop.mode,
            "redelivers": settlement is not None and settlement.redelivers,
        },
    )


def _parks(settlement: Settlement, loop: ConsumerLoopPolicy) -> bool:
    """Whether a transaction may go back to its source until a gate opens.

    A call that ends with an empty source must not leave behind what ends with the process.
    """
    can_park = Verb.RELEASE_AFTER in settlement.verbs
    return can_park and (loop.streaming or not settlement.is_volatile)


def producer_plan(task: str, policy: ProducerPolicy, hooks: Hooks, given: Input) -> EnginePlan:
    """A produce call, ready to be driven: the same loop over the given input."""
    loop, steps = policy.loop, policy.steps
    return EnginePlan(
        role="producer",
        task=task,
        fetch=given.fetch,
        hooks=_copying(hooks) if loop.payload_copies else hooks,
        lifecycle=_lifecycle(steps.produce.retry, steps, loop),
        loop=LoopRule(
            size=loop.batch.size,
            concurrency=loop.concurrency.value,
            limit=loop.limit,
            exhausted=StopReason.EXHAUSTED,
            returns=True,  # whoever gave the input still has it
        ),
        bounds=_bounds(loop, None),
        duplicates=lambda: given.duplicates,
        leftovers=given.leftovers,
        stop_reading=given.stop_reading,
        settings=_settings(loop, steps, {"produce": steps.produce.retry}),
    )


def _copying(hooks: Hooks) -> Hooks:
    """Hooks that get a payload of their own, so that no attempt sees what another one changed."""

    def wrapped(hook: Hook | None) -> Any:
        if hook is None:
            return None
        return lambda transaction, *rest: hook(transaction.with_payload_copy(), *rest)

    return Hooks(wrapped(hooks.process), wrapped(hooks.success), wrapped(hooks.exception))


def _lifecycle(
    first: RetryPolicy,
    steps: ConsumerSteps | ProducerSteps,
    loop: ConsumerLoopPolicy | ProducerLoopPolicy,
    *,
    parks: bool = False,
) -> LifecycleRule:
    success = steps.success.retry
    return LifecycleRule(
        StepRule(_retry(first), first.timeout),
        StepRule(_retry(success, RFC_SUCCESS_RETRIES), success.timeout),
        StepRule(_retry(steps.exception.retry), steps.exception.retry.timeout),
        loop.transaction_timeout,
        parks,
    )


def _retry(policy: RetryPolicy, on: Any = RFC_STEP_RETRIES) -> RetryRule:
    low, high = 1.0 - policy.jitter, 1.0 + policy.jitter
    backoff = Backoff(policy.backoff, policy.backoff_multiplier, policy.backoff_cap, low, high)
    return RetryRule(policy.max_attempts, backoff, on)


def _bounds(loop: ConsumerLoopPolicy | ProducerLoopPolicy, fetch_timeout: float | None) -> Bounds:
    return Bounds(
        loop_timeout=loop.timeout,
        fetch_timeout=fetch_timeout,
        stop_grace=loop.stop_grace,
        cancel_grace=loop.cancel_grace,
        max_abandoned=loop.concurrency.max_abandoned,
        hold_abandoned=loop.concurrency.abandoned == "hold",
    )


def _settings(
    loop: ConsumerLoopPolicy | ProducerLoopPolicy,
    steps: ConsumerSteps | ProducerSteps,
    first: Mapping[str, RetryPolicy],
) -> dict[str, Any]:
    """The policy as plain values for telemetry; never ``extra``, which may hold secrets."""
    policies = {**first, "success": steps.success.retry, "exception": steps.exception.retry}
    return {
        "concurrency": loop.concurrency.value,
        "batch_size": loop.batch.size,
        "limit": loop.limit,
        "timeout": loop.timeout,
        "transaction_timeout": loop.transaction_timeout,
        "steps": {name: policy.model_dump() for name, policy in policies.items()},
    }


def _warn_about_small_batches(task: str, loop: ConsumerLoopPolicy) -> None:
    size, concurrency = loop.batch.size, loop.concurrency.value
    if loop.mode == "batch" and size < concurrency:
        logger.warning(
            "%s fetches batches of %d with concurrency %d: at most %d run at once; raise "
            "loop.batch.size or set loop.mode='continuous'",
            task,
            size,
            concurrency,
            size,
        )
