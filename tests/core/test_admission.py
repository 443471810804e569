"""Who may start where limits have to hold."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ergon_framework.core.claim import Admission, Candidate, admit

pytestmark = pytest.mark.req("SCALE:fleet-limits")
OPEN = {"q": 9}  # what the gate of the queue lets through
NOW = 5.0


def one(
    n: int,
    line: int = 0,
    key: str | None = None,
    limit: int = 1,
    expires_at: float | None = None,
    queue: str = "q",
) -> Candidate:
    """An applicant that is as old as its number says."""
    return Candidate((0, float(n), n), line, queue, expires_at, key, limit)


def test_the_first_of_a_key_is_admitted_in_whichever_line() -> None:
    """Two lines with jobs of one key give it to the one that came first."""
    waiting = [one(2, 0, "k"), one(3, 0), one(1, 1, "k"), one(4, 1)]
    assert admit(waiting, [5, 5], OPEN, {}, NOW) == Admission([1, 3, 4], blocked=[2])


def test_who_has_no_room_stays_where_it_is() -> None:
    """A line without room is left alone, whatever its keys are."""
    waiting = [one(1, 0, "k"), one(2, 0, "k"), one(3, 1)]
    assert admit(waiting, [0, 1], OPEN, {"k": 1}, NOW) == Admission([3])


def test_lines_of_one_queue_share_its_gate() -> None:
    """What the gate lets through goes to whoever comes first, in whichever line."""
    waiting = [one(2, 0), one(4, 0), one(1, 1), one(3, 1)]
    assert admit(waiting, [2, 2], {"q": 3}, {}, NOW) == Admission([1, 2, 3])


def test_who_is_over_takes_no_room() -> None:
    """An expired job is told apart from those that may start, and does not count for its key."""
    over = one(1, key="k", expires_at=NOW)
    waiting = [over, one(2, key="k"), one(3, key="k", limit=2), one(4, key="k", limit=2)]
    assert admit(waiting, [9], OPEN, {}, NOW) == Admission([2, 3], blocked=[4], outdated=[1])


def test_nobody_judges_a_key_of_which_nothing_is_known() -> None:
    """Its jobs neither start nor wait nor end, and leave their room to others."""
    waiting = [one(1, key="k"), one(2, key="k", expires_at=NOW), one(3, key="l"), one(4)]
    answer = admit(waiting, [2], OPEN, {}, NOW, unknown={"k"})
    assert answer == Admission([3, 4], passed_over=[1, 2])


KEYS = ("k", "l", "m")
QUEUES = ("q", "r")
LINES = 3
applicants = st.lists(
    st.tuples(
        st.integers(-1, 1),
        st.integers(0, LINES - 1),
        st.sampled_from(QUEUES),
        st.sampled_from([None, NOW - 1.0, NOW, NOW + 1.0]),
        st.none() | st.sampled_from(KEYS),
        st.integers(1, 3),
    ),
    max_size=25,
).map(
    lambda found: [
        Candidate((priority, float(n % 4), n), *rest) for n, (priority, *rest) in enumerate(found)
    ]
)
counts = st.integers(0, 5)


@given(
    waiting=applicants,
    rooms=st.lists(counts, min_size=LINES, max_size=LINES),
    gates=st.fixed_dictionaries(dict.fromkeys(QUEUES, counts)),
    running=st.dictionaries(st.sampled_from(KEYS), st.integers(1, 3)),
    unknown=st.frozensets(st.sampled_from(KEYS)),
)
def test_limits_hold_and_nobody_is_held_back_without_a_reason(
    waiting: list[Candidate],
    rooms: list[int],
    gates: dict[str, int],
    running: dict[str, int],
    unknown: frozenset[str],
) -> None:
    """Each applicant is told the one thing that the limits, as they stand at its turn, allow."""
    answer = admit(waiting, rooms, gates, running, NOW, unknown=unknown)
    told = dict.fromkeys(answer.admitted, "admitted") | dict.fromkeys(answer.blocked, "blocked")
    told |= dict.fromkeys(answer.outdated, "outdated") | dict.fromkeys(answer.passed_over, "passed")
    by_line: Counter[int] = Counter()
    by_queue: Counter[str] = Counter()
    by_key = Counter(running)
    for each in sorted(waiting, key=lambda each: each.place):
        is_full = (
            by_line[each.pick] >= rooms[each.pick] or by_queue[each.queue] >= gates[each.queue]
        )
        is_over = each.expires_at is not None and each.expires_at <= NOW
        match told.pop(each.number, "stays"):
            case "stays":
                assert is_full
            case "passed":
                assert not is_full
                assert each.key in unknown
            case "outdated":
                assert is_over
                assert not is_full
                assert each.key not in unknown
            case "blocked":
                assert each.key is not None
                assert by_key[each.key] >= each.limit
                assert not is_full
                assert not is_over
                assert each.key not in unknown
            case _:
                assert not is_full
                assert not is_over
                assert each.key not in unknown
                if each.key is not None:
                    assert by_key[each.key] < each.limit
                    by_key[each.key] += 1
                by_line[each.pick] += 1
                by_queue[each.queue] += 1
    assert told == {}
