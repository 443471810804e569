"""Many statements in one packet, on a real server."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from ergon_framework.storage.postgres.pipeline import Pipeline, rows_changed
from ergon_framework.storage.postgres.pool import Connection

pytestmark = pytest.mark.req("SCALE:jobs-postgres")
ADD = b"INSERT INTO things (name) VALUES (%(name)s)"
ALL = b"SELECT name FROM things ORDER BY name"


@pytest.fixture
def connection(postgres_url: str) -> Iterator[Connection]:
    """A connection with a table of its own."""
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("CREATE TABLE things (name text PRIMARY KEY)")
        yield connection


def test_statements_are_executed_in_order(connection: Connection) -> None:
    """Each has its answer, also when it is read late or not at all."""
    with Pipeline(connection) as pipeline:
        before = pipeline.execute(ALL)
        added = [pipeline.execute(ADD, {"name": name}) for name in ("b", "a")]
        after = pipeline.execute(ALL)
    assert (before.fetchall(), after.fetchall()) == ([], [("a",), ("b",)])
    assert [each.rowcount for each in added] == [1, 1]


def test_a_transaction_may_read_in_the_middle(connection: Connection) -> None:
    """What was said before is done when an answer is read, and the transaction goes on."""
    with Pipeline(connection) as pipeline:
        pipeline.execute(b"BEGIN")
        pipeline.execute(ADD, {"name": "a"})
        assert pipeline.execute(ALL).fetchall() == [("a",)]
        pipeline.execute(ADD, {"name": "b"})
        pipeline.execute(b"ROLLBACK")
    assert connection.execute(ALL).fetchall() == []


def test_values_of_every_kind(connection: Connection) -> None:
    """Texts, bytes, numbers, truth values and nothing arrive as they are."""
    odd = "Ω \\ '\"\u2028%s {}"
    values = {"a": odd, "b": b"\x00\\x\xff", "c": 1.5e300, "d": -(2**62), "e": True, "f": None}
    statement = (
        b"SELECT %(a)s::text, %(b)s::bytea, %(c)s::float8, %(d)s::bigint, %(e)s::bool,"
        b" %(f)s::text, %(a)s::text"
    )
    with Pipeline(connection) as pipeline:
        answer = pipeline.execute(statement, values)
        assert answer.fetchall() == [(*values.values(), odd)]


def test_the_first_error_is_told(connection: Connection) -> None:
    """What follows an error is not done, and the connection can be used again."""
    with Pipeline(connection) as pipeline:
        pipeline.execute(ADD, {"name": "a"})

    def spoil() -> None:
        with Pipeline(connection) as pipeline:
            pipeline.execute(b"BEGIN")
            pipeline.execute(ADD, {"name": "b"})
            pipeline.execute(ADD, {"name": "a"})
            pipeline.execute(b"SELECT 1 FROM nowhere")
            pipeline.execute(b"COMMIT")

    with pytest.raises(psycopg.errors.UniqueViolation):
        spoil()
    connection.rollback()
    for _ in range(2):
        with Pipeline(connection) as pipeline:
            assert pipeline.execute(ALL).fetchall() == [("a",)]
            pipeline.execute(b"SELECT name, 1 FROM things").fetchall()


def test_an_error_that_is_read_is_raised_there(connection: Connection) -> None:
    """Whoever asks for an answer hears why there is none."""
    with pytest.raises(psycopg.errors.UndefinedTable), Pipeline(connection) as pipeline:
        pipeline.execute(b"SELECT 1 FROM nowhere").fetchall()
    with Pipeline(connection) as pipeline:
        assert pipeline.execute(b"SELECT 1").fetchall() == [(1,)]


def test_an_error_of_the_callers_leaves_the_batch_in_order(connection: Connection) -> None:
    """What was said is undone with the transaction, and the caller's error comes through."""

    def spoil() -> None:
        with Pipeline(connection) as pipeline:
            pipeline.execute(b"BEGIN")
            pipeline.execute(ADD, {"name": "a"})
            raise KeyError

    with pytest.raises(KeyError):
        spoil()
    connection.rollback()
    assert connection.execute(ALL).fetchall() == []


def test_much_is_said_and_answered_at_once(connection: Connection) -> None:
    """More than any buffer holds, in both directions, does not stop anybody."""
    large = "x" * 3_000_000
    with Pipeline(connection) as pipeline:
        answers = [pipeline.execute(b"SELECT %(text)s::text", {"text": large}) for _ in range(8)]
    assert all(answer.fetchall() == [(large,)] for answer in answers)


def test_a_lost_connection_is_told(connection: Connection, postgres_url: str) -> None:
    """It is no answer, and the connection is closed."""
    with psycopg.connect(postgres_url, autocommit=True) as other:
        other.execute("SELECT pg_terminate_backend(%s, 60000)", (connection.info.backend_pid,))
    with pytest.raises(psycopg.OperationalError), Pipeline(connection) as pipeline:
        pipeline.execute(b"SELECT 1").fetchall()
    assert connection.closed


def test_one_statement_alone_says_how_many_rows_it_changed(connection: Connection) -> None:
    """Its error is the server's, and the connection can be used again; it is prepared once."""
    with pytest.raises(psycopg.errors.UndefinedTable):
        rows_changed(connection, b"DELETE FROM nowhere WHERE name = %(name)s", {"name": "a"})
    assert [rows_changed(connection, ADD, {"name": name}) for name in ("a", "b")] == [1, 1]
    with pytest.raises(psycopg.errors.UniqueViolation):
        rows_changed(connection, ADD, {"name": "a"})
    gone = b"DELETE FROM things WHERE name = %(name)s"
    assert [rows_changed(connection, gone, {"name": name}) for name in ("a", "a")] == [1, 0]
    texts = connection.execute("SELECT statement FROM pg_prepared_statements").fetchall()
    assert len(texts) == 2


def test_one_statement_alone_on_a_lost_connection(
    connection: Connection, postgres_url: str
) -> None:
    """Nobody knows what the server has done: the error is the one of a lost connection."""
    assert rows_changed(connection, ADD, {"name": "a"}) == 1
    with psycopg.connect(postgres_url, autocommit=True) as other:
        other.execute("SELECT pg_terminate_backend(%s, 60000)", (connection.info.backend_pid,))
    with pytest.raises(psycopg.OperationalError):
        rows_changed(connection, ADD, {"name": "b"})
    assert connection.closed
