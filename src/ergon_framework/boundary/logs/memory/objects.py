"""Names of objects, in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ergon_framework.boundary.logs.memory.state import State, Steps
from ergon_framework.errors import BoundaryError, ObjectConflictError
from ergon_framework.ports.factstore import StoredObject


class MemoryObjects(Steps):
    """The part of the store that knows which name stands for which bytes."""

    def bind(self, bucket: str, key: str, digest: bytes, size: int) -> StoredObject:
        """Give bytes that are on disk a name; other bytes under it: ``ObjectConflictError``."""
        with self._step() as state:
            new = StoredObject(bucket, key, digest, size, self._clock())
            kept = state.objects.setdefault((bucket, key), new)
            if (kept.digest, kept.size) != (digest, size):
                raise ObjectConflictError(
                    f"{bucket}/{key} stands for other bytes already",
                    remedy="put them under another key",
                    details={"bucket": bucket, "key": key, "digest": f"sha256:{kept.digest.hex()}"},
                )
            if (bucket, key) not in state.referenced:
                state.objects[bucket, key] = kept = new
            return _given(state, kept)

    def object(self, bucket: str, key: str) -> StoredObject | None:
        """What a name stands for."""
        with self._step() as state:
            kept = state.objects.get((bucket, key))
            return None if kept is None else _given(state, kept)

    def objects(
        self, bucket: str | None = None, *, after: tuple[str, str] = ("", ""), limit: int = 1000
    ) -> list[StoredObject]:
        """Names in order of bucket and key."""
        with self._step() as state:
            names = [
                name for name in sorted(state.objects) if bucket in {None, name[0]} and name > after
            ]
            return [_given(state, state.objects[name]) for name in names[:limit]]

    def orphans(self, before: float, limit: int = 1000) -> list[StoredObject]:
        """Names given before an instant to which no fact has ever referred, the oldest first."""
        with self._step() as state:
            old = [
                kept
                for name, kept in state.objects.items()
                if kept.at < before and name not in state.referenced
            ]
            return sorted(old, key=lambda kept: (kept.at, kept.bucket, kept.key))[:limit]

    def unbind(self, bucket: str, key: str, *, before: float | None = None) -> StoredObject | None:
        """Take the name away; the object, when no other name stands for its bytes."""
        with self._step() as state:
            kept = state.objects.get((bucket, key))
            if kept is None or (before is not None and kept.at >= before):
                return None
            if (bucket, key) in state.referenced:
                raise BoundaryError(
                    f"a fact refers to {bucket}/{key}",
                    code="failed_precondition",
                    reason="referenced",
                    remedy="keep it: what a fact refers to is never deleted",
                    details={"bucket": bucket, "key": key},
                )
            gone = state.objects.pop((bucket, key))
            return None if _is_bound(state, gone.digest) else gone

    def refer(self, names: Sequence[tuple[str, str]]) -> None:
        """Mark names as referenced, also those that stand for nothing yet."""
        with self._step() as state:
            state.referenced.update(names)

    def object_totals(self) -> tuple[int, int]:
        """How many names there are, and how many bytes they stand for."""
        with self._step() as state:
            return len(state.objects), sum(kept.size for kept in state.objects.values())

    def is_bound(self, digest: bytes) -> bool:
        """Whether any name stands for these bytes."""
        with self._step() as state:
            return _is_bound(state, digest)


def _given(state: State, kept: StoredObject) -> StoredObject:
    return replace(kept, is_referenced=(kept.bucket, kept.key) in state.referenced)


def _is_bound(state: State, digest: bytes) -> bool:
    return any(kept.digest == digest for kept in state.objects.values())
