"""Names of objects, the zone's own standing and that of its links, in memory."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import replace

from ergon_framework.boundary.factstore.memory.state import MemoryDatabase, ZoneState
from ergon_framework.errors import BoundaryError, ObjectConflictError
from ergon_framework.ports.factstore import NEW_EPOCH, Link, StoredObject, StoreInfo


class MemoryObjects:
    """The object index of the store: which name stands for which bytes."""

    def __init__(self, database: MemoryDatabase) -> None:
        self._database = database

    def bind(self, bucket: str, key: str, digest: bytes, size: int) -> StoredObject:
        """Name a stored blob. ``ObjectConflictError`` if the name stands for other bytes."""
        with self._database.step() as state:
            new = StoredObject(bucket, key, digest, size, self._database.clock())
            kept = state.objects.setdefault((bucket, key), new)
            if (kept.digest, kept.size) != (digest, size):
                raise ObjectConflictError(
                    f"{bucket}/{key} stands for other bytes already",
                    remedy="put them under another key",
                    details={"bucket": bucket, "key": key, "digest": f"sha256:{kept.digest.hex()}"},
                )
            # Put again: its age begins anew, or it could be collected as an orphan before its fact
            # is appended.
            if (bucket, key) not in state.referenced:
                state.objects[bucket, key] = kept = new
            return _given(state, kept)

    def object(self, bucket: str, key: str) -> StoredObject | None:
        """What a name stands for."""
        with self._database.step() as state:
            kept = state.objects.get((bucket, key))
            return None if kept is None else _given(state, kept)

    def objects(
        self, bucket: str | None = None, *, after: tuple[str, str] = ("", ""), limit: int = 1000
    ) -> list[StoredObject]:
        """Names in order of bucket and key."""
        with self._database.step() as state:
            names = [
                name for name in sorted(state.objects) if bucket in {None, name[0]} and name > after
            ]
            return [_given(state, state.objects[name]) for name in names[:limit]]

    def orphans(self, before: float, limit: int = 1000) -> list[StoredObject]:
        """Names given before an instant to which no fact has ever referred, the oldest first."""
        with self._database.step() as state:
            old = [
                kept
                for name, kept in state.objects.items()
                if kept.at < before and name not in state.referenced
            ]
            return sorted(old, key=lambda kept: (kept.at, kept.bucket, kept.key))[:limit]

    def unbind(self, bucket: str, key: str, *, before: float | None = None) -> StoredObject | None:
        """Remove the name; returns the object if no other name stands for its bytes."""
        with self._database.step() as state:
            kept = state.objects.get((bucket, key))
            # It was put again since the caller listed it as an orphan.
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
        with self._database.step() as state:
            state.referenced.update(names)

    def object_totals(self) -> tuple[int, int]:
        """How many names there are, and how many bytes they stand for."""
        with self._database.step() as state:
            return len(state.objects), sum(kept.size for kept in state.objects.values())

    def is_bound(self, digest: bytes) -> bool:
        """Whether any name stands for these bytes."""
        with self._database.step() as state:
            return _is_bound(state, digest)


def _given(state: ZoneState, kept: StoredObject) -> StoredObject:
    return replace(kept, is_referenced=(kept.bucket, kept.key) in state.referenced)


def _is_bound(state: ZoneState, digest: bytes) -> bool:
    return any(kept.digest == digest for kept in state.objects.values())


class MemoryLinks:
    """The part of the store that knows its peers."""

    def __init__(self, database: MemoryDatabase) -> None:
        self._database = database

    def info(self) -> StoreInfo:
        """Which store this is."""
        with self._database.step() as state:
            return state.info

    def links(self) -> list[Link]:
        """Every link ever used or sealed, by peer; ``""`` is the seal of the whole zone."""
        with self._database.step() as state:
            return [state.links[peer] for peer in sorted(state.links)]

    def link(self, peer: str) -> Link:
        """The link to this peer; a new one if none is stored."""
        with self._database.step() as state:
            return state.links.get(peer, Link(peer))

    def seal(self, peer: str, reason: str) -> Link:
        """Seal the link (``""``: all links) until it is opened. May be called twice."""
        with self._database.step() as state:
            self._note(state, "seal", f"{peer or 'all links'}: {reason}")
            link = state.links.get(peer, Link(peer))
            state.links[peer] = replace(
                link, is_sealed=True, reason=reason, at=self._database.clock()
            )
            return state.links[peer]

    def open(self, peer: str) -> Link:
        """Open it again."""
        with self._database.step() as state:
            self._note(state, "open", peer or "all links")
            link = state.links.get(peer, Link(peer))
            if link.is_sealed:
                link = replace(link, is_sealed=False, reason="", at=self._database.clock())
                state.links[peer] = link
            return link

    def accept_epoch(self, peer: str, epoch: str | None) -> Link:
        """Trust the peer's store from now on, although it changed."""
        with self._database.step() as state:
            self._note(state, "accept_epoch", f"{peer}: {epoch}")
            link = state.links.get(peer, Link(peer))
            state.links[peer] = replace(
                link, epoch=epoch, offset=0, chain=b"", at=self._database.clock()
            )
            return state.links[peer]

    def renew_epoch(self, epoch: str, why: str) -> StoreInfo:
        """Begin a new epoch, if ``epoch`` is still the current one."""
        with self._database.step() as state:
            if state.info.epoch == epoch:
                self._note(state, "new_epoch", f"{why}; its epoch was {epoch}")
                state.attributes[NEW_EPOCH] = f"{self._database.clock()} {why}"
                state.info = replace(state.info, epoch=secrets.token_hex(8))
            return state.info

    def attribute(self, name: str) -> str | None:
        """A text that was written down about this store; None when there is none."""
        with self._database.step() as state:
            return state.attributes.get(name)

    def set_attribute(self, name: str, value: str) -> None:
        """Write a text down about this store."""
        with self._database.step() as state:
            state.attributes[name] = value

    def journal(self, limit: int = 100) -> list[tuple[float, str, str]]:
        """What operators did, newest first: instant, action, details as text."""
        with self._database.step() as state:
            return state.journal[::-1][:limit]

    def _note(self, state: ZoneState, action: str, details: str) -> None:
        state.journal.append((self._database.clock(), action, details))
