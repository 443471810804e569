"""A transaction as the body and the headers of a message, and back: the same for every broker.

The body is the payload, so that programs which know nothing of Ergon can read and write it. The
envelope travels in text headers. Their values are visible ASCII, percent-encoded where they are
not, and never empty: every broker takes such headers and changes nothing about them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, TypeVar
from urllib.parse import quote, unquote

import msgspec

from ergon_framework.connector.broker import lossless_json
from ergon_framework.connector.broker.lossless_json import BAD_JSON
from ergon_framework.errors import (
    ConfigurationError,
    ConnectorError,
    EnvelopeError,
    PayloadError,
    describe,
)
from ergon_framework.ports.transaction import Transaction
from ergon_framework.telemetry.propagation import outgoing_metadata

TRANSACTION_ID = "ergon-transaction-id"
CORRELATION_ID = "ergon-correlation-id"
PARENT_ID = "ergon-parent-id"
CREATED_AT = "ergon-created-at"
SOURCE = "ergon-source"
TRACE_ID = "ergon-trace-id"
METADATA = "ergon-metadata"
REASON = "ergon-reason"
TRACEPARENT = "traceparent"
TRACESTATE = "tracestate"
CONTENT_TYPE = "content-type"
OWN = frozenset(
    {TRANSACTION_ID, CORRELATION_ID, PARENT_ID, CREATED_AT, SOURCE, TRACE_ID, METADATA, REASON}
    | {TRACEPARENT, TRACESTATE, CONTENT_TYPE}
)
HEADERS = "headers"
"""The key in the metadata under which headers of other programs stand, both ways."""
MAX_MESSAGE_BYTES = 16 * 1024 * 1024
MAX_REASON = 1000
_SAFE = "!\"#$&'()*+,-./:;<=>?@[\\]^_`{|}~"
_PLAIN = re.compile(r"[!-$&-~]+")
_TRACE_ID = re.compile(r"[0-9a-f]{32}")
_NAME = re.compile(r"[A-Za-z0-9_.-]+")


class MalformedMessageError(ConnectorError):
    """A message cannot be read as a transaction, and is set aside."""

    code = "malformed_message"


class MessageFormat(StrEnum):
    """What the body of a message is."""

    JSON = "json"
    TEXT = "text"
    BYTES = "bytes"


_JSON = MessageFormat.JSON

_CONTENT_TYPES = {
    MessageFormat.JSON: "application/json",
    MessageFormat.TEXT: "text/plain; charset=utf-8",
    MessageFormat.BYTES: "application/octet-stream",
}


@dataclass(frozen=True, slots=True)
class BrokerMessage:
    """What is sent."""

    body: bytes = field(repr=False)
    headers: dict[str, str] = field(repr=False)

    @property
    def size(self) -> int:
        """Its bytes, headers included."""
        return len(self.body) + sum(len(k) + len(v) for k, v in self.headers.items())


_T = TypeVar("_T", bound=Transaction)


class MessageCodec:
    """How one connector writes and reads messages."""

    def __init__(
        self,
        message_format: str = MessageFormat.JSON,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        source: str | None = None,
    ) -> None:
        try:
            self._format = MessageFormat(message_format)
        except ValueError:
            raise ConfigurationError(
                "format is json, text or bytes", remedy="leave it out for json"
            ) from None
        if max_message_bytes < 1:
            raise ConfigurationError(
                f"max_message_bytes must be at least 1, not {max_message_bytes!r}"
            )
        self._max_bytes = max_message_bytes
        self._source = source
        self._content_type = _CONTENT_TYPES[self._format]
        self._read_json = msgspec.json.Decoder().decode if self._format is _JSON else None

    # ---- out ------------------------------------------------------------------------------------

    def encode_all(self, transactions: Any) -> list[BrokerMessage]:
        """The messages of all transactions. Raises :class:`PayloadError` for the first that cannot
        be sent.

        A transaction without a trace gets that of the code which sends it.
        """
        carrier = outgoing_metadata()
        return [self.encode(each, carrier) for each in transactions]

    def encode(self, transaction: Transaction, carrier: Mapping[str, str]) -> BrokerMessage:
        """The message of one transaction."""
        if not isinstance(transaction, Transaction):
            raise EnvelopeError(
                f"dispatch_transactions takes Transactions, not {type(transaction).__name__}",
                remedy="wrap the payload: Transaction(transaction_id=..., payload=...)",
            )
        message = BrokerMessage(self._body(transaction), self._headers(transaction, carrier))
        if message.size > self._max_bytes:
            raise PayloadError(
                f"transaction {transaction.transaction_id!r} is {message.size} bytes long as a"
                f" message; at most {self._max_bytes} are allowed",
                remedy="store the data elsewhere and send its address, or raise max_message_bytes",
                details={"transaction_id": transaction.transaction_id},
            )
        return message

    def _body(self, transaction: Transaction) -> bytes:
        payload, identity = transaction.payload, transaction.transaction_id
        if self._format is MessageFormat.JSON:
            return lossless_json.encode_value(identity, "payload", payload)
        try:
            if self._format is MessageFormat.BYTES and type(payload) is bytes:
                return payload
            if self._format is MessageFormat.TEXT and type(payload) is str:
                return payload.encode()
        except UnicodeEncodeError:
            pass  # text with half of a character
        raise PayloadError(
            f"transaction {identity!r} cannot be sent as {self._format.value}: its payload is of"
            f" type {type(payload).__name__}",
            remedy="convert the payload, or let the connector have format=json",
            details={"transaction_id": identity, "path": "payload"},
        )

    def _headers(self, transaction: Transaction, carrier: Mapping[str, str]) -> dict[str, str]:
        metadata = dict(transaction.metadata)
        headers = _foreign(transaction, metadata)
        headers.setdefault(CONTENT_TYPE, self._content_type)
        headers[TRANSACTION_ID] = encoded(transaction.transaction_id)
        headers[CREATED_AT] = transaction.created_at.isoformat()
        for name, value in (
            (CORRELATION_ID, transaction.correlation_id),
            (PARENT_ID, transaction.parent_id),
            (SOURCE, transaction.source),
        ):
            if value is not None:
                headers[name] = encoded(value)
        headers.update(_trace(transaction, metadata, carrier))
        if metadata:
            text = lossless_json.encode_value(transaction.transaction_id, "metadata", metadata)
            headers[METADATA] = encoded(text.decode())
        return headers

    # ---- and back -------------------------------------------------------------------------------

    def decode(
        self, kind: type[_T], body: bytes, headers: Mapping[str, str], *, fallback_id: str
    ) -> _T:
        """The transaction in a message; ``fallback_id`` names one that another program wrote.

        It is the stable id that the broker has for the message, never the tag of a delivery.
        """
        if not headers:
            return self.decode_bare(kind, body, fallback_id, datetime.now(UTC))
        self._refuse_large(body)
        own: dict[str, str] = {}
        foreign: dict[str, str] = {}
        for name, value in headers.items():
            lower = name.lower()
            if lower in OWN:
                own[lower] = value
            else:
                foreign[name] = value
        if own.get(CONTENT_TYPE, self._content_type) != self._content_type:
            foreign[CONTENT_TYPE] = own[CONTENT_TYPE]
        payload = self._payload(body)
        try:
            if not own:  # of another program
                about = {HEADERS: foreign} if foreign else None
                return kind(fallback_id, payload, about, source=self._source)
            return self._made(kind, payload, own, foreign, fallback_id)
        except (EnvelopeError, OverflowError, ValueError, *BAD_JSON) as error:
            raise MalformedMessageError(f"its headers: {describe(error)}") from error

    def decode_bare(
        self, kind: type[_T], body: bytes, transaction_id: str, received_at: datetime
    ) -> _T:
        """The transaction in a message without headers, as most other programs write them."""
        if self._read_json is None or len(body) > self._max_bytes:
            self._refuse_large(body)
            payload = self._payload(body)
        else:  # written out for what is usual: each such message comes through here
            try:
                payload = self._read_json(body)
            except BAD_JSON as error:
                raise MalformedMessageError(f"not json: {error}") from error
        return kind.from_message(transaction_id, payload, self._source, received_at)

    def _refuse_large(self, body: bytes) -> None:
        if len(body) > self._max_bytes:
            raise MalformedMessageError(
                f"a message of {len(body)} bytes; max_message_bytes is {self._max_bytes}"
            )

    def _payload(self, body: bytes) -> Any:
        if self._format is MessageFormat.BYTES:
            return bytes(body)
        try:
            return body.decode() if self._read_json is None else self._read_json(body)
        except BAD_JSON as error:
            raise MalformedMessageError(f"not {self._format.value}: {error}") from error

    def _made(
        self,
        kind: type[_T],
        payload: Any,
        own: Mapping[str, str],
        foreign: dict[str, str],
        fallback_id: str,
    ) -> _T:
        metadata: dict[str, Any] = {}
        if METADATA in own:
            metadata = msgspec.json.decode(unquote(own[METADATA]), type=dict[str, Any])
        traceparent = own.get(TRACEPARENT)
        trace_id = decoded(own.get(TRACE_ID)) or _trace_id(traceparent)
        if traceparent is not None:
            metadata[TRACEPARENT] = traceparent
            if TRACESTATE in own:
                metadata[TRACESTATE] = own[TRACESTATE]
        if foreign:
            metadata[HEADERS] = foreign
        created = own.get(CREATED_AT)
        source = decoded(own.get(SOURCE))
        return kind(
            decoded(own.get(TRANSACTION_ID)) or fallback_id,
            payload,
            metadata or None,
            correlation_id=decoded(own.get(CORRELATION_ID)),
            trace_id=trace_id,
            created_at=datetime.now(UTC) if created is None else datetime.fromisoformat(created),
            source=self._source if source is None else source,
            parent_id=decoded(own.get(PARENT_ID)),
        )


def with_reason(headers: Mapping[str, str], reason: str) -> dict[str, str]:
    """The headers of a message that is set aside: its own, and the reason."""
    return {**headers, REASON: encoded(reason[:MAX_REASON] or "unknown")}


def reason_of(headers: Mapping[str, str]) -> str:
    """Why a message was set aside."""
    return decoded(headers.get(REASON)) or ""


def encoded(text: str) -> str:
    """Any text as a header: visible ASCII, everything else percent-encoded."""
    if _PLAIN.fullmatch(text):
        return text
    try:
        return quote(text, safe=_SAFE)
    except UnicodeEncodeError:
        return quote(text.encode("utf-8", "backslashreplace"), safe=_SAFE)


def decoded(value: str | None) -> str | None:
    """The text in a header; None when it is not there or empty."""
    return unquote(value) if value else None


def _foreign(transaction: Transaction, metadata: dict[str, Any]) -> dict[str, str]:
    """The headers for other programs, taken out of the metadata."""
    given = metadata.get(HEADERS)
    if not isinstance(given, dict):
        return {}
    for name, value in given.items():
        problem = _problem_of(name, value)
        if problem:
            raise PayloadError(
                f"transaction {transaction.transaction_id!r} has a header that cannot be sent:"
                f" {problem}",
                remedy='metadata["headers"] maps names to texts of visible ASCII and spaces',
                details={"transaction_id": transaction.transaction_id, "path": "metadata.headers"},
            )
    del metadata[HEADERS]
    return dict(given)


def _problem_of(name: Any, value: Any) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name) or len(name) > 128:
        return "a name has letters, digits, dots, hyphens and underscores"
    if name.lower() in OWN - {CONTENT_TYPE}:
        return f"the name {name} is taken"
    if not isinstance(value, str) or not value.isprintable() or not value.isascii() or not value:
        return f"{name} is not a text of visible ASCII"
    return f"{name} begins or ends with a space" if value != value.strip() else ""


def _trace(
    transaction: Transaction, metadata: dict[str, Any], carrier: Mapping[str, str]
) -> dict[str, str]:
    """The headers of the trace, taken out of the metadata."""
    found: dict[str, str] = {}
    for name in (TRACEPARENT, TRACESTATE):
        value = metadata.get(name)
        if isinstance(value, str) and _PLAIN.fullmatch(value):
            found[name] = value
            del metadata[name]
    trace_id = transaction.trace_id
    if trace_id is None:
        return found if TRACEPARENT in found else {**carrier, **found}
    if TRACEPARENT not in found and _TRACE_ID.fullmatch(trace_id):
        # A trace id names no span: its low half stands in for one, as in telemetry.propagation.
        found[TRACEPARENT] = f"00-{trace_id}-{trace_id[16:]}-01"
    if _trace_id(found.get(TRACEPARENT)) != trace_id:
        found[TRACE_ID] = encoded(trace_id)
    return found


def _trace_id(header: str | None) -> str | None:
    parts = (header or "").split("-")
    return parts[1] if len(parts) >= 4 and _TRACE_ID.fullmatch(parts[1]) else None
