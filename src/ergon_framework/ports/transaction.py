"""The transaction: the unit of work that travels through every part (RFC-001).

An immutable envelope of identity, metadata and payload. The payload is the user's; the framework
never looks into it, never validates it and never prints it.
"""

from __future__ import annotations

import copy
import uuid
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, NoReturn, Self

from ergon_framework.errors import EnvelopeError, FrozenError

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    # A bare Transaction is a Transaction[Any]: Python itself knows defaults only since 3.13.
    T_co = TypeVar("T_co", covariant=True, default=Any)
    T = TypeVar("T")
else:
    from typing import TypeVar

    T_co = TypeVar("T_co", covariant=True)
    T = TypeVar("T")

FIELDS = (
    "transaction_id",
    "payload",
    "metadata",
    "correlation_id",
    "trace_id",
    "created_at",
    "source",
    "parent_id",
)
_NO_METADATA: Mapping[str, Any] = MappingProxyType({})

CURRENT: ContextVar[Any] = ContextVar("ergon_attempt", default=None)
"""The attempt this code runs in: an ``Attempt`` of ``ports.context``, None, or the tuple from which
one is built on demand (call, run, phase, number, ticket). The happy path builds none.
"""
_set = object.__setattr__


def setter_of(kind: type, name: str) -> Callable[[object, Any], None]:
    """What sets a slot of a class whose instances are frozen for everybody else."""
    setter: Callable[[object, Any], None] = kind.__dict__[name].__set__
    return setter


class Transaction(Generic[T_co]):
    """One unit of work. Two transactions are equal when all their fields are.

    ``Transaction[Order]`` has a payload of that type, for a type checker; a consumer function with
    that annotation gets the payload converted to it.
    ``id`` is accepted and readable as another name of ``transaction_id``. A transformation makes a
    new transaction with a new id: see :meth:`derive`.
    """

    __slots__ = (*FIELDS, "__weakref__")

    transaction_id: str
    payload: T_co
    metadata: Mapping[str, Any]
    correlation_id: str | None
    trace_id: str | None
    created_at: datetime
    source: str | None
    parent_id: str | None

    def __init__(
        self,
        transaction_id: str | None = None,
        payload: Any = None,
        metadata: Mapping[str, Any] | None = None,
        *,
        id: str | None = None,
        correlation_id: str | None = None,
        trace_id: str | None = None,
        created_at: datetime | None = None,
        source: str | None = None,
        parent_id: str | None = None,
    ) -> None:
        # Written out for what is usual: each message of each source comes through here.
        if id is not None or type(transaction_id) is not str or not transaction_id:
            transaction_id = _one_id(transaction_id, id)
        _set(self, "transaction_id", transaction_id)
        _set(self, "payload", payload)
        _set(self, "metadata", _NO_METADATA if metadata is None else _frozen(metadata))
        _set(self, "correlation_id", _text("correlation_id", correlation_id))
        _set(self, "trace_id", _text("trace_id", trace_id))
        _set(self, "created_at", datetime.now(UTC) if created_at is None else _utc(created_at))
        _set(self, "source", _text("source", source))
        _set(self, "parent_id", _text("parent_id", parent_id))

    @classmethod
    def from_message(
        cls, transaction_id: str, payload: Any, source: str | None, created_at: datetime
    ) -> Self:
        """An envelope around a message that says nothing but its payload.

        Nothing is checked: the connector that received it gives what it has made itself. Written
        out, for each such message comes through here.
        """
        made = object.__new__(cls)
        _set_id(made, transaction_id)
        _set_payload(made, payload)
        _set_metadata(made, _NO_METADATA)
        _set_correlation_id(made, None)
        _set_trace_id(made, None)
        _set_created_at(made, created_at)
        _set_source(made, source)
        _set_parent_id(made, None)
        return made

    @property
    def id(self) -> str:
        """The same as ``transaction_id``."""
        return self.transaction_id

    @property
    def attempt_count(self) -> int:
        """How often the current phase was attempted, this attempt included; 0 when not running.

        Kept by the engine, not in the envelope, so that every retry starts from identical state.
        """
        current = CURRENT.get()
        if current is None:
            return 0
        is_plain = type(current) is tuple
        run, number = (current[1], current[3]) if is_plain else (current.run, current.number)
        is_mine = run is not None and run.transaction.transaction_id == self.transaction_id
        return int(number) + 1 if is_mine else 0

    def derive(self, payload: Any = None, **changes: Any) -> Transaction:
        """A new transaction caused by this one: new id, parent and correlation carried over."""
        unknown = set(changes) - set(FIELDS) - {"id"}
        if unknown:
            raise EnvelopeError(
                f"derive() got an unknown field {min(unknown)!r}",
                remedy=f"known fields are {', '.join(FIELDS)}",
            )
        if "id" not in changes:
            changes.setdefault("transaction_id", new_id())
        changes.setdefault("parent_id", self.transaction_id)
        changes.setdefault("correlation_id", self.correlation_id or self.transaction_id)
        changes.setdefault("trace_id", self.trace_id)
        return Transaction(payload=payload, **changes)

    def with_payload_copy(self) -> Transaction[T_co]:
        """A copy with a deep copy of the payload, so that attempts share nothing."""
        values = {name: getattr(self, name) for name in FIELDS}
        values["payload"] = copy.deepcopy(self.payload)
        return Transaction(**values)

    def with_payload(self, payload: T) -> Transaction[T]:
        """A copy with another payload. Written out for speed, as each attempt may need one."""
        made: Transaction[T] = object.__new__(Transaction)
        _set(made, "transaction_id", self.transaction_id)
        _set(made, "payload", payload)
        _set(made, "metadata", self.metadata)
        _set(made, "correlation_id", self.correlation_id)
        _set(made, "trace_id", self.trace_id)
        _set(made, "created_at", self.created_at)
        _set(made, "source", self.source)
        _set(made, "parent_id", self.parent_id)
        return made

    def with_trace(self, metadata: dict[str, Any], trace_id: str) -> Transaction[T_co]:
        """The same envelope in another trace. The metadata is taken over, not copied or checked.

        Written out, for each attempt of each producer comes through here.
        """
        made: Transaction[T_co] = object.__new__(Transaction)
        _set(made, "transaction_id", self.transaction_id)
        _set(made, "payload", self.payload)
        _set(made, "metadata", MappingProxyType(metadata))
        _set(made, "correlation_id", self.correlation_id)
        _set(made, "trace_id", trace_id)
        _set(made, "created_at", self.created_at)
        _set(made, "source", self.source)
        _set(made, "parent_id", self.parent_id)
        return made

    def to_dict(self) -> dict[str, Any]:
        """The envelope as plain values, ``created_at`` as RFC 3339 text, without unset fields."""
        document: dict[str, Any] = {"transaction_id": self.transaction_id, "payload": self.payload}
        if self.metadata:
            document["metadata"] = dict(self.metadata)
        for name in ("correlation_id", "trace_id", "source", "parent_id"):
            value = getattr(self, name)
            if value is not None:
                document[name] = value
        document["created_at"] = self.created_at.isoformat()
        return document

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Transaction:
        """The inverse of :meth:`to_dict`. Fields a later version may add are ignored."""
        if not isinstance(document, Mapping):
            raise EnvelopeError(
                f"a transaction must be an object, not {type(document).__name__}",
                remedy='for example {"transaction_id": "t1", "payload": {}}',
            )
        known = {name: document[name] for name in (*FIELDS, "id") if name in document}
        created = known.get("created_at")
        if isinstance(created, str):
            try:
                known["created_at"] = datetime.fromisoformat(created)
            except ValueError as error:
                raise EnvelopeError(
                    f"created_at is not an RFC 3339 instant: {created!r}",
                    remedy="for example 2026-01-31T12:00:00+00:00",
                ) from error
        metadata = known.get("metadata")
        if metadata is not None and not isinstance(metadata, Mapping):
            raise EnvelopeError(f"metadata must be an object, not {type(metadata).__name__}")
        return cls(**known)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise FrozenError(
            f"a Transaction is immutable: cannot set {name!r}",
            remedy="make a new one with transaction.derive(...)",
        )

    def __delattr__(self, name: str) -> NoReturn:
        raise FrozenError(f"a Transaction is immutable: cannot delete {name!r}")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Transaction):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in FIELDS)

    def __hash__(self) -> int:
        return hash(self.transaction_id)

    def __repr__(self) -> str:
        # The payload and the metadata stay out: a repr ends up in logs.
        source = f", source={self.source!r}" if self.source else ""
        return f"Transaction({self.transaction_id!r}{source})"

    def __reduce__(self) -> tuple[Any, ...]:
        values = {name: getattr(self, name) for name in FIELDS}
        values["metadata"] = dict(self.metadata)
        return (_restore, (type(self), values))


# As slots know them, which takes two thirds of the time of ``object.__setattr__``.
_set_id, _set_payload, _set_metadata, _set_correlation_id, *_rest = (
    setter_of(Transaction, name) for name in FIELDS
)
_set_trace_id, _set_created_at, _set_source, _set_parent_id = _rest


def new_id() -> str:
    """A fresh transaction id: a random UUID as text."""
    return str(uuid.uuid4())


def _restore(kind: type[Transaction], values: dict[str, Any]) -> Transaction:
    return kind(**values)


def _one_id(transaction_id: object, alias: object) -> str:
    if transaction_id is not None and alias is not None and transaction_id != alias:
        raise EnvelopeError(
            "transaction_id and id contradict each other",
            remedy="give one of the two; the payload is the second argument",
        )
    value = alias if transaction_id is None else transaction_id
    if not isinstance(value, str) or not value:
        # The value itself stays out: a payload may stand in the wrong place.
        found = "an empty one" if value == "" else type(value).__name__
        raise EnvelopeError(
            f"transaction_id must be a non-empty string, not {found}",
            remedy="give the stable id of the unit of work, or str(uuid.uuid4())",
        )
    return value


def _text(field: str, value: object) -> str | None:
    if value is None or isinstance(value, str):
        return value
    raise EnvelopeError(f"{field} must be a string or None, not {type(value).__name__}")


def _frozen(metadata: object) -> Mapping[str, Any]:
    if not isinstance(metadata, Mapping):
        raise EnvelopeError(f"metadata must be a mapping, not {type(metadata).__name__}")
    return MappingProxyType(dict(metadata))


def _utc(instant: object) -> datetime:
    if not isinstance(instant, datetime):
        raise EnvelopeError(f"created_at must be a datetime, not {type(instant).__name__}")
    if instant.tzinfo is None:
        raise EnvelopeError("created_at has no time zone", remedy="use datetime.now(timezone.utc)")
    try:
        return instant.astimezone(UTC)
    except OverflowError as error:
        raise EnvelopeError("created_at is outside of the years 1 to 9999") from error
