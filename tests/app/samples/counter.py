"""What the files of broken settings refer to: all of it is in order."""

from __future__ import annotations

from typing import Any

from ergon_framework.connector.transaction import Transaction
from ergon_framework.providers.base import ProviderBase
from ergon_framework.task.ready import ConsumerTask


class Orders(ConsumerTask):
    """Accepts every order."""

    def process_transaction(self, transaction: Transaction) -> Any:
        return transaction.id


class Queue:
    """A source that delivers again what failed."""

    redelivers = True

    def fetch_transactions(self, batch_size: int) -> list[Transaction]:
        raise NotImplementedError


class Mail(ProviderBase):
    """Sends nothing, but well."""

    provider_name = "mail"
    capability = "send"

    def __init__(self, key: str = "", **options: Any) -> None:
        self.key = key
        super().__init__(**options)

    def _execute_impl(self, **call: Any) -> dict[str, Any]:
        return {"sent": call["payload"]}


class Fax(Mail):
    """Takes nothing that others take."""

    provider_name = "fax"

    def __init__(self) -> None:
        super().__init__()


def mailer(host: str, password: str = "") -> tuple[str, str]:
    """A service."""
    return host, password
