"""The connection to a broker that goes away and comes back, in both colours."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from ergon_framework.app.liveness import Liveness
from ergon_framework.connector.broker.connection import (
    AsyncBrokerConnection,
    BrokerConnection,
    BrokerUnavailableError,
    ConnectorClosedError,
)
from ergon_framework.connector.broker.in_flight import InFlight
from ergon_framework.connector.broker.wakeup import Wakeup
from ergon_framework.engine.clocks import SYSTEM_CLOCK
from ergon_framework.errors import ConfigurationError, ConnectorError
from ergon_framework.ports.dice import loaded_dice
from ergon_framework.ports.notice import Notice
from ergon_framework.telemetry.notices import add_listener, emit, remove_listener
from ergon_framework.testing.clock import VirtualClock
from tests.waiting import until

HOUR = 3600.0


class Broker:
    """Lets in whoever comes after an instant; counts who came."""

    def __init__(self, clock: VirtualClock, back_at: float = 0.0) -> None:
        self.clock, self.back_at = clock, back_at
        self.attempts: list[float] = []
        self.closed: list[object] = []
        self.refusal: Exception | None = None

    def connect(self) -> object:
        self.attempts.append(self.clock.now())
        if self.refusal is not None:
            raise self.refusal
        if self.clock.now() < self.back_at:
            raise OSError("nobody listens on redis://user:hunter2@host")
        return object()

    def close(self, client: object) -> None:
        self.closed.append(client)

    async def connect_async(self) -> object:
        return self.connect()

    async def close_async(self, client: object) -> None:
        self.close(client)


@pytest.fixture
def clock() -> Iterator[VirtualClock]:
    """Time that passes only when everybody waits for it."""
    with VirtualClock() as found, loaded_dice(0.5):
        yield found


def threaded(broker: Broker) -> tuple[BrokerConnection[object], Wakeup]:
    """A connection for threads."""
    wakeup = Wakeup()
    return BrokerConnection("redis://host:6379", broker.connect, broker.close, wakeup), wakeup


def test_a_fetch_waits_an_hour_for_its_broker(clock: VirtualClock) -> None:
    """With waits that grow to a bound, so that a broker that is back is noticed soon."""
    broker = Broker(clock, back_at=HOUR)
    connection, _ = threaded(broker)
    assert connection.state.is_healthy
    assert connection.wait() is not None
    assert HOUR <= clock.now() < HOUR + 20
    assert len(broker.attempts) < 300
    assert connection.state.is_healthy


def test_a_task_waits_as_a_thread_does(clock: VirtualClock) -> None:
    """Both colours ask the same machine: their attempts are at the same instants."""
    broker = Broker(clock, back_at=60.0)
    threaded(broker)[0].wait()
    other_clock = VirtualClock()
    other = Broker(other_clock, back_at=60.0)

    async def waiting() -> object:
        wakeup = Wakeup()
        made = AsyncBrokerConnection(
            "redis://host:6379", other.connect_async, other.close_async, wakeup
        )
        return await made.wait()

    assert other_clock.run(waiting()) is not None
    assert other.attempts == pytest.approx(broker.attempts)


def test_a_process_that_waits_for_its_broker_is_alive(clock: VirtualClock) -> None:
    """A probe that is silent about an hour of waiting would have it restarted all the time."""
    liveness = Liveness(now=clock.now)
    told: list[str] = []
    stalls: list[str] = []

    def listen(notice: Notice) -> None:
        stalls.append(liveness.snapshot().reason)  # as long after the notice before as it gets
        told.append(notice.name)
        liveness(notice)

    add_listener(listen)
    try:
        emit("call.began", call=None)
        threaded(Broker(clock, back_at=HOUR))[0].wait()
    finally:
        remove_listener(listen)
    assert set(stalls) == {""}
    assert told.count("broker.away") > 200
    assert told[-1] == "broker.back"


def test_a_dispatch_does_not_wait(clock: VirtualClock) -> None:
    """It is told at once, and until the next attempt is due nobody connects."""
    broker = Broker(clock, back_at=HOUR)
    connection, _ = threaded(broker)
    for _ in range(2):
        with pytest.raises(BrokerUnavailableError, match="redis://host:6379"):
            connection.get()
    with pytest.raises(BrokerUnavailableError) as caught:
        connection.get()
    assert len(broker.attempts) == 2
    assert caught.value.retry_after_seconds == pytest.approx(0.2)
    assert not connection.state.is_healthy


def test_an_outage_shows_no_password(clock: VirtualClock) -> None:
    """Client libraries put URLs into their errors."""
    with pytest.raises(BrokerUnavailableError) as caught:
        threaded(Broker(clock, back_at=HOUR))[0].get()
    assert "hunter2" not in str(caught.value)
    assert "nobody listens" in str(caught.value)


def test_a_refusal_is_raised_and_not_waited_for(
    clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A wrong password is no outage. It is logged once: a consumer that streams tries again."""
    broker = Broker(clock)
    broker.refusal = ConfigurationError("it does not let this user in")
    with pytest.raises(ConfigurationError, match="this user"):
        threaded(broker)[0].wait()
    assert clock.now() == 0.0
    (told,) = caplog.messages
    assert "does not let this user in" in told


def test_a_lost_client_is_replaced_and_closed(clock: VirtualClock) -> None:
    """Whoever used it is told, and what came through it is not current any more."""
    broker = Broker(clock)
    connection, _ = threaded(broker)
    first = connection.get()
    error = connection.lost(first, OSError("reset"))
    assert isinstance(error, BrokerUnavailableError)
    assert broker.closed == [first]
    assert not connection.is_current(first)
    second = connection.get()
    connection.lost(first, OSError("reset"))  # another thread noticed it, too, and later
    assert connection.get() is second


def test_a_stop_ends_the_wait() -> None:
    """However long the broker stays away."""
    broker = Broker(VirtualClock(), back_at=HOUR)
    connection, wakeup = threaded(broker)
    found: list[object] = []
    thread = SYSTEM_CLOCK.spawn("fetch", lambda: found.append(connection.wait()))
    until(lambda: len(broker.attempts) > 1, "an attempt")
    wakeup.stop()
    thread.join(10)
    assert found == [None]


def test_a_stop_from_another_thread_ends_the_wait_of_a_task() -> None:
    """The loop sleeps in its selector meanwhile."""
    broker = Broker(VirtualClock(), back_at=HOUR)
    wakeup = Wakeup()

    async def waiting() -> object:
        made = AsyncBrokerConnection(
            "redis://host", broker.connect_async, broker.close_async, wakeup
        )
        threading.Timer(0.3, wakeup.stop).start()
        return await asyncio.wait_for(made.wait(), 10)

    assert asyncio.run(waiting()) is None


def test_closing_ends_the_connection_and_every_wait(clock: VirtualClock) -> None:
    """And what comes later is refused, not connected."""
    broker = Broker(clock)
    connection, _ = threaded(broker)
    client = connection.get()
    connection.close()
    connection.close()
    assert broker.closed == [client]
    for call in (connection.get, connection.wait):
        with pytest.raises(ConnectorClosedError, match="closed"):
            call()
    assert not connection.state.is_healthy


def test_each_event_loop_has_a_client_of_its_own(clock: VirtualClock) -> None:
    """A client of a loop that has ended cannot be used in the next one."""
    broker = Broker(clock)
    made = AsyncBrokerConnection("redis://host", broker.connect_async, broker.close_async, Wakeup())
    first, second = asyncio.run(made.get()), asyncio.run(made.get())
    assert first is not second


# ---- what is in flight --------------------------------------------------------------------------


def test_a_second_loop_that_runs_at_the_same_time_is_refused(clock: VirtualClock) -> None:
    """A client belongs to one loop: in another one its answers would never come."""
    broker = Broker(clock)
    connection = AsyncBrokerConnection(
        "redis://host:6379", broker.connect_async, broker.close_async, Wakeup()
    )

    def elsewhere() -> None:
        with pytest.raises(ConnectorError, match="another event loop"):
            asyncio.run(connection.get())

    async def use() -> None:
        client = await connection.get()
        other = threading.Thread(target=elsewhere)
        other.start()
        other.join()
        assert connection.is_current(client)

    asyncio.run(use())


def test_closing_does_not_wait_for_a_connection_that_is_made() -> None:
    """It ends by itself when it is made, and nobody gets it."""
    connecting, is_made = threading.Event(), threading.Event()
    closed: list[object] = []

    def connect() -> object:
        connecting.set()
        is_made.wait(10)
        return "client"

    connection = BrokerConnection("redis://host:6379", connect, closed.append, Wakeup())
    failures: list[Exception] = []

    def use() -> None:
        try:
            connection.get()
        except ConnectorClosedError as error:
            failures.append(error)

    user = threading.Thread(target=use)
    user.start()
    connecting.wait(10)
    connection.close()
    assert not is_made.is_set()
    is_made.set()
    user.join(10)
    assert (len(failures), closed) == (1, ["client"])


def test_room_is_bounded_by_messages() -> None:
    """What was settled makes room for as many."""
    held = InFlight(Wakeup(), 3, 1000)
    assert held.room(10) == 3
    for _ in range(3):
        held.add(1)
    assert held.room(10) == 0
    held.remove(1)
    assert held.room(10) == 1


def test_room_is_bounded_by_bytes() -> None:
    """By those of the messages so far; and one fits always, however large."""
    held = InFlight(Wakeup(), 100, 1000)
    held.add(5000)
    assert held.room(10) == 0
    held.remove(5000)
    assert held.room(10) == 1
    small = InFlight(Wakeup(), 100, 1000)
    small.add(100)
    assert small.room(50) == 9


def test_a_full_fetch_waits_for_a_settlement() -> None:
    """It does not answer with an empty batch, which would end a call that does not stream."""
    held = InFlight(Wakeup(), 1, 1000)
    held.add(1)
    found: list[int] = []
    thread = SYSTEM_CLOCK.spawn("fetch", lambda: found.append(held.wait_for_room(5)))
    assert found == []
    held.remove(1)
    thread.join(10)
    assert found == [1]


def test_a_stop_ends_the_wait_for_room() -> None:
    """In both colours."""
    wakeup = Wakeup()
    held = InFlight(wakeup, 1, 1000)
    held.add(1)

    async def waiting() -> int:
        threading.Timer(0.1, wakeup.stop).start()
        return await asyncio.wait_for(held.wait_for_room_async(5), 10)

    assert asyncio.run(waiting()) == 0
    assert held.wait_for_room(5) == 0
    wakeup.begin()
    held.remove(1)
    assert held.wait_for_room(5) == 1


@pytest.mark.parametrize("bounds", [(0, 1), (1, 0)])
def test_bounds_below_one_are_refused(bounds: tuple[int, int]) -> None:
    """They would let nothing through."""
    with pytest.raises(ConfigurationError, match="at least 1"):
        InFlight(Wakeup(), *bounds)


def test_a_client_that_was_made_for_nobody_is_closed_with_asyncio() -> None:
    """A connector that is closed while it connects keeps no client, and says that it is closed."""
    closed: list[object] = []

    async def run() -> None:
        is_asked, may_answer = asyncio.Event(), asyncio.Event()

        async def connect() -> object:
            is_asked.set()
            await may_answer.wait()
            return "client"

        async def close(client: object) -> None:
            closed.append(client)

        connection = AsyncBrokerConnection("redis://host:6379", connect, close, Wakeup())
        getting = asyncio.ensure_future(connection.get())
        await is_asked.wait()
        await connection.aclose()
        may_answer.set()
        with pytest.raises(ConnectorClosedError):
            await getting
        assert not connection.is_connected

    asyncio.run(run())
    assert closed == ["client"]
