"""What a page of a log holds, what dropped facts leave behind, and how a link is sealed.

Decided here for every store that keeps facts outside its process. The memory store decides by
itself: it is the model that the others are compared with. Nothing here reads or writes: the store
supplies what lies in a log, item by item, and carries out what was decided.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar

from ergon_framework.ports.factstore import Gap, Link, LogPage


class PageItem(Protocol):
    """A fact as a store has read it."""

    @property
    def offset(self) -> int:
        """The offset of the fact in its log."""

    @property
    def envelope(self) -> bytes:
        """What the system knows about it."""

    @property
    def fact(self) -> bytes:
        """The fact, encoded."""


@dataclass(frozen=True, slots=True)
class Hole:
    """A fact that is not there although it should be, or is not what was stored there."""

    offset: int


@dataclass(slots=True)
class PageRead:
    """A page, and the offset of the corrupted fact that ended it, if one did."""

    page: LogPage
    corrupted: int | None = None


I = TypeVar("I", bound=PageItem)  # noqa: E741


@dataclass(slots=True)
class PageItems(Generic[I]):
    """The items that one page has room for, and where it ends."""

    given: list[I]
    through: int
    """Confirming the page confirms everything up to here."""
    corrupted: int | None = None
    """The fact that ended it, if one did."""


def fill_page(items: Iterable[I | Hole], head: int, limit: int, max_bytes: int) -> PageItems[I]:
    """Take items in order up to a limit, a hole, or the head of the log.

    At least one item is given, however large it is: a reader could not go on otherwise. A page that
    ends before the head ends at its last item, and one that reaches it at the head, for what lies
    behind the last item may be of no concern to the reader. Items are taken one by one, so that a
    store need not read what is not given.
    """
    given: list[I] = []
    size = 0
    for item in items:
        if isinstance(item, Hole):
            through = given[-1].offset if given else item.offset - 1
            return PageItems(given, through, item.offset)
        size += len(item.envelope) + len(item.fact)
        if given and (len(given) >= limit or size > max_bytes):
            return PageItems(given, given[-1].offset)
        given.append(item)
    return PageItems(given, head)


# ---- gaps ---------------------------------------------------------------------------------------


def unexplained(after: int, first: int, gaps: Iterable[Gap]) -> tuple[int, int] | None:
    """The first and the last offset between a cursor and what is kept that no gap explains.

    ``first`` is the lowest offset that is kept; the gaps are in the order of their beginning.
    """
    start, last = after + 1, first - 1
    lost: list[tuple[int, int]] = []
    for gap in gaps:
        if start > last:
            break
        if gap.first > start:
            lost.append((start, min(gap.first - 1, last)))
        start = max(start, gap.last + 1)
    if start <= last:
        lost.append((start, last))
    return (lost[0][0], lost[-1][1]) if lost else None


def settled_through(confirmed: int | None, aside: int | None) -> int:
    """Up to where no required consumer needs anything, so that payloads may be dropped.

    ``confirmed`` is the lowest cursor of the required consumers, and ``aside`` the lowest offset
    that lies in quarantine for one of them. Without a required consumer nothing is dropped.
    """
    if confirmed is None:
        return 0
    return confirmed if aside is None else min(confirmed, aside - 1)


def lost_from(first: int, last: int, confirmed: int | None) -> int | None:
    """The first of the dropped offsets that some consumer has lost; None when none has.

    ``confirmed`` is the lowest cursor of all consumers. Where there is none, everything counts as
    lost: it is reported to a consumer that comes later.
    """
    lost = max(first, (confirmed or 0) + 1)
    return lost if lost <= last else None


def continued_gap(gaps: Iterable[Gap], first: int, reason: str) -> Gap | None:
    """The gap of our own that a loss from ``first`` on continues: the two are one."""
    for gap in gaps:
        if gap.source_first is None and (gap.last + 1, gap.reason) == (first, reason):
            return gap
    return None


def loss_note(log: str, first: int, last: int, reason: str) -> str:
    """What the journal says about a loss."""
    return f"{log} lost {first} to {last}: {reason}"


# ---- seals --------------------------------------------------------------------------------------


def sealed(link: Link, reason: str, now: float) -> Link:
    """The link, shut until it is opened."""
    return replace(link, is_sealed=True, reason=reason, at=now)


def opened(link: Link, now: float) -> Link:
    """The link after it was opened, unchanged if it was not sealed."""
    return replace(link, is_sealed=False, reason="", at=now) if link.is_sealed else link


def with_epoch(link: Link, epoch: str | None, now: float) -> Link:
    """The link, trusting another store of the peer: its frontier starts anew."""
    return replace(link, epoch=epoch, offset=0, chain=b"", at=now)


def link_name(peer: str) -> str:
    """What the journal calls a link; the empty peer stands for all of them."""
    return peer or "all links"
