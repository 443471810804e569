"""The ledger: generations, filters and memory agree with a plain table, whatever happens."""

from __future__ import annotations

import hashlib
import random
import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from ergon_framework.boundary.factstore.sqlite import SqliteFactStore, ledger
from ergon_framework.boundary.factstore.sqlite.ledger import Ledger, LedgerTuning
from ergon_framework.boundary.factstore.sqlite.session import SCHEMA
from ergon_framework.errors import StoreUnavailableError
from ergon_framework.ports.factstore import INBOUND, OUTBOUND, Appended, Conflict, Link, NewFact
from ergon_framework.storage.failpoints import armed
from ergon_framework.testing.suites.factstore.under_test import new, other
from tests.boundary.sqlite.conftest import Open

pytestmark = pytest.mark.req("BOUNDARY:store", "P6", "P7")
PEER = "b"
SMALL = LedgerTuning(
    memtable_limit=16, fanout=4, appends_per_slice=1, parts_swept_per_slice=50, ids_per_part=4
)
"""Writes down and merges a few ids at a time."""


@pytest.fixture
def open_store(open_store: Open) -> Open:
    """Opens stores with a small ledger."""
    return partial(open_store, ledger_tuning=SMALL)


def keys(count: int, seed: int = 0) -> list[bytes]:
    """Random keys in order."""
    dice = random.Random(seed)  # noqa: S311 - a reproducible one
    return sorted(dice.randbytes(16) for _ in range(count))


def states(path: Path) -> list[tuple[int, str]]:
    """Level and state of every generation."""
    with closing(sqlite3.connect(path)) as connection:
        statement = "SELECT level, state FROM ergon_boundary_generations ORDER BY id"
        return connection.execute(statement).fetchall()


def count(path: Path, table: str, condition: str = "1") -> int:
    """Rows of a table."""
    with closing(sqlite3.connect(path)) as connection:
        statement = f"SELECT count(*) FROM ergon_boundary_{table} WHERE {condition}"  # noqa: S608
        return int(connection.execute(statement).fetchone()[0])


def ids_in(path: Path) -> int:
    """How many ids are written down."""
    with closing(sqlite3.connect(path)) as connection:
        statement = "SELECT coalesce(sum(length(ids)), 0) FROM ergon_boundary_ledger"
        return int(connection.execute(statement).fetchone()[0]) // ledger.ID


def put(store: SqliteFactStore, first: int, last: int, log: str = OUTBOUND) -> None:
    """Append new facts one by one."""
    for number in range(first, last + 1):
        [answer] = store.append(log, [new(f"id-{number}")])
        assert answer == Appended(number)


@pytest.mark.parametrize("count", [1, 2, 512, 513, 5000])
def test_a_part_knows_what_it_has(count: int) -> None:
    """Every key is found in its part with what it stands for, and few others seem to be there."""
    there, others = keys(count), keys(2000, seed=1)
    bits = ledger.bits_for(count, SMALL.ids_per_part)
    ids = [b""] * (1 << bits)
    for n, key in enumerate(there):
        ids[ledger.part_of(key, bits)] += key + ledger.packed(key[::-1] + b"more", n)
    found = ledger.Filter(bits, ((part, ledger.bloom_of(each)) for part, each in enumerate(ids)))
    for n, key in enumerate(there):
        assert ledger.candidates({7: found}, key) == [7]
        assert ledger.find(ids[ledger.part_of(key, bits)], key) == (key[::-1], n)
    assert sum(bool(ledger.candidates({7: found}, key)) for key in others) < 60
    assert not any(ledger.find(ids[ledger.part_of(key, bits)], key) for key in others)


def test_a_filter_that_is_not_there_excludes_nothing() -> None:
    """A lost filter costs time, not correctness."""
    assert ledger.candidates({1: ledger.Filter(0)}, bytes(16)) == [1]


def test_ids_move_into_generations_and_stay_known(store: SqliteFactStore, path: Path) -> None:
    """Written down, merged and swept: each id still stands for its offset."""
    put(store, 1, 400)
    found = states(path)
    assert max(level for level, state in found if state == "live") >= 2
    assert len(found) < 12
    assert ids_in(path) < 400 + 90  # what was merged is removed
    for number in range(1, 401):
        [again] = store.append(OUTBOUND, [new(f"id-{number}")])
        assert isinstance(again, Appended)
        assert (again.offset, again.is_duplicate) == (number, True)
    [conflict] = store.append(OUTBOUND, [other("id-7")])
    assert isinstance(conflict, Conflict)
    assert conflict.offset == 7
    assert not [each for each in store.verify(OUTBOUND) if not isinstance(each, int)]


def test_a_new_process_knows_every_id(open_store: Open) -> None:
    """From generations, and from the rows of facts that are in none yet."""
    first = open_store()
    put(first, 1, 100)
    first.close()
    second = open_store()
    for number in (1, 50, 99, 100):
        found = second.find("plant-a", f"id-{number}")
        assert found is not None
        assert found.offset == number
    put(second, 101, 140)
    assert second.find("plant-a", "id-never") is None


def test_two_processes_see_each_others_ids(open_store: Open, path: Path) -> None:
    """Each notices what the other wrote, sealed and merged since."""
    one = open_store()
    two = SqliteFactStore(path, zone="plant-a", busy_timeout=5.5, ledger_tuning=SMALL)
    two.database.file.close()
    two.database.file = type(two.database.file)(
        path,
        schema=SCHEMA,
        connect=lambda uri, timeout: sqlite3.connect(
            uri, uri=True, timeout=timeout, isolation_level=None, check_same_thread=False
        ),
    )
    offset = 0
    for turn in range(60):
        for store in (one, two):
            batch = [new(f"id-{offset + n}") for n in range(1 + turn % 3)]
            answers = store.append(OUTBOUND, batch)
            assert answers == [Appended(offset + n + 1) for n in range(len(batch))]
            offset += len(batch)
    for store in (one, two):
        answers = store.append(OUTBOUND, [new(f"id-{n}") for n in range(offset)])
        assert all(isinstance(each, Appended) and each.is_duplicate for each in answers)
        assert [each.offset for each in answers if isinstance(each, Appended)] == list(
            range(1, offset + 1)
        )
        assert not [each for each in store.verify(OUTBOUND) if not isinstance(each, int)]
    two.close()


def test_ids_survive_the_truncation_of_their_facts(store: SqliteFactStore, path: Path) -> None:
    """Ids that were only in the rows are written down before the rows go."""
    put(store, 1, 5)
    store.create_consumer("c", OUTBOUND, from_end=True)
    assert ids_in(path) == 0
    assert store.truncate(OUTBOUND, 5) == 5
    assert (count(path, "facts"), ids_in(path)) == (0, 5)
    [again] = store.append(OUTBOUND, [new("id-3")])
    assert again == Appended(3, True, None)
    [conflict] = store.append(OUTBOUND, [other("id-3")])
    assert conflict == Conflict(3, new("id-3").digest[:16])
    put(store, 6, 8)


@pytest.mark.parametrize("point", ["storage.commit.before", "storage.commit.after"])
@pytest.mark.parametrize("nth", range(1, 30, 3))
def test_a_failed_commit_leaves_no_memory(
    store: SqliteFactStore, path: Path, point: str, nth: int
) -> None:
    """What was rolled back is not known; what was committed unheard is."""
    put(store, 1, 40)
    with armed(f"{point}=error@{nth}"):
        for number in range(41, 90):
            fact = new(f"id-{number}")
            try:
                answer = store.append(OUTBOUND, [fact])
            except StoreUnavailableError:
                answer = store.append(OUTBOUND, [fact])
                assert isinstance(answer[0], Appended)
                assert answer[0].is_duplicate is (point == "storage.commit.after")
            assert isinstance(answer[0], Appended)
            assert answer[0].offset == number
    assert store.page(OUTBOUND, 0, 1000, 1 << 20).head == 89
    assert not [each for each in store.verify(OUTBOUND) if not isinstance(each, int)]


def test_a_failed_commit_of_one_log_does_not_touch_another(store: SqliteFactStore) -> None:
    """Ids of facts that were rolled back are not written down by the appends of another log."""
    with (
        armed("storage.commit.before=error"),
        pytest.raises(StoreUnavailableError),
    ):
        store.append(OUTBOUND, [new(f"lost-{n}") for n in range(30)])
    for number in range(1, 60):
        store.receive(PEER, [new(f"in-{number}", source_offset=number)], Link(PEER))
    assert store.find("plant-a", "lost-3") is None
    assert store.append(OUTBOUND, [new("lost-3")]) == [Appended(1)]


class Book:
    """What the ledger should know."""

    def __init__(self) -> None:
        self.known: dict[tuple[str, str], tuple[int, bytes]] = {}
        self.heads = {OUTBOUND: 0, INBOUND + PEER: 0}

    def expect(self, log: str, fact: NewFact) -> tuple[str, int]:
        """What the answer must be; the fact is in the book from now on."""
        place = self.known.get((log, fact.message_id))
        if place is None:
            self.heads[log] += 1
            self.known[log, fact.message_id] = self.heads[log], fact.digest
            return "new", self.heads[log]
        return "again" if place[1] == fact.digest else "conflict", place[0]


def kind(answer: object) -> tuple[str, int]:
    """An answer in the book's words."""
    if isinstance(answer, Appended):
        return "again" if answer.is_duplicate else "new", answer.offset
    assert isinstance(answer, Conflict)
    return "conflict", answer.offset


@pytest.mark.parametrize("seed", range(12))
def test_it_agrees_with_a_plain_book(open_store: Open, seed: int) -> None:
    """Random appends, receipts, truncations, failed commits and restarts."""
    dice = random.Random(seed)  # noqa: S311 - a reproducible one
    store, book = open_store(), Book()
    for log in book.heads:
        store.create_consumer(f"reader of {log}", log)
    for _ in range(400):
        log = dice.choice(list(book.heads))
        move = dice.random()
        if move < 0.8:
            facts = [_fact(dice) for _ in range(dice.choice((1, 1, 1, 3, 20)))]
            if dice.random() < 0.05:
                point = dice.choice(("before", "after"))
                with armed(f"storage.commit.{point}=error"), pytest.raises(StoreUnavailableError):
                    _enter(store, log, facts)
                if point == "after":
                    for fact in facts:
                        book.expect(log, fact)
                continue
            answers = _enter(store, log, facts)
            assert [kind(each) for each in answers] == [book.expect(log, fact) for fact in facts]
        elif move < 0.9:
            store.truncate(log, dice.randint(0, book.heads[log]), loss_reason="test")
        elif move < 0.95:
            store.close()
            store = open_store()
        else:
            message_id = _fact(dice).message_id
            found = store.find("plant-a", message_id, log)
            wanted = book.known.get((log, message_id))
            assert (found and found.offset) == (wanted and wanted[0])
    assert {each.name: each.head for each in store.logs()} == book.heads
    for log in book.heads:
        assert not [each for each in store.verify(log) if not isinstance(each, int)]


def _fact(dice: random.Random) -> NewFact:
    body = b"other" if dice.random() < 0.1 else b"body"
    return new(f"id-{dice.randrange(600)}", fact=body, digest=hashlib.sha256(body).digest())


def _enter(store: SqliteFactStore, log: str, facts: list[NewFact]) -> list[object]:
    if log == OUTBOUND:
        return list(store.append(log, facts))
    return list(store.receive(PEER, facts, Link(PEER)))


def test_a_generation_that_was_being_written_is_swept(open_store: Open, path: Path) -> None:
    """A process that dies while it merges leaves nothing that counts, nor anything for ever."""
    store = open_store()
    put(store, 1, 60)
    store.close()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(
            "INSERT INTO ergon_boundary_generations (id, level, bits, count) VALUES (999, 0, 0, 3)"
        )
        connection.execute("INSERT INTO ergon_boundary_ledger VALUES (999 << 24, x'00', x'00')")
    store = open_store()
    put(store, 61, 200)
    assert count(path, "generations", "id = 999") == 0
    assert count(path, "ledger", "id >> 24 = 999") == 0


def test_reading_only_knows_the_ids_too(open_store: Open) -> None:
    """A store that may not be written is asked beside the writer."""
    writer = open_store()
    put(writer, 1, 50)
    reader = open_store(read_only=True)
    put(writer, 51, 60)
    for number in (1, 30, 60):
        found = reader.find("plant-a", f"id-{number}")
        assert found is not None
        assert found.offset == number
    assert not [each for each in reader.verify(OUTBOUND) if not isinstance(each, int)]


def test_an_id_that_cannot_be_read_is_left_to_verification(open_store: Open, path: Path) -> None:
    """A row whose id is not even bytes does not stop the store."""
    store = open_store()
    put(store, 1, 3)
    store.close()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE ergon_boundary_facts SET proof = 7 WHERE id & 15 = 2")
    store = open_store()
    assert store.append(OUTBOUND, [new("id-4")]) == [Appended(4)]
    assert {each.offset for each in store.verify(OUTBOUND) if not isinstance(each, int)} == {2}


def test_forgetting_everything_changes_nothing(store: SqliteFactStore) -> None:
    """Memory is only a copy."""
    put(store, 1, 30)
    store.appender.ledger.forget()
    assert store.appender.ledger == Ledger(loaded=store.appender.ledger.loaded, log_changes=0)
    put(store, 31, 60)
