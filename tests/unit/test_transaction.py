from __future__ import annotations

import copy
import json
import pickle
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ergon_framework.connector
from ergon_framework.connector.transaction import Transaction
from ergon_framework.errors import EnvelopeError
from ergon_framework.ports import transaction as port

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)
instants = st.datetimes(
    datetime(1900, 1, 1),  # noqa: DTZ001 - the strategy adds the zone
    datetime(2200, 1, 1),  # noqa: DTZ001
    timezones=st.integers(-720, 720).map(lambda minutes: timezone(timedelta(minutes=minutes))),
)
texts = st.none() | st.text(max_size=8)
transactions: st.SearchStrategy[Transaction] = st.builds(
    Transaction,
    st.text(min_size=1, max_size=12),
    json_values,
    st.dictionaries(st.text(max_size=4), json_values, max_size=3),
    correlation_id=texts,
    trace_id=texts,
    created_at=instants,
    source=texts,
    parent_id=texts,
)


@pytest.mark.req("R1-ID1")
def test_both_paths_lead_to_the_same_class() -> None:
    """The RFC's path, the package and the port name one class."""
    assert Transaction is port.Transaction is ergon_framework.connector.Transaction


@pytest.mark.req("R1-ID1")
def test_the_id_has_two_names() -> None:
    """``id`` is accepted and readable as another name of ``transaction_id``."""
    for transaction in (Transaction("t1"), Transaction(id="t1"), Transaction("t1", id="t1")):
        assert (transaction.transaction_id, transaction.id) == ("t1", "t1")


@pytest.mark.req("R1-ID1")
@pytest.mark.parametrize("bad", [None, "", 5, b"t1", ["t1"]])
def test_an_id_must_be_text(bad: Any) -> None:
    """A missing, empty or non-text id is refused with the field and a remedy."""
    with pytest.raises(EnvelopeError, match="transaction_id") as caught:
        Transaction(bad)
    assert caught.value.remedy


@pytest.mark.req("R1-ID1")
def test_contradicting_ids_are_refused() -> None:
    """Two different ids in one call are a mistake."""
    with pytest.raises(EnvelopeError, match="contradict"):
        Transaction("t1", id="t2")


@pytest.mark.req("R0-SEC")
def test_a_payload_in_the_wrong_place_is_not_shown() -> None:
    """A payload given where the id belongs does not end up in the error's text."""
    for alias in (None, "t1"):
        with pytest.raises(EnvelopeError) as caught:
            Transaction({"card": "4111"}, id=alias)  # type: ignore[arg-type]
        assert "4111" not in str(caught.value)


@pytest.mark.req("R1-IM1", "R0-X")
@pytest.mark.parametrize("name", [*port.FIELDS, "id", "attempt_count", "anything"])
def test_an_envelope_cannot_be_changed(name: str) -> None:
    """Setting or deleting any attribute is refused and says what to do instead."""
    transaction = Transaction("t1")
    with pytest.raises(EnvelopeError, match="immutable") as caught:
        setattr(transaction, name, "x")
    assert "derive" in str(caught.value)
    with pytest.raises(EnvelopeError, match="immutable"):
        delattr(transaction, name)
    assert transaction.id == "t1"


@pytest.mark.req("R1-IM1", "T3.28")
def test_metadata_is_read_only_and_a_copy() -> None:
    """Neither the holder nor the maker of the dict can change metadata later."""
    given_metadata = {"queue": "q1"}
    transaction = Transaction("t1", metadata=given_metadata)
    given_metadata["queue"] = "q2"
    with pytest.raises(TypeError):
        transaction.metadata["queue"] = "q3"  # type: ignore[index]
    assert transaction.metadata == {"queue": "q1"}


@pytest.mark.req("R1-P1", "R1-P3")
def test_the_payload_is_the_users() -> None:
    """Any object is carried as it is: not copied, not checked, not converted."""
    payload = object()
    assert Transaction("t1", payload).payload is payload


@pytest.mark.req("R1-IM2", "R1-ID3", "R1-CX1")
def test_a_derived_transaction_is_a_new_one() -> None:
    """It has a new id, names its parent, and keeps the flow and the trace."""
    parent = Transaction("t1", {"a": 1}, correlation_id="flow", trace_id="trace")
    child = parent.derive({"b": 2})
    assert child.id != parent.id
    assert (child.parent_id, child.correlation_id, child.trace_id) == ("t1", "flow", "trace")
    assert (parent.payload, child.payload) == ({"a": 1}, {"b": 2})
    assert Transaction("t9").derive().correlation_id == "t9"
    assert parent.derive(id="own").id == "own"


@pytest.mark.req("R1-IM2")
def test_deriving_knows_its_fields() -> None:
    """A misspelt field is refused and the known ones are named."""
    with pytest.raises(EnvelopeError, match="sauce") as caught:
        Transaction("t1").derive(sauce="x")
    assert "source" in str(caught.value)


@pytest.mark.req("R1-ID1")
def test_new_ids_are_unique() -> None:
    """Ids we make do not repeat."""
    assert len({port.new_id() for _ in range(1000)}) == 1000


@pytest.mark.req("R1-S1")
@settings(max_examples=50)
@given(transactions)
def test_an_envelope_survives_json(transaction: Transaction) -> None:
    """Through JSON text and back nothing is lost."""
    text = json.dumps(transaction.to_dict())
    assert Transaction.from_dict(json.loads(text)) == transaction


@pytest.mark.req("R1-S1")
@settings(max_examples=50)
@given(transactions)
def test_an_envelope_survives_pickle_and_copy(transaction: Transaction) -> None:
    """Processes may hand transactions to each other."""
    again = pickle.loads(pickle.dumps(transaction))  # noqa: S301 - our own bytes
    assert again == transaction == copy.deepcopy(transaction) == copy.copy(transaction)
    assert hash(again) == hash(transaction)


def test_fields_of_a_later_version_are_ignored() -> None:
    """An envelope written by a newer version can still be read."""
    assert Transaction.from_dict({"transaction_id": "t1", "colour": "red"}).id == "t1"


@pytest.mark.req("R1-S1")
@pytest.mark.parametrize(
    ("shape", "named"),
    [
        (["t1"], "object"),
        ({}, "transaction_id"),
        ({"transaction_id": "t1", "created_at": "yesterday"}, "created_at"),
        ({"transaction_id": "t1", "created_at": "2026-01-01T00:00:00"}, "time zone"),
        ({"transaction_id": "t1", "created_at": "0001-01-01T00:00:00+23:00"}, "created_at"),
        ({"transaction_id": "t1", "created_at": 5}, "created_at"),
        ({"transaction_id": "t1", "metadata": []}, "metadata"),
        ({"transaction_id": "t1", "metadata": 0}, "metadata"),
        ({"transaction_id": "t1", "source": 5}, "source"),
        ({"transaction_id": "t1", "parent_id": {}}, "parent_id"),
    ],
)
def test_a_broken_envelope_names_its_field(shape: Any, named: str) -> None:
    """What cannot be read is refused with the field that is wrong."""
    with pytest.raises(EnvelopeError, match=named):
        Transaction.from_dict(shape)


@pytest.mark.parametrize("bad", [[], "", 0, 5, "a"])
def test_metadata_must_be_a_mapping(bad: Any) -> None:
    """Something else, empty or not, is a mistake and not an empty mapping."""
    with pytest.raises(EnvelopeError, match="metadata"):
        Transaction("t1", metadata=bad)


@pytest.mark.req("R1-ID1")
@given(instants)
def test_the_instant_is_kept_in_utc(instant: datetime) -> None:
    """A given instant is the same instant afterwards, told in UTC."""
    created_at = Transaction("t1", created_at=instant).created_at
    assert created_at == instant
    assert created_at.tzinfo is UTC


def test_the_instant_is_set_when_it_is_not_given() -> None:
    """Creation time is required by the RFC, so it is never missing."""
    before = datetime.now(UTC)
    assert before <= Transaction("t1").created_at <= datetime.now(UTC)


@pytest.mark.req("R0-SEC")
def test_a_repr_shows_no_content() -> None:
    """Payload and metadata stay out of what ends up in logs."""
    text = repr(Transaction("t1", {"card": "4111"}, {"token": "hunter2"}, source="orders"))
    assert text == "Transaction('t1', source='orders')"


def test_equality_is_of_all_fields() -> None:
    """Two envelopes with one id and different contents are not equal, nor is anything else."""
    at = datetime(2026, 1, 31, tzinfo=UTC)
    first = Transaction("t1", 1, created_at=at)
    assert first == Transaction("t1", 1, created_at=at)
    assert first != Transaction("t1", 2, created_at=at)
    assert first != "t1"
    assert len({first, Transaction("t1", 1, created_at=at)}) == 1


def test_outside_of_a_lifecycle_nothing_was_attempted() -> None:
    """The count of attempts belongs to the engine; at rest it is zero."""
    assert Transaction("t1").attempt_count == 0
