"""Finding hooks and connector methods, and refusing what cannot work before anything runs."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping
from typing import Any

from ergon_framework.core.lifecycle import SETTLEMENT_ATTEMPTS, Verb, settlement_rule
from ergon_framework.engine.plan import Hook, Settlement
from ergon_framework.errors import HookError, WiringError
from ergon_framework.task.mixins.policies import ConsumerPolicy

logger = logging.getLogger("ergon.task")

_WARNED: set[tuple[type, str]] = set()


def find_hook(task: object, name: str, arity: int, *, is_async: bool, default: Any) -> Hook | None:
    """The user's hook, or None when only the mixin's ``default`` is there."""
    hook = getattr(task, name, None)
    owner = type(task).__name__
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


def check_patience(name: str, connector: Any, attempts: int) -> None:
    """One owner of patience: attempts here would multiply with those of the connector."""
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
    connector: object, timeout: float, attempts: int = SETTLEMENT_ATTEMPTS, *, is_async: bool
) -> Settlement | None:
    """What the connector offers of ack, nack and release; None when it offers nothing."""
    verbs = {}
    for verb in Verb:
        method = _settling_method(connector, verb.value, is_async)
        if method is not None:
            verbs[verb] = method
    redelivers = bool(getattr(connector, "redelivers", False))
    is_volatile = bool(getattr(connector, "volatile", False))
    retry = settlement_rule(attempts, timeout)
    return Settlement(verbs, timeout, redelivers, is_volatile, retry) if verbs else None


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
