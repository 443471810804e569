"""Names of objects, in a stream."""

from __future__ import annotations

from ergon_framework.boundary.logs.nats.books import Books
from ergon_framework.boundary.logs.nats.coding import Name
from ergon_framework.boundary.logs.nats.ground import Ground
from ergon_framework.errors import BoundaryError, ObjectConflictError
from ergon_framework.ports.factstore import StoredObject


class NatsObjects(Ground):
    """The part of the store that knows which name stands for which bytes."""

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

        def work(books: Books) -> list[StoredObject]:
            found = sorted(
                (each for each in _names(books, bucket) if (each.bucket, each.key) > after),
                key=lambda each: (each.bucket, each.key),
            )
            return [given(each) for each in found[:limit]]

        return self._look(work)

    def orphans(self, before: float, limit: int = 1000) -> list[StoredObject]:
        """Names given before an instant to which no fact has ever referred, the oldest first."""

        def work(books: Books) -> list[StoredObject]:
            old = [each for each in _names(books) if each.at < before and not each.is_referenced]
            old.sort(key=lambda each: (each.at, each.bucket, each.key))
            return [given(each) for each in old[:limit]]

        return self._look(work)

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


def _names(books: Books, bucket: str | None = None) -> list[Name]:
    subjects = books.subjects
    wanted = subjects.objects if bucket is None else subjects.objects_in(bucket)
    return [each for each in books.all(Name, wanted).values() if each.digest]


def _is_bound(books: Books, digest: bytes) -> bool:
    return bool(books.all(Name, books.subjects.names_of(digest)))
