"""Names of objects and the facts that refer to them; links to peers; what operators did."""

from __future__ import annotations

from collections.abc import Sequence

from ergon_framework.boundary.factstore import page_plan
from ergon_framework.boundary.factstore.sql.session import (
    Row,
    SqlDatabase,
    SqlSession,
    StoreIdentity,
    note,
)
from ergon_framework.errors import BoundaryError, ObjectConflictError
from ergon_framework.ports.factstore import Link, StoredObject, StoreInfo


class SqlObjects:
    """The object index of the store: which name stands for which bytes."""

    def __init__(self, database: SqlDatabase) -> None:
        self._database = database

    def bind(self, bucket: str, key: str, digest: bytes, size: int) -> StoredObject:
        """Name a stored blob. ``ObjectConflictError`` if the name stands for other bytes."""

        def work(session: SqlSession) -> StoredObject:
            found = _named(session, bucket, key)
            if found is not None:
                # Put again: its age begins anew, or it could be collected as an orphan before its
                # fact is appended.
                if found.digest == digest and not found.is_referenced:
                    session.run("objects.renew", self._database.clock(), bucket, key)
                return found
            is_awaited = bool(session.run("objects.arrived", bucket, key))
            new = StoredObject(bucket, key, digest, size, self._database.clock(), is_awaited)
            session.run("objects.bind", bucket, key, digest, size, new.at, is_awaited)
            return new

        found = self._database.write(work, "bind")
        if (found.digest, found.size) != (digest, size):
            raise ObjectConflictError(
                f"{bucket}/{key} stands for other bytes already",
                remedy="put them under another key",
                details={"bucket": bucket, "key": key, "digest": f"sha256:{found.digest.hex()}"},
            )
        return found

    def object(self, bucket: str, key: str) -> StoredObject | None:
        """What a name stands for."""
        return self._database.read(lambda session: _named(session, bucket, key))

    def objects(
        self, bucket: str | None = None, *, after: tuple[str, str] = ("", ""), limit: int = 1000
    ) -> list[StoredObject]:
        """Names in order of bucket and key."""
        statement = "objects.objects" if bucket is None else "objects.objects_in"
        values = (*(() if bucket is None else (bucket,)), *after, limit)
        rows = self._database.read(lambda session: session.all(statement, *values))
        return [_object(row) for row in rows]

    def orphans(self, before: float, limit: int = 1000) -> list[StoredObject]:
        """Names given before an instant to which no fact has ever referred, the oldest first."""
        rows = self._database.read(lambda session: session.all("objects.orphans", before, limit))
        return [_object(row) for row in rows]

    def unbind(self, bucket: str, key: str, *, before: float | None = None) -> StoredObject | None:
        """Remove the name; returns the object if no other name stands for its bytes."""

        def work(session: SqlSession) -> StoredObject | None:
            found = _named(session, bucket, key)
            # It was put again since the caller listed it as an orphan.
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
            session.run("objects.unbind", bucket, key)
            return None if _is_bound(session, found.digest) else found

        return self._database.write(work, "bind")

    def refer(self, names: Sequence[tuple[str, str]]) -> None:
        """Mark names as referenced, also those that stand for nothing yet."""

        def work(session: SqlSession) -> None:
            for bucket, key in names:
                if not session.run("objects.refer", bucket, key):
                    session.run("objects.await", bucket, key)

        self._database.write(work, "bind")

    def object_totals(self) -> tuple[int, int]:
        """How many names there are, and how many bytes they stand for."""
        count, size = self._database.read(lambda session: session.only("objects.totals"))
        return count, size

    def is_bound(self, digest: bytes) -> bool:
        """Whether any name stands for these bytes."""
        return self._database.read(lambda session: _is_bound(session, digest))


def _named(session: SqlSession, bucket: str, key: str) -> StoredObject | None:
    row = session.one("objects.object", bucket, key)
    return None if row is None else _object(row)


def _object(row: Row) -> StoredObject:
    bucket, key, digest, size, at, is_referenced = row
    return StoredObject(bucket, key, digest, size, at, bool(is_referenced))


def _is_bound(session: SqlSession, digest: bytes) -> bool:
    return session.one("objects.is_bound", digest) is not None


class SqlLinks:
    """The part of the store that knows its peers, and which store it is itself."""

    def __init__(self, database: SqlDatabase, identity: StoreIdentity) -> None:
        self._database = database
        self._identity = identity

    def info(self) -> StoreInfo:
        """Which store this is."""
        return self._identity.info

    def renew_epoch(self, epoch: str, why: str) -> StoreInfo:
        """Begin a new epoch, if ``epoch`` is still the current one."""
        return self._identity.renew_epoch(epoch, why)

    def links(self) -> list[Link]:
        """Every link ever used or sealed, by peer; ``""`` is the seal of the whole zone."""
        rows = self._database.read(lambda session: session.all("store.links"))
        return [_link(row) for row in rows]

    def link(self, peer: str) -> Link:
        """The link to this peer; a new one if none is stored."""
        return self._database.read(lambda session: link_to(session, peer))

    def seal(self, peer: str, reason: str) -> Link:
        """Seal the link (``""``: all links) until it is opened. May be called twice."""

        def work(session: SqlSession) -> Link:
            link = page_plan.sealed(link_to(session, peer), reason, self._database.clock())
            session.run("store.seal", peer, link.is_sealed, link.reason, link.at)
            note(session, link.at, "seal", f"{page_plan.link_name(peer)}: {reason}")
            return link_to(session, peer)

        return self._database.write(work, "desk")

    def open(self, peer: str) -> Link:
        """Open it again."""

        def work(session: SqlSession) -> Link:
            now, kept = self._database.clock(), link_to(session, peer)
            link = page_plan.opened(kept, now)
            if link != kept:
                session.run("store.seal", peer, link.is_sealed, link.reason, link.at)
            note(session, now, "open", page_plan.link_name(peer))
            return link_to(session, peer)

        return self._database.write(work, "desk")

    def accept_epoch(self, peer: str, epoch: str | None) -> Link:
        """Trust the peer's store from now on, although it changed: its frontier starts anew."""

        def work(session: SqlSession) -> Link:
            link = page_plan.with_epoch(link_to(session, peer), epoch, self._database.clock())
            session.run("store.move", peer, link.epoch, link.offset, link.chain, link.at)
            note(session, link.at, "accept_epoch", f"{peer}: {epoch}")
            return link_to(session, peer)

        return self._database.write(work, "desk")

    def attribute(self, name: str) -> str | None:
        """A text that was written down about this store; None when there is none."""
        row = self._database.read(lambda session: session.one("store.attribute", name))
        return None if row is None else str(row[0])

    def set_attribute(self, name: str, value: str) -> None:
        """Write an attribute of this very store, for the process that opens it next."""
        self._database.write(
            lambda session: session.run("store.set_attribute", name, value), "desk"
        )

    def journal(self, limit: int = 100) -> list[tuple[float, str, str]]:
        """What operators did, newest first: instant, action, details as text."""
        return self._database.read(lambda session: session.all("store.journal", limit))


def link_to(session: SqlSession, peer: str) -> Link:
    """The link to a peer, or a fresh one."""
    row = session.one("store.link", peer)
    return Link(peer) if row is None else _link(row)


def _link(row: Row) -> Link:
    peer, epoch, offset, chain, is_sealed, reason, at = row
    return Link(peer, epoch, offset, chain, bool(is_sealed), reason, at)
