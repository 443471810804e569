"""Dead letters of provider calls: finding, redriving and deleting them, and how they are shown."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from ergon_framework.core.rfc3339 import format_rfc3339
from ergon_framework.errors import (
    ConfigurationError,
    JobNotFoundError,
    SettingsError,
    StoreUnavailableError,
)
from ergon_framework.storage.urls import file_of, given_options, pasteable

if TYPE_CHECKING:
    from ergon_framework.ports.providerstore import LetterStatus, ProviderStore, StoredLetter


def letter_document(stored: StoredLetter, *, shows_payload: bool = False) -> dict[str, Any]:
    """A letter, what has become of it, and whether its call could be made again."""
    from ergon_framework.providers.delivery.dead_letters import letter_message, redrive_refusal

    view = {
        "kind": "provider",
        "id": stored.letter.dead_letter_id,
        "status": stored.status.value,
        **letter_message(stored.letter),
        "published_at": _moment(stored.published_at),
        "redriven_at": _moment(stored.redriven_at),
        "why_not_sendable": redrive_refusal(stored.letter),
    }
    return {**view, "payload": stored.letter.payload} if shows_payload else view


def _moment(at: float | None) -> str | None:
    return None if at is None else format_rfc3339(at)


MAX_LETTERS = 100_000
"""Letters that one command looks at, the newest."""
_TABLE = "provider_dead_letters"


class LetterKind(StrEnum):
    """What was given up."""

    JOB = "job"
    PROVIDER = "provider"


@dataclass(frozen=True, slots=True)
class LetterStores:
    """Where jobs and letters are kept; a URL may hold a password, so none is shown."""

    jobs: str
    letters: tuple[str, ...]  # never empty; a provider may have a store of its own
    options: str = ""
    """The options with which the next command finds the same stores."""

    def kinds(self) -> frozenset[LetterKind]:
        """The kinds of dead letters that the stores can hold. Without any store it is jobs: their
        commands then report what is missing.
        """
        from ergon_framework.app.settings.stores import has_jobs

        kinds = set()
        if any(_has_letters(url) for url in self.letters):
            kinds.add(LetterKind.PROVIDER)
        if LetterKind.PROVIDER not in kinds or has_jobs(self.jobs):
            kinds.add(LetterKind.JOB)
        return frozenset(kinds)

    def check(self, kinds: frozenset[LetterKind]) -> None:
        """Refuse files that are not there: listing dead letters creates no store."""
        urls = {LetterKind.JOB: (self.jobs,), LetterKind.PROVIDER: self.letters}
        files = [file_of(url) for kind in sorted(kinds) for url in urls[kind]]
        if all(file is not None and not file.exists() for file in files):
            made = given_options(None, f"sqlite:///{files[0]}")
            raise StoreUnavailableError(
                f"there is no file {files[0]}",
                remedy="a worker or a provider makes it; or name another store; this makes it, too:"
                f"  ergon db upgrade{made}",
            )

    def opened(self) -> Iterator[ProviderStore]:
        """Each store with letters, open while it is looked at; at least one, or an error."""
        for url in [url for url in self.letters if _has_letters(url)] or self.letters[:1]:
            with opened_letters(url) as store:
                yield store


def _has_letters(url: str) -> bool:
    from ergon_framework.app.settings.stores import has_calls  # late: all commands import this file

    return has_calls(url, _TABLE)


def letter_stores(config: Path | None, url: str | None) -> LetterStores:
    """The stores that options or settings name: those of providers, or else that of jobs."""
    from ergon_framework.app.jobs import setup_of
    from ergon_framework.app.settings import load_settings
    from ergon_framework.app.settings.stores import call_stores, options_again

    settings = load_settings(config)
    jobs = setup_of(settings, url).url
    named = () if url else tuple(call_stores(settings).values())
    return LetterStores(jobs, named or (jobs,), options_again(settings, config, url, jobs))


@dataclass(frozen=True, slots=True)
class LetterFilter:
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
        # A store filters by status and id alone. With another filter it has to give all letters,
        # because the limit counts those that are left.
        is_bare = (self.provider, self.reason, before) == (None, None, None)
        most = limit if limit is not None and is_bare else MAX_LETTERS
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
    from ergon_framework.providers.store_urls import open_store

    if not url:
        raise SettingsError(
            "no store of provider calls",
            remedy='write store = "sqlite:///work.db" under [providers], or give --store',
        )
    if not _has_letters(url):
        raise ConfigurationError(
            "this store has no tables of provider calls",
            remedy=f"this makes them:  ergon db upgrade{given_options(None, url)}",
        )
    with closing(open_store(url)) as store:
        yield store


def waiting() -> tuple[LetterStatus, ...]:
    """What a listing shows: letters with which something is still to be done."""
    from ergon_framework.ports.providerstore import LetterStatus

    return LetterStatus.PENDING, LetterStatus.PUBLISHED, LetterStatus.REDRIVE


def letter_rows(
    store: ProviderStore, wanted: LetterFilter, limit: int, *, as_json: bool
) -> list[dict[str, Any]]:
    """Letters for a listing: all of each for programs, one line of each for people."""
    found = wanted.of(store, waiting(), limit)
    return [letter_document(each) if as_json else _line(each) for each in found]


def _line(stored: StoredLetter) -> dict[str, Any]:
    view = letter_document(stored)
    return {
        "kind": LetterKind.PROVIDER.value,
        "id": view["id"],
        "status": view["status"],
        "handler": view["task_name"],
        "queue": f"{view['provider_name']}/{view['capability']}",
        "tries": view["attempts"],
        "created_at": view["occurred_at"],
        "why": view["reason_code"],
    }


def find_letter(where: LetterStores, letter_id: str) -> StoredLetter:
    """A dead letter by its id, in any state."""
    for store in where.opened():
        for found in store.letters(ids=(letter_id,), limit=1):
            return found
    raise JobNotFoundError(
        f"there is no dead letter {letter_id!r}",
        remedy=f"this shows what is there:  ergon dlq list{where.options}",
        details={"id": letter_id},
    )


@dataclass(slots=True)
class LetterCounts:
    """How many of the letters matched, were dealt with, and could not be."""

    matched: int = 0
    done: int = 0
    refused: int = 0

    def __iadd__(self, other: LetterCounts) -> Self:
        self.matched += other.matched
        self.done += other.done
        self.refused += other.refused
        return self


Deal = Callable[..., LetterCounts]
"""``redrive`` or ``delete``: what is done with the letters of one store."""


def apply_to_letters(
    where: LetterStores, do: Deal, wanted: LetterFilter, limit: int | None, *, is_dry: bool
) -> LetterCounts:
    """Apply a change in every store, to at most ``limit`` letters in all."""
    if do is redrive and wanted.ids:
        _refuse_unsendable(where, wanted)  # in any of the stores, before one of them is changed
    tally = LetterCounts()
    for store in where.opened():
        left = None if limit is None else limit - tally.matched
        if left is None or left > 0:
            tally += do(store, wanted, left, is_dry=is_dry)
    return tally


def _refuse_unsendable(where: LetterStores, wanted: LetterFilter) -> None:
    """Refuse named letters whose call cannot be made again."""
    from ergon_framework.ports.providerstore import LetterStatus
    from ergon_framework.providers.delivery.dead_letters import redrive_refusal

    for store in where.opened():
        for stored in wanted.of(store, (LetterStatus.PENDING, LetterStatus.PUBLISHED), None):
            letter = stored.letter
            why = redrive_refusal(letter)
            if why is not None:
                raise ConfigurationError(
                    f"nothing was requeued: the dead letter {letter.dead_letter_id} cannot be sent"
                    f" again: {why}",
                    remedy="make the call anew; then this deletes the letter:  "
                    + pasteable("dlq purge", letter.dead_letter_id, where.options),
                    details={"id": letter.dead_letter_id},
                )


def refuse_settled(where: LetterStores, ids: Sequence[str]) -> None:
    """Refuse named letters that are settled already, and say how."""
    from ergon_framework.ports.providerstore import LetterStatus

    listed = f"ergon dlq list{where.options}"
    answers = {
        LetterStatus.REDRIVE: (
            "is to be sent again already",
            "the workers of its task send it; where none runs, ergon dlq relay does",
        ),
        LetterStatus.REDRIVEN: (
            "was sent again already",
            f"if the call failed again, it left a letter of its own, which this shows:  {listed}",
        ),
        LetterStatus.DISCARDED: ("was discarded", "make the call anew"),
    }
    for store in where.opened():
        for found in store.letters(ids=ids, limit=len(ids)):
            if found.status in answers:
                became, remedy = answers[found.status]
                letter_id = found.letter.dead_letter_id
                at = "" if found.redriven_at is None else f", at {_moment(found.redriven_at)}"
                raise JobNotFoundError(
                    f"nothing was requeued: the dead letter {letter_id} {became}{at}",
                    remedy=remedy,
                    details={"id": letter_id, "status": found.status.value},
                )


def redrive(
    store: ProviderStore, wanted: LetterFilter, limit: int | None, *, is_dry: bool
) -> LetterCounts:
    """Ask for calls to be made again: a relay sends them. Those that cannot be are counted."""
    from ergon_framework.ports.providerstore import LetterStatus
    from ergon_framework.providers.delivery.dead_letters import redrive_refusal
    from ergon_framework.telemetry.notices import emit

    ready = (LetterStatus.PENDING, LetterStatus.PUBLISHED)
    tally = LetterCounts()
    for stored in wanted.of(store, ready, limit):
        letter = stored.letter
        why = redrive_refusal(letter)
        tally.matched += 1
        tally.refused += why is not None
        if why is None and not is_dry:
            # when: somebody else may have requeued or deleted it since it was read.
            tally.done += store.move_letter(letter.dead_letter_id, LetterStatus.REDRIVE, when=ready)
    if tally.done:
        emit("dead_letters.redriven", count=tally.done)
    return tally


def delete(
    store: ProviderStore, wanted: LetterFilter, limit: int | None, *, is_dry: bool
) -> LetterCounts:
    """Delete letters for good; not those that a relay is about to send, unless they are named."""
    from ergon_framework.ports.providerstore import LetterStatus
    from ergon_framework.telemetry.notices import emit

    statuses = [each for each in LetterStatus if wanted.ids or each is not LetterStatus.REDRIVE]
    found = wanted.of(store, statuses, limit)
    ids = [each.letter.dead_letter_id for each in found]
    tally = LetterCounts(len(ids), 0 if is_dry or not ids else store.delete_letters(ids))
    if tally.done:
        emit("dead_letters.purged", kind=LetterKind.PROVIDER.value, count=tally.done)
    return tally
