"""A task's policy, hooks and connector methods, compiled into an engine plan.

Whatever does not fit together is refused here, before anything runs.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from ergon_framework.core.loop import LoopRule, StopReason
from ergon_framework.core.retry import RFC_STEP_RETRIES, RFC_SUCCESS_RETRIES, Backoff, RetryRule
from ergon_framework.core.transaction_lifecycle import (
    SETTLEMENT_ATTEMPTS,
    LifecycleRule,
    StepRule,
    Verb,
    settlement_rule,
)
from ergon_framework.engine.plan import Bounds, EnginePlan, Hook, Hooks, SettlementPlan
from ergon_framework.errors import HookError, WiringError
from ergon_framework.task.inputs import Input

if TYPE_CHECKING:
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

_WARNED: set[tuple[type, str]] = set()


def find_hook(task: object, name: str, arity: int, *, is_async: bool, default: Any) -> Hook | None:
    """The user's hook, or None when only the mixin's ``default`` is there."""
    hook = getattr(task, name, None)
    owner = type(task).__name__
    # Compares functions: each access of a method makes another bound method.
    if hook is None or getattr(hook, "__func__", hook) is default:
        return None
    if not callable(hook):
        raise HookError(
            f"{owner}.{name} is {type(hook).__name__}, which cannot be called",
            remedy=f"define it as a method: {_signature(name, arity, is_async)}",
        )
    _check_colour(task, name, hook, arity, is_async)
    _check_arity(owner, name, hook, arity, is_async)
    return hook  # type: ignore[no-any-return]


def require_hook(task: object, name: str, *, is_async: bool, default: Any) -> Hook:
    """A hook the role cannot do without."""
    hook = find_hook(task, name, 1, is_async=is_async, default=default)
    if hook is None:
        raise HookError(
            f"{type(task).__name__} has no {name}",
            remedy=f"define it: {_signature(name, 1, is_async)}",
        )
    return hook


def _check_colour(task: object, name: str, hook: Hook, arity: int, is_async: bool) -> None:
    if inspect.isgeneratorfunction(hook) or inspect.isasyncgenfunction(hook):
        raise HookError(
            f"{type(task).__name__}.{name} is a generator: calling it would run none of its body",
            remedy="return the result instead of yielding it",
        )
    is_coroutine = inspect.iscoroutinefunction(hook)
    if is_coroutine and not is_async:
        raise HookError(
            f"{type(task).__name__}.{name} is a coroutine function, but the task is synchronous",
            remedy="write a plain def, or use AsyncConsumerMixin/AsyncProducerMixin, BaseAsyncTask",
        )
    # Not refused: it works, and a hook that takes microseconds does not hold up the event loop.
    if is_async and not is_coroutine:
        _warn_once(
            type(task),
            name,
            "%s.%s is not a coroutine function: it will block the event loop while it runs; "
            f"write {_signature(name, arity, is_async)}",
        )


def _warn_once(kind: type, name: str, text: str) -> None:
    """Once for each class and method; ``text`` has a place for both names."""
    if (kind, name) not in _WARNED:
        _WARNED.add((kind, name))
        logger.warning(text, kind.__name__, name)


def _check_arity(owner: str, name: str, hook: Hook, arity: int, is_async: bool) -> None:
    if not _accepts(hook, arity):
        raise HookError(
            f"{owner}.{name} cannot be called with {arity} argument{'s' if arity > 1 else ''}",
            remedy=f"define it as {_signature(name, arity, is_async)}",
        )


def _accepts(
    function: Callable[..., Any], arity: int, extra: Mapping[str, Any] | None = None
) -> bool:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # built-ins may have none; they get the benefit of the doubt
        return True
    try:
        signature.bind(*([None] * arity), **(extra or {}))
    except TypeError:
        return False
    return True


def _signature(name: str, arity: int, is_async: bool) -> str:
    second = {1: "", 2: ", exc" if name.endswith("exception") else ", result"}[arity]
    return f"{'async ' if is_async else ''}def {name}(self, transaction{second})"


def fetch_method(name: str, connector: object, extra: Mapping[str, Any], *, is_async: bool) -> Hook:
    """The method a source is fetched with, in the right colour and with the right arguments."""
    wanted = "fetch_transactions_async" if is_async else "fetch_transactions"
    other = "fetch_transactions" if is_async else "fetch_transactions_async"
    method = getattr(connector, wanted, None)
    kind = type(connector).__name__
    if method is None and callable(getattr(connector, other, None)):
        raise WiringError(
            f"connector {name!r} ({kind}) is {'synchronous' if is_async else 'asynchronous'}: "
            f"it has {other} but no {wanted}",
            remedy="use the other kind of task, or give the connector that method",
        )
    if not callable(method):
        raise WiringError(
            f"connector {name!r} ({kind}) has no {wanted}",
            remedy=f"give it {'async ' if is_async else ''}def {wanted}(self, batch_size, **extra)",
        )
    if not is_async and inspect.iscoroutinefunction(method):
        raise WiringError(
            f"connector {name!r} ({kind}): {wanted} is a coroutine function",
            remedy="make it a plain def, or call it fetch_transactions_async and use an async task",
        )
    if not _accepts(method, 1, extra):
        given = "".join(f", {key}" for key in extra)
        raise WiringError(
            f"connector {name!r} ({kind}): {wanted} cannot be called with (batch_size{given})",
            remedy=f"define it as def {wanted}(self, batch_size, **extra)",
        )
    return method  # type: ignore[no-any-return]


def check_retry_owner(name: str, connector: Any, attempts: int) -> None:
    """Refuse attempts on both sides: those of the step would multiply with the connector's."""
    if attempts > 1 and getattr(connector, "redelivers", False) is True:
        raise WiringError(
            f"connector {name!r} itself delivers again what failed, so {attempts} attempts here"
            " would multiply with its own",
            remedy="leave steps.process.retry.max_attempts at 1, and let the connector retry",
            details={"key": ["consumer", "steps", "process", "retry", "max_attempts"]},
        )


def check_copies(policy: ConsumerPolicy) -> None:
    """A copy cannot be settled: a source knows only the very object that it delivered."""
    if policy.loop.payload_copies and policy.loop.settlement == "manual":
        raise WiringError(
            "loop.payload_copies gives hooks a copy of the transaction, which they cannot settle,"
            " and with loop.settlement='manual' nobody else does",
            remedy="set loop.settlement to 'engine', or copy the payload inside the hook",
            details={"key": ["consumer", "loop", "payload_copies"]},
        )


def settlement_of(
    connector: Any, timeout: float, attempts: int = SETTLEMENT_ATTEMPTS, *, is_async: bool
) -> SettlementPlan | None:
    """What the connector offers of ack, nack and release; None when it offers nothing."""
    verbs = {}
    for verb in Verb:
        method = _settling_method(connector, verb.value, is_async)
        if method is not None:
            verbs[verb] = method
    redelivers = bool(getattr(connector, "redelivers", False))
    is_volatile = bool(getattr(connector, "volatile", False))
    at_once = connector.ack if getattr(connector, "ack_never_waits", False) is True else None
    retry = settlement_rule(attempts, timeout)
    if not verbs:
        return None
    return SettlementPlan(verbs, timeout, redelivers, is_volatile, retry, at_once)


def waits_for_work(connector: object, extra: Mapping[str, Any]) -> bool:
    """Whether a fetch waits for work: the connector does, unless the policy's ``wait`` is zero."""
    declared = getattr(connector, "waits_for_work", None)
    asked = extra.get("wait")
    if declared is None or asked is None:
        return declared is True
    return bool(asked)


def malformed_of(connector: object) -> tuple[int, str]:
    """How much the connector set aside unread since it was opened, and the file that keeps it."""
    count = getattr(connector, "malformed", 0)
    kept_in = getattr(connector, "dead_letter_file", None)
    return (count if isinstance(count, int) else 0), ("" if kept_in is None else str(kept_in))


def _settling_method(connector: object, verb: str, is_async: bool) -> Hook | None:
    names = (f"{verb}_async", verb) if is_async else (verb,)
    for name in names:
        method = getattr(connector, name, None)
        if not callable(method):
            continue
        if is_async or not inspect.iscoroutinefunction(method):
            return _with_reason(method) if verb == Verb.NACK else method
        _warn_once(
            type(connector),
            name,
            "%s.%s is a coroutine function, so a synchronous task never calls it and the source is "
            "not told; write a plain def, or use an asynchronous task",
        )
    return None


_REASONS = ("exc", "exception", "error", "reason", "failure")
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def _with_reason(nack: Hook) -> Hook:
    """Give ``nack`` the exception where it asks for one, and never as something else.

    A second parameter with a default and another name, such as ``requeue``, means something else.
    """
    try:
        rest = list(inspect.signature(nack).parameters.values())[1:]
    except (TypeError, ValueError):
        return nack
    for parameter in rest:
        if parameter.name in _REASONS and parameter.kind is not parameter.POSITIONAL_ONLY:
            name = parameter.name
            return lambda transaction, exc: nack(transaction, **{name: exc})
    kinds = {parameter.kind for parameter in rest}
    is_required = bool(rest) and rest[0].default is rest[0].empty and rest[0].kind in _POSITIONAL
    if is_required or inspect.Parameter.VAR_POSITIONAL in kinds:
        return nack
    if inspect.Parameter.VAR_KEYWORD in kinds:
        return lambda transaction, exc: nack(transaction, exc=exc)
    return lambda transaction, _exc: nack(transaction)


Policy = TypeVar("Policy", "ConsumerPolicy", "ProducerPolicy")


def consumer_policy_of(given: object) -> ConsumerPolicy:
    """The policy of a consume call, as :func:`as_policy` finds it."""
    # Late, as for producers: pydantic takes longer to import than all the rest of a task.
    from ergon_framework.task.mixins.policies import ConsumerPolicy

    return as_policy(ConsumerPolicy, given)


def producer_policy_of(given: object) -> ProducerPolicy:
    """The policy of a produce call, as :func:`as_policy` finds it."""
    from ergon_framework.task.mixins.policies import ProducerPolicy

    return as_policy(ProducerPolicy, given)


def as_policy(model: type[Policy], given: object) -> Policy:
    """The policy of a call: the given one, a mapping of its fields, or the defaults."""
    if given is None:
        return model()
    if isinstance(given, model):
        return given
    if isinstance(given, Mapping):
        from pydantic import ValidationError

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
    settlement: SettlementPlan | None,
    *,
    source_waits: bool = False,
) -> EnginePlan:
    """A consume call, ready to be driven."""
    loop, steps = policy.loop, policy.steps
    _warn_about_small_batches(task, loop)
    parks, max_hold = _holds(settlement, loop)
    empty = loop.empty_queue
    return EnginePlan(
        role="consumer",
        task=task,
        fetch=fetch,
        hooks=_copying(hooks) if loop.payload_copies else hooks,
        lifecycle=_lifecycle(steps.process.retry, steps, loop, parks=parks, max_hold=max_hold),
        loop=LoopRule(
            size=loop.batch.size,
            concurrency=loop.concurrency.value,
            limit=loop.limit,
            streaming=loop.streaming,
            continuous=loop.mode == "continuous",
            empty=Backoff(empty.backoff, empty.backoff_multiplier, empty.backoff_cap),
            fetch=_retry(steps.fetch.retry),
            # Without release, what arrives during a stop has to be worked on: no other consumer
            # would see it.
            returns=settlement is not None and Verb.RELEASE in settlement.verbs,
            source_waits=source_waits,
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


def _holds(
    settlement: SettlementPlan | None, loop: ConsumerLoopPolicy
) -> tuple[bool, float | None]:
    """Whether a transaction may go back to its source until a gate opens, and after which wait.

    A call that ends with an empty source must not leave behind what ends with the process, unless
    it would wait for longer than it may.
    """
    can_park = settlement is not None and Verb.RELEASE_AFTER in settlement.verbs
    is_volatile = settlement is not None and settlement.is_volatile
    if can_park and (loop.streaming or not is_volatile):
        return True, None
    return can_park and loop.max_hold is not None, loop.max_hold


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
            returns=True,  # the caller still has its input
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
    max_hold: float | None = None,
) -> LifecycleRule:
    success = steps.success.retry
    return LifecycleRule(
        StepRule(_retry(first), first.timeout),
        StepRule(_retry(success, RFC_SUCCESS_RETRIES), success.timeout),
        StepRule(_retry(steps.exception.retry), steps.exception.retry.timeout),
        loop.transaction_timeout,
        parks,
        max_hold,
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
