"""``[zones.NAME]`` and ``[boundary]``: how a zone's node keeps, serves and pulls facts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, SecretStr

from ergon_framework.core.retry import Backoff
from ergon_framework.core.zone_link import GateRule
from ergon_framework.ports.settings_model import (
    Count,
    CountOrZero,
    FrozenDict,
    OrNone,
    Positive,
    PositiveOrZero,
    SettingsModel,
    Switch,
)

KIB, MIB = 1 << 10, 1 << 20
DAY = 86_400.0

ZoneName = Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f]{1,128}$")]
Path = Annotated[str | None, OrNone]


class LimitSettings(SettingsModel):
    """What a node takes at most. Each limit has an error of its own."""

    fact_bytes: Count = 256 * KIB
    """The most bytes of a fact's ``object_json`` in canonical form."""
    body_bytes: Count = 8 * MIB
    """The most bytes of one request, blobs aside."""
    object_bytes: Count = 1 << 40
    """The most bytes of one artifact."""
    batch_items: Count = 1000
    """Facts in one ``AppendFacts``."""
    page_items: Count = 1000
    """The most facts in one page, even if a consumer asks for more."""
    page_bytes: Count = 4 * MIB
    """The most bytes in one page. A single larger fact is still sent."""
    wait_seconds: Positive = 30.0
    """How long a fetch may wait for facts."""
    bodies_bytes: Count = 64 * MIB
    """The most bytes of all incomplete requests together, blobs aside."""
    free_bytes: CountOrZero = 64 * MIB
    """Room on the disks of the zone below which the node is not ready; appends are still tried."""
    connections: Count = 1000
    """Open at the same time, once their clients have shown who they are."""
    address_connections: Count = 250
    """The most connections of one address, unless it is this machine's. Raise it for peers behind
    one proxy.
    """
    handshakes: Count = 100
    """TLS handshakes under way; one more ends the oldest of the address that has most of them."""
    handshake_seconds: Positive = 10.0
    """The most seconds for a TLS handshake."""
    header_bytes: Count = 16 * KIB
    idle_seconds: Positive = 75.0
    """Before a connection that asks nothing is closed."""
    body_seconds: Positive = 30.0
    """Without a byte of a request that has begun, or of an answer taken, before it is given up."""
    request_seconds: Positive = 60.0
    """The most seconds until the headers of a request are complete. Blobs may take as long as bytes
    flow.
    """


class RetentionSettings(SettingsModel):
    """What is dropped, and when. By default nothing ever is."""

    facts: Annotated[Positive | None, OrNone] = None
    """Seconds after which the payload of a fact may go, once every required consumer has it."""
    loss: Literal["never", "oldest"] = "never"
    """``oldest``: facts past their time go even unconfirmed, and a gap is recorded."""
    orphans: Positive = DAY
    """Seconds after which an object that no fact refers to may go."""
    uploads: Positive = DAY
    """Seconds after which the remains of an upload that never ended may go."""
    every: Positive = 60.0
    """Seconds between two rounds."""


class GateSettings(SettingsModel):
    """When a link counts as cut, and when as caught up."""

    failures: Count = 3
    lag: CountOrZero = 100
    settle: PositiveOrZero = 2.0

    def rule(self) -> GateRule:
        """The settings as the rule that ``core`` reads."""
        return GateRule(self.failures, self.lag, self.settle)


class PullSettings(SettingsModel):
    """How a peer's facts are fetched."""

    page: Count = 500
    """Facts asked for at once."""
    wait: Positive = 5.0
    """Seconds a fetch waits at the peer when there is nothing."""
    timeout: Positive = 5.0
    """Seconds without an answer, beyond ``wait``, after which the peer counts as gone."""
    base: Positive = 0.2
    cap: Positive = 1.0
    """Seconds between two attempts at most; any sign of life cuts the wait short."""
    artifact_attempts: Count = 60
    """Answers that the peer has no such artifact, before its fact is set aside."""

    def backoff(self) -> Backoff:
        """The settings as the rule that ``core`` reads."""
        return Backoff(base=self.base, factor=2.0, cap=self.cap, low=0.5, high=1.0)


class ZoneSettings(SettingsModel):
    """``[zones.NAME]``: one node."""

    data: str = "boundary"
    """The folder of the log and of the objects, unless they have places of their own."""
    store: Annotated[SecretStr | None, OrNone] = None  # a URL may hold a password
    """The URL of the log, which several nodes may share when it is on a server."""
    objects: Annotated[SecretStr | None, OrNone] = None
    """The URL of a bucket, or a folder."""
    listen: str = "127.0.0.1:9443"
    health_listen: Annotated[str | None, OrNone] = None
    """Where to answer ``/healthz`` and ``/readyz``, and nothing else, in plain HTTP."""
    insecure: Switch = False
    """Plain HTTP, which is accepted on a loopback address only."""
    cert: Path = None
    key: Path = None
    ca: Path = None
    names: tuple[str, ...] = ()
    """Under which other names an insecure node may be asked."""
    crl: Path = None
    """Certificates that the authority has revoked (PEM); they are refused on both sides."""
    policy: Path = None
    """The file of who may do what."""
    peers: Annotated[Mapping[str, str], AfterValidator(FrozenDict)] = FrozenDict()
    """Zone to URL: whom to pull from."""
    known_zones: Annotated[tuple[ZoneName, ...] | None, OrNone] = None
    """The zones that facts may be addressed to, besides this zone and its peers; None: any zone."""
    capacity_bytes: Annotated[Count | None, OrNone] = None
    """What the outbound log may hold; appends are refused from eighty per cent on."""
    strict_ids: Switch = False
    """Refuse message ids that look random, like a time or like a counter; otherwise warn."""
    strict_envelope: Switch = False
    """A repeated id whose advisory fields differ is a conflict; otherwise a warning."""
    verify_refs: Switch = True
    """Refuse a fact whose artifact is missing."""
    check_seconds: PositiveOrZero = 5.0
    """How long an SQLite file is looked through for damage at most when the node starts."""
    lease: Positive = 30.0
    """Seconds a consumer's name stays with who fetched last."""
    limits: LimitSettings = Field(default_factory=LimitSettings)
    retention: RetentionSettings = Field(default_factory=RetentionSettings)
    gate: GateSettings = Field(default_factory=GateSettings)
    pull: PullSettings = Field(default_factory=PullSettings)
