"""How many messages come ahead, and where a parked one waits: plain arithmetic."""

from __future__ import annotations

import pytest

from ergon_framework.connector.rabbitmq.prefetch import FIRST, PrefetchWindow
from ergon_framework.connector.rabbitmq.topology import PARKING_STEPS, parking_step


def test_it_follows_the_fetches() -> None:
    """Twice what a fetch asks for may be ahead, and more once a later fetch asks for more."""
    window = PrefetchWindow(1000, 10**9, None)
    assert window.more(4) == 8
    assert window.more(4) == 0
    for _ in range(8):
        window.arrived(100)
    assert window.is_full
    assert window.more(4) == 8  # eight in hand, and twice four
    assert not window.is_full


def test_a_fixed_number_stays() -> None:
    """With ``prefetch`` it does not follow the fetches."""
    window = PrefetchWindow(1000, 10**9, 5)
    assert [window.more(1), window.more(500)] == [5, 0]


def test_a_bound_on_messages_holds() -> None:
    """No more than ``max_in_flight``, and few before anybody knows how large they are."""
    window = PrefetchWindow(100, 10**9, None)
    assert window.more(1000) == FIRST
    window.arrived(100)
    assert window.more(1000) == 100 - FIRST


def test_too_many_bytes_pause_it() -> None:
    """Above the bound subscriptions are cancelled; when half of it is free they are made anew."""
    window = PrefetchWindow(1000, 1000, None)
    window.more(100)
    assert [window.arrived(300) for _ in range(5)] == [False, False, False, True, False]
    assert window.is_full
    assert window.more(100) == 0
    assert [window.settled(300) for _ in range(4)] == [False, False, False, True]
    assert window.more(100) == 2  # three would fit, and one is in hand


@pytest.mark.parametrize(
    ("seconds", "step"), [(0.0, None), (0.99, None), (1.0, 1), (3.9, 2), (4.0, 4), (1e9, 2**17)]
)
def test_a_parked_message_never_waits_longer_than_it_is_to(
    seconds: float, step: int | None
) -> None:
    """The longest step that fits; what is left is waited for afterwards."""
    assert parking_step(seconds) == step
    assert step is None or step in PARKING_STEPS
