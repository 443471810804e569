"""What a page holds, what a loss is, and how a link is sealed: decided without any store."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ergon_framework.boundary.factstore.page_plan import (
    Hole,
    continued_gap,
    fill_page,
    link_name,
    loss_note,
    lost_from,
    opened,
    sealed,
    settled_through,
    unexplained,
    with_epoch,
)
from ergon_framework.ports.factstore import OUTBOUND, Gap, Link, StoredFact

pytestmark = pytest.mark.req("P1", "P7")


def stored(offset: int, size: int = 10) -> StoredFact:
    """A fact of so many bytes."""
    return StoredFact(offset, offset - 1, "a", f"m:{offset}", "b", b"", b"", b"x" * size, 1.0)


def filled(
    *items: StoredFact | Hole, head: int = 9, limit: int = 5, max_bytes: int = 100
) -> tuple[list[int], int, int | None]:
    """The offsets of a page, where it ends, and what ended it."""
    found = fill_page(items, head, limit, max_bytes)
    return [each.offset for each in found.given], found.through, found.corrupted


def test_a_page_ends_at_the_head_or_at_its_last_fact() -> None:
    """What lies between the last fact and the head is of no concern to the reader."""
    assert filled(stored(1), stored(4)) == ([1, 4], 9, None)
    assert filled(head=0) == ([], 0, None)
    assert filled(stored(1), stored(4), limit=1) == ([1], 1, None)
    assert filled(stored(1), stored(4), limit=2) == ([1, 4], 9, None)
    assert filled(stored(1, 60), stored(2, 60), stored(3, 1)) == ([1], 1, None)
    assert filled(stored(1, 50), stored(2, 50), stored(3, 1)) == ([1, 2], 2, None)


def test_one_fact_is_given_however_large() -> None:
    """A reader could not go on otherwise."""
    assert filled(stored(1, 5000), stored(2)) == ([1], 1, None)
    assert filled(stored(1), limit=0) == ([1], 9, None)


def test_a_page_ends_before_a_hole() -> None:
    """The hole is told only when nothing comes before it; confirming passes none."""
    assert filled(stored(1), Hole(3)) == ([1], 1, 3)
    assert filled(Hole(3)) == ([], 2, 3)
    assert filled(stored(1), stored(2), Hole(3), limit=2) == ([1, 2], 2, 3)


def test_no_more_is_read_than_is_given() -> None:
    """But for one item, which shows that there is more."""
    read: list[int] = []

    def items() -> Iterator[StoredFact]:
        for offset in range(1, 100):
            read.append(offset)
            yield stored(offset)

    assert [each.offset for each in fill_page(items(), 99, 3, 1 << 20).given] == [1, 2, 3]
    assert read == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("after", "first", "gaps", "lost"),
    [
        (0, 1, [], None),
        (5, 3, [], None),
        (0, 4, [], (1, 3)),
        (1, 4, [(2, 3)], None),
        (0, 9, [(1, 2), (5, 6)], (3, 8)),
        (0, 9, [(2, 3), (3, 8)], (1, 1)),
        (2, 9, [(1, 4), (7, 8)], (5, 6)),
    ],
)
def test_what_no_gap_explains(
    after: int, first: int, gaps: list[tuple[int, int]], lost: tuple[int, int] | None
) -> None:
    """From the first offset that is lost to the last one."""
    found = [Gap(OUTBOUND, *each, "disk", 0.0) for each in gaps]
    assert unexplained(after, first, found) == lost


@pytest.mark.parametrize(
    ("confirmed", "aside", "through"),
    [(None, None, 0), (7, None, 7), (7, 9, 7), (7, 4, 3), (0, 1, 0)],
)
def test_what_every_required_consumer_has_settled(
    confirmed: int | None, aside: int | None, through: int
) -> None:
    """Its cursor, and nothing that lies in quarantine for it; without any, nothing."""
    assert settled_through(confirmed, aside) == through


@pytest.mark.parametrize(
    ("first", "last", "confirmed", "lost"),
    [(1, 5, 5, None), (1, 5, 9, None), (1, 5, 2, 3), (4, 5, 2, 4), (1, 5, None, 1), (1, 5, 0, 1)],
)
def test_what_is_lost_by_dropping(
    first: int, last: int, confirmed: int | None, lost: int | None
) -> None:
    """What somebody has not confirmed, or nobody will ever see."""
    assert lost_from(first, last, confirmed) == lost


def test_a_loss_that_goes_on_is_one_gap() -> None:
    """For the same reason, and not one that a peer told of."""
    ours, peers = Gap(OUTBOUND, 1, 4, "disk", 0.0), Gap(OUTBOUND, 5, 5, "disk", 0.0, 3, 9)
    assert continued_gap([ours, peers], 5, "disk") is ours
    assert continued_gap([ours, peers], 5, "age") is None
    assert continued_gap([ours, peers], 6, "disk") is None
    assert loss_note(OUTBOUND, 5, 6, "disk") == "outbound lost 5 to 6: disk"


def test_a_seal_keeps_the_frontier() -> None:
    """Sealing and opening change nothing else; another epoch begins at nothing."""
    link = Link("b", "e", 7, b"c", at=1.0)
    shut = sealed(link, "audit", 2.0)
    assert (shut.is_sealed, shut.reason, shut.at, shut.offset) == (True, "audit", 2.0, 7)
    assert opened(shut, 3.0) == Link("b", "e", 7, b"c", at=3.0)
    assert opened(link, 3.0) is link
    assert with_epoch(shut, "f", 4.0) == Link("b", "f", 0, b"", True, "audit", 4.0)
    assert (link_name("b"), link_name("")) == ("b", "all links")
