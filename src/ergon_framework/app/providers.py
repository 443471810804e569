"""``[providers]`` and ``[providers.NAME]``: the store of provider calls, and who is called how.

A table with ``provider = "module:Class"`` describes a provider that tasks and handlers ask for by
its name. Every table also says how the calls of ``app.provider("NAME")`` are made, where the script
does not say so itself; that is all that one without a class is for.

Durations are numbers of seconds. A key is called like the parameter in Python without its unit:
``window`` here is ``window_seconds`` of ``QuotaPolicy``.
"""

from __future__ import annotations

import atexit
import inspect
import os
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, SecretStr, ValidationError, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from ergon_framework.app.factories import Factory
from ergon_framework.app.imports import load
from ergon_framework.app.settings import load_settings, settings_file
from ergon_framework.app.settings.secrets import revealed
from ergon_framework.app.settings.sections import Built, Reference, Section, Settings
from ergon_framework.app.settings.source import did_you_mean
from ergon_framework.app.settings.stores import base_of, store_url
from ergon_framework.core.quota import UNLIMITED, read_quota
from ergon_framework.core.text import toml_table
from ergon_framework.errors import ConfigurationError, SettingsError, WiringError
from ergon_framework.ports.settings_model import (
    Count,
    FrozenDict,
    OrNone,
    Positive,
    PositiveOrZero,
    Ratio,
    SettingsModel,
    Switch,
    explain,
    unknown_key,
)

if TYPE_CHECKING:
    from ergon_framework.providers.base import ProviderBase
    from ergon_framework.providers.circuit_breaker import CircuitBreaker
    from ergon_framework.providers.quota import QuotaPolicy
    from ergon_framework.providers.retry import RetryPolicy

__all__ = [
    "ProvidersSettings",
    "provider",
    "provider_factory",
    "providers_of",
    "script_arguments",
    "script_store",
    "service_of",
]


_RENAMED = {"timeout", "timeout_seconds", "budget_seconds", "timeout_budget_seconds"}
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


_OF_A_CLASS = 'is an option of a class; write provider = "module:Class" beside it'
_IN_A_TABLE = {
    "attempts": "is spelled so in Python only; write retry = { max_attempts = 5 }",
    "backoff": "is spelled so in Python only; write retry = { base_delay = 1.0 }",
    "budget": "is spelled so in Python only; write timeout_budget = 60",
    "timeout": "is spelled so in Python only; write attempt_timeout = 5",
}
"""How the short words of ``app.provider`` are written in a table."""
_RIGHT = "is no key: write timeout_budget for the whole call, or attempt_timeout for one attempt"


def _refusal(section: type[SettingsModel], wrong: list[tuple[str, str]]) -> ValidationError:
    """What is wrong with which key."""
    lines = [
        InitErrorDetails(
            type=PydanticCustomError(
                "providers", "{text}", {"text": text, "model": section.__name__}
            ),
            loc=(name,),
            input=None,
        )
        for name, text in wrong
    ]
    return ValidationError.from_exception_data(section.__name__, lines)


@contextmanager
def _as_value_error() -> Iterator[None]:
    """Turn a refusal into a ``ValueError`` whose text may follow the name of a key."""
    try:
        yield
    except ConfigurationError as error:
        raise ValueError(f"is refused: {error}") from None


class QuotaSettings(SettingsModel):
    """How many calls a tenant may make in a window."""

    limit: Count
    window: Positive = 3600.0
    period: Annotated[Literal["day", "month"] | None, OrNone] = None
    tz: str = "UTC"
    anchor: float = 0.0
    block: Count = 1

    @model_validator(mode="after")
    def _whole(self) -> Self:
        with _as_value_error():
            self.compiled()
        return self

    def compiled(self) -> QuotaPolicy:
        """The settings as the object that a provider takes."""
        from ergon_framework.providers.quota import QuotaPolicy

        return QuotaPolicy(self.limit, self.window, self.period, self.tz, self.anchor, self.block)


class ProviderRetrySettings(SettingsModel):
    """How often a call is tried, and how long to wait in between."""

    max_attempts: Count = 3
    base_delay: PositiveOrZero = 0.5
    max_delay: PositiveOrZero = 8.0
    jitter: Ratio = 0.2
    max_retry_after: Annotated[PositiveOrZero | None, OrNone] = 3600.0

    @model_validator(mode="after")
    def _whole(self) -> Self:
        with _as_value_error():
            self.compiled()
        return self

    def compiled(self) -> RetryPolicy:
        """The settings as the object that a provider takes."""
        from ergon_framework.providers.retry import RetryPolicy

        return RetryPolicy(
            self.max_attempts, self.base_delay, self.max_delay, self.jitter, self.max_retry_after
        )


class BreakerSettings(SettingsModel):
    """When calls are no longer tried, and for how long."""

    enabled: Switch = True
    failure_threshold: Count = 5
    open_cooldown: PositiveOrZero = 30.0
    half_open_max_calls: Count = 1
    half_open_success_threshold: Annotated[Count | None, OrNone] = None
    probe_lease: Annotated[Positive | None, OrNone] = None
    store_timeout: Annotated[Positive, Field(ge=0.5)] = 0.5

    def compiled(self) -> CircuitBreaker | Literal[False]:
        """The settings as the object that a provider takes."""
        from ergon_framework.providers.circuit_breaker import CircuitBreaker

        if not self.enabled:
            return False
        return CircuitBreaker(
            self.failure_threshold,
            self.open_cooldown,
            self.half_open_max_calls,
            self.half_open_success_threshold,
            self.probe_lease,
            self.store_timeout,
        )


def _written_quota(value: object) -> object:
    """``quota = "1000/day"`` is short for a table, and ``"unlimited"`` is none."""
    if not isinstance(value, str) or value.strip().lower() in ("", "none", "null"):
        return value
    if value.strip().lower() == UNLIMITED:
        return None
    with _as_value_error():
        limit, seconds, period = read_quota(value)
    return {"limit": limit, **({"window": seconds} if period is None else {"period": period})}


def _table_of_switch(value: object) -> object:
    """``breaker = false`` is short for a table."""
    return {"enabled": value} if isinstance(value, bool) else value


class ScriptOptions(SettingsModel):
    """Options of ``app.provider`` that have no key of their own, spelled as in Python."""

    isolate: Switch = False
    durable: Switch = False
    breaker_scope: Literal["attempt", "execution"] = "attempt"
    quota_unit: Literal["attempt", "execution"] = "execution"
    quota_fails_open: Switch = False
    default_cooldown_seconds: PositiveOrZero = 1.0
    max_cooldown_seconds: Positive = 3600.0
    max_lanes: Count = 10_000
    keep_records_seconds: Annotated[Positive | None, OrNone] = None
    spill: Annotated[str, Field(min_length=1)] = ""


class ProviderSettings(Built):
    """``[providers.NAME]``: a provider, how it is called, and its options."""

    provider: Annotated[Reference | None, OrNone] = None
    quota: Annotated[QuotaSettings | None, OrNone, BeforeValidator(_written_quota)] = None
    retry: Annotated[ProviderRetrySettings | None, OrNone] = None
    breaker: Annotated[BreakerSettings | None, OrNone, BeforeValidator(_table_of_switch)] = None
    timeout_budget: Annotated[Positive | None, OrNone] = 60.0
    attempt_timeout: Annotated[Positive | None, OrNone] = None
    store: Annotated[SecretStr | None, OrNone] = None

    @model_validator(mode="before")
    @classmethod
    def _reveal(cls, data: Any) -> Any:
        """Reveal secrets, except in options and the store: the other fields are parsed by their
        types.
        """
        if not isinstance(data, Mapping):
            return data
        renamed = sorted(_RENAMED & data.keys())
        if renamed:
            raise _refusal(cls, [(name, _RIGHT) for name in renamed])
        known = cls.model_fields.keys() - {"store"}
        return {key: revealed(item) if key in known else item for key, item in data.items()}

    @model_validator(mode="after")
    def _of_a_class_or_a_script(self) -> Self:
        """Refuse options that only a provider class could read when the settings name none."""
        if self.provider is not None:
            return self
        if not self.options and not self.model_fields_set:
            raise _refusal(type(self), [("provider", "provider is missing")])
        known = [*ProviderSettings.model_fields, *ScriptOptions.model_fields]
        wrong = [
            (name, _IN_A_TABLE.get(name) or f"{_OF_A_CLASS}; {did_you_mean(name, known)}")
            for name in self.options.keys() - ScriptOptions.model_fields.keys()
        ]
        if wrong:
            raise _refusal(type(self), sorted(wrong))
        self.script_options()
        return self

    def script_options(self) -> dict[str, Any]:
        """The options that ``app.provider`` takes. The others belong to the provider class."""
        known = ScriptOptions.model_fields.keys()
        own = {name: revealed(item) for name, item in self.options.items() if name in known}
        return ScriptOptions.model_validate(own).model_dump(exclude_unset=True)

    def arguments(self) -> dict[str, Any]:
        """What is said here about its calls, as a provider takes it."""
        policies = {
            "quota": self.quota,
            "retry_policy": self.retry,
            "circuit_breaker": self.breaker,
        }
        found: dict[str, Any] = {
            name: each.compiled() for name, each in policies.items() if each is not None
        }
        if "timeout_budget" in self.model_fields_set:
            found["timeout_budget_seconds"] = self.timeout_budget
        if self.attempt_timeout is not None:
            found["attempt_timeout_seconds"] = self.attempt_timeout
        return found


def _no_table(value: object) -> object:
    if isinstance(value, Mapping):
        raise ValueError("is a key of [providers], so no provider can have that name")  # noqa: TRY004
    return value


class ProvidersSettings(SettingsModel, extra="allow"):
    """``[providers]``: where provider calls keep what they know; its tables are the providers."""

    __pydantic_extra__: dict[str, ProviderSettings]

    store: Annotated[SecretStr | None, OrNone, BeforeValidator(_no_table)] = None
    keep_records: Annotated[Positive | None, OrNone, BeforeValidator(_no_table)] = 90 * 86_400.0

    @model_validator(mode="before")
    @classmethod
    def _named(cls, data: Any) -> Any:
        """A name that is neither a table nor a key of this section is a misspelt key."""
        wrong = []
        for name, value in data.items() if isinstance(data, Mapping) else ():
            if name not in cls.model_fields and not isinstance(value, Mapping):
                wrong.append((name, unknown_key(name, cls)))
            elif not _NAME.fullmatch(name):
                wrong.append((name, "must be a name of letters, digits, '_', '-' and '.'"))
        if wrong:
            raise _refusal(cls, wrong)
        return data

    def arguments(self) -> dict[str, Any]:
        """What is said here about every provider, as a provider takes it."""
        is_said = "keep_records" in self.model_fields_set
        return {"keep_records_seconds": self.keep_records} if is_said else {}

    @property
    def named(self) -> Mapping[str, ProviderSettings]:
        """The providers by name."""
        return FrozenDict(self.model_extra or {})


SECTIONS = {"providers": Section(ProvidersSettings, has_secrets=True, has_free_options=True)}
"""What the settings file may hold for provider calls."""

_Key = tuple[Path | None, str]

_made: dict[_Key, ProviderBase] = {}
_lock = threading.RLock()


def provider(name: str, config: str | Path | None = None) -> ProviderBase:
    """The provider of that name in the settings, made when it is first asked for.

    The settings are those of ``config``, else of ``ERGON_CONFIG``, which a worker hands to its
    executors, else ``ergon.toml`` in the working directory.
    """
    file = settings_file(config, os.environ)
    key = (None if file is None else file.absolute(), name)
    found = _made.get(key)
    return _make(key, load_settings(file)) if found is None else found


def service_of(name: str, settings: Settings) -> Factory:
    """The provider of this name, as a service of a task."""
    maker = provider_factory(name, settings)
    maker.check()
    key = (None if settings.file is None else settings.file.absolute(), name)
    return Factory(maker.label, lambda: _make(key, settings))


def provider_factory(name: str, settings: Settings) -> Factory:
    """The maker of ``[providers.NAME]``: its class is imported, and nothing is built."""
    from ergon_framework.providers.base import ProviderBase

    entry = _entry(name, settings)
    if entry.provider is None:
        table = toml_table("providers", name)
        raise SettingsError(
            f"the provider {name!r} has no class ({_place_of(settings)})",
            remedy=f'call it with app.provider("{name}") of a script, or write'
            f' provider = "module:Class" under {table}',
        )
    label = f"provider {name!r} ({entry.provider})"
    kind = load(entry.provider)
    if not isinstance(kind, type) or not issubclass(kind, ProviderBase):
        raise WiringError(f"{label}: it is no provider", remedy="derive it from ProviderBase")
    section = _section(settings)
    common = {} if section is None else section.arguments()
    # Settings of one provider win over those for all providers.
    given = {name: common[name] for name in common.keys() - entry.options.keys()}
    given |= entry.arguments()
    url = store_url(settings, entry.store, getattr(section, "store", None))
    if url:
        given["store"] = url
    _check_takes(label, kind, given)
    _check_known(label, kind, entry.options)
    return Factory(label, kind, {**entry.options, **given})


def script_arguments(name: str, settings: Settings) -> dict[str, Any]:
    """What the settings say about the calls of ``app.provider(name)``, as a provider takes it."""
    section = _section(settings)
    if section is None:
        return {}
    found, entry = section.arguments(), section.named.get(name)
    if entry is None:
        return found
    try:
        found |= entry.script_options() | entry.arguments()
    except ValidationError as error:  # an option of the class that has the name of one of ours
        problem = explain(error.errors(include_url=False)[0])
        raise SettingsError(
            f"the provider {name!r} ({_place_of(settings)}): {problem}",
            remedy=f'say it in the script: app.provider("{name}", ...)',
        ) from error
    if "spill" in found:
        found["spill"] = str((base_of(settings) / found["spill"]).absolute())
    return found


def script_store(name: str, settings: Settings) -> str:
    """The URL of the store that the settings give ``app.provider(name)``; empty for none."""
    section = _section(settings)
    if section is None:
        return store_url(settings)
    entry = section.named.get(name)
    return store_url(settings, None if entry is None else entry.store, section.store)


def providers_of(settings: Settings) -> Mapping[str, ProviderSettings]:
    """The providers of the settings by name."""
    section = _section(settings)
    return {} if section is None else section.named


def _section(settings: Settings) -> ProvidersSettings | None:
    found: ProvidersSettings | None = settings.extensions.get("providers")
    return found


def _entry(name: str, settings: Settings) -> ProviderSettings:
    known = providers_of(settings)
    if name in known:
        return known[name]
    raise SettingsError(
        f"there is no provider {name!r} ({_place_of(settings)}); {did_you_mean(name, list(known))}",
        remedy=f'add a table {toml_table("providers", name)} with provider = "module:Class"',
    )


def _place_of(settings: Settings) -> str:
    return "there is no settings file" if settings.file is None else f"in {settings.file}"


def _check_takes(label: str, kind: type, given: Mapping[str, Any]) -> None:
    """A class with an ``__init__`` of its own must take what every provider takes."""
    parameters = inspect.signature(kind).parameters
    if any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
        return
    for name in given:
        if name not in parameters:
            raise WiringError(
                f"{label}: its __init__ does not take {name!r}",
                remedy="let it take **options and hand them to super().__init__(**options)",
            )


def _check_known(label: str, kind: type, options: Mapping[str, Any]) -> None:
    """Refuse options that each class only hands on, until ``ProviderBase`` does not know them."""
    from ergon_framework.providers.base import ProviderBase

    own: list[str] = []
    for each in kind.__mro__[: kind.__mro__.index(ProviderBase)]:
        if "__init__" not in vars(each):
            continue
        names, rest = _parameters(vars(each)["__init__"])
        own += names
        if not rest or not _only_hands_on(vars(each)["__init__"], rest):
            return  # Factory.check refuses it, or nobody knows what becomes of it
    common, _ = _parameters(ProviderBase.__init__)
    for name in options:
        if name not in own and name not in common:
            hint = did_you_mean(name, [*own, *ProviderSettings.model_fields])
            raise WiringError(
                f"{label}: unknown option {name!r}; {hint}",
                remedy="correct it, or let its __init__ take it",
                details={"key": [name]},
            )


def _parameters(function: Any) -> tuple[list[str], str]:
    """The names that a function takes, and the name of what takes all others."""
    parameters = inspect.signature(function).parameters.values()
    rest = next((each.name for each in parameters if each.kind is each.VAR_KEYWORD), "")
    return [each.name for each in parameters if each.name not in (rest, "self")], rest


def _only_hands_on(function: Any, rest: str) -> bool:
    """Whether a function looks at nothing in its ``**rest``: it is only written with stars."""
    try:
        source = inspect.getsource(function)
    except (OSError, TypeError):
        return False
    # By its source, which is the only way to tell an option that is handed on from one that is
    # used.
    word = rf"\b{rest}\b"
    return len(re.findall(word, source)) == len(re.findall(rf"\*\*{word}", source))


def _make(key: _Key, settings: Settings) -> ProviderBase:
    with _lock:  # two threads that ask at once get the same
        if key not in _made:
            # Once, with the first one: a process without providers needs no hook at its exit.
            if not _made:
                atexit.register(close_all)
            _made[key] = provider_factory(key[1], settings).make()
        return _made[key]


def close_all() -> None:
    """Close every provider that this process has made; at the end of the process, or of a test."""
    while _made:
        _made.popitem()[1].close()


def _after_fork() -> None:
    """In a forked child: the thread that held the lock does not exist, and cannot release it."""
    global _lock  # noqa: PLW0603 - a lock cannot be renewed in place
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)
