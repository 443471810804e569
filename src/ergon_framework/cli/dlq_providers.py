"""The provider calls that were given up, for ``ergon dlq``: listed, sent again or deleted."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ergon_framework.errors import (
    ConfigurationError,
    JobNotFoundError,
    SettingsError,
    StoreUnavailableError,
)

if TYPE_CHECKING:
    from ergon_framework.ports.providerstore import LetterStatus, ProviderStore, StoredLetter

MOST = 100_000
"""Letters that one command looks at, the newest."""

_SQLITE = "sqlite:///"


class Kind(StrEnum):
    """What was given up."""

    JOB = "job"
    PROVIDER = "provider"


@dataclass(frozen=True, slots=True)
class Places:
    """Where jobs and letters are kept; a URL may hold a password, so none is shown."""

    jobs: str
    letters: str

    def kinds(self) -> frozenset[Kind]:
        """What there is to look at. Without anything there are jobs, whose commands say so."""
        kinds = set()
        if _has_table(self.letters, "provider_dead_letters"):
            kinds.add(Kind.PROVIDER)
        is_for_letters_only = Kind.PROVIDER in kinds and not _has_table(self.jobs, "ergon_jobs")
        if not is_for_letters_only and not self.jobs.startswith("postgres"):
            kinds.add(Kind.JOB)
        return frozenset(kinds)

    def check(self, kinds: frozenset[Kind]) -> None:
        """Refuse files that are not there: who looks for what is dead makes none."""
        urls = {Kind.JOB: self.jobs, Kind.PROVIDER: self.letters}
        files = [_file_of(urls[kind]) for kind in sorted(kinds)]
        if all(file is not None and not file.exists() for file in files):
            raise StoreUnavailableError(
                f"there is no file {files[0]}",
                remedy="a worker, a provider or ergon db upgrade makes it; or name another store",
            )


def places(config: Path | None, url: str | None) -> Places:
    """As the options or the settings say: ``[providers] store``, or else the store of jobs."""
    from ergon_framework.app.jobs import resolve_url, setup_of
    from ergon_framework.app.settings import load_settings, revealed

    settings = load_settings(config)
    jobs = setup_of(settings, url).url
    own = revealed(getattr(settings.extensions.get("providers"), "store", None))
    base = Path() if settings.file is None else settings.file.parent
    return Places(jobs, jobs if url or not own else resolve_url(own, base))


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which letters."""

    ids: tuple[str, ...] = ()
    provider: str | None = None
    reason: str | None = None
    older_than: float | None = None

    def of(
        self, store: ProviderStore, statuses: Sequence[LetterStatus], limit: int | None
    ) -> list[StoredLetter]:
        """The newest first."""
        before = None if self.older_than is None else store.now() - self.older_than
        is_bare = (self.provider, self.reason, before) == (None, None, None)
        most = limit if limit is not None and is_bare else MOST
        found = store.letters(statuses=statuses, ids=self.ids, limit=most)
        kept = [each for each in found if self._has(each, before)]
        return kept if limit is None else kept[:limit]

    def _has(self, stored: StoredLetter, before: float | None) -> bool:
        letter = stored.letter
        return (
            self.provider in {None, letter.provider_name}
            and self.reason in {None, letter.reason_code}
            and (before is None or letter.occurred_at < before)
        )


@contextmanager
def opened_letters(url: str) -> Iterator[ProviderStore]:
    """The store with the letters; it must be there already."""
    from ergon_framework.providers.stores import open_store

    if not url:
        raise SettingsError(
            "no store of provider calls",
            remedy='write store = "sqlite:///work.db" under [providers], or give --url',
        )
    if not _has_table(url, "provider_dead_letters"):
        raise ConfigurationError(
            "this store has no tables of provider calls", remedy="ergon db upgrade makes them"
        )
    with closing(open_store(url)) as store:
        yield store


def waiting() -> tuple[LetterStatus, ...]:
    """What a listing shows: letters with which something is still to be done."""
    from ergon_framework.ports.providerstore import LetterStatus

    return LetterStatus.PENDING, LetterStatus.PUBLISHED, LetterStatus.REDRIVE


def letter_rows(
    store: ProviderStore, wanted: Wanted, limit: int, *, as_json: bool
) -> list[dict[str, Any]]:
    """Letters for a listing: all of each for programs, one line of each for people."""
    found = wanted.of(store, waiting(), limit)
    return [letter_shape(each) if as_json else _line(each) for each in found]


def letter_shape(stored: StoredLetter, *, shows_payload: bool = False) -> dict[str, Any]:
    """A letter as plain values."""
    from ergon_framework.core.instants import format_instant
    from ergon_framework.providers.task_letters import letter_message, why_not_sendable

    def moment(at: float | None) -> str | None:
        return None if at is None else format_instant(at)

    shape = {
        "kind": Kind.PROVIDER.value,
        "id": stored.letter.dead_letter_id,
        "status": stored.status.value,
        **letter_message(stored.letter),
        "published_at": moment(stored.published_at),
        "redriven_at": moment(stored.redriven_at),
        "why_not_sendable": why_not_sendable(stored.letter),
    }
    return {**shape, "payload": stored.letter.payload} if shows_payload else shape


def _line(stored: StoredLetter) -> dict[str, Any]:
    shape = letter_shape(stored)
    return {
        "kind": Kind.PROVIDER.value,
        "id": shape["id"],
        "status": shape["status"],
        "handler": shape["task_name"],
        "queue": f"{shape['provider_name']}/{shape['capability']}",
        "tries": shape["attempts"],
        "created_at": shape["occurred_at"],
        "why": shape["reason_code"],
    }


def find_letter(store: ProviderStore, letter_id: str) -> StoredLetter:
    """One letter, whatever has become of it."""
    found = store.letters(ids=(letter_id,), limit=1)
    if not found:
        raise JobNotFoundError(
            f"there is no dead letter {letter_id!r}",
            remedy="ergon dlq list shows what is there",
            details={"id": letter_id},
        )
    return found[0]


@dataclass(slots=True)
class Tally:
    """How many of the letters matched, were dealt with, and could not be."""

    matched: int = 0
    done: int = 0
    refused: int = 0


def redrive(store: ProviderStore, wanted: Wanted, limit: int | None, *, is_dry: bool) -> Tally:
    """Ask for calls to be made again: a relay sends them. It is an error to name one it cannot."""
    from ergon_framework.ports.providerstore import LetterStatus
    from ergon_framework.providers.task_letters import why_not_sendable

    ready = (LetterStatus.PENDING, LetterStatus.PUBLISHED)
    tally = Tally()
    for stored in wanted.of(store, ready, limit):
        letter = stored.letter
        why = why_not_sendable(letter)
        if why is not None and wanted.ids:
            raise ConfigurationError(
                f"the dead letter {letter.dead_letter_id} cannot be sent again: {why}",
                remedy="make the call anew, and then ergon dlq purge deletes the letter",
                details={"id": letter.dead_letter_id},
            )
        tally.matched += 1
        tally.refused += why is not None
        if why is None and not is_dry:
            tally.done += store.move_letter(letter.dead_letter_id, LetterStatus.REDRIVE, when=ready)
    return tally


def delete(store: ProviderStore, wanted: Wanted, limit: int | None, *, is_dry: bool) -> Tally:
    """Delete letters for good; not those that a relay is about to send, unless they are named."""
    from ergon_framework.ports.providerstore import LetterStatus

    statuses = [each for each in LetterStatus if wanted.ids or each is not LetterStatus.REDRIVE]
    found = wanted.of(store, statuses, limit)
    ids = [each.letter.dead_letter_id for each in found]
    return Tally(len(ids), 0 if is_dry or not ids else store.delete_letters(ids))


def _has_table(url: str, name: str) -> bool:
    """Whether a store has a table; a server is believed to have what it is asked for."""
    file = _file_of(url)
    if file is None:
        return url.lower().startswith("postgres") and name.startswith("provider_")
    if not file.exists():
        return False
    look = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?"
    try:
        with closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)) as looking:
            return looking.execute(look, (name,)).fetchone() is not None
    except sqlite3.Error:
        return False  # whoever opens it in earnest says what is wrong with it


def _file_of(url: str) -> Path | None:
    """The file of a store on SQLite."""
    return Path(url[len(_SQLITE) :]) if url.lower().startswith(_SQLITE) else None
