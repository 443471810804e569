"""Consumers, providers and zones of an App: what is shared, how they run, what is refused."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ergon_framework import (
    INJECTED,
    App,
    Business,
    MemoryConnector,
    Snooze,
    Transaction,
    UnitOfWork,
)
from ergon_framework.app.run_app import ConsumerPart, consumer_wiring
from ergon_framework.connector.boundary import Zone
from ergon_framework.errors import (
    ConfigurationError,
    ConnectorError,
    ErgonError,
    FetchException,
    HookError,
    WiringError,
)
from ergon_framework.task.functions import consumer
from tests.servers.server import free_port

pytestmark = pytest.mark.req("ONE:run")


@dataclass
class Order:
    """What is consumed."""

    amount: int


def orders(*amounts: object) -> MemoryConnector:
    """A source with orders."""
    made = [Transaction(f"o{number}", {"amount": each}) for number, each in enumerate(amounts)]
    return MemoryConnector(made)


def test_consumers_of_both_colours_run_and_enqueue(tmp_path: Path) -> None:
    """In a burst they end with their source; what they enqueue is run after that."""
    app = App(f"sqlite:///{tmp_path / 'work.db'}", name="shop")
    plain, other, seen = orders(5, 0, "many"), orders(7), []

    @app.consumer(plain, attempts=3, concurrency=2)
    def charge(order: Order) -> None:
        if not order.amount:
            raise Business("nothing to charge")
        seen.append(order.amount)

    @app.consumer(other)
    async def refund(order: Order) -> None:
        await asyncio.sleep(0)
        seen.append(-order.amount)

    with app:
        report = app.run(burst=True)
    assert sorted(seen) == [-7, 5]
    assert {name: each.succeeded for name, each in report.consumers.items()} == {
        "charge": 1,
        "refund": 1,
    }
    assert (report.completed, report.failed) == (2, 2)
    assert sorted(str(why) for _, why in plain.dead) == [
        "Business: nothing to charge",
        "InvalidPayloadError: the payload is no Order: amount: Expected `int`, got `str`",
    ]
    assert charge.function.__name__ == "charge"


def test_a_connector_may_be_one_of_the_settings(tmp_path: Path) -> None:
    """By its name; one that is not there is told with what is."""
    (tmp_path / "in").mkdir()
    line = '{"transaction_id": "o1", "payload": {"amount": 5}}\n'
    (tmp_path / "in" / "orders.jsonl").write_text(line)
    (tmp_path / "ergon.toml").write_text(
        '[connectors.orders]\ntype = "jsonl"\ninbox = "in"\n[telemetry]\njournal = "none"\n'
    )
    seen = []
    app = App(tmp_path / "ergon.toml", url="memory://")

    @app.consumer("orders")
    def charge(order: Order) -> None:
        seen.append(order)

    with app, pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        app.run(burst=True)
    assert seen == [Order(5)]
    lost = App(tmp_path / "ergon.toml", url="memory://")
    lost.consumer("ordres")(charge.function)
    with lost, pytest.raises(WiringError, match=r"connector 'ordres'.*did you mean 'orders'"):
        lost.run(burst=True)


def test_stores_of_providers_are_open_before_the_first_message(tmp_path: Path) -> None:
    """To make the tables of a new store takes long: no message has that in its timeout."""
    app = App(f"sqlite:///{tmp_path / 'work.db'}", name="shop")
    happened = []

    def opened() -> str:
        happened.append("opened")
        return f"sqlite:///{tmp_path / 'calls.db'}"

    rates = app.provider("rates", capability="exchange", store=opened)
    broken = app.provider("broken", capability="exchange", store=lambda: "nonsense://")

    @app.consumer(orders(5))
    def charge(order: Order) -> None:
        happened.append("consumed")

    with app:
        assert app.run(burst=True).completed == 1, "a provider that nobody calls is in nobody's way"
        assert happened == ["opened", "consumed"]
        assert rates.health() == []
        with pytest.raises(ConfigurationError, match="nonsense"):
            broken.health()


def test_a_store_that_is_slow_to_open_keeps_no_other_unit_waiting(
    tmp_path: Path,
) -> None:
    """Neither a message of a run, nor a job of a process that opens stores before it is ready.

    Such a process would be replaced again and again, and its jobs would fail without an attempt.
    """
    app = App(f"sqlite:///{tmp_path / 'work.db'}", name="shop")
    answered = threading.Event()

    def away() -> str:
        assert answered.wait(30), "nobody waits for this store"
        return f"sqlite:///{tmp_path / 'calls.db'}"

    rates = app.provider("rates", capability="exchange", store=away)

    @app.consumer(orders(5))
    def charge(order: Order) -> None:
        app.registry.open_early(idle_limit=0.2)  # what a process for jobs does before it is ready
        answered.set()

    with app:
        assert app.run(burst=True).completed == 1
        assert rates.health() == [], "who needs the store waits until it is open"


@pytest.mark.parametrize("kind", ["provider", "zone"])
def test_an_app_is_closed_while_another_thread_opens_a_part_of_it(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opening asks for the settings of the App, and closing waits for what is being opened."""
    app = App(f"sqlite:///{tmp_path / 'work.db'}", name="shop")
    is_opening, goes_on = threading.Event(), threading.Event()
    asked: Any = vars(App)["settings"]

    def slowly(self: App) -> Any:
        is_opening.set()
        assert goes_on.wait(30)
        return asked.fget(self)

    monkeypatch.setattr(App, "settings", property(slowly))
    part = app.provider("rates", capability="exchange") if kind == "provider" else app.zone("plant")
    opening = threading.Thread(target=part.open_early, daemon=True)
    opening.start()
    assert is_opening.wait(30)
    closing = threading.Thread(target=app.close, daemon=True)
    closing.start()
    closing.join(0.3)  # it waits now, or would soon
    goes_on.set()
    for each in (opening, closing):
        each.join(10)
        assert not each.is_alive(), "each waits for the other"


def test_who_enters_while_another_thread_leaves_gets_a_client_of_its_own(tmp_path: Path) -> None:
    """The last block that ends closes the clients at once, however long a provider takes."""
    entered, left = threading.Event(), threading.Event()
    app = App(f"sqlite:///{tmp_path / 'work.db'}", name="shop")
    rates = app.provider("rates", capability="exchange")
    close = rates.close
    found: list[str] = []

    def enter() -> None:
        with app:
            client = app.client
            entered.set()
            assert left.wait(30)
            found.append(client.enqueue("later").id)

    entering = threading.Thread(target=enter)

    def close_slowly() -> None:
        if not entered.is_set():
            entering.start()
            assert entered.wait(30), "the other block cannot use the App"
        close()

    rates.close = close_slowly  # type: ignore[method-assign]
    with app:
        app.client.enqueue("first")
    left.set()
    entering.join(30)
    assert len(found) == 1


OPENED = """
import sys
from pathlib import Path

from ergon_framework import App

app = App("sqlite:///work.db")
rates = app.provider("rates", capability="exchange", store="sqlite:///calls.db")
broken = app.provider("broken", capability="exchange", store=lambda: Path("nowhere").read_text())
plant = app.zone("plant")


@rates.call
def eur_usd() -> float:
    return 1.08


@app.job
def invoice() -> list:
    was_there, before = Path("calls.db").exists(), set(sys.modules)
    eur_usd()
    after_call = set(sys.modules)
    plant.publish("order:1", "invoiced", 1, to="hq", id=("invoiced", 1))
    return [was_there, len(after_call - before), len(set(sys.modules) - after_call)]


if __name__ == "__main__":
    job = invoice.enqueue()
    app.run(burst=True)
    print(*job.result())
"""


def test_a_process_for_jobs_opens_what_they_use_before_the_first(tmp_path: Path) -> None:
    """The imports and tables of stores and zones take seconds on a busy machine.

    A plain handler out of time costs its process, and the next attempt would pay for them again.
    """
    (tmp_path / "shop.py").write_text(OPENED, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "shop.py"],
        check=False,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    was_there, for_the_call, for_the_fact = done.stdout.split()
    assert was_there == "True", "the store of the provider is there when the job begins"
    assert int(for_the_call) < 10, "modules that the first call imports"
    assert int(for_the_fact) < 10, "modules that the first fact imports"


POLICIES = """
[policies.careful]
loop = { streaming = false, limit = 2 }
steps.process.retry = { max_attempts = 4, backoff = 0.0 }

[policies.outgoing]
steps.produce.retry.max_attempts = 2
"""


def test_a_consumer_may_name_a_policy_of_the_settings(tmp_path: Path) -> None:
    """Its own options add to it; a name that is not there is told with those that are."""
    (tmp_path / "ergon.toml").write_text(POLICIES)
    attempts: list[int] = []
    with App(tmp_path / "ergon.toml", url="memory://") as app:
        source = orders(1, 2, 3)

        @app.consumer(source, policy="careful", timeout=5)
        def charge(order: Order) -> None:
            attempts.append(order.amount)
            raise ConnectionResetError("the line broke")

        policy = charge.policy.steps.process.retry
        assert (policy.max_attempts, policy.timeout) == (4, 5)
        assert app.run(burst=True).consumers["charge"].failed == 2
        assert attempts == [1] * 4 + [2] * 4
        for name, told in (
            ("carful", r"no such one; did you mean 'careful'\? \(.*\[policies\.carful\]"),
            ("outgoing", "which is one for producers"),
        ):
            wrong = app.consumer(source, name=name, policy=name)(lambda amount: None)
            with pytest.raises(WiringError, match=told):
                wrong.policy.model_dump()
        clash = app.consumer(source, name="x", policy="careful", attempts=9)(lambda amount: None)
        with pytest.raises(WiringError, match=r"'attempts' .* contradicts"):
            clash.policy.model_dump()
    with pytest.raises(WiringError, match="has no settings to find it in"):
        consumer(source, policy="careful")(lambda amount: None)


def test_two_consumers_of_one_name_and_a_forgotten_source_are_refused() -> None:
    """Where they are declared."""
    app = App("memory://")

    def charge(order: Order) -> None: ...

    app.consumer(orders())(charge)
    with pytest.raises(WiringError, match="two consumers named 'charge'"):
        app.consumer(orders())(charge)
    with pytest.raises(WiringError, match="'charge' does not say what it consumes"):
        app.consumer(charge)


def test_provider_calls_are_kept_in_the_store_of_the_app(tmp_path: Path) -> None:
    """One file for all; a store that keeps none is told at the first call."""
    url = f"sqlite:///{tmp_path / 'work.db'}"
    with App(url) as app:
        rates = app.provider("rates", quota="10/day", attempts=2)
        failures = [ConnectionResetError("the line broke")]

        @rates.call
        def eur_usd(*, timeout: float) -> float:
            if failures:
                raise failures.pop()
            return 1.08

        assert eur_usd() == 1.08
        assert app.client.store.now() > 0
    with App(url) as again:
        (lane,) = again.provider("rates").health()
        assert (lane.breaker_state, lane.success_rate_1h) == ("closed", 1.0)
    with App("redis://127.0.0.1:1/0") as app:
        call = app.provider("rates").call(operation="x")(lambda: 1)
        with pytest.raises(ConfigurationError, match="keeps no provider calls"):
            call()


TABLES = """
[store]
url = "sqlite:///work.db"

[providers]
keep_records = 60

[providers.rates]
quota = "2/day"
retry = { max_attempts = 4, base_delay = 0, jitter = 0.5 }
breaker = false
attempt_timeout = 3
timeout_budget = 9
store = "sqlite:///calls.db"
durable = true
max_lanes = 7

[providers.mail]
provider = "nowhere:Mail"
key = "for the class"
attempt_timeout = 2
"""


def test_a_table_of_the_settings_feeds_a_provider_of_the_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the script says goes before it, field by field; a name without a table is as before."""
    (tmp_path / "ergon.toml").write_text(TABLES)
    monkeypatch.setenv("ERGON_PROVIDERS__RATES__ATTEMPT_TIMEOUT", "4")
    file = tmp_path / "ergon.toml"
    with App(file) as app, App(file) as second, App(file) as third:
        fed = app.provider("rates")
        own = second.provider("rates", attempts=2, budget=60.0, quota="9/s")
        mail, other = app.provider("mail"), app.provider("other")
        free = third.provider("rates", quota="unlimited")
        seen: list[float] = []

        @fed.call(attempts=4)
        def quote(*, timeout: float) -> float:
            seen.append(timeout)
            raise ConnectionResetError("the line broke")

        assert [quote.execute().reason_code for _ in range(3)] == [
            "connection_error",
            "connection_error",
            "quota_exhausted",
        ]
        assert seen == [4.0] * 8
        said, whole = fed.base.runtime.options, own.base.runtime.options
        assert (said.timeout_budget_seconds, said.circuit_breaker) == (9.0, False)
        assert (said.durable, said.max_lanes, said.keep_records_seconds) == (True, 7, 60.0)
        assert (tmp_path / "calls.db").exists()
        assert whole.quota is not None
        assert (whole.quota.limit, whole.timeout_budget_seconds) == (9, 60.0)
        assert free.base.runtime.options.quota is None
        assert free.base.runtime.options.max_lanes == 7
        retry = whole.retry_policy
        assert (retry.max_attempts, retry.base_delay_seconds, retry.jitter_ratio) == (2, 0.0, 0.5)
        assert (whole.attempt_timeout_seconds, whole.max_lanes) == (4.0, 7)
        assert mail.base.runtime.options.attempt_timeout_seconds == 2.0
        alone = other.base.runtime.options
        assert (alone.quota, alone.retry_policy.max_attempts) == (None, 3)
        assert (alone.timeout_budget_seconds, alone.keep_records_seconds) == (60.0, 60.0)
        assert (tmp_path / "work.db").exists()
        with pytest.raises(ConfigurationError, match=r"attempts=5 is more .* makes \(4\)"):
            quote.options(attempts=5)


def test_a_provider_is_declared_once() -> None:
    """Two of one name share a circuit and a quota, and only one of them would say how large."""
    with App(url="memory://") as app:
        app.provider("rates", quota="10/day")
        app.provider("rates", quota="10/day")
        with pytest.raises(WiringError, match=r"'rates' is declared twice .*: attempts, quota"):
            app.provider("rates", quota="99/day", attempts=2)
        app.provider("other", quota="99/day")


def test_a_declaration_that_was_refused_leaves_nothing_behind() -> None:
    """Somebody at a prompt corrects it, and declares it again under the same name."""
    with App(url="memory://") as app:
        for wrong in ({"quota": "10/fortnight"}, {"timeout": float("nan")}):
            with pytest.raises(ConfigurationError, match="the provider 'rates'"):
                app.provider("rates", **wrong)
        rates = app.provider("rates", quota="10/day")

        def quote() -> float:
            return 1.08

        for declare in (rates.call, rates.call):
            with pytest.raises(ConfigurationError, match="attempts"):
                declare(attempts=0)(quote)
        assert rates.call(quote)() == 1.08

        def sweep() -> None: ...

        for refused in (app.schedule("x"), app.schedule(every="1h", args=[1])):
            with pytest.raises(ErgonError):
                refused(sweep)
        assert app.schedule(every="1h")(sweep).name == "sweep"


def test_a_table_may_take_the_bound_away_that_a_function_needs(tmp_path: Path) -> None:
    """Nobody could give it a timeout then."""
    (tmp_path / "ergon.toml").write_text('[providers.rates]\ntimeout_budget = "none"\n')
    with App(tmp_path / "ergon.toml", url="memory://") as app:
        call = app.provider("rates").call

        @call
        def quote(*, timeout: float) -> float:
            return timeout

        with pytest.raises(HookError, match="neither timeout nor budget"):
            quote()


def test_zones_live_beside_the_store_of_the_app(tmp_path: Path) -> None:
    """The same zone for the same name, and its facts stay."""
    url = f"sqlite:///{tmp_path / 'work.db'}"
    with App(url) as app:
        assert app.zone("plant") is app.zone("plant")
        first = app.zone("plant").publish("order:a", "b", 1, to="hq", id=("b", "a", 1))
    with App(url) as app:
        again = app.zone("plant").publish("order:a", "b", 1, to="hq", id=("b", "a", 1))
    assert (again.offset, again.duplicate) == (first.offset, True)
    assert (tmp_path / "ergon.zones" / "plant").is_dir()


PROGRAM = """
from ergon_framework import App, MemoryConnector, Transaction

app = App()
source = MemoryConnector([Transaction("o1", {"amount": 5})])
plant = app.zone("plant")

@app.consumer(source)
def charge(order: dict) -> None:
    plant.publish("order:o1", "charged", order, to="hq", id=("charged", "o1", 1))
    note.enqueue(order["amount"])

@app.job
def note(amount: int) -> None:
    print(f"noted {amount}", flush=True)

if __name__ == "__main__":
    app.run(processes=1)
"""


@pytest.mark.slow
def test_everything_runs_until_a_signal(tmp_path: Path) -> None:
    """Consumer, zone, worker and its executor; SIGTERM ends all of them."""
    (tmp_path / "shop.py").write_text(textwrap.dedent(PROGRAM))
    with subprocess.Popen(
        [sys.executable, "shop.py"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        assert any("noted 5" in line for line in process.stderr)
        process.send_signal(signal.SIGTERM)
        _, told = process.communicate(timeout=50)
    assert process.returncode == 0, told
    assert "Traceback" not in told
    with App(f"sqlite:///{tmp_path / 'ergon.db'}") as app:
        assert app.zone("plant").find(("charged", "o1", 1)) is not None


class Ledger:
    """What lifespans yield."""

    def __init__(self) -> None:
        self.lines: list[str] = []


def test_middleware_and_lifespans_serve_every_kind(tmp_path: Path) -> None:
    """One declaration surrounds jobs, consumers and provider calls; values are found by type."""
    app, seen, books, events = App("memory://"), [], Ledger(), []

    @app.middleware
    def noted(unit: UnitOfWork) -> Iterator[None]:
        seen.append((unit.kind, unit.name))
        yield

    @app.lifespan
    def ledger() -> Iterator[Ledger]:
        events.append("opened")
        yield books
        events.append("closed")

    rates = app.provider("rates")

    @rates.call
    def rate(*, timeout: float) -> int:
        return 2

    @app.job
    def book(line: str, ledger: Ledger = INJECTED) -> None:
        ledger.lines.append(f"job {line} {rate()}")

    @app.consumer(orders(5))
    async def charge(order: Order, ledger: Ledger) -> None:
        ledger.lines.append(f"order {order.amount}")
        await book.aenqueue(str(order.amount))

    with app:
        asyncio.run(charge.run_async())
        app.drain()
    assert books.lines == ["order 5", "job 5 2"]
    assert [each[0] for each in seen] == ["transaction", "job", "provider"]
    assert events == ["opened", "closed"] * 2


def test_a_plain_consumer_leaves_async_lifespans_alone(tmp_path: Path) -> None:
    """It opens none, and is refused only where it needs what one of them yields."""
    app, seen = App("memory://"), []

    @app.lifespan
    async def ledger() -> AsyncIterator[Ledger]:
        yield Ledger()

    @app.consumer(orders(5))
    def charge(order: Order) -> None:
        seen.append(order.amount)

    @app.consumer(orders(5), name="book")
    def needs(order: Order, ledger: Ledger) -> None: ...

    assert charge.run().succeeded == 1
    with pytest.raises(WiringError, match=r"'book' is plain, and Ledger comes from the async"):
        needs.run()


def test_consumers_of_one_process_share_its_lifespans() -> None:
    """A pool of connections is opened once, not once per consumer."""
    app, events = App("memory://"), []

    @app.lifespan
    def ledger() -> Iterator[Ledger]:
        events.append("opened")
        yield Ledger()
        events.append("closed")

    for name in ("first", "second"):

        @app.consumer(orders(5), name=name)
        def charge(order: Order, ledger: Ledger) -> None:
            events.append(type(ledger).__name__)

    with app:
        app.run(burst=True)
    assert events == ["opened", "Ledger", "Ledger", "closed"]


class Broker(MemoryConnector):
    """A source that fails once, and refuses to be used once it was closed, as clients do."""

    fetches = closed = 0

    def fetch_transactions(self, batch_size: int = 1, **extra: object) -> list[Transaction]:
        if self.closed:
            raise RuntimeError("the connection was closed")
        self.fetches += 1
        if self.fetches == 2:
            raise OSError("hiccup")
        return super().fetch_transactions(batch_size)

    def close(self) -> None:
        self.closed += 1


def test_a_source_that_fails_for_a_moment_is_read_again() -> None:
    """The consumer neither ends nor loses the connector that it was given."""
    app, seen = App("memory://"), []
    broker = Broker([Transaction(f"o{number}", {"amount": number}) for number in range(3)])

    @app.consumer(broker)
    def charge(order: Order) -> None:
        seen.append(order.amount)
        if order.amount == 2:
            signal.raise_signal(signal.SIGTERM)

    with app:
        report = app.run()
    assert seen == [0, 1, 2]
    assert report.consumers["charge"].succeeded == 3
    assert broker.closed == 1


def test_a_burst_tells_that_a_source_cannot_be_read() -> None:
    """Its caller wants to know; the connector is closed all the same."""
    app = App("memory://")
    broker = Broker([Transaction("o1", {"amount": 1}), Transaction("o2", {"amount": 2})])
    app.consumer(broker)(lambda order: None)
    with app, pytest.raises(FetchException, match="hiccup"):
        app.run(burst=True)
    assert broker.closed == 1


def test_a_burst_ends_when_its_broker_is_away() -> None:
    """A connector waits for its broker until it is back; cron started the burst, and must hear."""
    app = App("memory://")
    url = f"redis://127.0.0.1:{free_port()}/0?stream=orders&group=billing"
    charge = app.consumer(url, name="charge")(lambda order: None)
    wire = partial(consumer_wiring, charge, app.settings, burst=True)
    with app, pytest.raises(ConnectorError, match=r"'charge' has waited 0\.2 seconds for a source"):
        ConsumerPart("charge", wire, max_outage=0.2).run()


def test_a_burst_does_not_wait_for_a_unit_that_is_to_wait_for_long(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An hour is left to the source, and told; half a second is waited for."""
    app, source, seen = App("memory://"), orders(5, 7), []

    @app.consumer(source, concurrency=2)
    def charge(order: Order) -> None:
        if order.amount == 7:
            raise Snooze(3600, "the bank is closed")
        seen.append(order.amount)
        if len(seen) == 1:
            raise Snooze(0.1)

    with app:
        report = app.run(burst=True).consumers["charge"]
    assert seen == [5, 5]
    assert (report.succeeded, report.parked) == (1, 1)
    assert source.get_transactions_count() == 1
    assert "charge: 1 left to wait at their source" in caplog.text


def test_one_queue_may_be_named_as_text() -> None:
    """And not as the queues of its letters."""
    app = App("memory://")

    @app.job(queue="slow")
    def note() -> None: ...

    with app:
        note.enqueue()
        assert app.drain(queues="fast").completed == 0
        assert app.drain(queues="slow").completed == 1


def test_a_zone_is_served_until_the_last_unit_has_published(tmp_path: Path) -> None:
    """A signal lets work in flight finish, and what that publishes has to find its zone there."""
    address = f"127.0.0.1:{free_port()}"
    settings = f'[zones.plant]\ndata = "data"\nlisten = "{address}"\ninsecure = true\n'
    (tmp_path / "ergon.toml").write_text(settings)
    app = App(tmp_path / "ergon.toml", name="shop")
    app.zone("plant")  # this App serves it
    told: list[bool] = []

    @app.consumer(MemoryConnector([Transaction("o1", 5)]), attempts=1)
    def charge(amount: int) -> None:
        # By its address, as another process does: in this one a node would be made anew.
        with Zone("plant", f"http://{address}", timeout=3.0) as plant:
            for number in range(4):
                subject, key = f"order:{number}", ("charged", "o1", number)
                plant.publish(subject, "charged", amount, to="hq", id=key)
                told.append(True)
                if number == 0:
                    signal.raise_signal(signal.SIGTERM)
                threading.Event().wait(0.05)

    with app:
        report = app.run()
    assert (report.consumers["charge"].succeeded, len(told)) == (1, 4)


def test_what_no_lifespan_yields_is_refused_where_it_is_declared(tmp_path: Path) -> None:
    """A consumer and a call of a provider, too."""
    app = App(f"sqlite:///{tmp_path}/ergon.db")
    rates = app.provider("rates")

    def rate(ledger: Ledger = INJECTED) -> None: ...

    with pytest.raises(WiringError, match="the call 'rate' is INJECTED, and no lifespan yields"):
        rates.call(rate)()

    @app.consumer(orders(1))
    def charge(order: Order, ledger: Ledger = INJECTED) -> None: ...

    with pytest.raises(WiringError, match="the consumer 'charge' is INJECTED, and no lifespan"):
        charge.run()
