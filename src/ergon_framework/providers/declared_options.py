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
    count_flaw,
    number_flaw,
    or_none,
    shown,
    switch_flaw,
    word_flaw,
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
        flaw_of, example = _FLAWS[name]
        flaw = "" if value is None else flaw_of(value)
        if flaw:
            raise ConfigurationError(
                f"the provider {shown(provider)}: {name} {flaw}",
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
        flaw = "" if known is None or value is None else known[0](value)
        if known is not None and flaw:
            raise ConfigurationError(
                f"the {name} of a provider call {flaw}",
                remedy=f"write for example {name}={known[1]}",
            )


def text_flaw(value: object, longest: int) -> str:
    """What is wrong with a text that a column of so many characters holds."""
    if isinstance(value, str) and 0 < len(value) <= longest and value.isprintable():
        return ""
    return f"must be a text of 1 to {longest} printable characters, not {shown(value)}"


def _tenant_flaw(value: object) -> str:
    from ergon_framework.ports.providerstore import ALL_TENANTS

    if value == ALL_TENANTS:
        return f"must not be {ALL_TENANTS!r}, which stands for all tenants"
    return text_flaw(value, MAX_TENANT)


def _quota_flaw(value: object) -> str:
    if value == UNLIMITED:
        return ""
    if not isinstance(value, str):
        return _kind_flaw(value, "ergon_framework.providers.quota", "QuotaPolicy", "a text or a ")
    try:
        read_quota(value)
    except ConfigurationError as error:
        return f"is refused: {error.message}"
    return ""


def _kind_flaw(value: object, module: str, name: str, before: str = "a ") -> str:
    if isinstance(value, getattr(import_module(module), name)):
        return ""
    return f"must be {before}{name}, not {shown(value)}"


def _breaker_flaw(value: object) -> str:
    if value is False:
        return ""
    module = "ergon_framework.providers.circuit_breaker"
    return _kind_flaw(value, module, "CircuitBreaker", "False or a ")


def _store_flaw(value: object) -> str:
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


def _rules_flaw(value: object) -> str:
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        return f"must be a list of rules, not {shown(value)}"
    flaws = (_kind_flaw(each, "ergon_framework.providers.mapping", "Rule") for each in value)
    return next((f"must be a list of rules; each {flaw}" for flaw in flaws if flaw), "")


def _path_flaw(value: object) -> str:
    is_path = isinstance(value, str | os.PathLike) and str(value) != ""
    return "" if is_path else f"must be the path of a folder, not {shown(value)}"


def _clock_flaw(value: object) -> str:
    is_clock = callable(getattr(value, "now", None))
    return "" if is_clock else f"must be a clock, which has now(), not {shown(value)}"


def _mapping_flaw(value: object) -> str:
    is_mapping = isinstance(value, Mapping)
    return "" if is_mapping else f"must be a mapping, not {type(value).__name__}"


def _wall_flaw(value: object) -> str:
    return "" if callable(value) else f"must be a function, not {shown(value)}"


_above_zero = partial(number_flaw, is_above=True)
_units = partial(word_flaw, choices=("attempt", "execution"))


def _kind(module: str, name: str) -> Callable[[Any], str]:
    return partial(_kind_flaw, module=f"ergon_framework.{module}", name=name)


_FLAWS: dict[str, tuple[Callable[[Any], str], str]] = {
    "name": (partial(text_flaw, longest=MAX_NAME), '"rates"'),
    "operation": (partial(text_flaw, longest=MAX_OPERATION), '"eur_usd"'),
    "campaign": (partial(text_flaw, longest=MAX_TENANT), '"spring"'),
    "idempotency_key": (partial(text_flaw, longest=MAX_KEY), '"order-7"'),
    "correlation_id": (partial(text_flaw, longest=MAX_KEY), '"order-7"'),
    "capability": (partial(text_flaw, longest=MAX_NAME), '"exchange"'),
    "quota": (_quota_flaw, '"1000/day"'),
    "attempts": (count_flaw, "3"),
    "backoff": (number_flaw, "0.5"),
    "timeout": (_above_zero, "10.0"),
    "budget": (or_none(_above_zero), "60.0"),
    "tenant": (_tenant_flaw, '"acme"'),
    "store": (_store_flaw, '"sqlite:///work.db"'),
    "circuit_breaker": (_breaker_flaw, "CircuitBreaker(failure_threshold=5)"),
    "errors": (_rules_flaw, '[Rule(MyError, "dependency_unavailable")]'),
    "middleware": (_kind("ports.middleware", "MiddlewareStack"), "MiddlewareStack()"),
    "dependencies": (_kind("ports.lifespan", "Dependencies"), "Dependencies()"),
    "retry_policy": (_kind("providers.retry", "RetryPolicy"), "RetryPolicy(max_attempts=5)"),
    "isolate": (switch_flaw, "True"),
    "durable": (switch_flaw, "True"),
    "parent_breaker": (_kind("providers.circuit_breaker", "CircuitBreaker"), "CircuitBreaker()"),
    "retry_budget": (_kind("core.provider_call", "RetryBudget"), "RetryBudget()"),
    "breaker_scope": (_units, '"attempt"'),
    "quota_unit": (_units, '"execution"'),
    "quota_fails_open": (switch_flaw, "True"),
    "decisions": (_kind("providers.decisions", "DecisionOptions"), "DecisionOptions()"),
    "default_cooldown_seconds": (number_flaw, "1.0"),
    "max_cooldown_seconds": (_above_zero, "3600.0"),
    "max_lanes": (count_flaw, "10_000"),
    "keep_records_seconds": (_above_zero, "86_400.0"),
    "spill": (_path_flaw, '"/var/spool/ergon"'),
    "clock": (_clock_flaw, "VirtualClock()"),
    "wall": (_wall_flaw, "time.time"),
    "settings": (_wall_flaw, "lambda: {}"),
}
"""What each option refuses, and how a right one looks."""
_OF_CALLS: dict[str, tuple[Callable[[Any], str], str]] = {
    "timeout": (_above_zero, "10.0"),
    "budget": (_above_zero, "60.0"),
    "units": (count_flaw, "1"),
    "metadata": (_mapping_flaw, '{"trace": "on"}'),
}
