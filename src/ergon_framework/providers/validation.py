"""Checks of what callers give: the arguments of a call, and numbers in options."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import Any

import msgspec

from ergon_framework.core.json_names import encode_text_keys, name_written_twice
from ergon_framework.core.option_values import is_number, number_problem
from ergon_framework.errors import ConfigurationError
from ergon_framework.providers.errors import ProviderBadRequestError
from ergon_framework.providers.execution import ProviderExecutionContext

# -- options: what is wrong is a ConfigurationError ------------------------------------------------


def check_count(name: str, value: Any, least: int = 0) -> None:
    """Refuse what is no whole number of ``least`` or more."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigurationError(f"{name} must be an integer of {least} or more, not {value!r}")


def check_seconds(name: str, value: Any, least: float = 0.0) -> None:
    """Refuse what is no number of ``least`` or more."""
    if problem := number_problem(value, least):
        raise ConfigurationError(f"{name} {problem}")


def check_above_zero(name: str, value: Any) -> None:
    """Refuse what is no number above zero."""
    if problem := number_problem(value, is_above=True):
        raise ConfigurationError(f"{name} {problem}")


def check_word(name: str, value: Any, words: type[StrEnum]) -> None:
    """Refuse what is none of ``words``."""
    known = [each.value for each in words]
    if value not in known:
        raise ConfigurationError(
            f"{name} must be one of {', '.join(known)}, not {value!r}",
            remedy=f'write {name}="{known[0]}"',
        )


def check_words(name: str, value: Any, words: type[StrEnum]) -> None:
    """Refuse a set that has something else in it than ``words``."""
    known = {each.value for each in words}
    if isinstance(value, str) or not isinstance(value, Collection):
        raise ConfigurationError(f"{name} must be a set of words, not {value!r}")
    unknown = sorted(str(each) for each in value if each not in known)
    if unknown:
        raise ConfigurationError(
            f"{name} has {', '.join(unknown)}", remedy=f"the words are {', '.join(sorted(known))}"
        )


def check_names(name: str, value: Any) -> None:
    """Refuse what is no set of texts. A single text is a collection of its letters, so no set."""
    if (
        isinstance(value, str)
        or not isinstance(value, Collection)
        or not all(isinstance(each, str) for each in value)
    ):
        raise ConfigurationError(
            f"{name} must be a set of names, not {value!r}", remedy='write for example {"password"}'
        )


# -- calls: what is wrong is a ProviderBadRequestError ---------------------------------------------

MAX_INTEGER = 2**31 - 1
"""What a column of whole numbers holds."""
_MAX_LENGTHS = {"tenant_id": 36, "campaign_id": 36, "operation": 120}
"""Characters: what the columns hold."""


_ONE_UNIT, _NO_OFFSET, _NUL = 1, 0, "\x00"


def validate_call(
    tenant_id: Any, campaign_id: Any, operation: Any, payload: Any, context: Any
) -> None:
    """Refuse a call that is wrong, and say what is wrong with it."""
    _check_text("tenant_id", tenant_id)
    _check_text("operation", operation)
    validate_request(campaign_id, payload, context)


def validate_request(campaign_id: Any, payload: Any, context: Any) -> None:
    """Check a call whose tenant and operation are known already."""
    if campaign_id is not None:
        _check_text("campaign_id", campaign_id)
    if type(payload) is not dict and not isinstance(payload, dict):
        raise _refused("payload", f"must be a dict, not {type(payload).__name__}")
    try:
        # The one encoder that refuses keys other than text: there is nothing more to check then.
        text = encode_text_keys(payload)
    except (TypeError, ValueError, RecursionError, OverflowError):
        text = _encode_any_keys(payload)
    # The encoder writes null for a number that JSON has no word for.
    if text.find(b"null") >= 0:
        _check_numbers(payload)
    if type(context) is ProviderExecutionContext:
        name, key = context.correlation_id, context.idempotency_key
        # Whether it says nothing that could be wrong: it has names and defaults, seen at a glance.
        # By identity, since True is no number of units; another 1 than this is looked at closer.
        if (
            context.units is _ONE_UNIT
            and context.attempt_offset is _NO_OFFSET
            and context.deadline is None
            and context.timeout_budget_seconds is None
            and context.attempt_timeout_seconds is None
            and context.max_attempts is None
            and context.task_name is None
            and context.task_execution_id is None
            and (
                name is None
                or (
                    type(name) is str
                    and 0 < len(name) < 256
                    and name.isascii()
                    and _NUL not in name
                )
            )
            and (
                key is None
                or (type(key) is str and 0 < len(key) < 256 and key.isascii() and _NUL not in key)
            )
        ):
            return
    _check_context(context)


def _encode_any_keys(payload: dict[Any, Any]) -> bytes:
    """The payload as JSON. Its keys may be of any type, but no two may get the same name."""
    try:
        text = msgspec.json.encode(payload)
    except (TypeError, ValueError, RecursionError, OverflowError) as error:
        raise _refused("payload", f"cannot be written as JSON: {error}") from error
    _check_names(text)
    return text


def _check_numbers(payload: dict[Any, Any]) -> None:
    """Refuse a payload that holds a number which JSON has no word for."""
    try:
        is_fine = _has_only_finite_numbers(payload)
    except (TypeError, ValueError, RecursionError, OverflowError) as error:
        raise _refused("payload", f"cannot be written as JSON: {error}") from error
    if not is_fine:
        raise _refused("payload", "cannot be written as JSON: it holds NaN or an infinity")


def _check_names(text: bytes) -> None:
    """Refuse a payload of which a reader would get fewer keys than were written."""
    repeated = name_written_twice(text)
    if repeated is not None:
        raise _refused(
            "payload", f"cannot be written as JSON: two of its keys are {repeated[:40]!r} there"
        )


def _has_only_finite_numbers(value: Any) -> bool:
    """Whether every number in it is one."""
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, Mapping):
        return all(map(_has_only_finite_numbers, value.values())) and all(
            map(_has_only_finite_numbers, value)
        )
    if isinstance(value, list | tuple | set | frozenset):
        return all(map(_has_only_finite_numbers, value))
    return True


def check_units(units: int, limit: int) -> None:
    """Refuse a call that costs more than any window has: it could wait for ever."""
    if units > limit:
        raise _refused("context.units", f"is {units}, but a whole window has {limit}")


def _check_context(context: Any) -> None:
    if not isinstance(context, ProviderExecutionContext):
        raise _refused(
            "context", f"must be a ProviderExecutionContext, not {type(context).__name__}"
        )
    if context.deadline is not None:
        _check_context_seconds("deadline", context.deadline)
    if context.attempt_timeout_seconds is not None:
        _check_context_seconds("attempt_timeout_seconds", context.attempt_timeout_seconds)
    if context.timeout_budget_seconds is not None:
        _check_context_seconds("timeout_budget_seconds", context.timeout_budget_seconds)
    if type(context.units) is not int or context.units < 1:
        raise _refused("context.units", f"must be an integer of 1 or more, not {context.units!r}")
    offset = context.attempt_offset
    if type(offset) is not int or not 0 <= offset <= MAX_INTEGER:
        raise _refused("context.attempt_offset", f"must be an integer of 0 or more, not {offset!r}")
    most = context.max_attempts
    if most is not None and (type(most) is not int or most < 1):
        raise _refused("context.max_attempts", f"must be an integer of 1 or more, not {most!r}")
    if context.correlation_id is not None:
        _check_name("correlation_id", context.correlation_id)
    if context.idempotency_key is not None:
        _check_name("idempotency_key", context.idempotency_key)
    if context.task_execution_id is not None:
        _check_name("task_execution_id", context.task_execution_id, 36)
    if context.task_name is not None:
        _check_name("task_name", context.task_name)


def _check_context_seconds(name: str, value: Any) -> None:
    if not is_number(value):
        raise _refused(f"context.{name}", f"must be a number of seconds or None, not {value!r}")


def _check_name(name: str, value: Any, longest: int = 255) -> None:
    if not isinstance(value, str) or not 0 < len(value) <= longest or not _is_clean(value):
        raise _refused(f"context.{name}", f"must be a text of 1 to {longest} characters")


def _check_text(name: str, value: Any) -> None:
    if type(value) is str and value and len(value) <= _MAX_LENGTHS[name] and _is_clean(value):
        return
    if not isinstance(value, str) or not value:
        raise _refused(name, f"must be a text that is not empty, not {type(value).__name__}")
    if not _is_clean(value):
        raise _refused(name, "must not have a NUL character or half a surrogate pair")
    if len(value) > _MAX_LENGTHS[name]:
        raise _refused(name, f"must have at most {_MAX_LENGTHS[name]} characters, not {len(value)}")


def _is_clean(text: str) -> bool:
    """Whether every database takes it."""
    if "\x00" in text:
        return False
    return text.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in text)


def _refused(where: str, what: str) -> ProviderBadRequestError:
    return ProviderBadRequestError(
        f"{where} {what}", never_sent=True, details={"path": where}, remedy="nothing was called"
    )
