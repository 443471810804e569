"""Validates the options of a ``Provider`` where it is declared, not at its first call.

The classes of options are imported only to check a value that was given: a program that has an
instance has imported its class already.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Any

from ergon_framework.core.option_values import (
    count_problem,
    number_problem,
    or_none,
    shown,
    switch_problem,
    word_problem,
)
from ergon_framework.core.quota import UNLIMITED, read_quota
from ergon_framework.errors import ConfigurationError

MAX_NAME = 80
MAX_TENANT = 36
MAX_OPERATION = 120
MAX_KEY = 255
"""Characters: what the columns hold."""
_NEVER_A_STORE = (bytes, int, float, list, tuple, set, dict, os.PathLike)


def check_options(provider: str, options: Mapping[str, Any]) -> None:
    """Refuse a value that the provider could not be built with; None counts as not given."""
    for name, value in options.items():
        find_problem, example = _CHECKS[name]
        problem = "" if value is None else find_problem(value)
        if problem:
            raise ConfigurationError(
                f"the provider {shown(provider)}: {name} {problem}",
                remedy=f"write for example {name}={example}",
            )


def check_declared_call(provider: str, changes: Mapping[str, Any]) -> None:
    """Refuse names for all calls of a function; those of one call are checked when it is made."""
    names = ("tenant", "campaign", "idempotency_key", "correlation_id")
    check_options(provider, {name: changes[name] for name in names if name in changes})


def check_call(changes: Mapping[str, Any]) -> None:
    """Refuse numbers that no call could keep to; names are checked with the call itself."""
    for name, value in changes.items():
        known = _OF_CALLS.get(name)
        problem = "" if known is None or value is None else known[0](value)
        if known is not None and problem:
            raise ConfigurationError(
                f"the {name} of a provider call {problem}",
                remedy=f"write for example {name}={known[1]}",
            )


def text_problem(value: object, longest: int) -> str:
    """What is wrong with a text that a column of so many characters holds."""
    if isinstance(value, str) and 0 < len(value) <= longest and value.isprintable():
        return ""
    return f"must be a text of 1 to {longest} printable characters, not {shown(value)}"


def _tenant_problem(value: object) -> str:
    from ergon_framework.ports.providerstore import ALL_TENANTS

    if value == ALL_TENANTS:
        return f"must not be {ALL_TENANTS!r}, which stands for all tenants"
    return text_problem(value, MAX_TENANT)


def _quota_problem(value: object) -> str:
    if value == UNLIMITED:
        return ""
    if not isinstance(value, str):
        return _kind_problem(
            value, "ergon_framework.providers.quota", "QuotaPolicy", "a text or a "
        )
    try:
        read_quota(value)
    except ConfigurationError as error:
        return f"is refused: {error.message}"
    return ""


def _kind_problem(value: object, module: str, name: str, before: str = "a ") -> str:
    if isinstance(value, getattr(import_module(module), name)):
        return ""
    return f"must be {before}{name}, not {shown(value)}"


def _breaker_problem(value: object) -> str:
    if value is False:
        return ""
    module = "ergon_framework.providers.circuit_breaker"
    return _kind_problem(value, module, "CircuitBreaker", "False or a ")


def _store_problem(value: object) -> str:
    if isinstance(value, _NEVER_A_STORE):  # its content may be a password
        return f"must be a URL, a store or a function, not {type(value).__name__}"
    if not isinstance(value, str):
        is_store = callable(value) or callable(getattr(value, "now", None))
        return "" if is_store else f"must be a URL, a store or a function, not {shown(value)}"
    from ergon_framework.providers.store_urls import check_form

    try:
        check_form(value)
    except ConfigurationError as error:
        return f"is refused: {error.message}; {error.remedy}"
    return ""


def _rules_problem(value: object) -> str:
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        return f"must be a list of rules, not {shown(value)}"
    problems = (_kind_problem(each, "ergon_framework.providers.mapping", "Rule") for each in value)
    return next((f"must be a list of rules; each {problem}" for problem in problems if problem), "")


def _path_problem(value: object) -> str:
    is_path = isinstance(value, str | os.PathLike) and str(value) != ""
    return "" if is_path else f"must be the path of a folder, not {shown(value)}"


def _clock_problem(value: object) -> str:
    is_clock = callable(getattr(value, "now", None))
    return "" if is_clock else f"must be a clock, which has now(), not {shown(value)}"


def _mapping_problem(value: object) -> str:
    is_mapping = isinstance(value, Mapping)
    return "" if is_mapping else f"must be a mapping, not {type(value).__name__}"


def _wall_problem(value: object) -> str:
    return "" if callable(value) else f"must be a function, not {shown(value)}"


_above_zero = partial(number_problem, is_above=True)
_units = partial(word_problem, choices=("attempt", "execution"))


def _kind(module: str, name: str) -> Callable[[Any], str]:
    return partial(_kind_problem, module=f"ergon_framework.{module}", name=name)


_CHECKS: dict[str, tuple[Callable[[Any], str], str]] = {
    "name": (partial(text_problem, longest=MAX_NAME), '"rates"'),
    "operation": (partial(text_problem, longest=MAX_OPERATION), '"eur_usd"'),
    "campaign": (partial(text_problem, longest=MAX_TENANT), '"spring"'),
    "idempotency_key": (partial(text_problem, longest=MAX_KEY), '"order-7"'),
    "correlation_id": (partial(text_problem, longest=MAX_KEY), '"order-7"'),
    "capability": (partial(text_problem, longest=MAX_NAME), '"exchange"'),
    "quota": (_quota_problem, '"1000/day"'),
    "attempts": (count_problem, "3"),
    "backoff": (number_problem, "0.5"),
    "timeout": (_above_zero, "10.0"),
    "budget": (or_none(_above_zero), "60.0"),
    "tenant": (_tenant_problem, '"acme"'),
    "store": (_store_problem, '"sqlite:///work.db"'),
    "circuit_breaker": (_breaker_problem, "CircuitBreaker(failure_threshold=5)"),
    "errors": (_rules_problem, '[Rule(MyError, "dependency_unavailable")]'),
    "middleware": (_kind("ports.middleware", "MiddlewareStack"), "MiddlewareStack()"),
    "dependencies": (_kind("ports.lifespan", "Dependencies"), "Dependencies()"),
    "retry_policy": (_kind("providers.retry", "RetryPolicy"), "RetryPolicy(max_attempts=5)"),
    "isolate": (switch_problem, "True"),
    "durable": (switch_problem, "True"),
    "parent_breaker": (_kind("providers.circuit_breaker", "CircuitBreaker"), "CircuitBreaker()"),
    "retry_budget": (_kind("core.provider_call", "RetryBudget"), "RetryBudget()"),
    "breaker_scope": (_units, '"attempt"'),
    "quota_unit": (_units, '"execution"'),
    "quota_fails_open": (switch_problem, "True"),
    "decisions": (_kind("providers.decisions", "DecisionOptions"), "DecisionOptions()"),
    "default_cooldown_seconds": (number_problem, "1.0"),
    "max_cooldown_seconds": (_above_zero, "3600.0"),
    "max_lanes": (count_problem, "10_000"),
    "keep_records_seconds": (_above_zero, "86_400.0"),
    "spill": (_path_problem, '"/var/spool/ergon"'),
    "clock": (_clock_problem, "VirtualClock()"),
    "wall": (_wall_problem, "time.time"),
    "settings": (_wall_problem, "lambda: {}"),
}
"""What each option refuses, and how a right one looks."""
_OF_CALLS: dict[str, tuple[Callable[[Any], str], str]] = {
    "timeout": (_above_zero, "10.0"),
    "budget": (_above_zero, "60.0"),
    "units": (count_problem, "1"),
    "metadata": (_mapping_problem, '{"trace": "on"}'),
}
