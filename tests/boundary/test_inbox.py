"""The inbox: a fact that is delivered again takes effect once, with its note or not at all."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ergon_framework.boundary.client.inbox import Inbox, with_placeholders_of
from ergon_framework.boundary.model import Delivery
from ergon_framework.errors import ConfigurationError, ConflictingDuplicateError, WiringError
from tests import fork_server
from tests.boundary import inbox_child
from tests.boundary.inbox_child import FACTS, bill, delivery

WAIT = 60.0
NOW = 1_800_000_000.0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A database with a bill and the inbox's table."""
    path = tmp_path / "billing.db"
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE bill (line TEXT)")
        Inbox("billing").create_table(db)
        Inbox("billing").create_table(db)
    return path


@pytest.fixture
def db(path: Path) -> Iterator[sqlite3.Connection]:
    """The consumer's connection."""
    with closing(sqlite3.connect(path)) as db:
        yield db


@pytest.fixture
def inbox() -> Inbox:
    """Of the consumer that writes bills."""
    return Inbox("billing", clock=lambda: NOW)


def lines(path: Path) -> list[str]:
    """What is on the bill."""
    with closing(sqlite3.connect(path)) as db:
        return [line for (line,) in db.execute("SELECT line FROM bill ORDER BY rowid")]


@pytest.mark.req("C5", "BOUNDARY:consumer")
def test_a_fact_is_new_once(inbox: Inbox, db: sqlite3.Connection) -> None:
    """By zone and id, for each consumer by itself; the offset does not matter."""
    assert inbox.accept(db, delivery(1))
    assert not inbox.accept(db, delivery(1))
    assert not inbox.accept(db, msgspec.structs.replace(delivery(1), offset=99))
    assert inbox.accept(db, delivery(2))
    assert Inbox("shipping").accept(db, delivery(1))
    other = msgspec.structs.replace(delivery(1).envelope, from_zone="plant-b")
    assert inbox.accept(db, msgspec.structs.replace(delivery(1), envelope=other))


@pytest.mark.req("C5", "BOUNDARY:consumer")
def test_the_note_is_in_the_callers_transaction(inbox: Inbox, db: sqlite3.Connection) -> None:
    """Rolled back, it was never there."""
    assert inbox.accept(db, delivery(1))
    assert db.in_transaction
    db.rollback()
    assert inbox.accept(db, delivery(1))
    db.commit()
    assert not inbox.accept(db, delivery(1))


@pytest.mark.req("C5", "P9", "BOUNDARY:badinput")
@pytest.mark.parametrize("digest", ["", "sha256:" + "0" * 64])
def test_other_content_under_a_known_id_is_no_duplicate(
    inbox: Inbox, db: sqlite3.Connection, digest: str
) -> None:
    """Whether the node told the digest or it is computed here."""
    assert inbox.accept(db, delivery(1))
    told = msgspec.structs.replace(delivery(1, "else"), digest=digest)
    with pytest.raises(ConflictingDuplicateError, match="'e:1' from 'plant-a'") as caught:
        inbox.accept(db, told)
    assert "else" not in str(caught.value)
    assert not inbox.accept(db, delivery(1))


@pytest.mark.req("C5", "BOUNDARY:consumer")
def test_effect_and_note_are_one_transaction(
    inbox: Inbox, path: Path, db: sqlite3.Connection
) -> None:
    """``once`` commits both, or rolls both back with the effect's own error."""
    with contextlib.suppress(ZeroDivisionError), inbox.once(db, delivery(1)) as is_new:
        assert is_new
        bill(db, delivery(1))
        raise ZeroDivisionError
    assert not db.in_transaction
    assert lines(path) == []
    for is_first in (True, False):
        with inbox.once(db, delivery(1)) as is_new:
            assert is_new is is_first
            if is_new:
                bill(db, delivery(1))
    assert lines(path) == ["e:1"]


@pytest.mark.req("C5", "BOUNDARY:consumer")
@pytest.mark.parametrize("isolation_level", ["", None])
def test_a_handler_takes_effect_once(inbox: Inbox, path: Path, isolation_level: Any) -> None:
    """Whatever is delivered again, and whoever begins the transactions."""
    opened: list[sqlite3.Connection] = []

    def connect() -> sqlite3.Connection:
        opened.append(sqlite3.connect(path, isolation_level=isolation_level))
        return opened[-1]

    handle = inbox.handler(connect, bill)
    for offset in (1, 2, 1, 2, 3, 1):
        handle(delivery(offset))
    assert lines(path) == ["e:1", "e:2", "e:3"]
    assert len(opened) == 6
    with pytest.raises(sqlite3.ProgrammingError):
        opened[0].execute("SELECT 1")  # it was closed


def test_a_handler_may_keep_one_connection(
    inbox: Inbox, path: Path, db: sqlite3.Connection
) -> None:
    """Which stays open, also after an effect that failed."""
    attempts: list[int] = []

    def effect(connection: sqlite3.Connection, fact: Delivery) -> None:
        bill(connection, fact)
        attempts.append(fact.offset)
        if len(attempts) == 1:
            raise OSError("the printer is out of paper")

    handle = inbox.handler(db, effect)
    with pytest.raises(OSError, match="paper"):
        handle(delivery(1))
    handle(delivery(1))
    handle(delivery(1))
    assert attempts == [1, 1]
    assert lines(path) == ["e:1"]


@pytest.mark.req("C5")
def test_two_at_once_are_one(inbox: Inbox, path: Path) -> None:
    """A second delivery while the first is being handled waits for it, and is no news then."""
    has_begun, may_end = threading.Event(), threading.Event()

    def slow(connection: sqlite3.Connection, fact: Delivery) -> None:
        has_begun.set()
        assert may_end.wait(WAIT)
        bill(connection, fact)

    def connect() -> sqlite3.Connection:
        return sqlite3.connect(path, timeout=WAIT)

    first = threading.Thread(target=inbox.handler(connect, slow), args=(delivery(1),))
    first.start()
    assert has_begun.wait(WAIT)
    second = threading.Thread(target=inbox.handler(connect, bill), args=(delivery(1),))
    second.start()
    may_end.set()
    first.join(WAIT)
    second.join(WAIT)
    assert lines(path) == ["e:1"]


@pytest.mark.req("BOUNDARY:badinput")
def test_a_connection_that_commits_by_itself_is_refused(inbox: Inbox, path: Path) -> None:
    """The note would be there before the effect, and stay when the effect fails."""
    with closing(sqlite3.connect(path, isolation_level=None)) as bare:
        with pytest.raises(ConfigurationError, match="begins none by itself"):
            inbox.accept(bare, delivery(1))
        bare.execute("BEGIN")
        assert inbox.accept(bare, delivery(1))
        bare.execute("ROLLBACK")
    with closing(_NeverCommits(path)) as useless:
        with pytest.raises(ConfigurationError, match="begins none by itself"):
            inbox.accept(useless, delivery(1))
        with pytest.raises(ConfigurationError, match="autocommit"):
            inbox.handler(useless, bill)(delivery(1))


class _NeverCommits(sqlite3.Connection):
    """As newer Pythons open one that was told to: its ``commit`` does nothing."""

    autocommit = True


class Postgres:
    """A connection as PostgreSQL's driver has it: other placeholders, rows by name."""

    def __init__(self, db: sqlite3.Connection, *, autocommit: bool = False) -> None:
        self.db = db
        self.autocommit = autocommit
        self.commit = db.commit
        self.rollback = db.rollback
        self.close = db.close

    def cursor(self) -> Any:
        cursor = self.db.cursor()
        cursor.row_factory = lambda found, row: dict(
            zip([each[0] for each in found.description], row, strict=True)
        )
        return _Translating(cursor)


class _Translating:
    def __init__(self, cursor: sqlite3.Cursor) -> None:
        self._cursor = cursor

    def execute(self, statement: str, values: tuple[Any, ...] = ()) -> None:
        assert "?" not in statement
        self._cursor.execute(statement.replace("%s", "?"), values)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cursor, name)


@pytest.mark.req("C5", "BOUNDARY:consumer")
def test_another_driver_only_spells_differently(path: Path, db: sqlite3.Connection) -> None:
    """Placeholders are the driver's, and nothing is read from a row."""
    inbox = Inbox("billing", paramstyle="pyformat", table="ergon_inbox")
    connection = Postgres(db)

    def effect(connection: Postgres, fact: Delivery) -> None:
        bill(connection.db, fact)

    handle = inbox.handler(connection, effect)
    for offset in (1, 1, 2):
        handle(delivery(offset))
    assert lines(path) == ["e:1", "e:2"]
    with pytest.raises(ConflictingDuplicateError):
        handle(delivery(1, "else"))
    assert inbox.prune(connection, before=float("inf")) == 2
    with pytest.raises(ConfigurationError, match="begins none"):
        inbox.accept(Postgres(db, autocommit=True), delivery(3))


def test_placeholders() -> None:
    """Those of PEP 249, as far as they go by position."""
    assert with_placeholders_of("a = ? AND b = ?", "qmark") == "a = ? AND b = ?"
    assert with_placeholders_of("a = ? AND b = ?", "numeric") == "a = :1 AND b = :2"
    assert with_placeholders_of("a = ? AND b = ?", "format") == "a = %s AND b = %s"
    with pytest.raises(ConfigurationError, match="no paramstyle"):
        Inbox("c", paramstyle="named")  # type: ignore[arg-type]


@pytest.mark.parametrize("table", ["", "a b", "x; DROP TABLE bill", "1st", "a.b.c"])
def test_names_that_cannot_be_tables_are_refused(table: str) -> None:
    """They go into statements as they are."""
    with pytest.raises(ConfigurationError, match="name of a table"):
        Inbox("billing", table=table)
    with pytest.raises(ConfigurationError, match="name of its consumer"):
        Inbox("")


def test_old_notes_may_be_forgotten(path: Path, db: sqlite3.Connection) -> None:
    """Those of this consumer before an instant; then the fact would be new again."""
    times = iter([10.0, 20.0, 30.0])
    inbox = Inbox("billing", clock=lambda: next(times, 40.0))
    for offset in (1, 2, 3):
        inbox.accept(db, delivery(offset))
    Inbox("shipping", clock=lambda: 0.0).accept(db, delivery(1))
    assert inbox.prune(db, before=20.0) == 1
    db.commit()
    assert inbox.accept(db, delivery(1))
    assert not inbox.accept(db, delivery(2))
    assert not Inbox("shipping").accept(db, delivery(1))


@pytest.mark.slow
@pytest.mark.req("C3", "C5", "BOUNDARY:consumer")
@pytest.mark.parametrize("nth", [1, 3])
@pytest.mark.parametrize("moment", ["before", "after"])
def test_killed_around_the_commit(path: Path, moment: str, nth: int) -> None:
    """After the effect or after the commit: the fact comes again, and its effect does not."""
    folder = path.parent
    (folder / "cursor").write_text("0")

    def run(variable: str) -> int:
        return fork_server.run(
            [sys.executable, inbox_child.__file__, str(folder)],
            env=os.environ | {"ERGON_FAILPOINTS": variable},
            check=False,
            timeout=WAIT,
        ).returncode

    assert run(f"boundary.inbox.commit.{moment}=kill@{nth}") == -signal.SIGKILL
    assert (folder / "cursor").read_text() == str(nth - 1)
    assert len(lines(path)) == (nth - 1 if moment == "before" else nth)
    assert run("") == 0
    assert lines(path) == [f"e:{n}" for n in range(1, FACTS + 1)]


@pytest.mark.req("C5", "BOUNDARY:consumer", "BOUNDARY:badinput")
def test_an_effect_that_does_not_run_leaves_no_note(path: Path, inbox: Inbox) -> None:
    """A coroutine function or a generator has done nothing when it returns: nothing is committed,
    and the fact takes effect when it comes again.
    """

    async def later(connection: sqlite3.Connection, fact: Delivery) -> None:
        bill(connection, fact)

    def step_by_step(connection: sqlite3.Connection, fact: Delivery) -> Iterator[None]:
        bill(connection, fact)
        yield

    for effect in (later, step_by_step):
        with pytest.raises(WiringError, match="the effect returned a") as caught:
            inbox.handler(lambda: sqlite3.connect(path), effect)(delivery(0))
        assert caught.value.remedy
    inbox.handler(lambda: sqlite3.connect(path), bill)(delivery(0))
    assert len(lines(path)) == 1
