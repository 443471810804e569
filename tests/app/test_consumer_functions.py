"""Consumer functions in a settings file."""

from __future__ import annotations

import pytest

from ergon_framework.app.run_once import process_one
from ergon_framework.app.signals import Shutdown
from ergon_framework.errors import WiringError
from ergon_framework.ports.transaction import Transaction
from tests.app.workplace import Workplace

CHARGE = """
from ergon_framework.task.functions import consumer

@consumer({source}, attempts=3, timeout=5)
def charge(order: dict) -> int:
    return order["amount"]
"""
INBOX = """
[connectors.inbox]
type = "memory"
"""


def test_a_function_is_a_task_of_the_settings(workplace: Workplace) -> None:
    """Its options are its policy; what the settings say comes first, field by field."""
    workplace.module(CHARGE.format(source='"inbox"'))
    workplace.settings(
        INBOX
        + """
        [tasks.orders]
        task = "shop:charge"
        connectors = ["inbox"]
        consumer.steps.process.retry.max_attempts = 7
        """
    )
    wiring = workplace.wire("orders")
    retry = wiring.policies.main(wiring.kind).steps.process.retry  # type: ignore[union-attr]
    assert (wiring.task_name, retry.max_attempts, retry.timeout) == ("charge", 7, 5.0)


def test_a_function_with_a_connector_of_its_own_needs_none_from_the_settings(
    workplace: Workplace,
) -> None:
    """It is an instance, like a task that was built in its module."""
    workplace.module(CHARGE.format(source='MemoryConnector([Transaction("t1", {"amount": 1})])'))
    workplace.settings("")
    wiring = workplace.wire("shop:charge")
    assert wiring.execute(wiring.task).succeeded == 1  # type: ignore[arg-type]


def test_a_plain_function_is_no_task_and_the_refusal_says_how_it_becomes_one(
    workplace: Workplace,
) -> None:
    """The decorator is one line."""
    workplace.module("def charge(order): ...")
    workplace.settings(INBOX)
    with pytest.raises(WiringError, match=r"decorate a function with @consumer"):
        workplace.wire("shop:charge")


@pytest.mark.parametrize("keyword", ["", "async "])
def test_one_transaction_by_hand_opens_the_lifespans_too(
    workplace: Workplace, keyword: str
) -> None:
    """``ergon process`` gives the function what it needs."""
    workplace.module(
        f"""
        from collections.abc import Iterator

        from ergon_framework.ports.lifespan import Dependencies
        from ergon_framework.task.functions import FunctionConsumer

        class Bank: ...

        known = Dependencies()

        @known.add
        def bank() -> Iterator[Bank]:
            yield Bank()

        {keyword}def charge(order: int, bank: Bank) -> int:
            return order * 2

        charging = FunctionConsumer(charge, MemoryConnector(), dependencies=known)
        """
    )
    workplace.settings("")
    with Shutdown() as shutdown:
        outcome = process_one(workplace.wire("shop:charging"), Transaction("t1", 4), shutdown)
    assert (outcome.outcome, outcome.result) == ("succeeded", 8)
