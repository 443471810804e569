"""Who may do what at a zone's node. Nobody may do anything that is not said here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

OPERATIONS = (
    *("AppendFact", "FetchFacts", "ConfirmReceipt", "PutObject"),
    *("AppendFacts", "LookupFact", "GetObject", "HeadObject", "DeleteObject"),
    *("CreateConsumer", "ListConsumers", "DeleteConsumer", "SeekConsumer", "ReleaseLease"),
    *("QuarantineFact", "ListQuarantine", "ReleaseQuarantine", "DiscardQuarantine"),
    *("GetStatus", "Seal", "Open", "AcceptEpoch", "ListGaps", "GetMetrics"),
)
GROUPS: Mapping[str, tuple[str, ...]] = {
    "produce": ("AppendFact", "AppendFacts", "LookupFact", "PutObject", "HeadObject"),
    "consume": (
        *("CreateConsumer", "FetchFacts", "ConfirmReceipt", "ReleaseLease", "QuarantineFact"),
        *("GetObject", "HeadObject"),
    ),
    "pull": (
        *("CreateConsumer", "FetchFacts", "ConfirmReceipt", "ReleaseLease", "SeekConsumer"),
        *("GetObject", "HeadObject"),
    ),
    "observe": (
        *("GetStatus", "GetMetrics", "ListConsumers", "ListQuarantine", "ListGaps"),
        "LookupFact",
    ),
    "admin": OPERATIONS,
}
"""Names for operations that usually go together."""


class Names:
    """A set of names, some of which are patterns."""

    __slots__ = ("_exact", "_patterns", "is_all")

    def __init__(self, exact: Iterable[str] = (), patterns: Iterable[str] = ()) -> None:
        self._exact = frozenset(exact)
        self._patterns = tuple(patterns)
        self.is_all = "*" in self._patterns

    @classmethod
    def read(cls, names: Iterable[str]) -> Names:
        """Names as a person writes them: ``*``, ``?`` and ``[…]`` are patterns."""
        every = tuple(names)
        return cls(every, (name for name in every if not frozenset("*?[").isdisjoint(name)))

    def __contains__(self, name: str) -> bool:
        if self.is_all or name in self._exact:
            return True
        return any(fnmatchcase(name, pattern) for pattern in self._patterns)


NOTHING = Names()
EVERYTHING = Names(patterns=("*",))


@dataclass(frozen=True, slots=True)
class Permit:
    """What one identity may do."""

    identity: str
    operations: frozenset[str] = frozenset()
    asserts: Names = NOTHING
    targets: Names = NOTHING
    logs: Names = NOTHING
    consumers: Names = NOTHING
    buckets: Names = NOTHING

    @property
    def is_free(self) -> bool:
        """Whether it may speak for every zone, to every zone, about every bucket."""
        return self.asserts.is_all and self.targets.is_all and self.buckets.is_all

    def allows_operation(self, name: str) -> bool:
        """Whether it may call this operation at all."""
        return name in self.operations

    def may_assert(self, zone: str) -> bool:
        """Whether it may append facts that come from this zone."""
        return zone in self.asserts

    def may_target(self, zone: str) -> bool:
        """Whether it may append facts that are meant for this zone."""
        return zone in self.targets

    def may_read(self, log: str) -> bool:
        """Whether it may see the facts of this log."""
        return log in self.logs

    def may_consume(self, consumer: str) -> bool:
        """Whether it may use a consumer of this name."""
        return consumer in self.consumers

    def may_use_bucket(self, bucket: str) -> bool:
        """Whether it may put objects into this bucket, and get every one of them."""
        return bucket in self.buckets


@dataclass(frozen=True, slots=True)
class Policy:
    """Permits by identity."""

    identities: Mapping[str, Permit] = field(default_factory=dict)
    anonymous: Permit | None = None
    """For callers without a certificate, whom only an insecure node has."""
    others: Permit | None = None

    def permit(self, identity: str) -> Permit | None:
        """What this identity may do; ``None`` when it is not known here."""
        if not identity:
            return self.anonymous
        return self.identities.get(identity, self.others)

    @classmethod
    def open(cls) -> Policy:
        """Everybody may do everything: for an insecure node on a loopback address."""
        permit = _everything("")
        return cls(anonymous=permit, others=permit)

    @classmethod
    def default(cls, zone: str, peers: Iterable[str]) -> Policy:
        """The zone itself may do everything, its peers may pull from it, nobody else anything."""
        permits = {peer: _puller(peer) for peer in peers}
        return cls(permits | {zone: _everything(zone)})


def _everything(identity: str) -> Permit:
    every = EVERYTHING
    return Permit(identity, frozenset(OPERATIONS), every, every, every, every, every)


def _puller(peer: str) -> Permit:
    return Permit(
        peer,
        frozenset(GROUPS["pull"]),
        asserts=Names({peer}),  # in what this zone pulls from it
        logs=Names({"outbound"}),
        consumers=Names({f"zone:{peer}"}),  # which opens what the facts in it refer to
    )
