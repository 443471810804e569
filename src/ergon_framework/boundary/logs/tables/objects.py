"""Names of objects, and whether a fact refers to them."""

from __future__ import annotations

from collections.abc import Sequence

from ergon_framework.boundary.logs.tables.ground import Books, Ground, Row
from ergon_framework.errors import BoundaryError, ObjectConflictError
from ergon_framework.ports.factstore import StoredObject


class TableObjects(Ground):
    """The part of the store that knows which name stands for which bytes."""

    def bind(self, bucket: str, key: str, digest: bytes, size: int) -> StoredObject:
        """Give bytes that are on disk a name; other bytes under it: ``ObjectConflictError``."""

        def work(books: Books) -> StoredObject:
            found = _named(books, bucket, key)
            if found is not None:
                if found.digest == digest and not found.is_referenced:
                    books.run("objects.renew", self._clock(), bucket, key)
                return found
            is_awaited = bool(books.run("objects.arrived", bucket, key))
            new = StoredObject(bucket, key, digest, size, self._clock(), is_awaited)
            books.run("objects.bind", bucket, key, digest, size, new.at, is_awaited)
            return new

        found = self._write(work, "bind")
        if (found.digest, found.size) != (digest, size):
            raise ObjectConflictError(
                f"{bucket}/{key} stands for other bytes already",
                remedy="put them under another key",
                details={"bucket": bucket, "key": key, "digest": f"sha256:{found.digest.hex()}"},
            )
        return found

    def object(self, bucket: str, key: str) -> StoredObject | None:
        """What a name stands for."""
        return self._read(lambda books: _named(books, bucket, key))

    def objects(
        self, bucket: str | None = None, *, after: tuple[str, str] = ("", ""), limit: int = 1000
    ) -> list[StoredObject]:
        """Names in order of bucket and key."""
        statement = "objects.objects" if bucket is None else "objects.objects_in"
        values = (*(() if bucket is None else (bucket,)), *after, limit)
        rows = self._read(lambda books: books.all(statement, *values))
        return [_object(row) for row in rows]

    def orphans(self, before: float, limit: int = 1000) -> list[StoredObject]:
        """Names given before an instant to which no fact has ever referred, the oldest first."""
        rows = self._read(lambda books: books.all("objects.orphans", before, limit))
        return [_object(row) for row in rows]

    def unbind(self, bucket: str, key: str, *, before: float | None = None) -> StoredObject | None:
        """Take the name away; the object, when no other name stands for its bytes."""

        def work(books: Books) -> StoredObject | None:
            found = _named(books, bucket, key)
            if found is None or (before is not None and found.at >= before):
                return None
            if found.is_referenced:
                raise BoundaryError(
                    f"a fact refers to {bucket}/{key}",
                    code="failed_precondition",
                    reason="referenced",
                    remedy="keep it: what a fact refers to is never deleted",
                    details={"bucket": bucket, "key": key},
                )
            books.run("objects.unbind", bucket, key)
            return None if _is_bound(books, found.digest) else found

        return self._write(work, "bind")

    def refer(self, names: Sequence[tuple[str, str]]) -> None:
        """Mark names as referenced, also those that stand for nothing yet."""

        def work(books: Books) -> None:
            for bucket, key in names:
                if not books.run("objects.refer", bucket, key):
                    books.run("objects.await", bucket, key)

        self._write(work, "bind")

    def object_totals(self) -> tuple[int, int]:
        """How many names there are, and how many bytes they stand for."""
        count, size = self._read(lambda books: books.only("objects.totals"))
        return count, size

    def is_bound(self, digest: bytes) -> bool:
        """Whether any name stands for these bytes."""
        return self._read(lambda books: _is_bound(books, digest))


def _named(books: Books, bucket: str, key: str) -> StoredObject | None:
    row = books.one("objects.object", bucket, key)
    return None if row is None else _object(row)


def _object(row: Row) -> StoredObject:
    bucket, key, digest, size, at, is_referenced = row
    return StoredObject(bucket, key, digest, size, at, bool(is_referenced))


def _is_bound(books: Books, digest: bytes) -> bool:
    return books.one("objects.is_bound", digest) is not None
