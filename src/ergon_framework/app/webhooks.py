"""The webhooks part of the settings: receivers that ``ergon serve`` answers, and their targets."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, SecretStr

from ergon_framework.app.factories import Factory, connector_factory
from ergon_framework.app.settings.sections import ConnectorSettings, Name, Names, Section, Settings
from ergon_framework.app.settings.source import did_you_mean
from ergon_framework.connector.jsonl import JsonlConnector
from ergon_framework.connector.webhook import (
    HmacSignature,
    StripeSignature,
    WebhookReceiver,
    github_signature,
    standard_signature,
)
from ergon_framework.connector.webhook.signatures import TOLERANCE
from ergon_framework.errors import ConfigurationError, ErgonError, WiringError
from ergon_framework.ports.settings_model import Count, FrozenDict, OrNone, Positive, SettingsModel

PATHS = "/webhooks/"
"""All receivers of a server are below it."""
Text = Annotated[str | None, OrNone]


class WebhookSettings(SettingsModel):
    """``[webhooks.NAME]``: who may send, and where it goes."""

    kind: Literal["stripe", "github", "standard", "hmac"]
    secret: SecretStr  # or several, a line for each
    handler: Text = None
    queue: Annotated[str, Field(min_length=1)] = "default"
    connector: Text = None
    tolerance: Positive = TOLERANCE
    header: Text = None
    algorithm: str = "sha256"
    encoding: str = "hex"
    prefix: str = ""
    content: str = "{body}"
    timestamp: Text = None
    id_header: Text = None
    id_field: Text = None
    headers: Names = ()
    max_body_bytes: Count = 1024 * 1024
    max_requests: Count = 64
    timeout: Positive = 10.0


_OF_HMAC = ("header", "algorithm", "encoding", "prefix", "content", "timestamp")
Webhooks = Annotated[Mapping[Name, WebhookSettings], AfterValidator(FrozenDict)]
SECTIONS = {"webhooks": Section(Webhooks, has_secrets=True)}
"""What the settings file may hold for webhooks."""


@dataclass(frozen=True, slots=True)
class Webhook:
    """A receiver of webhooks, and the connector into which it puts their deliveries."""

    receiver: WebhookReceiver
    target: Any

    async def aclose(self) -> None:
        """Close the target, in the loop in which it was used."""
        with suppress(Exception):  # nothing is in hand: what was answered is stored
            if callable(close := getattr(self.target, "aclose", None)):
                await close()
            else:
                await asyncio.to_thread(self.target.close)


def webhooks_of(settings: Settings) -> dict[str, Webhook]:
    """The receivers that the settings describe, by name. Nothing is connected yet."""
    tables: Mapping[str, WebhookSettings] = settings.extensions.get("webhooks") or {}
    return {name: webhook(name, table, settings) for name, table in tables.items()}


def webhook(name: str, table: WebhookSettings, settings: Settings) -> Webhook:
    """The webhook of this name. Errors name it."""
    target = target_factory(name, table, settings).make()
    return Webhook(_receiver(name, table, target), target)


def check_webhook(name: str, table: WebhookSettings, settings: Settings) -> None:
    """Raise what is wrong with the settings of one webhook, and keep nothing open."""
    maker = target_factory(name, table, settings)
    maker.check()
    if maker.factory is JsonlConnector:  # it makes its folders
        _receiver(name, table, _NotMadeYet())
        return
    target = maker.make()
    try:
        _receiver(name, table, target)
    finally:
        target.close()


class _NotMadeYet:
    """Stands for a target that is not made yet."""

    def dispatch_transactions(self, transactions: object) -> None: ...


def _receiver(name: str, table: WebhookSettings, target: Any) -> WebhookReceiver:
    try:
        return WebhookReceiver(target, _signature(table), name=name, **_options(name, table))
    except ErgonError as error:
        error.message = f"webhooks.{name}: {error.message}"
        raise


def target_factory(name: str, table: WebhookSettings, settings: Settings) -> Factory:
    """What makes the connector that deliveries go into."""
    if (table.handler is None) == (table.connector is None):
        raise WiringError(
            f"webhooks.{name}: deliveries go to one place: a handler of jobs, or a connector",
            remedy='write handler = "NAME" for jobs in [store], or connector = "NAME"',
        )
    if table.connector is None:
        options = {"handler": table.handler, "queue": table.queue}
        jobs = ConnectorSettings.model_validate({"type": "jobs", **options})
        return connector_factory(f"webhooks.{name}", jobs, settings)
    known = settings.connectors
    if table.connector not in known:
        raise WiringError(
            f"webhooks.{name}: there is no connector {table.connector!r};"
            f" {did_you_mean(table.connector, list(known))}",
            remedy=f"add a table [connectors.{table.connector}]",
            details={"key": ["connector"]},
        )
    return connector_factory(table.connector, known[table.connector], settings)


def _options(name: str, table: WebhookSettings) -> dict[str, Any]:
    found: dict[str, Any] = {
        "path": f"{PATHS}{name}",
        "headers": table.headers,
        "max_body_bytes": table.max_body_bytes,
        "max_requests": table.max_requests,
        "timeout": table.timeout,
    }
    id_header, id_field = table.id_header, table.id_field
    if id_header is None and id_field is None:
        id_header = {"github": "x-github-delivery", "standard": "webhook-id"}.get(table.kind)
        id_field = "id" if table.kind == "stripe" else None
    if table.kind == "github" and not table.headers:
        found["headers"] = ("x-github-event",)
    return {**found, "id_header": id_header, "id_field": id_field}


def _signature(table: WebhookSettings) -> Any:
    lines = table.secret.get_secret_value().splitlines()
    secrets = [line.strip() for line in lines if line.strip()]
    given = [key for key in _OF_HMAC if key in table.model_fields_set]
    if table.kind != "hmac" and given:
        raise ConfigurationError(
            f"{given[0]} says how a signature of kind hmac is made, and kind is {table.kind}",
            remedy=f'leave it out, or write kind = "hmac" and take {table.kind} apart yourself',
        )
    if table.kind == "stripe":
        return StripeSignature(secrets, tolerance=table.tolerance)
    if table.kind == "github":
        return github_signature(secrets)
    if table.kind == "standard":
        return standard_signature(secrets, tolerance=table.tolerance)
    if table.header is None:
        raise ConfigurationError(
            "header is missing: which header has the signature?",
            remedy='write header = "X-Signature", as the sender\'s manual says',
        )
    options = {key: getattr(table, key) for key in _OF_HMAC}
    return HmacSignature(secrets, tolerance=table.tolerance, **options)
