"""Finding hooks and connector methods, and refusing what cannot work before anything runs."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from typing import Any

from ergon_framework.core.settlement import Verb
from ergon_framework.engine.plan import Hook, Settlement
from ergon_framework.errors import HookError, WiringError

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
    is_coroutine = inspect.iscoroutinefunction(hook) or inspect.isasyncgenfunction(hook)
    if is_coroutine and not is_async:
        raise HookError(
            f"{type(task).__name__}.{name} is a coroutine function, but the task is synchronous",
            remedy="write a plain def, or use AsyncConsumerMixin/AsyncProducerMixin, BaseAsyncTask",
        )
    if is_async and not is_coroutine and (type(task), name) not in _WARNED:
        _WARNED.add((type(task), name))
        logger.warning(
            "%s.%s is not a coroutine function: it will block the event loop while it runs; "
            "write %s",
            type(task).__name__,
            name,
            _signature(name, arity, is_async),
        )


def _check_arity(owner: str, name: str, hook: Hook, arity: int, is_async: bool) -> None:
    if not _accepts(hook, arity):
        raise HookError(
            f"{owner}.{name} cannot be called with {arity} argument{'s' if arity > 1 else ''}",
            remedy=f"define it as {_signature(name, arity, is_async)}",
        )


def _accepts(function: Callable[..., Any], arity: int) -> bool:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # built-ins may have none; they get the benefit of the doubt
        return True
    try:
        signature.bind(*([None] * arity))
    except TypeError:
        return False
    return True


def _signature(name: str, arity: int, is_async: bool) -> str:
    second = {1: "", 2: ", exc" if name.endswith("exception") else ", result"}[arity]
    return f"{'async ' if is_async else ''}def {name}(self, transaction{second})"


def fetch_method(name: str, connector: object, *, is_async: bool) -> Hook:
    """The method a source is fetched with, in the right colour."""
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
    return method  # type: ignore[no-any-return]


def settlement_of(connector: object, timeout: float, *, is_async: bool) -> Settlement | None:
    """What the connector offers of ack, nack and release; None when it offers nothing."""
    verbs = {}
    for verb in Verb:
        method = _settling_method(connector, verb.value, is_async)
        if method is not None:
            verbs[verb] = method
    return Settlement(verbs, timeout) if verbs else None


def _settling_method(connector: object, verb: str, is_async: bool) -> Hook | None:
    names = (f"{verb}_async", verb) if is_async else (verb,)
    for name in names:
        method = getattr(connector, name, None)
        if callable(method) and (is_async or not inspect.iscoroutinefunction(method)):
            if verb == Verb.NACK and not _accepts(method, 2):
                return lambda transaction, _exc: method(transaction)
            return method  # type: ignore[no-any-return]
    return None
