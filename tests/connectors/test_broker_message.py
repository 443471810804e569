"""A transaction as a message, and back."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ergon_framework.connector.broker.message import (
    BrokerMessage,
    MalformedMessageError,
    MessageCodec,
    reason_of,
    with_reason,
)
from ergon_framework.errors import ConfigurationError, EnvelopeError, PayloadError
from ergon_framework.ports.transaction import Transaction

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def there_and_back(transaction: Transaction, codec: MessageCodec | None = None) -> Transaction:
    """What a consumer gets of it."""
    codec = codec or MessageCodec()
    message = codec.encode(transaction, {})
    return codec.decode(Transaction, message.body, message.headers, fallback_id="another")


@given(
    st.text(min_size=1),
    JSON,
    st.dictionaries(st.sampled_from(["tenant", "ünï", "n"]), JSON, max_size=3),
    st.text(min_size=1) | st.none(),
)
def test_every_envelope_comes_back_equal(
    identity: str, payload: Any, metadata: dict[str, Any], text: str | None
) -> None:
    """Whatever characters it holds, and every header is visible ASCII."""
    sent = Transaction(
        identity, payload, metadata, correlation_id=text, parent_id=text, source=text, trace_id=text
    )
    try:
        message = MessageCodec().encode(sent, {})
    except PayloadError:
        return  # half of a character, say
    assert there_and_back(sent) == sent
    for value in message.headers.values():
        assert value.isascii()
        assert value.isprintable()
        assert value == value.strip() != ""


def test_the_payload_is_the_body() -> None:
    """Programs that know nothing of Ergon read plain JSON, and what kind of text it is."""
    message = MessageCodec().encode(Transaction("t1", {"amount": 5}), {})
    assert json.loads(message.body) == {"amount": 5}
    assert message.headers["content-type"] == "application/json"


def test_the_trace_travels_both_ways() -> None:
    """The W3C headers of a transaction are headers of the message, and no second copy is sent."""
    sent = Transaction("t1", 1, {"traceparent": PARENT, "tracestate": "a=b"}, trace_id=TRACE)
    message = MessageCodec().encode(sent, {})
    assert message.headers["traceparent"] == PARENT
    assert message.headers["tracestate"] == "a=b"
    assert "ergon-metadata" not in message.headers
    assert there_and_back(sent) == sent


def test_a_bare_trace_id_becomes_a_traceparent() -> None:
    """Other programs read the W3C header, and the consumer gets the id back."""
    sent = Transaction("t1", 1, trace_id=TRACE)
    assert MessageCodec().encode(sent, {}).headers["traceparent"].startswith(f"00-{TRACE}-")
    assert there_and_back(sent).trace_id == TRACE


def test_what_carries_no_trace_gets_that_of_the_sender() -> None:
    """A transaction with a trace of its own keeps it."""
    carrier = {"traceparent": PARENT}
    assert MessageCodec().encode(Transaction("t1"), carrier).headers["traceparent"] == PARENT
    other = Transaction("t1", trace_id="1" * 32)
    assert "1" * 32 in MessageCodec().encode(other, carrier).headers["traceparent"]


def test_a_message_of_another_program_is_a_transaction() -> None:
    """Its body is the payload, the id of the broker its id, and its headers are in the metadata."""
    codec = MessageCodec(source="orders")
    got = codec.decode(Transaction, b'{"n": 1}', {"x-shop": "berlin"}, fallback_id="orders:17")
    assert (got.transaction_id, got.payload, got.source) == ("orders:17", {"n": 1}, "orders")
    assert got.metadata == {"headers": {"x-shop": "berlin"}}
    assert there_and_back(got).metadata == got.metadata


def test_names_of_headers_may_be_written_otherwise() -> None:
    """Some brokers and libraries change the case of names."""
    got = MessageCodec().decode(
        Transaction, b"1", {"Ergon-Transaction-Id": "t1", "Traceparent": PARENT}, fallback_id="x"
    )
    assert (got.transaction_id, got.trace_id) == ("t1", TRACE)


@pytest.mark.parametrize(
    "headers",
    [
        {"x": 1},
        {"x": "two\nlines"},
        {"x": "ü"},
        {"x": ""},
        {"x": " y"},
        {"a b": "x"},
        {"traceparent": "x"},
        {"ergon-transaction-id": "x"},
    ],
)
def test_a_header_that_some_broker_would_refuse_is_refused(headers: dict[str, Any]) -> None:
    """Before anything is sent, with the transaction that has it."""
    with pytest.raises(PayloadError, match="t1"):
        MessageCodec().encode(Transaction("t1", 1, {"headers": headers}), {})


@pytest.mark.parametrize("payload", [(1, 2), {"at": datetime.now(UTC)}, b"x", float("nan"), {1: 2}])
def test_what_would_not_come_back_equal_is_refused(payload: Any) -> None:
    """By its path, and without its value."""
    with pytest.raises(PayloadError, match="payload"):
        MessageCodec().encode(Transaction("t1", payload), {})
    with pytest.raises(PayloadError, match="metadata"):
        MessageCodec().encode(Transaction("t1", 1, {"inner": payload}), {})


@pytest.mark.parametrize(
    ("name", "payload", "body"),
    [("text", "grün\n", "grün\n".encode()), ("bytes", b"\xff", b"\xff")],
)
def test_bodies_of_other_formats(name: str, payload: Any, body: bytes) -> None:
    """Text and bytes are sent as they are, and nothing else is taken."""
    codec = MessageCodec(name)
    assert codec.encode(Transaction("t1", payload), {}).body == body
    assert there_and_back(Transaction("t1", payload), codec).payload == payload
    with pytest.raises(PayloadError, match="t1"):
        codec.encode(Transaction("t1", {"n": 1}), {})


def test_bounds_hold_in_both_directions() -> None:
    """Too large a transaction is not sent, and too large a message is malformed."""
    codec = MessageCodec(max_message_bytes=300)
    with pytest.raises(PayloadError, match="max_message_bytes"):
        codec.encode(Transaction("t1", "x" * 300), {})
    with pytest.raises(MalformedMessageError, match="max_message_bytes"):
        codec.decode(Transaction, b'"' + b"x" * 300 + b'"', {}, fallback_id="m1")


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (b"{", {}),
        (b"\xff", {}),
        (b"[" * 100_000, {}),
        (b"1", {"ergon-created-at": "yesterday"}),
        (b"1", {"ergon-created-at": "2026-01-01T00:00:00"}),
        (b"1", {"ergon-metadata": "[1]"}),
        (b"1", {"ergon-metadata": "{"}),
    ],
)
def test_what_is_no_transaction_is_malformed(body: bytes, headers: dict[str, str]) -> None:
    """One error for all of it, so that a connector can set it aside."""
    with pytest.raises(MalformedMessageError):
        MessageCodec().decode(Transaction, body, headers, fallback_id="m1")


def test_a_reason_travels_as_a_header() -> None:
    """Whatever is in it, and a bounded part of it."""
    headers = with_reason({"x": "y"}, "größer als\n1 kg")
    assert headers["ergon-reason"].isascii()
    assert (reason_of(headers), headers["x"]) == ("größer als\n1 kg", "y")
    assert len(reason_of(with_reason({}, "x" * 5000))) == 1000


def test_mistakes_are_told() -> None:
    """Of the options, and of what is dispatched."""
    with pytest.raises(ConfigurationError, match="json, text or bytes"):
        MessageCodec("xml")
    with pytest.raises(ConfigurationError, match="at least 1"):
        MessageCodec(max_message_bytes=0)
    with pytest.raises(EnvelopeError, match="dict"):
        MessageCodec().encode_all([{"transaction_id": "t1"}])


def test_a_message_shows_nothing_of_what_is_in_it() -> None:
    """A repr ends up in logs."""
    assert "secret" not in repr(BrokerMessage(b"secret", {"x": "secret"}))
