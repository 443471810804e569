"""What is peculiar to the PostgreSQL store: opening, damaged rows, ways to append, waking."""

from __future__ import annotations

import threading
import time
import tracemalloc
from contextlib import closing
from typing import Any

import psycopg
import pytest
from psycopg import sql

from ergon_framework.boundary.factstore.postgres import PostgresFactStore, append
from ergon_framework.boundary.factstore.postgres.database import (
    SCHEMA,
    PostgresTuning,
    namespace_of,
    zones_in,
)
from ergon_framework.boundary.factstore.sqlite import SqliteFactStore
from ergon_framework.errors import (
    BoundaryError,
    ConfigurationError,
    ConsumerHeldError,
    DataLossError,
    StoreError,
    StoreReadOnlyError,
    StoreSchemaError,
    StoreUnavailableError,
)
from ergon_framework.ports.factstore import (
    OUTBOUND,
    Appended,
    AppendOutcome,
    Conflict,
    Corruption,
    Link,
)
from ergon_framework.ports.transfer import FactRecord
from ergon_framework.storage.failpoints import armed
from ergon_framework.storage.server import ServerClock
from ergon_framework.testing.suites.factstore.under_test import new, other, sent
from tests.boundary.postgres.conftest import Open, change
from tests.servers.postgres import PostgresServer

WAIT = 30.0
pytestmark = pytest.mark.req("SCALE:boundary-postgres")


def put(store: PostgresFactStore, *ids: str, **fields: object) -> list[AppendOutcome]:
    """Append new facts in one call."""
    return store.append(OUTBOUND, [new(each, **fields) for each in ids])


def ids(store: PostgresFactStore, to_zone: str | None = None) -> list[str]:
    """What the outbound log keeps."""
    return [each.message_id for each in store.page(OUTBOUND, 0, 1000, 1 << 20, to_zone).facts]


def flaws(store: PostgresFactStore) -> list[int]:
    """Where verification finds something."""
    return [each.offset for each in store.verify(OUTBOUND) if isinstance(each, Corruption)]


# ---- opening ------------------------------------------------------------------------------------


def test_zones_share_a_database(open_store: Open, url: str) -> None:
    """Each has tables of its own, whatever its name looks like, and the database tells of them."""
    names = ["Werk Süd", "werk sud", "x" * 200, 'a"b']
    stores = [open_store(zone=name) for name in names]
    for name, store in zip(names, stores, strict=True):
        put(store, name[:20])
    assert [ids(store) for store in stores] == [[name[:20]] for name in names]
    assert len({store.namespace for store in stores}) == len(names)
    assert all(len(store.namespace) < 64 for store in stores)
    with psycopg.connect(url) as connection:
        assert set(names) <= set(zones_in(connection))


def test_the_same_zone_opened_twice_at_once(open_store: Open) -> None:
    """Whoever comes first founds it; both have the same epoch."""
    found: list[PostgresFactStore] = []
    threads = [threading.Thread(target=lambda: found.append(open_store())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
    assert len({store.info() for store in found}) == 1
    assert len(found) == 4


def test_reading_only(open_store: Open, zone: str) -> None:
    """What is there can be read and nothing can be changed; a zone that is not there is refused."""
    with pytest.raises(StoreSchemaError):
        open_store(read_only=True)
    writer = open_store()
    put(writer, "a", "b")
    reader = open_store(read_only=True)
    assert (ids(reader), reader.info()) == (["a", "b"], writer.info())
    for call in (
        lambda: put(reader, "c"),
        lambda: reader.seal("x", "no"),
        lambda: reader.receive("x", [], Link("x")),
    ):
        with pytest.raises(StoreReadOnlyError):
            call()
    assert ids(reader) == ["a", "b"]


def test_tables_of_another_version(open_store: Open, url: str) -> None:
    """Later tables that only add are fine; those that shut out this program are refused."""
    store = open_store()
    later = "UPDATE {zone}.ergon_schema SET version = %s, compatible = %s"
    assert change(url, store, later, SCHEMA.version + 1, 1) == 1
    put(open_store(), "a")
    change(url, store, later, SCHEMA.version + 2, SCHEMA.version + 1)
    with pytest.raises(StoreSchemaError, match="upgrade ergon-framework"):
        open_store()


@pytest.mark.req("SCALE:url-errors")
def test_places_that_cannot_be_opened(open_store: Open, url: str) -> None:
    """A server that is away and a database that is not there have errors of their own."""
    with pytest.raises(ConfigurationError, match="no database"):
        open_store(url=url.replace("/test_", "/absent_"))
    with pytest.raises(StoreUnavailableError):
        open_store(url="postgresql://ergon:secret@127.0.0.1:1/none")
    with pytest.raises(ConfigurationError):
        open_store(url="postgresql://[")


def test_a_restored_copy_begins_a_new_epoch(postgres_server: PostgresServer, zone: str) -> None:
    """Who read from the store before notices that it may have gone back in time."""
    old = postgres_server.new_database()
    store = PostgresFactStore(old, zone=zone)
    put(store, "a")
    store.close()
    copy = postgres_server.new_database(like=old.partition("@/")[2].partition("?")[0])
    restored = PostgresFactStore(copy, zone=zone)
    assert restored.info().epoch != store.info().epoch
    assert ids(restored) == ["a"]
    assert restored.journal()[0][1] == "new_epoch"
    epoch = restored.info().epoch
    restored.close()
    again = PostgresFactStore(copy, zone=zone)
    assert again.info().epoch == epoch
    again.close()
    for each in (old, copy):
        postgres_server.drop_database(each)


def test_a_closed_store_says_so(open_store: Open) -> None:
    """Every call is refused; closing again is fine."""
    store = open_store()
    put(store, "a")
    store.close()
    store.close()
    for call in (lambda: put(store, "b"), lambda: ids(store), lambda: store.find("plant-a", "a")):
        with pytest.raises(StoreUnavailableError, match="closed"):
            call()
    with pytest.raises(StoreUnavailableError, match="closed"):
        store.append_soon(OUTBOUND, [new("b")], lambda _: None)


def test_backups_are_the_servers(store: PostgresFactStore) -> None:
    """The error names the program, and the schema it has to copy."""
    with pytest.raises(StoreError) as refusal:
        store.backup("/nowhere")
    assert "pg_dump" in refusal.value.remedy
    assert store.namespace in refusal.value.remedy


# ---- the same as elsewhere ----------------------------------------------------------------------


def test_the_chain_is_that_of_every_store(open_store: Open, tmp_path: object) -> None:
    """The same facts at the same instants have the same hash chain in a file and on a server."""
    mine = open_store(clock=lambda: 1000.5)
    theirs = SqliteFactStore(f"{tmp_path}/facts.db", zone="plant-a", clock=lambda: 1000.5)
    for store in (mine, theirs):
        store.append(OUTBOUND, [new("a", to_zone="x"), new("b", to_zone="y")])
        store.append(OUTBOUND, [new("c", to_zone="x")])
        store.receive("plant-b", [sent("d", 4)], Link("plant-b", "e", 4))
    for log in (OUTBOUND, "inbound:plant-b"):
        pages = [store.page(log, 0, 9, 1 << 20) for store in (mine, theirs)]
        assert pages[0] == pages[1]
        assert pages[0].end_chain
    theirs.close()


def test_text_that_the_server_cannot_keep(store: PostgresFactStore) -> None:
    """A NUL in a message is replaced; the fact is set aside all the same."""
    store.create_consumer("c", OUTBOUND)
    put(store, "a")
    store.serve("c", 9, 1 << 20)
    item = store.set_aside("c", 1, reason="failed", message="a\0b", attempts=1)
    assert item.message == "a\ufffdb"


@pytest.mark.parametrize("to_zone", [None, "x"])
def test_a_page_costs_no_more_than_it_has(store: PostgresFactStore, to_zone: str | None) -> None:
    """Large facts behind a page are not fetched with it, however small those before them are."""
    put(store, *(f"small-{number}" for number in range(330)), to_zone="x")
    large = [f"large-{number}" for number in range(200)]
    put(store, *large, to_zone="x", fact=b"7" * (64 << 10))
    tracemalloc.start()
    try:
        page = store.page(OUTBOUND, 0, 1000, 1 << 20, to_zone)
        copies = store.records.dump(FactRecord, (1, 320), 12)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (len(page.facts), len(copies)) == (345, 12)
    assert most < 6 << 20
    seen, after = [], 0
    while page.facts:
        page = store.page(OUTBOUND, after, 400, 2 << 20, to_zone)
        seen += [each.offset for each in page.facts]
        after = page.through
    assert seen == list(range(1, 531))


def test_who_slept_ends_nobodys_lease(open_store: Open) -> None:
    """A process whose idea of the time fell behind asks the server before it shortens a lease."""
    behind = iter([-300.0])
    clock = ServerClock(lambda: time.time() + next(behind, 0.0), time.monotonic)
    holder, sleeper, other = open_store(), open_store(clock=clock), open_store()
    put(holder, "a")
    holder.create_consumer("c", OUTBOUND)
    holder.serve("c", 1, 1 << 20, holder="h", lease=30.0)
    for store in (sleeper, other):
        with pytest.raises(ConsumerHeldError):
            store.serve("c", 1, 1 << 20, holder="o", lease=30.0)
    assert holder.confirm("c", 1, holder="h") == 1


def test_what_was_confirmed_meanwhile_is_not_put_back(open_store: Open, url: str) -> None:
    """Whoever settles an item locks it: a confirmation comes before or after, not in between."""
    store = open_store()
    put(store, "a")
    store.create_consumer("c", OUTBOUND)
    store.serve("c", 1, 1 << 20)
    item = store.set_aside("c", 1, reason="failed", message="m", attempts=1)
    store.settle(item.id, "released")
    errors: list[BoundaryError] = []

    def settle() -> None:
        try:
            store.settle(item.id, "quarantined")
        except BoundaryError as error:
            errors.append(error)

    settling = threading.Thread(target=settle)
    confirmed = "UPDATE {zone}.quarantine SET state = 'settled' WHERE id = %s"
    with psycopg.connect(url) as confirming, psycopg.connect(url, autocommit=True) as admin:
        statement = sql.SQL(confirmed).format(zone=sql.Identifier(store.namespace))
        confirming.execute(statement, (item.id,))
        settling.start()
        wait_for_lock(admin)
        confirming.commit()
    settling.join(WAIT)
    assert [each.reason for each in errors] == ["wrong_state"]
    assert [each.state for each in store.quarantine(state=None)] == ["settled"]


def wait_for_lock(admin: psycopg.Connection[Any]) -> None:
    """Until some session of the database waits for a row that another one has changed."""
    pause, waiting = (
        threading.Event(),
        (
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE datname = current_database() AND wait_event_type = 'Lock'"
        ),
    )
    for _ in range(int(WAIT * 100)):
        row = admin.execute(waiting).fetchone()
        if row is not None and row[0]:
            return
        pause.wait(0.01)
    raise AssertionError("nobody waits")


# ---- rows that changed --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("view", 77),
        ("total", 1),
        ("recorded_at", 7.5),
        ("proof", b"x"),
        ("proof", b"y" * 90),
        ("envelope", b"{}"),
        ("fact", b""),
    ],
)
def test_a_changed_column_is_noticed(
    open_store: Open, url: str, column: str, value: object
) -> None:
    """Whatever changes in a row, it is not given out, the others are, and the store goes on."""
    store = open_store()
    put(store, "a", "b", "c")
    store.create_consumer("c", OUTBOUND)
    statement = f"UPDATE {{zone}}.facts SET {column} = %s WHERE id & 15 = 2"  # noqa: S608
    assert change(url, store, statement, value) == 1
    assert [each.offset for each in store.serve("c", 9, 1 << 20).page.facts] == [1]
    assert set(flaws(store)) == {2}
    with pytest.raises(DataLossError):
        store.page(OUTBOUND, 1, 9, 1 << 20)
    store.confirm("c", 1)
    assert [each.offset for each in store.serve("c", 9, 1 << 20).page.facts] == [3]
    assert [each.reason for each in store.quarantine("c")] == ["corrupted"]
    assert put(store, "d") == [Appended(4)]


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("view", 99),
        ("total", 1),
        ("proof", b"x"),
        ("proof", b"y" * 90),
        ("envelope", b"{}"),
        ("fact", b""),
    ],
)
def test_a_changed_column_is_repaired_by_a_duplicate(
    open_store: Open, url: str, column: str, value: object
) -> None:
    """The row is what it was, by its mark or by the hash chain around it; other content is not."""
    store = open_store()
    put(store, "a", "b", "c")
    before = store.page(OUTBOUND, 0, 9, 1 << 20)
    statement = f"UPDATE {{zone}}.facts SET {column} = %s WHERE id & 15 = 2"  # noqa: S608
    assert change(url, store, statement, value) == 1
    assert isinstance(store.append(OUTBOUND, [other("b")])[0], Conflict)
    [told] = put(store, "b")
    assert isinstance(told, Appended)
    assert told.is_repaired
    assert store.page(OUTBOUND, 0, 9, 1 << 20) == before
    assert flaws(store) == []


@pytest.mark.parametrize("to_zone", [None, "x"])
@pytest.mark.parametrize("lost", [1, 2, 3])
def test_a_missing_row_is_noticed(
    open_store: Open, url: str, to_zone: str | None, lost: int
) -> None:
    """A row that is gone is never passed in silence, in no view."""
    store = open_store()
    put(store, "a", "b", "c", to_zone="x")
    put(store, "d", to_zone="y")
    store.create_consumer("c", OUTBOUND, to_zone=to_zone)
    assert change(url, store, "DELETE FROM {zone}.facts WHERE id & 15 = %s", lost) == 1
    seen: list[int] = []
    for _ in range(4):
        page = store.serve("c", 9, 1 << 20).page
        seen += [each.offset for each in page.facts]
        store.confirm("c", page.through)
    wanted = [1, 2, 3] if to_zone else [1, 2, 3, 4]
    assert seen == [each for each in wanted if each != lost]
    assert [each.offset for each in store.quarantine("c")] == [lost]
    assert flaws(store) == [lost]


def test_an_id_under_another_key_is_found(open_store: Open, url: str) -> None:
    """A fact that the ledger does not know could be appended twice: verification says so."""
    store = open_store()
    put(store, "a", "b", "c")
    change(url, store, "UPDATE {zone}.facts SET key = %s WHERE id & 15 = 2", b"z" * 16)
    assert flaws(store) == [2]


# ---- two ways to append -------------------------------------------------------------------------


def test_hope_is_enough_until_it_is_not(open_store: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """New facts need one statement; what is known or was touched by others is done with care."""
    store, rival = open_store(tuning=PostgresTuning(locked_groups=1)), open_store()
    careful: list[int] = []
    before = store.appender.run_locked

    def counted(*given: Any) -> Any:
        careful.append(1)
        return before(*given)

    monkeypatch.setattr(store.appender, "run_locked", counted)
    put(store, "a")
    assert len(careful) == 1  # nothing was remembered yet
    put(store, "b", "c")
    put(store, "d", to_zone="y")
    assert len(careful) == 2  # a zone that was not met yet
    put(store, "e", to_zone="x")
    put(store, "f", to_zone="y")
    assert len(careful) == 3
    put(store, "g", "h", to_zone="y")
    put(store, "i", to_zone="x")
    assert len(careful) == 3
    assert put(store, "a", "new") == [Appended(1, True, new("a").envelope), Appended(10)]
    assert put(rival, "r") == [Appended(11)]
    assert put(store, "j") == [Appended(12)]
    assert put(rival, "s") == [Appended(13)]
    assert isinstance(store.append(OUTBOUND, [other("r")])[0], Conflict)
    assert ids(store) == [*"abcdefghi", "new", "r", "j", "s"]
    assert ids(store, "y") == [*"dfgh"]
    assert flaws(store) == []


def test_hope_that_failed_has_changed_nothing(open_store: Open) -> None:
    """The run that was to end goes on: what another node appended to it is still seen."""
    store, rival = open_store(), open_store()
    put(store, "a", to_zone="x")
    put(store, "b", to_zone="y")
    put(store, "c", to_zone="x")
    put(store, "d", to_zone="y")
    put(store, "e", to_zone="x")
    store.appender.locked_groups = 0
    assert put(rival, "r", to_zone="x") == [Appended(6)]
    assert put(store, "f", to_zone="y") == [Appended(7)]
    assert ids(store, "x") == [*"acer"]
    assert ids(store, "y") == [*"bdf"]
    assert flaws(store) == []


def test_an_old_id_is_known_to_hope(open_store: Open) -> None:
    """Ids of dropped facts are looked through as well: nothing is appended twice."""
    store = open_store()
    store.create_consumer("c", OUTBOUND)
    put(store, "a", "b", "c")
    store.serve("c", 9, 1 << 20)
    store.confirm("c", 3)
    assert store.truncate(OUTBOUND, 2) == 2
    assert put(store, "d") == [Appended(4)]
    assert put(store, "e") == [Appended(5)]
    assert put(store, "f", "a") == [Appended(6), Appended(1, True)]
    assert put(store, "b") == [Appended(2, True)]


def test_what_is_no_longer_prepared_is_prepared_again(
    open_store: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a refusal the driver lets go of all statements: appends go on without more care."""
    store = open_store()
    put(store, "a", to_zone="x")
    put(store, "b", to_zone="y")
    put(store, "c", to_zone="x")
    store.appender.locked_groups = 0
    monkeypatch.setattr(store.appender, "run_locked", None)
    store.database.server.run(lambda connection: connection.execute("DEALLOCATE ALL"))
    assert put(store, "d", to_zone="y") == [Appended(4)]
    assert put(store, "e", to_zone="y") == [Appended(5)]
    store.database.server.run(lambda connection: connection.execute("DEALLOCATE ALL"))
    assert put(store, "f", to_zone="y") == [Appended(6)]
    assert put(store, "g", to_zone="x") == [Appended(7)]
    assert flaws(store) == []


def test_others_hear_of_facts_after_a_refusal(open_store: Open, url: str) -> None:
    """The announcement is prepared again as well, also where old ids are looked through."""
    store = open_store()
    put(store, "a", "b", "c")
    store.truncate(OUTBOUND, 2, loss_reason="they were dropped")
    store.create_consumer("c", OUTBOUND)
    put(store, "d")
    store.appender.locked_groups = 0
    put(store, "e")
    with pytest.raises(BoundaryError):
        store.create_consumer("c", "inbound:x")
    put(store, "f")
    with psycopg.connect(url, autocommit=True) as ear:
        ear.execute(f'LISTEN "{store.database.channel}"')
        put(store, "g")
        assert len(list(ear.notifies(timeout=10.0, stop_after=1))) == 1


def test_an_error_at_the_commit_is_told(open_store: Open, url: str) -> None:
    """It comes behind the answers to all statements, and nothing was stored."""
    store = open_store()
    put(store, "a")
    put(store, "b")
    refuse = "CREATE FUNCTION {zone}.no() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
    change(url, store, f"{refuse} RAISE EXCEPTION 'not now' USING ERRCODE = '23514'; END $$")
    late = "CREATE CONSTRAINT TRIGGER late AFTER INSERT ON {zone}.facts"
    each = "DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION {zone}.no()"
    change(url, store, f"{late} {each}")
    with pytest.raises(StoreError, match="not now"):
        put(store, "c")
    change(url, store, "DROP TRIGGER late ON {zone}.facts")
    assert put(store, "c") == [Appended(3)]
    assert flaws(store) == []


def test_an_interrupt_is_not_taken_for_a_lost_connection(
    open_store: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reaches whoever called; the connection, in the middle of an answer, is given up."""
    store = open_store()
    put(store, "a")
    put(store, "b")

    def interrupted(*_: object) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(append, "_answers", interrupted)
        with pytest.raises(KeyboardInterrupt):
            put(store, "c")
    assert put(store, "c")[0] in (Appended(3), Appended(3, True, new("c").envelope))
    assert ids(store) == ["a", "b", "c"]


@pytest.mark.req("P11", "P12")
@pytest.mark.parametrize("point", ["boundary.append.before", "boundary.append.after"])
@pytest.mark.parametrize("warm", [0, 3])
def test_an_error_around_the_commit(store: PostgresFactStore, point: str, warm: int) -> None:
    """Nobody is told that it worked; the same again ends in one fact."""
    known = [f"a{number}" for number in range(warm)]
    for each in known:
        put(store, each)
    with armed(f"{point}=error"), pytest.raises(OSError, match=point):
        put(store, "b")
    offset = warm + 1
    assert put(store, "b")[0] in (Appended(offset), Appended(offset, True, new("b").envelope))
    assert ids(store) == [*known, "b"]
    assert put(store, "c") == [Appended(offset + 1)]


def test_several_stores_append_at_once(open_store: Open) -> None:
    """Offsets stay dense and the chain whole, whoever appends, and nothing is stored twice."""
    stores = [open_store() for _ in range(3)]
    failures: list[BaseException] = []

    def write(number: int) -> None:
        try:
            for each in range(30):
                put(stores[number], f"own-{number}-{each}", to_zone=f"z{each % 3}")
                put(stores[number], f"shared-{each}")
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
    assert not failures
    found = ids(stores[0])
    assert len(found) == len(set(found)) == 3 * 30 + 30
    assert flaws(stores[1]) == []
    page = stores[2].page(OUTBOUND, 0, 1000, 1 << 20)
    assert [fact.offset for fact in page.facts] == list(range(1, 121))


# ---- waking -------------------------------------------------------------------------------------


def test_another_process_wakes_who_waits(open_store: Open) -> None:
    """Facts of another store of the zone are heard of, and so is a page of a peer."""
    store, rival = open_store(), open_store()
    woken = threading.Event()
    store.subscribe(woken.set)
    put(rival, "a")
    assert woken.wait(WAIT)
    woken.clear()
    rival.receive("plant-b", [sent("x", 1)], Link("plant-b"))
    assert woken.wait(WAIT)


def test_who_waits_is_woken_without_a_bell(
    open_store: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pooler may keep announcements to itself: new facts are looked for as well."""
    store, rival = open_store(tuning=PostgresTuning(poll_interval=0.01)), open_store()
    monkeypatch.setattr(store.database, "channel", "elsewhere")
    woken = threading.Event()
    store.subscribe(woken.set)
    put(rival, "a")
    assert woken.wait(WAIT)


def test_waking_goes_on_after_the_server_was_away(
    postgres_server: PostgresServer, url: str, open_store: Open, zone: str
) -> None:
    """The line that listens is cut; facts that come meanwhile or later wake who waits."""
    store, rival = open_store(), open_store()
    woken = threading.Event()
    store.subscribe(woken.set)
    put(rival, "a")
    assert woken.wait(WAIT)
    woken.clear()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
    put(rival, "b")
    assert woken.wait(WAIT)
    assert ids(store) == ["a", "b"]


def test_statements_name_only_what_is_there(store: PostgresFactStore) -> None:
    """Every statement is one the server understands: no column or table is misspelt."""
    texts = {**store.database.wordings.reading, **store.database.wordings.writing}

    def prepare(connection: psycopg.Connection[tuple[object, ...]]) -> list[str]:
        wrong = []
        for name, text in texts.items():
            answer = connection.pgconn.prepare(b"", text)
            if answer.status != psycopg.pq.ExecStatus.COMMAND_OK:
                wrong.append(f"{name}: {answer.error_message.decode()}")
        return wrong

    assert store.database.server.run(prepare) == []
    assert sql.Identifier(namespace_of("Werk 1")).as_string() == '"ergon_zone_werk_1_' + (
        namespace_of("Werk 1")[-8:] + '"'
    )


# Deferred, so that it runs when the transaction commits, which is when the setting counts.
NOTE = """
CREATE TABLE public.noted (id bigint, commits text);
CREATE FUNCTION public.note() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO public.noted VALUES (NEW.id, current_setting('synchronous_commit'));
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER note AFTER INSERT ON {zone}.facts
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION public.note();
"""


def test_facts_wait_for_the_disk_of_the_server(postgres_url: str) -> None:
    """Each way to append and to receive commits synchronously, whatever the server's default is."""
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        name = sql.Identifier(connection.info.dbname)
        connection.execute(sql.SQL("ALTER DATABASE {} SET synchronous_commit = off").format(name))
        with closing(PostgresFactStore(postgres_url, zone="plant-a")) as store:
            place = sql.Identifier(store.namespace)
            connection.execute(sql.SQL(NOTE).format(zone=place))
            put(store, "a")
            put(store, "b", "c")
            answered = threading.Event()
            store.append_soon(OUTBOUND, [new("d")], lambda _: answered.set())
            assert answered.wait(WAIT)
            store.receive("plant-b", [sent("e", 4)], Link("plant-b", "x", 4))
        noted = connection.execute("SELECT commits FROM public.noted").fetchall()
    assert noted == [("on",)] * 5
