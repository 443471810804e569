"""The zone's own standing and that of its links, in a stream."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ergon_framework.boundary.logs.nats.books import Books
from ergon_framework.boundary.logs.nats.coding import Attribute, Note, ZoneRecord
from ergon_framework.boundary.logs.nats.ground import Ground
from ergon_framework.boundary.logs.nats.opening import renew
from ergon_framework.ports.factstore import Link, StoreInfo


class NatsLinks(Ground):
    """The part of the store that knows its peers."""

    def links(self) -> list[Link]:
        """Every link ever used or sealed, by peer; ``""`` is the seal of the whole zone."""

        def work(books: Books) -> list[Link]:
            found = books.all(Link, books.subjects.links).values()
            return sorted(found, key=lambda link: link.peer)

        return self._look(work)

    def link(self, peer: str) -> Link:
        """One of them, or a fresh one."""
        return self._look(lambda books: _link(books, peer))

    def seal(self, peer: str, reason: str) -> Link:
        """Shut the link (``""``: all of them) until it is opened; sealing twice is fine."""
        return self._change(
            peer,
            "seal",
            f"{peer or 'all links'}: {reason}",
            lambda link: replace(link, is_sealed=True, reason=reason, at=self._clock()),
        )

    def open(self, peer: str) -> Link:
        """Open it again."""

        def opened(link: Link) -> Link:
            if not link.is_sealed:
                return link
            return replace(link, is_sealed=False, reason="", at=self._clock())

        return self._change(peer, "open", peer or "all links", opened)

    def accept_epoch(self, peer: str, epoch: str | None) -> Link:
        """Trust the peer's store from now on, although it changed."""
        return self._change(
            peer,
            "accept_epoch",
            f"{peer}: {epoch}",
            lambda link: replace(link, epoch=epoch, offset=0, chain=b"", at=self._clock()),
        )

    def renew_epoch(self, epoch: str, why: str) -> StoreInfo:
        """Begin a new epoch, unless the store has another one than ``epoch`` already."""

        def work(books: Books) -> None:
            found = books.get(ZoneRecord, books.subjects.zone)
            if found is not None and found.epoch == epoch:
                renew(books, found, self._clock(), why)

        self._step(work, "desk")
        return self.info()

    def attribute(self, name: str) -> str | None:
        """A text that was written down about this store; None when there is none."""
        found = self._look(lambda books: books.get(Attribute, books.subjects.attribute(name)))
        return None if found is None else found.value

    def set_attribute(self, name: str, value: str) -> None:
        """Write a text down about this very store, for whoever opens it next."""
        self._step(
            lambda books: books.put(books.subjects.attribute(name), Attribute(value)), "desk"
        )

    def journal(self, limit: int = 100) -> list[tuple[float, str, str]]:
        """What operators did, newest first: instant, action, details as text."""

        def work(books: Books) -> list[tuple[float, str, str]]:
            last = books.tally.notes
            wanted = range(last, max(0, last - limit), -1)
            books.fetch([books.subjects.note(number) for number in wanted])
            found = (books.get(Note, books.subjects.note(number)) for number in wanted)
            return [(each.at, each.action, each.details) for each in found if each is not None]

        return self._look(work)

    def _change(
        self, peer: str, action: str, details: str, changed: Callable[[Link], Link]
    ) -> Link:
        def work(books: Books) -> Link:
            books.note(self._clock(), action, details)
            link = _link(books, peer)
            new = changed(link)
            if new != link or action != "open":
                books.put(books.subjects.link(peer), new)
            return new

        return self._step(work, "desk")


def _link(books: Books, peer: str) -> Link:
    return books.get(Link, books.subjects.link(peer)) or Link(peer)
