"""A shop whose failures go to Sentry, through a transport that keeps events in the file ``EVENTS``.

Run as a program, it consumes transactions and calls a provider. Imported by a worker or an
executor, it sets Sentry up in that process.
"""

from __future__ import annotations

import json
import logging
import os
import random
from typing import Any

import pydantic
import sentry_sdk
from sentry_sdk.transport import Transport

from ergon_framework.connector.jobs import JobsConnector
from ergon_framework.connector.memory import MemoryConnector
from ergon_framework.executor import Registry
from ergon_framework.integrations.sentry import ErgonIntegration
from ergon_framework.jobs import JobClient
from ergon_framework.jobs.stores.memory import MemoryJobStore
from ergon_framework.ports.transaction import Transaction
from ergon_framework.providers.base import ProviderBase
from ergon_framework.providers.errors import ProviderBadRequestError
from ergon_framework.providers.execution import ProviderExecutionContext
from ergon_framework.providers.retry import RetryPolicy
from ergon_framework.task.exceptions import ExceptionType, TransactionException
from ergon_framework.task.ready import ConsumerTask
from ergon_framework.telemetry.notices import emit

SECRET = "4111-1111-1111-1111"  # noqa: S105 - what must not leave
logger = logging.getLogger("shop")
registry = Registry()
ACCOUNTS: dict[str, str] = {}


class KeepingTransport(Transport):
    """Writes events to a file, where a real one would send them."""

    def capture_envelope(self, envelope: Any) -> None:
        with open(os.environ["EVENTS"], "a", encoding="utf-8") as file:
            for item in envelope.items:
                if item.type == "event":
                    file.write(json.dumps(item.payload.json) + "\n")


def set_up(**options: bool) -> None:
    """As a program would, but for the transport."""
    sentry_sdk.init(
        dsn="http://key@127.0.0.1:9/1",
        release="1",
        transport=KeepingTransport,
        attach_stacktrace=True,  # also to what is no exception
        integrations=[ErgonIntegration(**options)],
    )


# ---- transactions -----------------------------------------------------------------------------


class Order(pydantic.BaseModel):
    """What a payload should be."""

    amount: int


class Orders(ConsumerTask):
    """Fails as its payloads say."""

    def process_transaction(self, transaction: Transaction) -> None:
        payload = transaction.payload
        sentry_sdk.add_breadcrumb(message=f"seen {transaction.transaction_id}")
        if payload["what"] == "bank":
            raise ConnectionError("the bank is away")
        if payload["what"] == "business":
            raise TransactionException("nothing to charge", ExceptionType.BUSINESS)
        if payload["what"] == "invalid":
            Order.model_validate({"amount": payload["card"]})
        if payload["what"] == "logged":
            logger.error("something odd")
        if payload["what"] == "stack":
            logger.error("where am I?", stack_info=True)
        if payload["what"] == "message":
            sentry_sdk.capture_message("an odd order")
        if payload["what"] == "event":
            sentry_sdk.capture_event(event_with_stacks(payload["card"]))


def event_with_stacks(card: str) -> Any:
    """One with a stack at every place where Sentry or a tool of the user's may put one."""
    made = random.Random(7)  # noqa: S311 - the same in each run

    def stack() -> dict[str, Any]:
        frames = [{"function": "f", "vars": {"card": card}} for _ in range(made.randint(1, 3))]
        return {"stacktrace": {"frames": frames}, "raw_stacktrace": {"frames": (*frames,)}}

    def nested(depth: int) -> Any:
        if depth == 0:
            return stack()
        return made.choice([{"inside": nested(depth - 1)}, [nested(depth - 1), stack()]])

    held: dict[str, Any] = {"stacks": [nested(depth) for depth in range(4)]}
    held["itself"] = held
    return {
        "message": "many stacks",
        "level": "info",
        **stack(),
        "threads": {"values": [stack(), stack()]},
        "exception": {"values": [{"type": "Odd", "value": "", **stack()}, {"type": "Other"}]},
        "contexts": {"tool": {"stacks": [nested(2)]}},
        "extra": held,
    }


def consume(*whats: str, first: int = 0) -> None:
    """Each transaction has its own name; two attempts each."""
    units = [
        Transaction(f"{what}-{number}", {"what": what, "card": SECRET})
        for number, what in enumerate(whats, first)
    ]
    policy = {"steps": {"process": {"retry": {"max_attempts": 2}}}}
    Orders(connectors={"orders": MemoryConnector(units)}).consume_transactions(policy)


# ---- provider calls ---------------------------------------------------------------------------


class Rates(ProviderBase):
    """Is away, or refuses."""

    provider_name, capability = "rates", "exchange"

    def _execute_impl(self, *, operation: str, **_: Any) -> dict[str, Any]:
        card = SECRET
        if operation == "refuse":
            raise ProviderBadRequestError("no such currency")
        raise ConnectionError(f"no answer for {len(card)}")


RATES = Rates(retry_policy=RetryPolicy(max_attempts=2, base_delay_seconds=0.0))


def call(operation: str = "quote", correlation_id: str = "call-1") -> None:
    """Make a call, which fails."""
    RATES.execute(
        tenant_id="t",
        campaign_id=None,
        operation=operation,
        payload={"card": SECRET},
        context=ProviderExecutionContext(correlation_id=correlation_id),
    )


class Calling(ConsumerTask):
    """Fails because its provider does."""

    def process_transaction(self, transaction: Transaction) -> None:
        call(correlation_id="inner")
        raise ConnectionError("no rate")


# ---- jobs -------------------------------------------------------------------------------------


@registry.handler
def pay(card: str) -> None:
    """Fails every time."""
    try:
        ACCOUNTS["mine"]
    except KeyError as error:
        raise ConnectionError("the bank is away") from error


@registry.handler
def speak() -> None:
    """Tells Sentry something itself."""
    sentry_sdk.capture_message("from a handler")


class Charges(ConsumerTask):
    """Consumes jobs, and fails."""

    def process_transaction(self, transaction: Transaction) -> None:
        raise ConnectionError("the bank is away")


def consume_jobs() -> None:
    """A job with two attempts, in a queue that a task consumes."""
    store = MemoryJobStore()
    JobClient(store=store).enqueue("charge", [SECRET], id="queued", max_attempts=2)
    quick = {"backoff": {"base": 0.01, "cap": 0.01}}
    with JobsConnector(store, settings=quick, wait=1.0) as queue:
        for _ in range(2):
            Charges(connectors={"queue": queue}).consume_transactions({})


set_up()

if __name__ == "__main__":
    consume("fine", "bank", "bank", "business", "invalid", "logged")
    call()
    call("refuse", "call-2")
    Calling(connectors={"c": MemoryConnector([Transaction("calls", {})])}).consume_transactions({})
    RATES.close()
    consume_jobs()
    emit("fact.quarantined", consumer="erp", offset=7, why="no such order", attempts=3)
    set_up(retries=True, business=False)
    consume("bank", "business", first=100)
    sentry_sdk.init()  # switched off
    consume("bank", first=200)
    set_up()
    consume("logged", "stack", "message", "event", first=300)
