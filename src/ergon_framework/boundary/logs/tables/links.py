"""The zone's own standing, that of its links, and what operators did."""

from __future__ import annotations

from ergon_framework.boundary.logs.tables.ground import Books, Ground, Row, note
from ergon_framework.ports.factstore import Link, StoreInfo


class TableLinks(Ground):
    """The part of the store that knows its peers."""

    def info(self) -> StoreInfo:
        """Which store this is."""
        return self._info

    def links(self) -> list[Link]:
        """Every link ever used or sealed, by peer; ``""`` is the seal of the whole zone."""
        rows = self._read(lambda books: books.all("store.links"))
        return [_link(row) for row in rows]

    def link(self, peer: str) -> Link:
        """One of them, or a fresh one."""
        return self._read(lambda books: link_to(books, peer))

    def seal(self, peer: str, reason: str) -> Link:
        """Shut the link (``""``: all of them) until it is opened; sealing twice is fine."""

        def work(books: Books) -> Link:
            now = self._clock()
            books.run("store.seal", peer, True, reason, now)
            note(books, now, "seal", f"{peer or 'all links'}: {reason}")
            return link_to(books, peer)

        return self._write(work, "desk")

    def open(self, peer: str) -> Link:
        """Open it again."""

        def work(books: Books) -> Link:
            now = self._clock()
            if link_to(books, peer).is_sealed:
                books.run("store.seal", peer, False, "", now)
            note(books, now, "open", peer or "all links")
            return link_to(books, peer)

        return self._write(work, "desk")

    def accept_epoch(self, peer: str, epoch: str | None) -> Link:
        """Trust the peer's store from now on, although it changed: its frontier starts anew."""

        def work(books: Books) -> Link:
            now = self._clock()
            books.run("store.move", peer, epoch, 0, b"", now)
            note(books, now, "accept_epoch", f"{peer}: {epoch}")
            return link_to(books, peer)

        return self._write(work, "desk")

    def attribute(self, name: str) -> str | None:
        """A text that was written down about this store; None when there is none."""
        row = self._read(lambda books: books.one("store.attribute", name))
        return None if row is None else str(row[0])

    def set_attribute(self, name: str, value: str) -> None:
        """Write a text down about this very store, for whoever opens it next."""
        self._write(lambda books: books.run("store.set_attribute", name, value), "desk")

    def journal(self, limit: int = 100) -> list[tuple[float, str, str]]:
        """What operators did, newest first: instant, action, details as text."""
        return self._read(lambda books: books.all("store.journal", limit))


def link_to(books: Books, peer: str) -> Link:
    """The link to a peer, or a fresh one."""
    row = books.one("store.link", peer)
    return Link(peer) if row is None else _link(row)


def _link(row: Row) -> Link:
    peer, epoch, offset, chain, is_sealed, reason, at = row
    return Link(peer, epoch, offset, chain, bool(is_sealed), reason, at)
