"""What each section of ``ergon.toml`` may hold."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, time
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainValidator,
    SecretStr,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from ergon_framework.app.settings.secrets import revealed
from ergon_framework.connector.broker.registry import type_of_url
from ergon_framework.core.option_values import MAX_PROCESSES
from ergon_framework.ports.settings_model import (
    Count,
    CountOrZero,
    FrozenDict,
    OrNone,
    Positive,
    SettingsModel,
    Switch,
    frozen,
)
from ergon_framework.storage.urls import is_withheld
from ergon_framework.task.mixins.policies import ConsumerPolicy, ProducerPolicy

_SECONDS: TypeAdapter[float] = TypeAdapter(Positive)
_DOTTED = r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*"


def _reference(text: str) -> str:
    if re.fullmatch(f"{_DOTTED}:{_DOTTED}", text):
        return text
    raise ValueError("must be written module:name, for example shop.tasks:Orders")


def _connector_type(text: str) -> str:
    return text if re.fullmatch(r"[a-z][a-z0-9_-]*", text) else _reference(text)


def _split(value: object) -> object:
    """A list in a variable may be written with commas."""
    if not isinstance(value, str):
        return value
    return [part.strip() for part in value.split(",") if part.strip()]


def _collector(text: str | None) -> str | None:
    if text is None:
        return None
    parts = urlsplit(text)
    if "@" in parts.netloc:  # executors are told the URL, and exporters show it
        raise ValueError("must hold no user or password: set OTEL_EXPORTER_OTLP_HEADERS instead")
    if parts.scheme in {"http", "https"} and parts.hostname:
        return text.rstrip("/")
    raise ValueError('must be the URL of a collector, for example "http://127.0.0.1:4318"')


def _rotation(value: object) -> object:
    if value in ("never", "batch"):
        return value
    try:
        return _SECONDS.validate_python(value)
    except ValidationError:
        raise ValueError("must be 'never', 'batch' or seconds above 0") from None


Reference = Annotated[str, BeforeValidator(revealed), AfterValidator(_reference)]
ConnectorType = Annotated[str, BeforeValidator(revealed), AfterValidator(_connector_type)]
Names = Annotated[tuple[str, ...], BeforeValidator(_split)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$")]


@dataclass(frozen=True, slots=True)
class Section:
    """How a section is read. Free options have no model that knows their types."""

    kind: Any
    has_secrets: bool = False
    has_free_options: bool = False


class StoreSettings(SettingsModel):
    """``[store]``: where durable parts keep their data, unless one has a store of its own."""

    url: Annotated[SecretStr | None, OrNone] = None  # a URL may hold a password


class TaskSettings(SettingsModel):
    """``[tasks.NAME]``: a task class with what it is given and how it is run."""

    task: Reference
    policy: Annotated[str | None, OrNone] = None
    consumer: Annotated[ConsumerPolicy | None, OrNone] = None
    producer: Annotated[ProducerPolicy | None, OrNone] = None
    connectors: Names = ()
    services: Names = ()
    workers: Annotated[Count, Field(le=MAX_PROCESSES)] = 1


class NamedPolicy(SettingsModel):
    """``[policies.NAME]``: the policy as a consumer's, as a producer's, or as both."""

    consumer: ConsumerPolicy | None = None
    producer: ProducerPolicy | None = None


class Built(SettingsModel, extra="allow"):
    """An object that is built at start from its ``type`` and the options beside it."""

    @model_validator(mode="before")
    @classmethod
    def _freeze(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return data
        return {key: frozen(item, (date, datetime, time, SecretStr)) for key, item in data.items()}

    @property
    def options(self) -> Mapping[str, Any]:
        """Every other key; secrets are still closed (see ``revealed``)."""
        return FrozenDict(self.model_extra or {})

    def __repr_args__(self) -> Iterable[tuple[str | None, Any]]:
        # Names only: an option may be a password that is not marked as a secret.
        yield from ((name, getattr(self, name)) for name in type(self).model_fields)
        yield "options", sorted(self.options)


class ConnectorSettings(Built):
    """``[connectors.NAME]``: a built-in type or ``module:Class``, and its options.

    The ``url`` of a broker says the type by its scheme.
    """

    type: ConnectorType

    @model_validator(mode="before")
    @classmethod
    def _type_of_url(cls, data: Any) -> Any:
        if not isinstance(data, Mapping) or "type" in data or "url" not in data:
            return data
        url = data["url"].get_secret_value() if isinstance(data["url"], SecretStr) else data["url"]
        if not isinstance(url, str) or is_withheld(url):
            return data
        return {**data, "type": type_of_url(url).name}


class ServiceSettings(Built):
    """``[services.NAME]``: a ``module:callable`` that makes the service, and its options."""

    factory: Reference


_ELSEWHERE = (
    "journal",
    "journal_all",
    "journal_keep",
    "journal_most",
    "otlp",
    "prometheus_port",
    "setup",
)


class TelemetrySection(SettingsModel):
    """``[telemetry]``: what is told about the work, and how much of it."""

    spans: Switch = True
    metrics: Switch = True
    logs: Switch = True
    conventions: Switch = False
    payloads: Switch = False
    results: Switch = False
    parent: Literal["link", "parent"] = "link"
    rotate: Annotated[Literal["never", "batch"] | float, PlainValidator(_rotation)] = "never"
    journal: Annotated[str | None, Field(min_length=1)] = None  # None: beside the settings file
    journal_all: Switch = False
    journal_keep: Positive = 7 * 86400.0  # seconds
    journal_most: Count = 200_000  # entries, and as many spans
    otlp: Annotated[str | None, AfterValidator(_collector), OrNone] = None
    prometheus_port: Annotated[Count | None, Field(le=65535), OrNone] = None
    setup: Annotated[Reference | None, OrNone] = None  # a function that each process calls first

    def recorded(self) -> dict[str, Any]:
        """What concerns spans, metrics and logs, and not where they go."""
        return self.model_dump(exclude={*_ELSEWHERE})


def _network(text: str) -> str:
    try:
        network = ip_network(text)
    except ValueError:
        raise ValueError(
            "must be an address or a network, such as 10.0.0.7 or 10.0.0.0/24"
        ) from None
    if network.prefixlen == 0:
        raise ValueError("trusts everybody: name the address of the proxy")
    return str(network)


HeaderName = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9-]*$")]
Networks = Annotated[
    tuple[Annotated[str, AfterValidator(_network)], ...],
    BeforeValidator(_split),
    Field(min_length=1),
]


class ProxySettings(SettingsModel):
    """``[server.proxy]``: a proxy that signs people in, and says in headers who they are."""

    trusted: Networks
    user: HeaderName = "X-Forwarded-User"
    groups: HeaderName = "X-Forwarded-Groups"
    operators: Names = ()  # names of groups
    admins: Names = ()  # the same


class ServerSettings(SettingsModel):
    """``[server]``: where HTTP is served, and what of."""

    host: Annotated[str, Field(min_length=1)] = "127.0.0.1"
    port: Annotated[CountOrZero, Field(le=65535)] = 8400  # 0: any free port
    token: Annotated[SecretStr | None, OrNone] = None  # or several, a line for each
    names: Names = ()
    operators: Names = ()
    admins: Names = ()
    session_key: Annotated[SecretStr | None, OrNone] = None  # of sessions in several processes
    audit: Annotated[str | None, Field(min_length=1)] = None  # None: beside the settings file
    probes_open: Switch = True
    payloads: Switch = False
    requests: Count = 64
    timeout: Positive = 10.0
    access_log: Switch = False
    proxy: ProxySettings | None = None


Tasks = Annotated[Mapping[Name, TaskSettings], AfterValidator(FrozenDict)]
Connectors = Annotated[Mapping[Name, ConnectorSettings], AfterValidator(FrozenDict)]
Services = Annotated[Mapping[Name, ServiceSettings], AfterValidator(FrozenDict)]
Policies = Annotated[Mapping[Name, NamedPolicy], AfterValidator(FrozenDict)]


class Settings(SettingsModel):
    """All sections, checked; ``extensions`` holds those that other parts have registered."""

    store: StoreSettings = Field(default_factory=StoreSettings)
    tasks: Tasks = Field(default_factory=FrozenDict)
    connectors: Connectors = Field(default_factory=FrozenDict)
    services: Services = Field(default_factory=FrozenDict)
    policies: Policies = Field(default_factory=FrozenDict)
    telemetry: TelemetrySection = Field(default_factory=TelemetrySection)
    server: ServerSettings = Field(default_factory=ServerSettings)
    extensions: Annotated[Mapping[str, Any], AfterValidator(FrozenDict)] = Field(
        default_factory=FrozenDict
    )
    file: Path | None = None
    home: Path | None = None  # the folder that was named in place of a file
    variables: frozenset[str] = frozenset()  # that ``env:`` refers to, anywhere
