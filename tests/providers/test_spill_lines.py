"""Lines of a spill file: what was written comes back, and what was changed is noticed."""

from __future__ import annotations

import json
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ergon_framework.ports.providerstore import AttemptRow, RecordBatch
from ergon_framework.providers.spill import batch_of, line_of
from tests.providers.recorder_fakes import letter, row

TEXT = st.text(st.characters(exclude_categories=()), max_size=20)  # lone surrogates too
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
ROWS = st.builds(
    AttemptRow,
    id=TEXT,
    tenant_id=TEXT,
    task_execution_id=st.none() | TEXT,
    provider_name=TEXT,
    capability=TEXT,
    operation=TEXT,
    idempotency_key=st.none() | TEXT,
    correlation_id=TEXT,
    attempt_number=st.integers(0, 9),
    max_attempts=st.integers(1, 9),
    duration_ms=st.integers(0),
    timeout_budget_ms=st.none() | st.integers(0),
    outcome=st.sampled_from(["success", "retry", "failed", "dead_letter"]),
    reason_code=st.none() | TEXT,
    retryable=st.booleans(),
    http_status=st.none() | st.integers(100, 599),
    created_at=st.floats(0, 4e9),
    campaign_id=st.none() | TEXT,
)


@pytest.mark.req("PROVIDERS:storage")
@given(st.lists(ROWS, max_size=3), st.lists(st.dictionaries(TEXT, JSON, max_size=3), max_size=2))
def test_a_batch_comes_back_as_it_was(attempts: list[AttemptRow], payloads: list[Any]) -> None:
    """Every field, whatever text it holds, on one line of printable ASCII."""
    batch = RecordBatch(attempts, [letter(f"d{n}", payload) for n, payload in enumerate(payloads)])
    line = line_of(batch)
    assert batch_of(line) == batch
    assert line.isascii()
    assert line.count(b"\n") == 1


@given(st.data())
def test_any_change_is_noticed(data: st.DataObject) -> None:
    """One byte that is another, or an end that is missing: never taken for something else."""
    batch = RecordBatch([row("r1")], [letter(payload={"a": 1})])
    line = line_of(batch)
    at = data.draw(st.integers(0, len(line) - 2))
    other = data.draw(st.integers(0, 255).filter(lambda byte: byte != line[at]))
    with pytest.raises(ValueError, match="checksum"):
        batch_of(line[:at] + bytes([other]) + line[at + 1 :])
    with pytest.raises(ValueError, match="checksum"):
        batch_of(line[:at])


def test_it_is_plain_json() -> None:
    """Anybody can read it, and count on the names of the fields."""
    document = json.loads(line_of(RecordBatch([row("r1")], [letter("d1")])))
    assert document["attempts"][0]["id"] == "r1"
    assert document["letters"][0]["dead_letter_id"] == "d1"


def signed(text: str) -> bytes:
    """A line of some other version, with a right checksum."""
    return b'{"sum":"%08x",' % zlib.crc32(text.encode()) + text.encode() + b"\n"


def test_a_later_version_may_have_added_fields() -> None:
    """What this one has no place for is left out."""
    added = row("r1")._asdict() | {"colour": "red"}
    text = json.dumps({"attempts": [added], "letters": [], "more": 1})[1:]
    assert batch_of(signed(text)) == RecordBatch([row("r1")])


@pytest.mark.parametrize(
    "text", ['"attempts":[]}', '"attempts":[{"id":"x"}],"letters":[]}', '"attempts":3,"letters":4}']
)
def test_a_version_that_cannot_be_read(text: str) -> None:
    """A right checksum over something else is not a batch either."""
    with pytest.raises(ValueError, match="version"):
        batch_of(signed(text))
