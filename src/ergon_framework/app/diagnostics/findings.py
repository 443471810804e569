"""What ``check`` and ``doctor`` answer with: problems with their lines, findings, time limits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from pydantic import BaseModel, SecretStr

from ergon_framework.app.settings.secrets import masked
from ergon_framework.app.settings.sections import Settings
from ergon_framework.app.settings.source import KeyPath, SettingsSource
from ergon_framework.errors import ErgonError
from ergon_framework.task.mixins.utils import run_with_timeout


class FindingStatus(StrEnum):
    """How a finding is."""

    OK = "ok"
    NOTE = "note"  # worth knowing
    BAD = "bad"  # Ergon will not work well


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    check: str
    status: FindingStatus
    found: str
    remedy: str = ""
    store: str = field(default="", repr=False, compare=False)
    """The URL of the store that it speaks of; it may hold a password, and is never shown."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "check": self.check,
            "status": self.status.value,
            "found": self.found,
            "remedy": self.remedy,
        }


TIMEOUT = 5.0
"""Seconds for each part and server."""
_REMEDY = "see that the server runs and can be reached, or allow more: --timeout SECONDS"


def within(check: str, look: Callable[[], Finding], timeout: float) -> Finding:
    """What a look at one thing finds, or that it took too long."""
    return all_within(check, lambda: [look()], timeout)[0]


def all_within(
    check: str, look: Callable[[], Sequence[Finding]], timeout: float
) -> Sequence[Finding]:
    """The same for a look that finds several things."""
    try:
        return run_with_timeout(look, timeout)
    except TimeoutError:
        return [overdue(check, timeout)]


def overdue(check: str, timeout: float) -> Finding:
    """The finding about what did not answer."""
    return Finding(check, FindingStatus.BAD, f"did not answer within {timeout:g} s", _REMEDY)


def of_error(check: str, error: ErgonError) -> Finding:
    """The finding about what was refused."""
    return Finding(check, FindingStatus.BAD, error.message, error.remedy)


def of_store(
    url: str,
    check_url: Callable[[str], object],
    look: Callable[[str], Sequence[Finding]],
    timeout: float,
) -> Iterator[Finding]:
    """Whether what a store keeps can be worked with, as commands do it; ``look`` makes no table.

    Of a URL that is wrong, or a server that is away, the row of the server itself tells.
    """
    with suppress(ErgonError, TimeoutError):
        check_url(url)
        yield from run_with_timeout(lambda: look(url), timeout)


class SettingsCheck:
    """What is being looked at, and where mistakes are noted."""

    def __init__(
        self, settings: Settings, source: SettingsSource, environ: Mapping[str, str]
    ) -> None:
        self.settings = settings
        self.environ = environ
        self._source = source
        self._secrets = list(_secrets(settings))

    def has_problem(self, *path: str) -> bool:
        """Whether something there is known to be wrong: then nothing is built on it."""
        return self._source.has_problem(path)

    def has(self, *path: str) -> bool:
        """Whether that key is written anywhere."""
        return path in self._source.lines or path in self._source.variables

    def add_problem(self, path: KeyPath, problem: str, remedy: str = "") -> None:
        """Note a mistake, without the secrets that it may quote."""
        self._source.add_problem(
            path, masked(problem, self._secrets), masked(remedy, self._secrets)
        )

    @contextmanager
    def collect(self, *path: str) -> Iterator[None]:
        """What is raised meanwhile is a mistake at ``path``, or at the key below that it names."""
        try:
            yield
        except ErgonError as error:
            below, problem = _key_in(error.message, ".".join(path))
            below += error.details.get("key", ())
            self.add_problem((*path, *below), problem, error.remedy)


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


def store_path(checking: SettingsCheck, *paths: tuple[str, ...]) -> tuple[str, ...]:
    """Where the store of a part is written: the first of these, else in ``[store]``."""
    return next((path for path in paths if checking.has(*path)), ("store", "url"))
