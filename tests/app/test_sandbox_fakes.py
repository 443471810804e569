"""Providers and zones of a program under test: scripted answers, memory and virtual time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ergon_framework import App
from ergon_framework.connector.boundary.zone import Zone
from ergon_framework.errors import Business, JobError, Snooze, WiringError
from ergon_framework.ports.transaction import Transaction
from ergon_framework.providers.calls import ProviderCall
from ergon_framework.providers.errors import ProviderQuotaExceededError
from ergon_framework.providers.functions import Provider
from ergon_framework.task.functions import consumer
from ergon_framework.testing import Sandbox, Takes


@dataclass
class Order:
    """What is charged."""

    amount: int


@pytest.fixture
def eur_usd(tmp_path: Path) -> ProviderCall[[], float]:
    """A function of a provider whose calls are recorded in a file."""
    url = f"sqlite:///{tmp_path}/calls.db"
    rates = Provider("rates", capability="exchange", quota="3/day", backoff=2.0, store=url)

    @rates.call
    def eur_usd() -> float:
        raise AssertionError("a test called the real service")

    return eur_usd


def test_a_fake_answers_attempt_by_attempt(
    ergon: Sandbox, eur_usd: ProviderCall[[], float], tmp_path: Path
) -> None:
    """What is around the function stays: here the retry and its wait."""
    fake = ergon.fake(eur_usd, ConnectionError("away"), Takes(3, 1.08))
    assert eur_usd() == 1.08
    assert 3 + 1 <= ergon.clock.now() <= 3 + 3  # the wait between the attempts has jitter
    assert len(fake.calls) == 2
    assert not (tmp_path / "calls.db").exists()


def test_quotas_follow_the_clock_of_the_sandbox(
    ergon: Sandbox, eur_usd: ProviderCall[[], float]
) -> None:
    """A day later there is a fresh window, and each sandbox begins with one."""
    for _ in range(2):
        with Sandbox(ergon.clock) as inner:
            inner.fake(eur_usd, 1.08)
            assert [eur_usd() for _ in range(3)] == [1.08] * 3
            with pytest.raises(ProviderQuotaExceededError):
                eur_usd()
            inner.clock.advance(24 * 3600)
            assert eur_usd() == 1.08


def test_async_functions_have_fakes_as_well(ergon: Sandbox) -> None:
    """They wait on the loop of the same clock."""
    rates = Provider("rates", capability="exchange")

    @rates.call
    async def eur_usd() -> float:
        raise AssertionError("a test called the real service")

    ergon.fake(eur_usd, Takes(20, 1.08))

    async def ask() -> float:
        return await eur_usd()

    assert ergon.clock.run(ask()) == 1.08
    assert ergon.clock.now() == 20


def test_afterwards_the_function_is_what_it_was(eur_usd: ProviderCall[[], float]) -> None:
    """And a fake without an answer is refused."""
    function = eur_usd.function
    with Sandbox() as ergon:
        ergon.fake(eur_usd, 1.08)
        with pytest.raises(WiringError, match="no answer"):
            ergon.fake(eur_usd)
    assert eur_usd.function is function


def test_consumers_get_what_they_are_fed(ergon: Sandbox) -> None:
    """In place of their source; their retries and the jobs they enqueue follow the clock."""
    app, seen = ergon.use(App(name="shop")), []

    @app.job
    def ship(order: int) -> None:
        seen.append((ergon.clock.now(), order))

    @consumer("orders", attempts=3, backoff=10.0, jitter=0.0)
    def charge(order: Order) -> None:
        if order.amount <= 0:
            raise Business("nothing to charge")
        if ergon.clock.now() < 5:
            raise ConnectionError("the bank is away")
        ship.options(delay=60).enqueue(order.amount)

    source = ergon.feed(charge, {"amount": 5}, {"amount": 0}, {"amont": 1})
    report = ergon.advance(100)
    assert (report.completed, report.failed) == (2, 2)  # the order and its job; two were refused
    assert seen == [(70.0, 5)]
    assert [each.transaction_id for each, _ in source.dead] == ["t2", "t3"]
    ergon.feed(charge, {"amount": 6})
    assert ergon.drain().completed == 1


def test_async_consumers_are_fed_as_well(ergon: Sandbox) -> None:
    """On the loop of the same clock, without an App."""
    seen: list[Any] = []

    @consumer()
    async def note(word: str) -> None:
        await asyncio.sleep(30)
        seen.append(word)

    ergon.feed(note, "hello", Transaction("mine", "world"))
    assert ergon.drain().completed == 2
    assert (seen, ergon.clock.now()) == (["hello", "world"], 60.0)


class Bank:
    """What a lifespan yields."""

    def charge(self) -> str:
        """Charge somebody."""
        raise AssertionError("a test reached the real bank")


class FakeBank:
    """What a test injects in its place."""

    def charge(self) -> str:
        """Charge nobody."""
        return "charged"


def test_what_a_lifespan_yields_can_be_overridden(ergon: Sandbox) -> None:
    """The lifespan itself is not opened then; afterwards it is again."""
    app, opened = App(name="shop"), []

    @app.registry.lifespan
    def bank() -> Iterator[Bank]:
        opened.append("bank")
        yield Bank()

    @app.job(attempts=1)
    def charge(bank: Bank) -> str:
        return bank.charge()

    ergon.use(app)
    with Sandbox(ergon.clock) as inner:
        inner.use(app)
        inner.override(app, Bank, FakeBank())
        job = charge.enqueue()  # type: ignore[call-arg]
        inner.drain(raises=True)
        assert (job.result(0), opened) == ("charged", [])
    charge.enqueue()  # type: ignore[call-arg]
    assert ergon.drain().failed == 1
    assert opened == ["bank"]


@pytest.fixture
def plant(tmp_path: Path) -> Iterator[Zone]:
    """A zone that lives in a folder."""
    with Zone("plant", tmp_path / "plant") as zone:
        yield zone


@pytest.mark.slow
def test_facts_are_published_into_memory(ergon: Sandbox, plant: Zone, tmp_path: Path) -> None:
    """By handlers of the program under test; the test reads them, once each."""
    app = ergon.use(App(name="shop"))

    @app.job
    def release(order: str) -> None:
        plant.publish(order, "released", {"pieces": 40}, to="enterprise", id=("released", order))

    for order in ("work_order:1", "work_order:2", "work_order:1"):
        release.enqueue(order)
    assert ergon.drain(raises=True).completed == 3
    for _ in range(2):  # looking changes nothing
        facts = ergon.zone("plant").facts(to="enterprise")
        assert [each["subject"] for each in facts] == ["work_order:1", "work_order:2"]
    assert ergon.zone("plant").facts(to="elsewhere") == []
    assert not (tmp_path / "plant").exists()
    with Sandbox(ergon.clock) as other:
        assert other.zone("plant").facts() == []


@pytest.mark.parametrize("is_async", [False, True])
def test_a_unit_that_is_snoozed_waits_for_the_clock_of_the_test(
    ergon: Sandbox, is_async: bool
) -> None:
    """A drain leaves it alone, as it does with a job; later it is no attempt more."""
    app, tries = App("memory://"), []

    def handle(order: Order) -> None:
        tries.append(ergon.clock.now())
        if len(tries) == 1:
            raise Snooze(3600)

    async def handle_async(order: Order) -> None:
        handle(order)

    charge = consumer(name="charge", attempts=1)(handle_async if is_async else handle)
    ergon.use(app)
    source = ergon.feed(charge, {"amount": 5})
    assert ergon.drain().held == 1
    assert (ergon.clock.now(), source.get_transactions_count()) == (0, 1)
    assert ergon.advance(7200).completed == 1
    assert tries == [0, 3600]


def test_instants_of_jobs_are_those_of_the_sandbox(ergon: Sandbox) -> None:
    """Options are refused by the clock that the store has, and not by that of the machine."""
    app = ergon.use(App("memory://", name="shop"))

    @app.job
    def sweep() -> str:
        return "swept"

    hour = ergon.clock.now() + 3600
    due = sweep.options(run_at=hour).enqueue()
    expiring = sweep.options(expires_at=hour, delay=10).enqueue()
    for options in ({"expires_at": ergon.clock.now()}, {"run_at": time.time() + 3600}):
        with pytest.raises(JobError, match=r"is in the past|years"):
            sweep.options(**options)  # type: ignore[arg-type]
    ergon.advance(10)
    assert (due.status(), expiring.status()) == ("pending", "completed")
    ergon.advance(3590)
    assert due.status() == "completed"


@pytest.mark.parametrize(
    ("method", "given", "told"),
    [
        ("use", 5, "ergon.use was given 5, which is no App"),
        ("fake", "job", "which is no function of a provider"),
        ("feed", "job", "which is no consumer .*enqueue"),
        ("advance", -1, "ergon.advance was given -1 "),
        ("advance", float("nan"), "was given nan"),
        ("advance", float("inf"), "was given inf"),
        ("advance", "5", "was given '5'"),
    ],
)
def test_what_a_sandbox_cannot_use_is_refused_where_it_is_given(
    ergon: Sandbox, method: str, given: Any, told: str
) -> None:
    """With what to write; what comes after works."""
    app = ergon.use(App("memory://", name="shop"))

    @app.job
    def sweep() -> None: ...

    with pytest.raises(WiringError, match=told):
        getattr(ergon, method)(sweep if given == "job" else given, *[1] * (given == "job"))
    sweep.enqueue()
    assert ergon.drain().completed == 1


def test_only_an_app_has_something_to_override(ergon: Sandbox) -> None:
    """A class is taken for one easily."""
    with pytest.raises(WiringError, match=r"ergon\.override was given .*, which is no App"):
        ergon.override(Order, Order, Order(1))  # type: ignore[arg-type]
