"""What ``check`` and ``doctor`` answer with: problems with their lines, findings, time limits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
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
    """The result of one check."""

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
    """Run a check within ``timeout``; the finding says if it took too long."""
    return all_within(check, lambda: [look()], timeout)[0]


def all_within(
    check: str, look: Callable[[], Sequence[Finding]], timeout: float
) -> Sequence[Finding]:
    """Like ``within``, for a check that gives several findings."""
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


# SQLite files that have lost their tables. A program that opens one makes the tables anew, and goes
# on without the jobs, facts or calls that were in it. So the file is read before it is opened.

_BEGIN = "restore a backup; if nothing was in it, or is to be, delete it, with its -wal and -shm"
_SQL = "SELECT name FROM sqlite_master WHERE type = 'table'"
_VERSIONED = ("ergon_jobs", "ergon_boundary_", "ergon_poll_")
"""Tables whose version is in ``ergon_schema``."""


def emptied(check: str, path: Path | None, *, store: str = "") -> Finding | None:
    """What a SQLite file has lost, as a finding of ``check``; None if the file may be opened.

    A file that cannot be read gives None, too: the store says what is wrong with it.
    """
    found = None if path is None else _lost(path)
    if found is None:
        return None
    return Finding(check, FindingStatus.BAD, *found, store=store)


def _lost(path: Path) -> tuple[str, str] | None:
    import sqlite3

    try:
        wal = Path(f"{path}-wal")
        has_wal = wal.is_file() and wal.stat().st_size > 0
        if path.is_dir():
            return f"{path} is a folder", "name a file in it"
        if not path.exists():
            if not has_wal:
                return None  # it is made at its first use
            return f"{path} is not there, and its -wal is", "bring the file back, or both of them"
        if not path.stat().st_size:
            return None if has_wal else (f"{path} is empty: it has no tables", _BEGIN)
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as opened:
            tables = {name for (name,) in opened.execute(_SQL)}
    except (OSError, sqlite3.Error):
        return None
    if "ergon_schema" not in tables and any(each.startswith(_VERSIONED) for each in tables):
        text = f"{path} has lost the table ergon_schema, which says what its other tables are"
        return text, "stop what uses it, and put a backup of it in its place"
    return None
