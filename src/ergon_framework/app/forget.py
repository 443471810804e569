"""``ergon forget``: erase what all stores of the settings tell of one subject, known by a tag.

Slice by slice, so that workers go on: first what is found by the jobs of a slice (dead letters of
the calls they made, entries of the journal), then the jobs themselves, and the archive at last.
Whoever is killed in between runs it again: what is erased has lost the tag, and the rest still has
it. A job that has not ended is left, and counted: it needs its arguments.
"""

from __future__ import annotations

import hashlib
import logging
import shlex
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ergon_framework.app.jobs import JobSetup, setup_of
from ergon_framework.app.journal import journal_path
from ergon_framework.app.settings.sections import Settings
from ergon_framework.app.settings.stores import call_stores, has_calls, has_jobs, place_of
from ergon_framework.core.job import JobStatus
from ergon_framework.errors import (
    ConfigurationError,
    PayloadObjectError,
    StoreError,
    UnreadableJobError,
)
from ergon_framework.jobs.archive_files import (
    ArchiveBusyError,
    ArchivedLine,
    ArchiveWriter,
    JobArchive,
    tags_of,
)
from ergon_framework.jobs.bulk import FINAL, WAITING, slices
from ergon_framework.jobs.client import JobClient
from ergon_framework.jobs.flow_client import flows_of
from ergon_framework.jobs.object_sweep import objects_in, unnamed
from ergon_framework.jobs.payload_codec import object_of
from ergon_framework.jobs.payload_codec_store import bounded
from ergon_framework.jobs.payload_objects import ObjectName, PayloadObjects
from ergon_framework.jobs.store_urls import open_store, refuse_moved
from ergon_framework.jobs.stores.erasure import is_erased
from ergon_framework.ports.jobstore import FullJobStore, Job, Schedule, Search
from ergon_framework.storage.journal import SqliteJournal
from ergon_framework.telemetry.notices import emit

if TYPE_CHECKING:
    from ergon_framework.ports.providerstore import DeadLetter, ProviderStore, StoredLetter

logger = logging.getLogger("ergon.jobs")

MAX_LETTERS = 100_000
"""The most dead letters that are read in one store, the newest."""
LOCK_TRIES, LOCK_WAIT = 600, 0.1
"""How often the lock of an archive is asked for, and seconds in between."""
MAX_NAMED = 5
"""Schedules that are named in one line."""
REASON = "its subject is to be forgotten"
Progress = Callable[[int], object]

SCHEDULES = (
    "{number} schedule(s) with the tag, which keep their arguments and go on adding jobs: {names};"
    " change them in the settings, or delete them"
)
FACTS = (
    "facts in zones never change: write what is personal encrypted, with a key for each subject,"
    " and drop the key"
)
UNREADABLE = (
    "{number} job(s) whose rows cannot be read: see ergon jobs unreadable, put them right or"
    " discard them, and run this again"
)
OBJECTS = (
    "{number} payload(s) in the object store and the jobs that have them: it does not answer, or"
    " objects of [jobs.codec] is not set here; run this again when it does. If that place is gone"
    " for good: ergon jobs delete --tag {tag}"
)
SLICE_BYTES = 64 * 1024 * 1024
"""Bytes of payloads in the object store that are removed before their jobs are erased."""
RESULTS = "results of provider calls under idempotency keys go with keep_records"
COPIES = (
    "backups, replicas, exported files, logs and traces that were sent elsewhere; and free pages of"
    " a database until VACUUM"
)


class _Tagged(msgspec.Struct, frozen=True):
    tags: tuple[str, ...] = ()


_read_tags = msgspec.json.Decoder(_Tagged).decode


@dataclass(frozen=True, slots=True)
class Subject:
    """The person or thing whose data is erased, by the tag of its jobs."""

    tag: str
    cancels: bool = False
    """Whether jobs that wait are cancelled, so that they can be erased."""

    @property
    def digest(self) -> str:
        """What records of this call it by: the tag itself may name somebody."""
        return hashlib.sha256(self.tag.encode()).hexdigest()

    def search(self, *, has_ended: bool) -> Search:
        """Jobs of this subject that can be erased, or those that wait."""
        return Search(tags=(self.tag,), statuses=FINAL if has_ended else WAITING)


@dataclass(slots=True)
class Forgotten:
    """What was erased, or would be; and what was left."""

    jobs: int = 0
    archived: int = 0
    letters: int = 0
    entries: int = 0
    objects: int = 0
    """Payloads in the object store."""
    objects_left: int = 0
    """Those that could not be removed, so that their jobs are left as well: the object store is
    away or not in the settings."""
    cancelled: int = 0
    waiting: int = 0
    running: int = 0
    bound: int = 0
    """Ended steps of flows that have not ended: others may need their results."""
    unreadable: int = 0
    """Jobs whose rows cannot be read, and so cannot be erased: with the tag, or set aside."""
    schedules: int = 0
    """Schedules that add jobs with the tag."""
    remains: int = 0
    """Lines of the archive that were cut off, and drafts of files, of processes that died."""
    could_not: list[str] = field(default_factory=list)

    @property
    def number(self) -> int:
        """How much there is to erase."""
        found = self.jobs + self.archived + self.letters + self.cancelled + self.remains
        return found + self.objects

    @property
    def is_complete(self) -> bool:
        """Whether nothing of the subject is left that could be erased later."""
        jobs = self.waiting or self.running or self.bound or self.unreadable
        return not (jobs or self.schedules or self.objects_left)

    def document(self) -> dict[str, Any]:
        """The result as plain values, for ``--json``."""
        return {
            "jobs": self.jobs,
            "archived": self.archived,
            "dead_letters": self.letters,
            "journal_entries": self.entries,
            "objects": self.objects,
            "cancelled": self.cancelled,
            "remains": self.remains,
            "left": {
                "waiting": self.waiting,
                "running": self.running,
                "bound": self.bound,
                "unreadable": self.unreadable,
                "schedules": self.schedules,
                "objects": self.objects_left,
            },
            "is_complete": self.is_complete,
            "could_not": self.could_not,
        }


def count(settings: Settings, subject: Subject, url: str | None = None) -> Forgotten:
    """What :func:`forget` would erase, and what it would leave. Nothing is changed.

    A store that :func:`forget` would be refused is refused here as well.
    """
    with _opened(settings, url, reads=True) as places:
        found, names = Forgotten(could_not=places.could_not), {subject.tag}
        if places.store is not None:
            refuse_moved(places.store, places.setup.url)
            for job in _count_left(places.store, subject, found):
                found.jobs += 1
                found.objects += len(list(objects_in(job)))
                names |= _names([job])
            if subject.cancels:
                # Cancelled jobs have ended, and are erased in the same run.
                found.cancelled, found.waiting = found.waiting, 0
        if places.archive is not None:
            found.remains = places.archive.count_leftovers()
            for line in places.archive.lines():
                if subject.tag in tags_of(line):
                    found.archived += 1
                    names |= _names([line.job()])
        found.letters = sum(len(each.of(names)) for each in places.letters)
        return found


def forget(
    settings: Settings,
    subject: Subject,
    url: str | None = None,
    progress: Progress = lambda _done: None,
) -> Forgotten:
    """Erase all there is of a subject, and tell what could not be erased."""
    with _opened(settings, url) as places:
        found = Forgotten(could_not=places.could_not)
        if places.store is not None:
            _erase_jobs(places.store, places, subject, found, progress)
        if places.archive is not None:
            _erase_archived(places.archive, places, subject, found)
        # Calls that were made outside of jobs may have the tag itself as their correlation id or
        # key.
        found.letters += places.delete_letters({subject.tag})
    emit(
        "subject.forgotten",
        digest=subject.digest,
        jobs=found.jobs,
        archived=found.archived,
        letters=found.letters,
        is_complete=found.is_complete,
    )
    return found


# ---- jobs ---------------------------------------------------------------------------------------


def _erase_jobs(
    store: FullJobStore, places: _Places, subject: Subject, found: Forgotten, progress: Progress
) -> None:
    if subject.cancels:
        client = JobClient(settings=places.setup.jobs, store=store)
        found.cancelled = client.cancel_many(subject.search(has_ended=False), reason=REASON)
    is_more, seen = True, set[str]()
    while is_more:  # again, for jobs that have ended meanwhile
        is_more, found.objects_left = False, 0
        for some in slices(store.search(subject.search(has_ended=True))):
            free = [job for job in some if not _is_bound(store, job)]
            free += _signals_of(store, free, seen)
            # Before the jobs: an erased job has lost its tag, and nobody would find its letters by
            # it.
            found.letters += places.delete_letters(_names(free))
            found.entries += places.forget_entries(job.id for job in free)
            for jobs in bounded(free, SLICE_BYTES):
                number = _erase_slice(store, places, jobs, found)
                is_more |= number > 0
                progress(found.jobs)
    for _ in _count_left(store, subject, found):
        pass  # it has ended since the last look; the next run erases it
    if found.objects_left:
        text = OBJECTS.format(number=found.objects_left, tag=shlex.quote(subject.tag))
        found.could_not.append(text)


def _erase_slice(
    store: FullJobStore, places: _Places, jobs: Sequence[Job], found: Forgotten
) -> int:
    """Erase jobs after their payloads in the object store; how many jobs.

    An erased job names no object any more. So if this is killed, or the object store is away, the
    job has to be there for the next run. A job that was sent back meanwhile is not erased, and gets
    its payloads back.
    """
    removed: dict[ObjectName, tuple[str, bytes]] = {}
    free = [job for job in jobs if _remove_objects(places, job, removed, found)]
    number = store.erase(free)
    found.jobs += number
    found.objects += len(removed)
    objects = places.setup.jobs.codec.compiled().objects
    if number < len(free) and objects is not None:
        gone = unnamed(store, {name.digest: id_ for name, (id_, _) in removed.items()})
        for name, (_, content) in removed.items():
            if name.digest not in gone and content:
                objects.write(content)
                found.objects -= 1
    return number


def _remove_objects(
    places: _Places, job: Job, removed: dict[ObjectName, tuple[str, bytes]], found: Forgotten
) -> bool:
    """Remove the payloads of a job from the object store; whether none is left."""
    names = [name for name in map(object_of, (job.args, job.result)) if name is not None]
    objects = places.setup.jobs.codec.compiled().objects if names else None
    left = len(names)
    try:
        for name in names:
            if objects is None:
                break
            content = _content(objects, name)
            if objects.remove(name.digest):
                removed[name] = job.id, content
            left -= 1
    except (StoreError, ConfigurationError, PayloadObjectError) as error:
        logger.warning("job %s is left with its payloads in the object store: %s", job.id, error)
    found.objects_left += left
    return not left


def _content(objects: PayloadObjects, name: ObjectName) -> bytes:
    """All of an object, to bring it back; empty: it is damaged or missing already."""
    try:
        return objects.read(name)
    except PayloadObjectError as error:
        if not error.details.get("is_missing"):
            raise
        return b""
    except UnreadableJobError:
        return b""


def _signals_of(store: FullJobStore, jobs: Iterable[Job], seen: set[str]) -> list[Job]:
    """The steps that waited for signals in the flows of these jobs, unless they were seen.

    They have no tags of their own, and what was sent to them may tell of the subject.
    """
    found = {job.step.flow_id for job in jobs if job.step is not None} - seen
    seen |= found
    return [
        step
        for flow_id in sorted(found)
        for step in store.search(Search(flow=flow_id, statuses=FINAL))
        if step.step is not None and step.step.signal is not None and not is_erased(step)
    ]


def _count_left(store: FullJobStore, subject: Subject, found: Forgotten) -> Iterator[Job]:
    """Count what cannot be erased now; yields what can be."""
    running = Search(tags=(subject.tag,), statuses=(JobStatus.ACTIVE,))
    found.running = store.count(running)
    found.waiting = store.count(subject.search(has_ended=False))
    ended, readable = store.count(subject.search(has_ended=True)), 0
    for job in store.search(subject.search(has_ended=True)):
        readable += 1
        if _is_bound(store, job):
            found.bound += 1
        else:
            yield job
    # A tag is found without reading the row, which may be damaged or a newer version's. Of one that
    # was set aside before it ended, nobody can tell whose it is.
    found.unreadable = max(0, ended - readable) + len(store.unreadable())
    names = [each.name for each in store.schedules() if subject.tag in _tags_in(each)]
    found.schedules = len(names)
    if names:
        some = ", ".join(names[:MAX_NAMED]) + (", …" if len(names) > MAX_NAMED else "")
        found.could_not.append(SCHEDULES.format(number=len(names), names=some))
    if found.unreadable:
        found.could_not.append(UNREADABLE.format(number=found.unreadable))


def _tags_in(schedule: Schedule) -> Sequence[str]:
    """The tags that a schedule gives its jobs."""
    try:
        return _read_tags(schedule.job).tags
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return ()


def _is_bound(store: FullJobStore, job: Job) -> bool:
    """Whether the job is a step of a flow that still runs and may need its result."""
    if job.step is None:
        return False
    flow = flows_of(store).find(job.step.flow_id)
    return flow is not None and not flow.status.is_final


def _names(jobs: Iterable[Job]) -> set[str]:
    """The ids and keys by which provider calls name the jobs that made them."""
    return {name for job in jobs for name in (job.id, job.correlation_id) if name}


# ---- archives -----------------------------------------------------------------------------------


def _erase_archived(
    archive: JobArchive, places: _Places, subject: Subject, found: Forgotten
) -> None:
    """Rewrite each file of the archive that has something of the subject."""
    if not archive.path.exists():
        return  # a worker makes it before it reads what it archives
    # A worker that had read jobs before they were erased here writes them under this lock. So the
    # files are listed when nobody is writing: what is archived later was read after the erasure.
    with _locked(archive) as writer:
        # What was cut off names nobody, and may be the subject's.
        found.remains = writer.delete_leftovers()
        names = [each.name for each in archive.files()]
    for name in names:
        with _locked(archive) as writer:
            mine = [line for line in archive.lines([name]) if subject.tag in tags_of(line)]
            if mine:
                found.letters += places.delete_letters(_names(line.job() for line in mine))
                found.entries += places.forget_entries(line.key for line in mine)
                found.archived += writer.rewrite(name, lambda each: _is_of(subject, each))


def _is_of(subject: Subject, line: ArchivedLine) -> bool:
    return subject.tag in tags_of(line)


@contextmanager
def _locked(archive: JobArchive) -> Iterator[ArchiveWriter]:
    """The lock of the archive, which a worker holds for a slice at a time."""
    with ExitStack() as stack:
        writer = None
        for _ in range(LOCK_TRIES):
            with suppress(ArchiveBusyError):
                writer = stack.enter_context(archive.locked())
                break
            threading.Event().wait(LOCK_WAIT)
        yield stack.enter_context(archive.locked()) if writer is None else writer


# ---- where a subject may be found ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Letters:
    """The dead letters of one store of provider calls, by what they are found by."""

    store: ProviderStore
    known: Sequence[StoredLetter]

    def of(self, names: set[str]) -> list[str]:
        """Those of calls that were made under one of these ids or keys, or under a key below."""
        return [
            each.letter.dead_letter_id for each in self.known if names & set(_keys_of(each.letter))
        ]


def _keys_of(letter: DeadLetter) -> tuple[str, ...]:
    key = letter.idempotency_key
    return letter.correlation_id, key, key.partition("/")[0]


@dataclass(frozen=True, slots=True)
class _Places:
    setup: JobSetup
    store: FullJobStore | None
    archive: JobArchive | None
    letters: Sequence[_Letters]
    journal: SqliteJournal | None
    could_not: list[str]

    def delete_letters(self, names: set[str]) -> int:
        """Delete the dead letters of calls under these ids or keys; how many."""
        found = [(each.store, each.of(names)) for each in self.letters] if names else []
        return sum(store.delete_letters(ids) for store, ids in found if ids)

    def forget_entries(self, units: Iterable[str]) -> int:
        """Delete what the journal has of these units; how many entries."""
        return 0 if self.journal is None else self.journal.forget(list(units))


@contextmanager
def _opened(settings: Settings, url: str | None, *, reads: bool = False) -> Iterator[_Places]:
    """Every store of the settings that is there; none is made."""
    setup = setup_of(settings, url)
    could_not: list[str] = []
    with ExitStack() as stack:
        store = None
        if setup.url and not setup.url.lower().startswith("memory:") and has_jobs(setup.url):
            store = stack.enter_context(closing(open_store(setup.url, read_only=reads)))
        named = [] if url else call_stores(settings).values()
        there = [each for each in named if has_calls(each, "provider_dead_letters")]
        letters = [_letters_in(each, stack, could_not) for each in there]
        journal = None
        path = journal_path(settings)
        if path is not None and path.exists() and not reads:
            journal = stack.enter_context(closing(SqliteJournal(path)))
        archive = setup.jobs.archive
        if settings.extensions.get("zones"):
            could_not.append(FACTS)
        if letters:
            could_not.append(RESULTS)
        could_not.append(COPIES)
        found = None if archive is None else JobArchive(Path(archive.folder))
        yield _Places(setup, store, found, letters, journal, could_not)


def _letters_in(url: str, stack: ExitStack, could_not: list[str]) -> _Letters:
    from ergon_framework.providers.store_urls import open_store as open_calls

    store = stack.enter_context(closing(open_calls(url)))
    known = store.letters(limit=MAX_LETTERS)
    if len(known) == MAX_LETTERS:
        place = place_of(url)
        could_not.append(f"dead letters in {place} beyond the newest {MAX_LETTERS:,}")
    return _Letters(store, known)
