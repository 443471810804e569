"""Providers by their names in the settings: in a task, in an executor process, anywhere.

A process has one provider per name, however many ask for it, and closes it when it ends.
"""

from __future__ import annotations

import atexit
import inspect
import os
import re
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ergon_framework.app.assembly.building import Maker
from ergon_framework.app.reading.provider_sections import ProviderSettings, ProvidersSettings
from ergon_framework.app.reading.references import load
from ergon_framework.app.reading.sections import Section, Settings
from ergon_framework.app.reading.source import did_you_mean
from ergon_framework.app.reading.store_urls import store_url
from ergon_framework.app.settings import load_settings, settings_file
from ergon_framework.errors import SettingsError, WiringError

if TYPE_CHECKING:
    from ergon_framework.providers.base import ProviderBase

__all__ = ["ProvidersSettings", "provider", "provider_maker", "providers_of", "service_of"]

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


def service_of(name: str, settings: Settings) -> Maker:
    """The same provider as a service of a task."""
    maker = provider_maker(name, settings)
    maker.check()
    key = (None if settings.file is None else settings.file.absolute(), name)
    return Maker(maker.label, lambda: _make(key, settings))


def provider_maker(name: str, settings: Settings) -> Maker:
    """The maker of ``[providers.NAME]``: its class is imported, and nothing is built."""
    from ergon_framework.providers.base import ProviderBase

    entry = _entry(name, settings)
    label = f"provider {name!r} ({entry.provider})"
    kind = load(entry.provider)
    if not isinstance(kind, type) or not issubclass(kind, ProviderBase):
        raise WiringError(f"{label}: it is no provider", remedy="derive it from ProviderBase")
    section = _section(settings)
    common = {} if section is None else section.arguments()
    # What the table of one provider says goes before what is said for all.
    given = {name: common[name] for name in common.keys() - entry.options.keys()}
    given |= entry.arguments()
    url = store_url(settings, entry.store, getattr(section, "store", None))
    if url:
        given["store"] = url
    _check_takes(label, kind, given)
    _check_known(label, kind, entry.options)
    return Maker(label, kind, {**entry.options, **given})


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
    where = "there is no settings file" if settings.file is None else f"in {settings.file}"
    raise SettingsError(
        f"there is no provider {name!r} ({where}); {did_you_mean(name, list(known))}",
        remedy=f'add a table [providers.{name}] with provider = "module:Class"',
    )


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
            return  # Maker.check tells it, or nobody knows what becomes of it
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
    word = rf"\b{rest}\b"
    return len(re.findall(word, source)) == len(re.findall(rf"\*\*{word}", source))


def _make(key: _Key, settings: Settings) -> ProviderBase:
    with _lock:  # two threads that ask at once get the same
        if key not in _made:
            if not _made:
                atexit.register(_close_all)
            _made[key] = provider_maker(key[1], settings).make()
        return _made[key]


def _close_all() -> None:
    while _made:
        _made.popitem()[1].close()


def _after_fork() -> None:
    """Whoever held the lock is not there any more to let it go."""
    global _lock  # noqa: PLW0603 - a lock cannot be renewed in place
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)
