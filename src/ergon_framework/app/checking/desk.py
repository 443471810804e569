"""Where the checks of a settings file note what is wrong."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pydantic import BaseModel, SecretStr

from ergon_framework.app.settings.secrets import masked
from ergon_framework.app.settings.sections import Settings
from ergon_framework.app.settings.source import KeyPath, Source
from ergon_framework.errors import ErgonError


class Desk:
    """What is being looked at, and where mistakes are noted."""

    def __init__(self, settings: Settings, source: Source, environ: Mapping[str, str]) -> None:
        self.settings = settings
        self.environ = environ
        self._source = source
        self._secrets = list(_secrets(settings))

    def is_mistaken(self, *path: str) -> bool:
        """Whether something there is known to be wrong: then nothing is built on it."""
        return self._source.is_mistaken(path)

    def has(self, *path: str) -> bool:
        """Whether that key is written anywhere."""
        return path in self._source.lines or path in self._source.variables

    def refuse(self, path: KeyPath, problem: str, remedy: str = "") -> None:
        """Note a mistake, without the secrets that it may quote."""
        self._source.refuse(path, masked(problem, self._secrets), masked(remedy, self._secrets))

    @contextmanager
    def noting(self, *path: str) -> Iterator[None]:
        """What is raised meanwhile is a mistake at ``path``, or at the key below that it names."""
        try:
            yield
        except ErgonError as error:
            below, problem = _key_in(error.message, ".".join(path))
            below += error.details.get("key", ())
            self.refuse((*path, *below), problem, error.remedy)


def _key_in(message: str, path: str) -> tuple[list[str], str]:
    """The key below ``path`` that a message begins with, and the rest of the message."""
    key, colon, rest = message.partition(": ")
    if not colon or not f"{key}.".startswith(f"{path}."):
        return [], message
    return [each for each in key[len(path) + 1 :].split(".") if each], rest


def _secrets(settings: Settings) -> Iterator[Any]:
    for named in (settings.connectors, settings.services):
        yield from (entry.options for entry in named.values())
    providers = settings.extensions.get("providers")
    if providers is not None:
        yield from (entry.options for entry in providers.named.values())
    for part in (settings.store, settings.server, *settings.extensions.values()):
        if isinstance(part, BaseModel):
            yield from (each for _, each in part if isinstance(each, SecretStr))


def store_path(desk: Desk, *paths: tuple[str, ...]) -> tuple[str, ...]:
    """Where the store of a part is written: the first of these, else in ``[store]``."""
    return next((path for path in paths if desk.has(*path)), ("store", "url"))
