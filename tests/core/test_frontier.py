"""The frontier of a log, and the prefix that a consumer may confirm."""

from __future__ import annotations

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from ergon_framework.core.zone_link import Frontier, contiguous, leads_to
from ergon_framework.ports.factstore import Link

views = st.lists(st.integers(1, 60), unique=True, max_size=20).map(sorted)
"""The offsets of a log that lie in a reader's view."""


def steps(view: list[int]) -> list[tuple[int, int]]:
    """Each fact of a view with the one before it."""
    return list(zip([0, *view], view, strict=False))


def dense(*offsets: int) -> list[tuple[int, int]]:
    """Facts of a view that holds the whole log."""
    return [(offset - 1, offset) for offset in offsets]


@pytest.mark.req("BOUNDARY:zones")
def test_it_stops_at_the_first_gap_and_goes_on_when_it_is_filled() -> None:
    """Of 0, 1, 2, x, 4, 5 everything up to 2 is safe; with 3 it is everything up to 5."""
    # Offsets here start at 1, so that 0 is "nothing yet".
    frontier, taken = contiguous(Frontier(), dense(1, 2, 4, 5))
    assert (frontier.offset, taken) == (2, 2)
    frontier, taken = contiguous(frontier, dense(3, 4, 5))
    assert (frontier.offset, taken) == (5, 3)


@pytest.mark.req("BOUNDARY:zones")
def test_holes_of_the_view_are_no_gaps() -> None:
    """What is not meant for the reader does not hold it up."""
    frontier, taken = contiguous(Frontier(), [(0, 3), (3, 7), (7, 8)])
    assert (frontier, taken) == (Frontier(8), 3)


def test_a_stretch_without_facts_for_us_moves_it_as_well() -> None:
    """Nothing for us up to 90: the next fact may name any predecessor that is safe."""
    frontier = contiguous(Frontier(), [(0, 3)])[0].passed(90)
    assert frontier == Frontier(90)
    assert frontier.passed(50) == frontier
    assert frontier.joins(3, 91)
    assert not frontier.joins(3, 90)
    assert not frontier.joins(91, 92)


@pytest.mark.req("BOUNDARY:zones")
@given(views, st.data())
def test_it_is_where_the_first_missing_fact_says(view: list[int], data: st.DataObject) -> None:
    """Drop any facts on the way: the frontier is the last one before the first that is missing."""
    lost = data.draw(st.sets(st.sampled_from(view))) if view else set()
    arrived = [step for step in steps(view) if step[1] not in lost]
    frontier, taken = contiguous(Frontier(), arrived)
    safe = [offset for offset in view if not lost or offset < min(lost)]
    assert taken == len(safe)
    assert frontier.offset == (safe[-1] if safe else 0)


@given(views, st.data())
def test_doubled_and_shuffled_pages_never_move_it_back(
    view: list[int], data: st.DataObject
) -> None:
    """Whatever arrives, in whatever order, it only grows, and only over facts that are there."""
    frontier = Frontier()
    for page in data.draw(st.lists(st.permutations(steps(view)), max_size=4)):
        before = frontier
        frontier, _ = contiguous(before, page)
        assert frontier.offset >= before.offset
        assert frontier.offset in {0, *view}
    again, taken = contiguous(frontier, [step for step in steps(view) if step[1] > frontier.offset])
    assert again.offset == (view[-1] if view else 0)
    assert taken == sum(offset > frontier.offset for offset in view)


@given(views, st.integers(0, 60))
def test_pages_may_be_cut_anywhere(view: list[int], cut: int) -> None:
    """Two pages lead where one does."""
    whole = contiguous(Frontier(), steps(view))[0]
    first = contiguous(Frontier(), [step for step in steps(view) if step[1] <= cut])[0]
    rest = [step for step in steps(view) if step[1] > cut]
    assert contiguous(first.passed(max(first.offset, min(cut, whole.offset))), rest)[0] == whole


@pytest.mark.req("BOUNDARY:zones")
@pytest.mark.parametrize(
    ("kept", "later", "is_so"),
    [
        (Link("b"), Link("b", "one", 0), True),
        (Link("b"), Link("b", "one", 9), True),
        (Link("b", "one", 4), Link("b", "one", 9), True),
        (Link("b", "one", 4), Link("b", "one", 4), True),
        (Link("b", "one", 4), Link("b", "one", 3), False),  # another node was faster
        (Link("b", "two", 4), Link("b", "one", 9), False),  # an operator accepted another epoch
        (Link("b", "two", 4), Link("b", None, 9), False),
    ],
)
def test_a_link_goes_forward_and_stays_in_its_epoch(kept: Link, later: Link, is_so: bool) -> None:
    """A page that was pulled before somebody else moved the link does not move it back."""
    assert leads_to(kept, later) is is_so


class LinkMachine(RuleBasedStateMachine):
    """A receiver that asks from its frontier, over a link that drops, doubles and reorders."""

    @initialize()
    def begin(self) -> None:
        """An empty log and an empty receiver."""
        self.log: list[bool] = []  # whether the fact at each offset is for this reader
        self.frontier = Frontier()
        self.received: list[int] = []

    @rule(is_ours=st.lists(st.booleans(), min_size=1, max_size=5))
    def facts_are_appended(self, is_ours: list[bool]) -> None:
        """For us and for others."""
        self.log += is_ours

    @rule(data=st.data(), limit=st.integers(1, 4))
    def a_page_arrives(self, data: st.DataObject, limit: int) -> None:
        """As the link left it."""
        page = [step for step in steps(self.view) if step[1] > self.frontier.offset][:limit]
        mangled = data.draw(st.lists(st.sampled_from(page), max_size=6)) if page else []
        self.take(mangled)

    @rule(limit=st.integers(1, 4))
    def a_sound_page_arrives(self, limit: int) -> None:
        """The whole of it is taken, and the reader learns how far it reaches."""
        left = [step for step in steps(self.view) if step[1] > self.frontier.offset]
        self.take(left[:limit])
        through = left[limit - 1][1] if len(left) > limit else len(self.log)
        self.frontier = self.frontier.passed(through)

    def take(self, page: list[tuple[int, int]]) -> None:
        """Keep what joins on."""
        before = self.frontier
        self.frontier, taken = contiguous(before, page)
        self.received += [offset for _, offset in page[:taken]]
        assert self.frontier.offset >= before.offset

    @property
    def view(self) -> list[int]:
        """The offsets that are for us."""
        return [offset for offset, is_ours in enumerate(self.log, 1) if is_ours]

    @invariant()
    def everything_up_to_the_frontier_is_here_once_and_in_order(self) -> None:
        """Set and order of what was received equal the view, up to the frontier."""
        frontier = self.frontier.offset
        assert self.received == [offset for offset in self.view if offset <= frontier]


@pytest.mark.req("BOUNDARY:zones")
def test_any_link_leaves_a_prefix_behind() -> None:
    """Dropped, doubled or reordered: the receiver has a prefix of the view, never more."""
    run_state_machine_as_test(
        LinkMachine,
        settings=settings(
            derandomize=True,
            deadline=None,
            max_examples=100,
            stateful_step_count=25,
            phases=[Phase.generate, Phase.shrink],
            report_multiple_bugs=False,
        ),
    )
