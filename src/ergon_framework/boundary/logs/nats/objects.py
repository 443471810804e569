"""Names of objects, in a stream."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from ergon_framework.boundary.logs.nats.books import Books
from ergon_framework.boundary.logs.nats.coding import Name
from ergon_framework.boundary.logs.nats.entering import refer
from ergon_framework.boundary.logs.nats.ground import MANY, Ground
from ergon_framework.boundary.logs.nats.names import Place, Stretch, stretch
from ergon_framework.errors import BoundaryError, ObjectConflictError
from ergon_framework.ports.factstore import StoredObject
from ergon_framework.storage.nats import Stored


@dataclass(frozen=True, slots=True)
class _Seen:
    """What was last read of the names, for whoever goes through them page by page."""

    bucket: str | None
    version: tuple[int, ...]
    start: tuple[str, str]
    stretch: Stretch

    def is_of(self, bucket: str | None, version: tuple[int, ...]) -> bool:
        """Whether these are names of that bucket, and still what they were."""
        return (self.bucket, self.version) == (bucket, version)

    def after(self, place: tuple[str, str], limit: int) -> list[Name] | None:
        """The names after a place; None when not all of them are here."""
        names = self.stretch.names
        first = bisect_right(names, place, key=lambda name: (name.bucket, name.key))
        is_whole = self.stretch.is_last or len(names) - first >= limit
        return names[first : first + limit] if is_whole and place >= self.start else None


class NatsObjects(Ground):
    """The part of the store that knows which name stands for which bytes."""

    _seen: _Seen | None = None

    def bind(self, bucket: str, key: str, digest: bytes, size: int) -> StoredObject:
        """Give bytes that are on disk a name; other bytes under it: ``ObjectConflictError``."""

        def work(books: Books) -> StoredObject:
            kept = books.get(Name, books.subjects.object(bucket, key)) or Name(bucket, key)
            if kept.digest and (kept.digest, kept.size) != (digest, size):
                raise ObjectConflictError(
                    f"{bucket}/{key} stands for other bytes already",
                    remedy="put them under another key",
                    details={"bucket": bucket, "key": key, "digest": f"sha256:{kept.digest.hex()}"},
                )
            is_new = not kept.digest
            if is_new or not kept.is_referenced:
                kept.digest, kept.size, kept.at = digest, size, self._clock()
                put_name(books, kept, is_new=is_new)
            return given(kept)

        return self._step(work, "bind")

    def object(self, bucket: str, key: str) -> StoredObject | None:
        """What a name stands for."""

        def work(books: Books) -> StoredObject | None:
            kept = books.get(Name, books.subjects.object(bucket, key))
            return None if kept is None or not kept.digest else given(kept)

        return self._look(work)

    def objects(
        self, bucket: str | None = None, *, after: tuple[str, str] = ("", ""), limit: int = 1000
    ) -> list[StoredObject]:
        """Names in order of bucket and key."""
        version = self._version_of_names()
        seen = self._seen
        found = seen.after(after, limit) if seen and seen.is_of(bucket, version) else None
        if found is None:
            read = self._look(lambda books: stretch(_reader(books, bucket), _by_name, after, limit))
            found = read.names[:limit]
            self._seen = _Seen(bucket, version, after, read)
        return [given(each) for each in found]

    def _version_of_names(self) -> tuple[int, ...]:
        """Changes with every change of a name: a new one and one that goes are counted, and any
        other writes a message.
        """
        counted, written = (
            self._stream.last(each) for each in (self._subjects.tally, self._subjects.objects)
        )
        seqs = (0 if each is None else each.seq for each in (counted, written))
        return (self._stream.line.connections, *seqs)

    def orphans(self, before: float, limit: int = 1000) -> list[StoredObject]:
        """Names given before an instant to which no fact has ever referred, the oldest first."""

        def by_age(name: Name) -> Place | None:
            is_orphan = name.digest and name.at < before and not name.is_referenced
            return (name.at, name.bucket, name.key) if is_orphan else None

        found = self._look(lambda books: stretch(_reader(books), by_age, (), limit))
        return [given(each) for each in found.names[:limit]]

    def unbind(self, bucket: str, key: str, *, before: float | None = None) -> StoredObject | None:
        """Take the name away; the object, when no other name stands for its bytes."""

        def work(books: Books) -> tuple[StoredObject, bool] | None:
            kept = books.get(Name, books.subjects.object(bucket, key))
            if kept is None or not kept.digest or (before is not None and kept.at >= before):
                return None
            if kept.is_referenced:
                raise BoundaryError(
                    f"a fact refers to {bucket}/{key}",
                    code="failed_precondition",
                    reason="referenced",
                    remedy="keep it: what a fact refers to is never deleted",
                    details={"bucket": bucket, "key": key},
                )
            drop_name(books, kept)
            return given(kept), _is_bound(books, kept.digest)

        gone, below = self._placed(work, "bind")
        if gone is None:
            return None
        found, is_bound = gone
        names = (
            self._subjects.object(bucket, key),
            self._subjects.content(found.digest, bucket, key),
        )
        self._clear(below, *names)  # the tally lies behind them, and stays
        return None if is_bound else found

    def refer(self, names: Sequence[tuple[str, str]]) -> None:
        """Mark names as referenced, also those that stand for nothing yet."""
        for start in range(0, len(names), MANY):
            self._step(partial(refer, names[start : start + MANY]), "bind")

    def object_totals(self) -> tuple[int, int]:
        """How many names there are, and how many bytes they stand for."""

        def work(books: Books) -> tuple[int, int]:
            tally = books.tally
            return tally.objects, tally.object_bytes

        return self._look(work)

    def is_bound(self, digest: bytes) -> bool:
        """Whether any name stands for these bytes."""
        return self._look(lambda books: _is_bound(books, digest))


def given(kept: Name) -> StoredObject:
    """A name as everybody sees it."""
    return StoredObject(kept.bucket, kept.key, kept.digest, kept.size, kept.at, kept.is_referenced)


def put_name(books: Books, name: Name, *, is_new: bool) -> None:
    """Write a name; a new one is counted."""
    books.put(books.subjects.object(name.bucket, name.key), name)
    if is_new:
        books.put(books.subjects.content(name.digest, name.bucket, name.key), name)
        tally = books.tally
        tally.objects, tally.object_bytes = tally.objects + 1, tally.object_bytes + name.size
        books.put(books.subjects.tally, tally)


def drop_name(books: Books, name: Name) -> None:
    """Take a name away."""
    books.put(books.subjects.object(name.bucket, name.key), None)
    books.put(books.subjects.content(name.digest, name.bucket, name.key), None)
    tally = books.tally
    tally.objects, tally.object_bytes = tally.objects - 1, tally.object_bytes - name.size
    books.put(books.subjects.tally, tally)


def _reader(books: Books, bucket: str | None = None) -> Callable[[], Iterable[Stored]]:
    subjects = books.subjects
    wanted = subjects.objects if bucket is None else subjects.objects_in(bucket)
    return lambda: books.stream.walk(wanted)


def _by_name(name: Name) -> Place | None:
    return (name.bucket, name.key) if name.digest else None


def _is_bound(books: Books, digest: bytes) -> bool:
    return bool(books.all(Name, books.subjects.names_of(digest)))
