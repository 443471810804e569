"""The zone's own standing, that of its links, and what operators did."""

from __future__ import annotations

import sqlite3

from ergon_framework.boundary.logs.sqlite.ground import SQL, Ground, note
from ergon_framework.boundary.logs.sqlite.rows import Row
from ergon_framework.ports.factstore import Link, StoreInfo
from ergon_framework.storage.statements import load

_SQL = load(SQL, "store.sql")


class SqliteLinks(Ground):
    """The part of the store that knows its peers."""

    def info(self) -> StoreInfo:
        """Which store this is."""
        return self._info

    def links(self) -> list[Link]:
        """Every link ever used or sealed, by peer; ``""`` is the seal of the whole zone."""
        rows = self._read(lambda cursor: cursor.execute(_SQL["links"]).fetchall())
        return [_link(row) for row in rows]

    def link(self, peer: str) -> Link:
        """One of them, or a fresh one."""
        return self._read(lambda cursor: _to(cursor, peer))

    def seal(self, peer: str, reason: str) -> Link:
        """Shut the link (``""``: all of them) until it is opened; sealing twice is fine."""

        def work(cursor: sqlite3.Cursor) -> Link:
            now = self._clock()
            cursor.execute(_SQL["seal"], (peer, True, reason, now))
            note(cursor, now, "seal", f"{peer or 'all links'}: {reason}")
            return _to(cursor, peer)

        return self._write(work, "desk")

    def open(self, peer: str) -> Link:
        """Open it again."""

        def work(cursor: sqlite3.Cursor) -> Link:
            now = self._clock()
            if _to(cursor, peer).is_sealed:
                cursor.execute(_SQL["seal"], (peer, False, "", now))
            note(cursor, now, "open", peer or "all links")
            return _to(cursor, peer)

        return self._write(work, "desk")

    def accept_epoch(self, peer: str, epoch: str | None) -> Link:
        """Trust the peer's store from now on, although it changed: its frontier starts anew."""

        def work(cursor: sqlite3.Cursor) -> Link:
            now = self._clock()
            cursor.execute(_SQL["move"], (peer, epoch, 0, b"", now))
            note(cursor, now, "accept_epoch", f"{peer}: {epoch}")
            return _to(cursor, peer)

        return self._write(work, "desk")

    def journal(self, limit: int = 100) -> list[tuple[float, str, str]]:
        """What operators did, newest first: instant, action, details as text."""
        return self._read(lambda cursor: cursor.execute(_SQL["journal"], (limit,)).fetchall())


def _to(cursor: sqlite3.Cursor, peer: str) -> Link:
    row = cursor.execute(_SQL["link"], (peer,)).fetchone()
    return Link(peer) if row is None else _link(row)


def _link(row: Row) -> Link:
    peer, epoch, offset, chain, is_sealed, reason, at = row
    return Link(peer, epoch, offset, chain, bool(is_sealed), reason, at)
