from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
import sqlalchemy as sa
from psycopg import errors as pg
from redis import exceptions as rds
from sqlalchemy import exc

from ergon_framework.providers.mapping import canonical

UNSENT = True
MAYBE = False


@pytest.mark.req("PEF:E-13", "PEF:E-14")
@pytest.mark.parametrize(
    ("raw", "code", "never_sent"),
    [
        (rds.ConnectionError("Error 111 connecting to h:1."), "connection_error", MAYBE),
        (rds.MaxConnectionsError("x"), "connection_error", MAYBE),
        (rds.TimeoutError("x"), "timeout", MAYBE),
        (rds.AuthenticationError("x"), "auth_failed", MAYBE),
        (rds.AuthenticationWrongNumberOfArgsError("x"), "auth_failed", MAYBE),
        (rds.AuthorizationError("x"), "auth_failed", MAYBE),
        (rds.NoPermissionError("x"), "auth_failed", MAYBE),
        (rds.BusyLoadingError("x"), "dependency_unavailable", MAYBE),
        (rds.ReadOnlyError("x"), "dependency_unavailable", MAYBE),
        (rds.OutOfMemoryError("x"), "dependency_unavailable", MAYBE),
        (rds.ClusterDownError("x"), "dependency_unavailable", MAYBE),
        (rds.MasterDownError("x"), "dependency_unavailable", MAYBE),
        (rds.TryAgainError("x"), "dependency_unavailable", MAYBE),
        (rds.SlotNotCoveredError("x"), "dependency_unavailable", MAYBE),
        (rds.WatchError("x"), "dependency_unavailable", MAYBE),
        (rds.ResponseError("x"), "bad_request", MAYBE),
        (rds.NoScriptError("x"), "bad_request", MAYBE),
        (rds.DataError("x"), "bad_request", UNSENT),
        (rds.InvalidResponse("x"), "response_invalid", MAYBE),
    ],
    ids=lambda each: type(each).__name__ if isinstance(each, Exception) else "",
)
def test_redis(raw: Exception, code: str, never_sent: bool) -> None:
    """Its client tries again by itself, so that hardly anything is certainly unsent."""
    error = canonical(raw)
    assert (error.reason_code, error.never_sent) == (code, never_sent)


POSTGRES = [
    (pg.UniqueViolation("x"), "bad_request"),
    (pg.InvalidTextRepresentation("x"), "bad_request"),
    (pg.SyntaxError("x"), "bad_request"),
    (pg.UndefinedTable("x"), "bad_request"),
    (pg.InvalidCatalogName("x"), "bad_request"),
    (pg.InsufficientPrivilege("x"), "auth_failed"),
    (pg.InvalidPassword("x"), "auth_failed"),
    (pg.QueryCanceled("x"), "timeout"),
    (pg.DeadlockDetected("x"), "dependency_unavailable"),
    (pg.SerializationFailure("x"), "dependency_unavailable"),
    (pg.StatementCompletionUnknown("x"), "connection_error"),
    (pg.LockNotAvailable("x"), "dependency_unavailable"),
    (pg.TooManyConnections("x"), "dependency_unavailable"),
    (pg.DiskFull("x"), "dependency_unavailable"),
    (pg.AdminShutdown("x"), "dependency_unavailable"),
    (pg.CannotConnectNow("x"), "dependency_unavailable"),
    (pg.ReadOnlySqlTransaction("x"), "dependency_unavailable"),
    (pg.ConnectionFailure("x"), "connection_error"),
    (pg.InternalError_("x"), "internal_error"),
    (psycopg.OperationalError("server closed the connection"), "connection_error"),
    (psycopg.InterfaceError("the connection is closed"), "connection_error"),
    (psycopg.ProgrammingError("x"), "bad_request"),
    (psycopg.DataError("x"), "bad_request"),
    (psycopg.InternalError("x"), "internal_error"),
]


@pytest.mark.req("PEF:E-13")
@pytest.mark.parametrize(
    ("raw", "code"), POSTGRES, ids=lambda each: type(each).__name__ if each.__class__ else ""
)
def test_psycopg(raw: Exception, code: str) -> None:
    """By the server's code, or by the class when the server said nothing; in SQLAlchemy's too."""
    assert canonical(raw).reason_code == code
    wrapped = exc.DBAPIError.instance("select 1", {"p": "S3CRET"}, raw, psycopg.Error)
    assert isinstance(wrapped, exc.DBAPIError)
    error = canonical(wrapped)
    assert error.reason_code == code
    assert "S3CRET" not in str(error)


@pytest.mark.parametrize(
    ("raw", "code", "never_sent"),
    [
        (pg.ConnectionTimeout("x"), "timeout", UNSENT),
        (pg.CancellationTimeout("x"), "timeout", MAYBE),
        (exc.TimeoutError("QueuePool limit"), "timeout", UNSENT),
        (exc.DisconnectionError("x"), "connection_error", MAYBE),
        (exc.NoResultFound("x"), "internal_error", MAYBE),
        (exc.ArgumentError("x"), "internal_error", MAYBE),
    ],
    ids=lambda each: type(each).__name__ if isinstance(each, Exception) else "",
)
def test_pools_and_time_outs(raw: Exception, code: str, never_sent: bool) -> None:
    """What comes before a statement was never sent; a wrong use of SQLAlchemy is a bug."""
    error = canonical(raw)
    assert (error.reason_code, error.never_sent) == (code, never_sent)


def test_a_database_that_cannot_be_reached_was_never_asked(tmp_path: Path) -> None:
    """As psycopg raises it, bare and inside SQLAlchemy, and without the password."""
    with pytest.raises(psycopg.OperationalError) as bare:
        psycopg.connect(f"host={tmp_path} user=u password=S3CRET dbname=d")
    engine = sa.create_engine(f"postgresql+psycopg://u:S3CRET@/d?host={tmp_path}")
    with pytest.raises(exc.OperationalError) as wrapped:
        engine.connect()
    engine.dispose()
    for raw in (bare.value, wrapped.value):
        error = canonical(raw)
        assert (error.reason_code, error.never_sent) == ("connection_error", True)
        assert "S3CRET" not in str(error)


def test_wrong_credentials_are_told_apart_from_an_unreachable_server() -> None:
    """The server's code does not reach the client then; its words do."""
    raw = psycopg.OperationalError(
        'connection failed: FATAL:  password authentication failed for user "u"',
        pgconn=object(),  # type: ignore[arg-type]
    )
    assert canonical(raw).reason_code == "auth_failed"


class Driver:
    """The exceptions of a driver nobody has a rule for."""

    class Error(Exception):
        pass

    class OperationalError(Error):
        pass

    class Coded(Error):
        sqlstate = "28000"


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (exc.OperationalError, "dependency_unavailable"),
        (exc.InterfaceError, "connection_error"),
        (exc.DataError, "bad_request"),
        (exc.IntegrityError, "bad_request"),
        (exc.ProgrammingError, "bad_request"),
        (exc.NotSupportedError, "bad_request"),
        (exc.InternalError, "internal_error"),
    ],
)
def test_another_driver_is_told_by_the_class(kind: type[exc.DBAPIError], code: str) -> None:
    """SQLAlchemy gives every driver's exceptions the same names."""
    assert canonical(kind("select 1", {}, Driver.Error("x"))).reason_code == code


def test_another_driver_is_told_by_its_code_and_by_the_lost_connection() -> None:
    """An SQLSTATE says more than the class; a connection that was given up, most."""
    coded = exc.DatabaseError("select 1", {}, Driver.Coded("x"))
    assert canonical(coded).reason_code == "auth_failed"
    lost = exc.OperationalError("select 1", {}, Driver.Error("x"), connection_invalidated=True)
    assert canonical(lost).reason_code == "connection_error"


@pytest.fixture
def files(tmp_path: Path) -> Iterator[tuple[sqlite3.Connection, sqlite3.Connection]]:
    """Two connections to one SQLite file, the first in the middle of writing."""
    path = tmp_path / "some.db"
    writer = sqlite3.connect(path, isolation_level=None)
    writer.execute("create table t (a integer primary key)")
    writer.execute("begin immediate")
    other = sqlite3.connect(path, timeout=0, isolation_level=None)
    yield writer, other
    other.close()
    writer.close()


def test_sqlite_is_told_by_its_code(
    files: tuple[sqlite3.Connection, sqlite3.Connection], tmp_path: Path
) -> None:
    """Somebody else's lock may pass; a wrong statement and a taken key may not."""
    writer, other = files
    with pytest.raises(sqlite3.OperationalError) as locked:
        other.execute("begin immediate")
    assert canonical(locked.value).reason_code == "dependency_unavailable"
    with pytest.raises(sqlite3.OperationalError) as wrong:
        other.execute("select * from nope")
    assert canonical(wrong.value).reason_code == "bad_request"
    writer.execute("insert into t values (1)")
    with pytest.raises(sqlite3.IntegrityError) as taken:
        writer.execute("insert into t values (1)")
    assert canonical(taken.value).reason_code == "bad_request"
    other.close()
    with pytest.raises(sqlite3.ProgrammingError) as closed:  # the module's own, without a code
        other.execute("select 1")
    assert canonical(closed.value).reason_code == "bad_request"
    with pytest.raises(sqlite3.OperationalError) as missing:
        sqlite3.connect(tmp_path / "no" / "such.db")
    assert canonical(missing.value).reason_code == "dependency_unavailable"


@pytest.mark.req("PEF:T-8")
def test_parameters_of_a_statement_are_not_told() -> None:
    """SQLAlchemy adds them to its words; they belong to the payload."""
    engine = sa.create_engine("sqlite://")
    with engine.connect() as connection, pytest.raises(exc.OperationalError) as caught:
        connection.execute(sa.text("select :a from nope"), {"a": "S3CRET"})
    engine.dispose()
    assert "S3CRET" in str(caught.value)
    error = canonical(caught.value)
    assert error.message == "OperationalError: (sqlite3.OperationalError) no such table: nope"
    assert error.reason_code == "bad_request"
