"""A fact becomes a job, and the job calls a provider, which fails at its first call."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from ergon_framework.executor import Registry
from ergon_framework.jobs.client import JobClient
from ergon_framework.ports.transaction import Transaction
from ergon_framework.providers.base import ProviderBase
from ergon_framework.providers.errors import ProviderDependencyError
from ergon_framework.providers.execution import ProviderExecutionContext
from ergon_framework.task.ready import ConsumerTask

SECRET = "secret-4711"  # noqa: S105 - what no span may show


class Intake(ConsumerTask):
    """Makes a job of each fact."""

    def process_transaction(self, transaction: Transaction) -> None:
        """One job, named after its fact."""
        order = transaction.transaction_id
        with JobClient(os.environ["JOBS"]) as client:
            client.enqueue("charge", [order, SECRET], id=f"charge-{order}")


class Bank(ProviderBase):
    """Is away at the first call of each order."""

    provider_name = "bank"
    capability = "charge"

    def _execute_impl(
        self,
        *,
        tenant_id: str,
        campaign_id: str | None,
        operation: str,
        payload: dict[str, Any],
        context: ProviderExecutionContext,
    ) -> dict[str, Any]:
        marker = Path(os.environ["MARKERS"], payload["order"])
        if not marker.exists():
            marker.touch()
            raise ProviderDependencyError(SECRET)
        return {"traceparent": context.traceparent}


registry = Registry()
bank = Bank(circuit_breaker=False)


def charge(order: str, secret: str) -> Any:
    """Call the bank."""
    return bank.execute(
        tenant_id=SECRET,
        campaign_id=None,
        operation="charge",
        payload={"order": order, "secret": secret},
        context=ProviderExecutionContext(),
    ).unwrap()


registry.add(charge)


def publish(node: str, order: str) -> None:
    """Tell the plant's node what happened, as a process of its own would."""
    from ergon_framework.app.journal import journalling
    from ergon_framework.app.settings import load_settings
    from ergon_framework.boundary.client.producer import Producer

    with (
        journalling(load_settings(None), "producer"),
        Producer(node, from_zone="plant", to_zone="office") as producer,
    ):
        fact = {"subject": "order:1", "predicate": "was_placed", "object_json": {"secret": SECRET}}
        producer.publish(fact, message_id=order)


if __name__ == "__main__":
    publish(*sys.argv[1:])
