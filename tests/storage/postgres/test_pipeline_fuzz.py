"""Pipelines of statements, whatever is in them, answer as the driver does one by one."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ergon_framework.storage.postgres.pipeline import Pipeline

pytestmark = [pytest.mark.slow, pytest.mark.req("SCALE:jobs-postgres")]

FAILS = b"SELECT 1 / (length(%(value)s::text) * 0)"
_texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=10)
_statements = st.one_of(
    st.tuples(st.just(b"SELECT %(value)s::bigint"), st.integers(-(2**63), 2**63 - 1) | st.none()),
    st.tuples(st.just(b"SELECT %(value)s::text, %(value)s::text"), _texts | st.none()),
    st.tuples(st.just(b"SELECT %(value)s::bytea"), st.binary(max_size=10) | st.none()),
    st.tuples(st.just(b"SELECT %(value)s::boolean"), st.booleans() | st.none()),
    st.tuples(st.just(b"SELECT %(value)s::float8"), st.floats(allow_nan=False) | st.none()),
    st.tuples(st.just(b"SELECT generate_series(1, %(value)s::int)"), st.integers(0, 5)),
    st.tuples(st.just(FAILS), st.just("some")),
)
Statement = tuple[bytes, Any]


@given(statements=st.lists(_statements, max_size=8), synced=st.sets(st.integers(0, 7)))
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_a_pipeline_answers_as_single_statements_do(
    own_connection: psycopg.Connection[Any], statements: list[Statement], synced: set[int]
) -> None:
    """Up to the first that fails, which is the error of the whole; then the connection is as it
    was, and works.
    """
    expected: list[list[Any]] = []
    for text, value in statements:
        if text == FAILS:
            break
        expected.append(own_connection.execute(text, {"value": value}, binary=True).fetchall())
    has_failed = len(expected) < len(statements)
    heard: list[list[Any]] = []
    try:
        with Pipeline(own_connection) as pipeline:
            answers = []
            for number, (text, value) in enumerate(statements):
                answers.append(pipeline.execute(text, {"value": value}))
                if number in synced:
                    pipeline.sync()
            for answer in answers:
                heard.append(answer.fetchall())  # noqa: PERF401 - up to the one that fails
    except psycopg.errors.DivisionByZero:
        assert has_failed
    else:
        assert not has_failed
    assert heard == expected
    assert own_connection.execute("SELECT 1").fetchone() == (1,)


@pytest.fixture
def own_connection(postgres_url: str) -> Any:
    """One that nobody else uses."""
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        yield connection
