"""When a lost connection to a broker is made again."""

from __future__ import annotations

import pytest

from ergon_framework.core.broker_reconnect import RECONNECT, SETTLED, Outage
from ergon_framework.core.failure import Failure, Kind

AWAY = Failure(Kind.LOST, "broker_unavailable", "nobody listens")


def waits_of(outage: Outage, count: int) -> list[float]:
    """How long each of so many failed attempts is followed by a wait, the broker being away."""
    now, waits = 100.0, []
    for _ in range(count):
        assert outage.failed(AWAY, now, 0.5)
        waits.append(outage.retry_at - now)
        now = outage.retry_at
    return waits


def test_the_first_attempt_is_at_once_and_the_next_ever_later() -> None:
    """Waits double from the second failure on, up to the cap, and never end."""
    waits = waits_of(Outage(), 40)
    assert waits[:4] == pytest.approx([0.0, 0.2, 0.4, 0.8])
    assert waits[-1] == RECONNECT.backoff.cap


def test_a_refusal_is_not_tried_again() -> None:
    """A wrong password stays wrong, however long one waits."""
    assert not Outage().failed(Failure(Kind.REJECTED, "refused"), 0.0, 0.5)


def test_an_outage_is_known_until_a_connection_is_made() -> None:
    """It begins with the first failure, and a connection tells how long it took."""
    outage = Outage()
    waits_of(outage, 3)
    assert (outage.since, outage.reason) == (100.0, "nobody listens")
    assert outage.connected(160.0) == 60.0
    assert (outage.since, outage.reason) == (None, "")


def test_a_connection_that_breaks_at_once_does_not_begin_anew() -> None:
    """A broker that lets everybody in and hangs up is asked ever less often."""
    outage = Outage()
    now = 0.0
    for _ in range(6):
        outage.failed(AWAY, now, 0.5)
        now = outage.retry_at
        outage.connected(now)
    assert outage.retry_at - 3.2 < now <= outage.retry_at
    assert outage.failures == 6


def test_a_connection_that_lasted_is_made_again_at_once() -> None:
    """What broke after it had worked is no broker that hangs up."""
    outage = Outage()
    waits_of(outage, 8)
    outage.connected(200.0)
    outage.failed(AWAY, 200.0 + SETTLED, 0.5)
    assert outage.may_try(200.0 + SETTLED)
