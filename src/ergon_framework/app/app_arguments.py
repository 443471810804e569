"""What an ``App`` and its methods may be given, checked where it is written.

Nothing heavy is imported for it: a program that only declares its work shall start quickly.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from types import FunctionType
from typing import Any

from ergon_framework.core.option_values import (
    MAX_PROCESSES,
    count_problem,
    number_problem,
    or_none,
    shown,
    switch_problem,
)
from ergon_framework.errors import ConfigurationError, HookError, UsageError
from ergon_framework.ports.job_fields import name as queue_name

MAX_NAME = 100
MAX_IN_FLIGHT = 1024
"""Jobs that one process of an executor may have at once."""
_CHECKS: dict[str, tuple[Callable[[Any], str], str]] = {
    "burst": (switch_problem, "True"),
    "raises": (switch_problem, "True"),
    "max_jobs": (or_none(count_problem), "10_000"),
    "processes": (or_none(partial(count_problem, most=MAX_PROCESSES)), "4"),
    "max_jobs_per_process": (or_none(count_problem), "1_000"),
    "max_memory_per_process": (or_none(count_problem), "500_000_000"),
    "max_process_age": (or_none(partial(number_problem, is_above=True)), "3600"),
    "max_in_flight": (or_none(partial(count_problem, most=MAX_IN_FLIGHT)), "10"),
}


_SCHEDULE_WORDS = {
    **dict.fromkeys(("cron", "crontab"), '@app.schedule("*/15 * * * *"), without a name for it'),
    **dict.fromkeys(("tz", "zone", "time_zone"), 'timezone="Europe/Berlin"'),
    **dict.fromkeys(("interval", "seconds", "minutes", "hours", "days"), 'every="15m"'),
    **dict.fromkeys(("end", "end_at", "until"), 'ends_at="2030-01-31T12:00:00Z"'),
}
"""What others call the words of ``app.schedule``, and how they are written here."""


def check_places(*, source: object, url: object, config: object) -> None:
    """Refuse what names neither a store nor a settings file; a text may hold a password."""
    for argument, value in (("source", source), ("url", url), ("config", config)):
        if value is None:
            continue
        if not isinstance(value, str if argument == "url" else str | os.PathLike):
            problem = f"is a {type(value).__name__}"
        elif not str(value).strip():
            problem = "is an empty text; is a variable unset?"
        else:
            continue
        raise ConfigurationError(
            f"what an App was given as {argument} {problem}",
            remedy='write App("sqlite:///work.db"), the URL of a store, or App("ergon.toml"), the'
            " path of a settings file",
        )
    is_url = isinstance(source, str) and not source.endswith(".toml")
    for place in (url, source if is_url else None):
        if isinstance(place, str):
            from ergon_framework.storage.urls import check_kind

            check_kind(place)


def checked_name(name: object) -> str:
    """The name of an App, which its jobs carry."""
    if not (isinstance(name, str) and re.fullmatch(rf"[\w.-]{{1,{MAX_NAME}}}", name)):
        raise ConfigurationError(
            f"{shown(name)} is no name for a script",
            remedy=f"write a text of up to {MAX_NAME} letters, digits, '_', '-' and '.', for"
            ' example App(name="mail")',
        )
    return name


def check_values(method: str, **given: object) -> None:
    """Refuse a wrong number or switch of ``app.run`` and ``app.drain``."""
    for name, value in given.items():
        find_problem, example = _CHECKS[name]
        problem = find_problem(value)
        if problem:
            raise ConfigurationError(
                f"app.{method}: {name} {problem}", remedy=f"write for example {name}={example}"
            )


def checked_queues(method: str, queues: Any) -> list[str] | None:
    """The queues to serve; None for all of them."""
    if queues is None:
        return None
    names = [queues] if isinstance(queues, str) else queues
    if not isinstance(names, list | tuple | set | frozenset) or not names:
        raise ConfigurationError(
            f"app.{method}: queues is {shown(queues)}",
            remedy='name a queue, or several: queues=["mail", "images"]; leave it out for all',
        )
    return [queue_name("queues", each) for each in names]


# ---- what stands above a function ----------------------------------------------------------------


def check_decorated(name: object, method: str, example: str) -> None:
    """Refuse at once what is neither a name nor a function: below it, nobody would notice."""
    if name is None or isinstance(name, str):
        return
    if isinstance(name, Coroutine):
        name.close()  # or Python would warn that nobody awaits it
    if isinstance(name, classmethod | staticmethod):
        raise _no_method(name.__func__.__name__, method)
    raise HookError(
        f"app.{method} was given {shown(name)}, which is neither a name nor a function",
        remedy=f'write @app.{method}, or @app.{method}("{example}"), above a function',
    )


def refuse_method(function: object, method: str) -> None:
    """Refuse a function that wants ``self``: there is no object that it could be called on."""
    if isinstance(function, classmethod | staticmethod):
        raise _no_method(function.__func__.__name__, method)
    if not isinstance(function, FunctionType):
        return
    owner = function.__qualname__.rpartition(".")[0]
    is_in_class = bool(owner) and not owner.endswith("<locals>")
    if is_in_class and function.__code__.co_varnames[:1] in (("self",), ("cls",)):
        raise _no_method(function.__name__, method)


def _no_method(name: str, method: str) -> HookError:
    return HookError(
        f"{name!r} is a method of a class, and there is no object to call it on",
        remedy=f"write @app.{method} above a function outside of the class, and let it make the"
        " object",
    )


def check_schedule_words(words: Iterable[str]) -> None:
    """Refuse what other schedulers call the words of ``app.schedule``."""
    for word in words:
        if word in _SCHEDULE_WORDS:
            raise UsageError(
                f"app.schedule has no option {word!r}", remedy=f"write {_SCHEDULE_WORDS[word]}"
            )


# ---- providers and zones -------------------------------------------------------------------------


def check_provider_words(words: Iterable[str]) -> None:
    """Refuse what a provider has of its App."""
    own = {"middleware", "dependencies", "settings"}.intersection(words)
    if own:
        raise UsageError(
            f"app.provider was given {min(own)}, which is that of the App",
            remedy='write @app.middleware("provider") and @app.lifespan above functions, and a'
            " table [providers.NAME] in the settings",
        )


def check_zone_name(name: object) -> None:
    """Refuse the address of a node: a zone of that name would be made, and be another one."""
    if isinstance(name, str) and "://" in name:
        raise ConfigurationError(
            f"app.zone was given {shown(name)}, an address and no name",
            remedy='write Zone("plant", "https://host:9443") for a zone that a node serves, or'
            ' app.zone("plant")',
        )
