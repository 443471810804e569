"""Functions as consumers: what they are called with, what surrounds them, what they end in."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from ergon_framework.connector.memory import MemoryConnector
from ergon_framework.engine.report import Report
from ergon_framework.errors import (
    ExceptionType,
    HookError,
    TransactionException,
    WiringError,
)
from ergon_framework.ports.context import Attempt
from ergon_framework.ports.lifespan import Dependencies, DependencyScope
from ergon_framework.ports.middleware import MiddlewareStack
from ergon_framework.ports.transaction import Transaction
from ergon_framework.ports.unit_of_work import UnitOfWork
from ergon_framework.task.functions import FunctionConsumer, consumer
from ergon_framework.testing.clock import VirtualClock


@dataclass
class Order:
    """What the functions below consume."""

    amount: int


class Bank:
    """What a lifespan yields."""

    is_open = False


def orders(*amounts: Any) -> MemoryConnector:
    """A queue with an order for each amount."""
    return MemoryConnector(
        [Transaction(f"t{number}", {"amount": each}) for number, each in enumerate(amounts, 1)]
    )


def run(function: FunctionConsumer[..., Any], source: Any = None) -> Report:
    """Run a consumer of either colour in virtual time."""
    clock = VirtualClock()
    if function.is_async:
        report: Report = clock.run(function.run_async(source))
        return report
    with clock:
        return function.run(source)


def test_a_plain_function_gets_the_payload_in_its_declared_type() -> None:
    """A dataclass out of a dict, and the function can still be called as it was."""
    seen = []

    @consumer(orders(5, 7))
    def charge(order: Order) -> int:
        seen.append(order)
        return order.amount

    assert run(charge).succeeded == 2
    assert seen == [Order(5), Order(7)]
    assert charge(Order(3)) == 3
    assert charge.name == "charge"


def test_an_async_function_gets_it_too() -> None:
    """The same in the other colour."""
    seen = []

    @consumer(orders(5))
    async def charge(order: Order) -> None:
        seen.append(order)

    assert run(charge).succeeded == 1
    assert seen == [Order(5)]


def test_a_payload_that_does_not_fit_is_a_business_failure() -> None:
    """It is tried once, whatever the attempts, and its reason names the field and no value."""
    queue = orders("secret")
    calls = []

    @consumer(queue, attempts=5)
    def charge(order: Order) -> None:
        calls.append(order)

    report = run(charge)
    assert (report.failed, calls) == (1, [])
    ((_, reason),) = queue.dead
    assert reason == (
        "InvalidPayloadError: the payload is no Order: amount: Expected `int`, got `str`"
    )


def test_a_transaction_is_given_as_it_is_and_a_typed_one_with_a_converted_payload() -> None:
    """The envelope is the same in both."""
    seen: list[Any] = []

    @consumer(orders(5))
    def whole(transaction: Transaction) -> None:
        seen.append((transaction.id, transaction.payload))

    @consumer(orders(6))
    def typed(transaction: Transaction[Order]) -> None:
        seen.append((transaction.id, transaction.payload, transaction.attempt_count))

    assert run(whole).succeeded == run(typed).succeeded == 1
    assert seen == [("t1", {"amount": 5}), ("t1", Order(6), 1)]


def test_each_attempt_gets_a_payload_of_its_own() -> None:
    """What one attempt changes in the converted payload, the next one does not see."""
    seen = []

    @consumer(orders(5), attempts=2)
    def charge(order: Order) -> None:
        seen.append(order.amount)
        order.amount = 0
        raise OSError("away")

    assert run(charge).failed == 1
    assert seen == [5, 5]


def test_a_typed_transaction_cannot_be_settled_by_hand() -> None:
    """It is a copy: whoever settles it would settle nothing, so the combination is refused."""

    @consumer(orders(5), settlement="manual")
    def charge(transaction: Transaction[Order]) -> None: ...

    with pytest.raises(WiringError, match="copy that cannot be settled"):
        charge.run()


def test_a_consumer_without_annotation_gets_the_payload_as_it_is() -> None:
    """So does one that declares Any."""
    seen = []

    def plain(payload, *, more=3):  # type: ignore[no-untyped-def]
        seen.append((payload, more))

    assert run(FunctionConsumer(plain, orders("x"))).succeeded == 1
    assert seen == [({"amount": "x"}, 3)]


def test_further_parameters_are_injected() -> None:
    """By type from a lifespan, which is open while the function runs; and the attempt."""
    known = Dependencies()
    bank = Bank()
    seen: list[Any] = []

    @known.add
    def opened() -> Iterator[Bank]:
        bank.is_open = True
        yield bank
        bank.is_open = False

    def charge(order: Order, bank: Bank, *, attempt: Attempt, unit: UnitOfWork) -> None:
        seen.append((bank.is_open, attempt.number, attempt.remaining(), unit.id, unit.name))

    made = FunctionConsumer(charge, orders(1), options={"timeout": 5}, dependencies=known)
    assert run(made).succeeded == 1
    assert seen == [(True, 0, 5.0, "t1", "charge")]
    assert not bank.is_open


def test_an_async_lifespan_opens_for_an_async_function_and_is_refused_for_a_plain_one() -> None:
    """A plain consumer has no event loop that such a lifespan could live on."""
    known = Dependencies()
    closed = []

    @known.add
    async def opened() -> AsyncIterator[Bank]:
        yield Bank()
        closed.append(True)

    async def charge(order: Order, bank: Bank) -> None:
        assert isinstance(bank, Bank)

    def plain(order: Order, bank: Bank) -> None: ...

    assert run(FunctionConsumer(charge, orders(1), dependencies=known)).succeeded == 1
    assert closed == [True]
    with pytest.raises(
        WiringError, match=r"is plain, and Bank comes from the async lifespan 'opened'"
    ):
        run(FunctionConsumer(plain, orders(1), dependencies=known))


def test_with_a_scope_the_caller_opens_the_lifespans() -> None:
    """Several consumers of one process share what was opened once."""
    known = Dependencies()
    opened = []

    @known.add
    def database() -> Iterator[Bank]:
        opened.append(True)
        yield Bank()

    def charge(order: Order, bank: Bank) -> None: ...

    scope = DependencyScope(known)
    for hooks in scope.hooks():
        hooks.open()
    for _ in range(2):
        made = FunctionConsumer(charge, dependencies=known)
        task: Any = made.task(orders(1), scope)
        assert task.execute(made.policy).succeeded == 1
    assert opened == [True]


def test_what_cannot_be_injected_is_told_before_anything_is_fetched() -> None:
    """The message names the parameter, and says what could stand there."""
    queue = orders(1)

    @consumer(queue)
    def charge(order: Order, bank: Bank) -> None: ...

    with pytest.raises(HookError, match="nothing can be injected for the parameter 'bank'"):
        charge.run()
    assert queue.get_transactions_count() == 1


def test_middleware_surrounds_each_attempt() -> None:
    """It sees the unit and the number of its attempt, and the failure of a bad payload too."""
    stack = MiddlewareStack()
    seen: list[Any] = []

    @stack.add
    def told(unit: UnitOfWork) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            seen.append((unit.kind, unit.id, unit.attempt, type(error).__name__))
            raise
        seen.append((unit.kind, unit.id, unit.attempt, "fine"))

    fails = [OSError("away")]

    def charge(order: Order) -> None:
        if fails:
            raise fails.pop()

    async def charge_async(order: Order) -> None:
        charge(order)

    for function in (charge, charge_async):
        fails[:] = [OSError("away")]
        seen.clear()
        options = {"attempts": 2}
        made = FunctionConsumer(function, orders(1, "x"), options=options, middleware=stack)
        run(made)
        assert seen == [
            ("transaction", "t1", 1, "OSError"),
            ("transaction", "t1", 2, "fine"),
            ("transaction", "t2", 1, "InvalidPayloadError"),
        ]


def test_middleware_of_the_wrong_colour_is_refused() -> None:
    """As for every other kind of handler."""
    stack = MiddlewareStack()

    @stack.add
    async def limited(unit: UnitOfWork, call_next: Callable[[], Any]) -> Any:
        return await call_next()

    def charge(order: Order) -> None: ...

    with pytest.raises(HookError, match="cannot surround the plain handler 'charge'"):
        FunctionConsumer(charge, orders(1), middleware=stack).run()


def test_handlers_of_success_and_failure() -> None:
    """Each unit ends in exactly one of them."""
    told: list[Any] = []

    @consumer(orders(4, 0))
    def charge(order: Order) -> int:
        if order.amount <= 0:
            raise TransactionException("nothing to charge", ExceptionType.BUSINESS)
        return order.amount * 2

    @charge.on_success
    def charged(transaction: Transaction, result: int) -> None:
        told.append((transaction.id, result))

    @charge.on_failure
    def refused(transaction: Transaction, error: TransactionException) -> None:
        told.append((transaction.id, error.message))

    run(charge)
    assert told == [("t1", 8), ("t2", "nothing to charge")]
    with pytest.raises(WiringError, match="two handlers of the same kind"):
        charge.on_failure(refused)


def test_concurrency_alone_is_concurrent() -> None:
    """Eight units of a second take a second, in both colours; with one worker they take eight."""
    clock = VirtualClock()

    def charge(order: Order) -> None:
        clock.sleep(1.0)

    for wanted, seconds in ((8, 1.0), (1, 8.0)):
        began = clock.now()
        with clock:
            made = FunctionConsumer(charge, orders(*range(8)), options={"concurrency": wanted})
            assert made.run().succeeded == 8
        assert clock.now() - began == seconds


def test_concurrency_alone_is_concurrent_with_asyncio() -> None:
    """A slow unit blocks no other: fourteen quick ones pass it by."""
    import asyncio

    clock = VirtualClock()
    ended = []

    @consumer(orders(10, *[1] * 14), concurrency=8)
    async def charge(order: Order) -> None:
        await asyncio.sleep(order.amount)
        ended.append(order.amount)

    assert clock.run(charge.run_async()).succeeded == 15
    assert ended == [*[1] * 14, 10]
    assert clock.now() == 10.0


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (lambda: None, "takes no payload"),
        (lambda *payloads: None, "takes no payload"),
        (lambda *, order: None, "takes no payload"),
    ],
)
def test_a_function_without_a_payload_is_refused(function: Any, text: str) -> None:
    """Before anything is fetched."""
    with pytest.raises(HookError, match=text):
        FunctionConsumer(function, orders(1), name="charge").run()


def test_what_is_no_function_is_refused_where_it_is_declared() -> None:
    """A generator, something that cannot be called, and a decorator without parentheses."""

    def generator(order: Order) -> Iterator[None]:
        yield

    class Generating:
        def __call__(self, order: Order) -> Iterator[None]:
            yield

    def forgotten(order: Order) -> None: ...

    broken: Any = 5
    with pytest.raises(HookError, match="is a generator"):
        consumer(orders(), name="charge")(Generating())
    with pytest.raises(HookError, match="is a generator"):
        consumer(orders())(generator)
    with pytest.raises(HookError, match="cannot be called"):
        consumer(orders())(broken)
    with pytest.raises(WiringError, match=r"write @consumer\(connector\) above def forgotten"):
        consumer(forgotten)


def test_a_connector_may_be_named_and_given_later() -> None:
    """Without it, the call says so; with it, the policy names it."""

    @consumer("orders")
    def charge(order: Order) -> None: ...

    assert charge.policy.steps.fetch.connector_name == "orders"
    with pytest.raises(WiringError, match="only the name of one, 'orders'"):
        charge.run()
    assert charge.run(orders(1)).succeeded == 1


def test_the_other_colour_is_told() -> None:
    """run and run_async say which one to call."""

    @consumer(orders(1))
    async def charge(order: Order) -> None: ...

    with pytest.raises(HookError, match=r"await charge.run_async\(\)"):
        charge.run()


def test_a_partial_and_an_object_are_functions_too() -> None:
    """Their signatures are read like any other."""
    seen: list[Any] = []

    def charge(order: Order, factor: int = 1) -> None:
        seen.append(order.amount * factor)

    class Charger:
        def __call__(self, order: Order) -> None:
            seen.append(order)

    run(FunctionConsumer(functools.partial(charge, factor=3), orders(2)))
    run(FunctionConsumer(Charger(), orders(2)))
    assert seen == [6, Order(2)]
