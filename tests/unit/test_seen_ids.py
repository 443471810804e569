from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ergon_framework.task.inputs import SeenIds, holds_digest


@given(st.lists(st.text(min_size=1, max_size=3)), st.integers(0, 5))
def test_it_is_a_set(keys: list[str], few: int) -> None:
    """Whatever is added, in whatever order, before and after packing, it answers as a set does."""
    seen, model = SeenIds(few), set[str]()
    for key in keys:
        assert seen.add(key) is (key not in model)
        model.add(key)


def test_a_match_across_two_digests_is_none() -> None:
    """The end of one digest and the beginning of the next may look like a third."""
    first, second = bytes(range(12)), bytes(range(12, 24))
    across = (first + second)[6:18]
    assert not holds_digest(bytearray(first + second), across)
    assert holds_digest(bytearray(first + second), second)
    assert holds_digest(bytearray(first + second + across), across)


@pytest.mark.req("T3.27")
def test_it_costs_less_than_16_bytes_per_id() -> None:
    """A producer of millions does not grow with its input."""
    seen = SeenIds()
    for n in range(50_000):
        seen.add(f"an identifier of an ordinary length, number {n}")
    assert seen.packed_bytes == 12 * 50_000
