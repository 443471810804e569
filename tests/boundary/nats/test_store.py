"""The NATS fact store on its own: several processes, limits of the server, and damage."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import cast

import pytest
from pydantic import SecretStr

from ergon_framework.app.move.fencing import FencedStore
from ergon_framework.app.move.transfer import reopen, shut
from ergon_framework.boundary.factstore.append_plan import AppendPlanner
from ergon_framework.boundary.factstore.hashchain import prepare
from ergon_framework.boundary.factstore.memory import MemoryFactStore
from ergon_framework.boundary.factstore.nats import NatsFactStore
from ergon_framework.boundary.factstore.nats.append import StreamPlacement
from ergon_framework.boundary.factstore.nats.consumers import MAX_SETTLED
from ergon_framework.boundary.factstore.nats.records import ids_after
from ergon_framework.boundary.factstore.nats.schema import JournalNote
from ergon_framework.boundary.factstore.nats.session import MAX_YOUNG, StreamTransaction
from ergon_framework.boundary.model import Envelope, Fact
from ergon_framework.boundary.settings import ZoneSettings
from ergon_framework.boundary.zone import LocalZone
from ergon_framework.errors import (
    ConsumerHeldError,
    FactInvalidError,
    StoreBrokenError,
    StoreError,
    StoreReadOnlyError,
)
from ergon_framework.ports.factstore import (
    OUTBOUND,
    Appended,
    Conflict,
    Corruption,
    Link,
    MissingReference,
    Quarantined,
    Reference,
)
from ergon_framework.ports.transfer import (
    AwaitedObjectRecord,
    Destination,
    FactRecord,
    QuarantineRecord,
)
from ergon_framework.storage.nats import StreamMessage
from ergon_framework.testing.suites.factstore.under_test import new, other, sent
from tests.boundary.nats.conftest import Open
from tests.boundary.nats.damage import lose

pytestmark = pytest.mark.req("SCALE:boundary-nats")
TIMEOUT = 30.0
PLENTY = 1 << 24


def test_who_watches_is_told_before_the_server_is_waited_for(open_store: Open) -> None:
    """Nothing is in the log by then."""
    store = open_store()
    seen: list[int] = []
    store.watch_waits(lambda _=None, /: seen.append(store.logs()[0].head))
    store.append(OUTBOUND, [new("a")])
    store.append(OUTBOUND, [new("b")])
    assert seen == [0, 1]


def test_two_processes_share_one_ledger(open_store: Open) -> None:
    """An id that another process appended is known, with its offset; other content conflicts."""
    one, two = open_store(), open_store()
    one.append(OUTBOUND, [new("a"), new("b")])
    assert two.append(OUTBOUND, [new("b"), new("c")]) == [
        Appended(2, True, new("b").envelope),
        Appended(3),
    ]
    assert one.append(OUTBOUND, [new("c")]) == [Appended(3, True, new("c").envelope)]
    assert isinstance(one.append(OUTBOUND, [other("c")])[0], Conflict)


def test_what_others_wrote_is_seen_at_once(open_store: Open) -> None:
    """Pages, consumers, names and links never come from what was remembered."""
    one, two = open_store(), open_store()
    for store in (one, two):
        store.append(OUTBOUND, [new("a")])
        store.consumers()
    one.create_consumer("c", OUTBOUND)
    one.append(OUTBOUND, [new("b")])
    one.bind("files", "k", bytes(32), 1)
    one.seal("plant-b", "drill")
    assert [each.offset for each in two.serve("c", 9, PLENTY).page.facts] == [1, 2]
    assert two.object("files", "k") is not None
    assert two.link("plant-b").is_sealed
    two.confirm("c", 2)
    assert one.consumer("c").cursor == 2


def test_processes_that_write_at_once_lose_nothing(open_store: Open) -> None:
    """Offsets are dense, each id has one, and everybody is told the one that holds."""
    stores = [open_store() for _ in range(3)]
    found: dict[str, set[int]] = {f"id-{n}": set() for n in range(40)}

    def run(start: int) -> None:
        for n in range(40):
            name = f"id-{(n * 7 + start) % 40}"
            [outcome] = stores[start].append(OUTBOUND, [new(name)])
            assert isinstance(outcome, Appended)
            found[name].add(outcome.offset)

    threads = [threading.Thread(target=run, args=(each,)) for each in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT)
    assert all(len(each) == 1 for each in found.values())
    assert sorted(offset for each in found.values() for offset in each) == [*range(1, 41)]
    page = stores[0].page(OUTBOUND, 0, 99, PLENTY)
    assert {each.message_id: {each.offset} for each in page.facts} == found


def test_callers_that_come_together_are_overtaken_together(open_store: Open) -> None:
    """When another process wrote meanwhile, none of a group goes in before all of it is judged."""
    one, two = open_store(), open_store()
    one.create_consumer("c", OUTBOUND)
    one.append(OUTBOUND, [new("a")])
    two.serve("c", 9, PLENTY, holder="other")  # one message, of which the first one knows nothing
    asked = [one.log.prepared(OUTBOUND, [new(each)], None) for each in "bc"]
    assert one.log.append_all(asked) == [[Appended(2)], [Appended(3)]]
    assert [each for each in two.verify(OUTBOUND) if isinstance(each, Corruption)] == []
    page = two.page(OUTBOUND, 0, 9, PLENTY)
    assert [(each.offset, each.message_id) for each in page.facts] == [(1, "a"), (2, "b"), (3, "c")]


def test_facts_of_another_process_wake(open_store: Open) -> None:
    """Whoever waits for facts here is woken by an append elsewhere."""
    one, two = open_store(), open_store()
    woken = threading.Event()
    two.subscribe(woken.set)
    one.append(OUTBOUND, [new("a")])
    assert woken.wait(TIMEOUT)


def test_an_append_that_needs_several_commits(open_store: Open) -> None:
    """More facts than a batch may have are appended in order, each with its outcome."""
    store = open_store()
    store.append(OUTBOUND, [new("id-1200")])
    outcomes = store.append(OUTBOUND, [new(f"id-{n}") for n in range(1500)])
    offsets = [each.offset for each in outcomes if isinstance(each, Appended)]
    assert offsets == [*range(2, 1202), 1, *range(1202, 1501)]
    store.create_consumer("c", OUTBOUND)
    assert store.consumer("c").lag == 1500
    assert store.truncate(OUTBOUND, 1400, loss_reason="disk") == 1400
    assert store.append(OUTBOUND, [new("id-7")]) == [Appended(9, True)]
    assert [each for each in store.verify(OUTBOUND) if isinstance(each, Corruption)] == []


def test_a_page_of_a_peer_that_needs_several_commits(open_store: Open) -> None:
    """A large page of a peer is taken in whole, and the link moves to its end."""
    store = open_store()
    facts = [sent(f"id-{n}", n) for n in range(1, 801)]
    outcomes = store.receive("plant-b", facts, Link("plant-b", "e", 800))
    assert [each.offset for each in outcomes if isinstance(each, Appended)] == [*range(1, 801)]
    assert store.link("plant-b").offset == 800
    assert len(store.page("inbound:plant-b", 0, 999, PLENTY).facts) == 800


def test_more_records_than_one_answer_has(open_store: Open) -> None:
    """More than a thousand items are kept at once, and listed in order, each once."""
    store = open_store()
    items = [
        Quarantined(0, "", "", n, "bad", "", 1, 1.0, envelope=b"%d" % n) for n in range(1, 1101)
    ]
    store.receive("plant-b", [], Link("plant-b", "e", 5), items)
    assert [each.offset for each in store.quarantine()] == [*range(1, 1101)]
    assert store.link("plant-b").offset == 5


def test_a_fact_that_the_server_lost_is_damage(open_store: Open) -> None:
    """A fact that is gone from the stream is noticed by whoever reads, verifies or copies."""
    store = open_store()
    store.create_consumer("c", OUTBOUND)
    store.create_consumer("view", OUTBOUND, to_zone="plant-b")
    store.append(OUTBOUND, [new(each) for each in "abcd"])
    lose(store, OUTBOUND, 2)
    flaws = [each.offset for each in store.verify(OUTBOUND) if isinstance(each, Corruption)]
    assert flaws == [2]
    for name in ("c", "view"):
        assert [each.offset for each in store.serve(name, 9, PLENTY).page.facts] == [1]
        store.confirm(name, 1)
        page = store.serve(name, 9, PLENTY).page
        assert [each.offset for each in page.facts] == [3, 4]
        assert [(gap.first, gap.reason) for gap in page.gaps] == [(2, "corrupted")]
    assert store.append(OUTBOUND, [new("e")]) == [Appended(5)]


def test_a_deleted_consumer_leaves_nothing_behind(open_store: Open) -> None:
    """One of the same name begins without the quarantine of the one before."""
    store = open_store()
    store.create_consumer("c", OUTBOUND)
    store.append(OUTBOUND, [new("a"), new("b")])
    item = store.set_aside("c", 1, reason="handler_failed", message="", attempts=1)
    store.delete_consumer("c")
    store.create_consumer("c", OUTBOUND)
    assert store.quarantine("c", None) == []
    again = store.set_aside("c", 1, reason="handler_failed", message="", attempts=1)
    assert again.id > item.id


def test_odd_names_are_kept_apart(open_store: Open) -> None:
    """Names with dots, stars, blanks and of great length are what they are."""
    store = open_store()
    names = ["a.b", "a.*", ">", " ", "a b", "é", "x" * 500, "x" * 501, "nx", "n.x", ""]
    for number, name in enumerate(names[:-1]):
        store.create_consumer(name, OUTBOUND)
        store.bind("files", name, bytes([number]) * 32, number)
        store.seal(name, "drill")
    store.seal("", "all")
    assert [each.name for each in store.consumers()] == sorted(names[:-1])
    assert [each.key for each in store.objects()] == sorted(names[:-1])
    assert [each.peer for each in store.links()] == sorted(names)
    outcomes = store.append(OUTBOUND, [new(each, to_zone=each) for each in names[:-1]])
    assert [each.offset for each in outcomes if isinstance(each, Appended)] == [*range(1, 11)]
    for offset, name in enumerate(names[:-1], 1):
        page = store.page(OUTBOUND, 0, 99, PLENTY, name)
        assert [each.offset for each in page.facts] == [offset]


def test_a_backup_is_left_to_the_server(open_store: Open) -> None:
    """The store says which program copies a stream."""
    with pytest.raises(StoreError, match="not backed up") as caught:
        open_store().backup("anywhere")
    assert "nats stream backup" in (caught.value.remedy or "")


def test_a_last_fact_that_was_lost_keeps_its_offset(open_store: Open) -> None:
    """A fact at the end that is gone is damage like any other: its offset is not given again."""
    store = open_store()
    store.append(OUTBOUND, [new("a"), new("b")])
    lose(store, OUTBOUND, 2)
    again = open_store()
    assert again.append(OUTBOUND, [new("b"), new("c")]) == [Appended(2, True), Appended(3)]
    assert [each.offset for each in again.verify(OUTBOUND) if isinstance(each, Corruption)] == [2]


def test_ids_of_the_last_facts_are_known_at_once(open_store: Open) -> None:
    """A fact is one message, and its id is written with others later; it is known all the same."""
    store = open_store()
    for number in range(MAX_YOUNG + 3):
        store.append(OUTBOUND, [new(f"id-{number}")])
        again = open_store() if number % 9 == 0 else store
        assert again.append(OUTBOUND, [new(f"id-{number}")]) == [
            Appended(number + 1, True, new(f"id-{number}").envelope)
        ]
        found = again.find("plant-a", f"id-{number}")
        assert found is not None
        assert found.offset == number + 1
    ids = store.database.stream.latest([store.database.subjects.ids()])
    assert MAX_YOUNG < len(ids) < MAX_YOUNG + 3


def test_callers_that_come_together_get_their_own_outcomes(open_store: Open) -> None:
    """Facts of several threads, some of them the same, each have one offset and one owner."""
    store = open_store()
    fresh: list[str] = []

    def run(start: int) -> None:
        for n in range(30):
            name = f"id-{start}-{n}" if n % 3 else f"id-{n}"
            [outcome] = store.append(OUTBOUND, [new(name)])
            assert isinstance(outcome, Appended)
            if not outcome.is_duplicate:
                fresh.append(name)

    threads = [threading.Thread(target=run, args=(each,)) for each in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT)
    page = store.page(OUTBOUND, 0, 999, PLENTY)
    assert sorted(fresh) == sorted(each.message_id for each in page.facts)
    assert len(fresh) == len(set(fresh)) == page.head == 6 * 20 + 10


def test_one_of_the_last_facts_that_cannot_be_read(open_store: Open) -> None:
    """A log whose end cannot be read takes no fact: it would get an offset that is taken."""
    store = open_store()
    store.append(OUTBOUND, [new("a")])
    subject = store.database.subjects.entry(OUTBOUND, "plant-b")
    store.database.stream.commit([StreamMessage(subject, b"rubbish")], None)
    with pytest.raises(StoreBrokenError, match="cannot be read"):
        store.append(OUTBOUND, [new("b")])


def test_who_dies_between_two_commits_of_a_move_is_followed_by_another(
    open_store: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Facts that were loaded in part are loaded to the end by whoever does it again."""
    source = MemoryFactStore("plant-a")
    source.append(OUTBOUND, [new(f"id-{n}") for n in range(700)])
    facts = source.records.dump(FactRecord, None, 700)
    store = open_store()
    commit, calls = store.database.stream.commit, count(1)

    def dying(messages: Sequence[StreamMessage], expected: int | None) -> int:
        if next(calls) == 2:
            raise KeyboardInterrupt
        return commit(messages, expected)

    monkeypatch.setattr(store.database.stream, "commit", dying)
    with pytest.raises(KeyboardInterrupt):
        store.records.load(facts)
    again = open_store()
    assert 0 < again.logs()[0].head < 700
    again.records.load(facts)
    assert again.records.dump(FactRecord, None, 700) == facts
    assert again.append(OUTBOUND, [new("id-5"), new("more")])[1] == Appended(701)


def test_ids_that_are_there_before_the_log_knows_are_no_obstacle(open_store: Open) -> None:
    """Entries and ids without the record of their log, as half a commit leaves them, go on."""
    store = open_store()
    transaction = store.database.begin_read()
    facts = [prepare(OUTBOUND, new(f"id-{n}")) for n in range(40)]
    AppendPlanner(StreamPlacement(transaction, 1.0, {})).append(OUTBOUND, facts, None)
    transaction.finish()
    store.database.stream.commit(transaction.messages()[:-1], transaction.memory.last)
    again = open_store()
    outcomes = again.append(OUTBOUND, [new(f"id-{n}") for n in range(38, 42)])
    assert [each.offset for each in outcomes if isinstance(each, Appended)] == [39, 40, 41, 42]
    assert [each for each in again.verify(OUTBOUND) if isinstance(each, Corruption)] == []


def test_a_fact_with_more_references_than_a_commit_has_room_for(open_store: Open) -> None:
    """All that it refers to is marked, when it is appended and when it is received."""
    store = open_store()
    names = [Reference("files", f"key-{n}", bytes(32), 1) for n in range(1200)]
    facts = [sent("a", 1, references=tuple(names))]
    store.receive("plant-b", facts, Link("plant-b", "e", 1))
    assert len(store.records.dump(AwaitedObjectRecord, None, 2000)) == 1200
    store.bind("files", "key-7", bytes(32), 1)
    [outcome] = store.append(OUTBOUND, [new("b", references=tuple(names))])
    assert isinstance(outcome, MissingReference)
    kept = store.object("files", "key-7")
    assert kept is not None
    assert kept.is_referenced


def test_a_stream_that_lost_its_end_begins_a_new_epoch(open_store: Open) -> None:
    """When what was written last is gone, the store may have gone back: readers must notice."""
    store = open_store()
    epoch = store.info().epoch
    store.append(OUTBOUND, [new("a")])
    standing = store.database.stream.state()
    assert standing is not None
    store.database.stream.delete(standing.last)
    assert open_store().info().epoch != epoch
    assert open_store().info().epoch == store.info().epoch


def test_old_messages_of_records_are_removed(open_store: Open) -> None:
    """A record that is written again and again takes no more room than a few messages."""
    store = open_store()
    store.create_consumer("c", OUTBOUND)
    for number in range(120):
        store.append(OUTBOUND, [new(f"id-{number}")])
        store.serve("c", 9, PLENTY, holder="h")
        store.confirm("c", number + 1, holder="h")
    stream, subjects = store.database.stream, store.database.subjects
    for subject in (subjects.consumer("c"), subjects.log_state(OUTBOUND)):
        assert len(list(stream.walk(subject))) <= 60
    assert store.consumer("c").cursor == 120


def test_a_fact_that_is_too_large_for_the_server(open_store: Open) -> None:
    """It is refused by name, alone and among others; nothing of it is stored."""
    store = open_store()
    large = new("large", fact=b"x" * (9 << 20))
    for facts in ([large], [new("a"), large]):
        with pytest.raises(StoreError, match="no message of that size") as caught:
            store.append(OUTBOUND, facts)
        assert "max_payload" in (caught.value.remedy or "")
    assert store.append(OUTBOUND, [new("b")]) == [Appended(1)]


def test_a_zone_that_went_elsewhere_refuses_again_and_again(open_store: Open) -> None:
    """Who was refused once knows how the stream stands, and is told all the same."""
    one, two = open_store(), open_store()
    one.append(OUTBOUND, [new("a")])
    two_fenced = FencedStore(two.records, "two")
    shut(two_fenced, Destination("elsewhere"))
    for turn in range(3):
        with pytest.raises(StoreReadOnlyError, match="was moved to elsewhere"):
            one.append(OUTBOUND, [new(f"b{turn}")])
    assert reopen(two_fenced)
    assert one.append(OUTBOUND, [new("c")]) == [Appended(2)]


def test_an_id_comes_once_though_it_is_sealed_meanwhile(open_store: Open) -> None:
    """Who reads ids has seen it among the young ones, and meets it in the ledger again."""
    one, two = open_store(), open_store()
    one.append(OUTBOUND, [new("a")])

    def read(transaction: StreamTransaction) -> list[bytes]:
        assert [len(log_state.young) for log_state in transaction.log_states()] == [1]
        two.append(OUTBOUND, [new("b"), new("c")])
        return [copy.key for copy in ids_after(transaction, b"")]

    keys = one.database.read(read)
    assert keys == sorted(set(keys))
    assert len(keys) == 3


def test_a_zone_refuses_what_its_server_would_not_take(nats_url: str, tmp_path: Path) -> None:
    """For good, and by itself: whoever sends it again would wait for ever, and all behind it."""
    settings = ZoneSettings(data=str(tmp_path), store=SecretStr(nats_url))
    with LocalZone.open("plant", settings) as zone:
        cast(NatsFactStore, zone.store).database.stream.client.max_payload = 50_000
        facts = {"a": 1, "large": "x" * 60_000, "b": 2}
        for message_id, value in facts.items():
            envelope = Envelope(
                message_id=message_id, from_zone="plant", to_zone="hq", produced_at_unix_ms=1
            )
            fact = Fact(subject="batch:1", predicate="done", object_json=value)
            if message_id != "large":
                assert zone.append(envelope, fact).offset in {1, 2}
                continue
            with pytest.raises(FactInvalidError, match="and the server of the store") as caught:
                zone.append(envelope, fact)
            assert caught.value.reason == "too_large"
            assert not caught.value.is_retryable


def test_closing_lets_go_of_who_waits(open_store: Open) -> None:
    """Who is in the middle of a call when the store is closed gets an error, and does not hang."""
    store = open_store()
    ended = threading.Event()

    def run() -> None:
        number = 0
        while True:
            number += 1
            try:
                store.append(OUTBOUND, [new(f"id-{number}")])
            except StoreError:
                ended.set()
                return

    threading.Thread(target=run, daemon=True).start()
    while store.logs()[0].head < 3:
        pass
    store.close()
    assert ended.wait(TIMEOUT)


def test_a_worker_that_is_wrong_about_the_time_changes_nothing(
    open_store: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Leases and instants go by the server's clock, not by that of this machine."""
    one = open_store()
    one.create_consumer("c", OUTBOUND)
    one.append(OUTBOUND, [new("a")])
    one.serve("c", 9, PLENTY, holder="one", lease=30.0)
    monkeypatch.setattr(time, "time", lambda: 5_000_000_000.0)
    two = open_store()
    with pytest.raises(ConsumerHeldError):
        two.serve("c", 9, PLENTY, holder="two")
    two.append(OUTBOUND, [new("b")])
    first, second = two.page(OUTBOUND, 0, 9, PLENTY).facts
    # Not in order: each store's idea of the server's time is off by half of what asking took.
    assert abs(second.recorded_at - first.recorded_at) < 60.0


def test_many_released_facts_are_confirmed_at_once(open_store: Open) -> None:
    """More items than one commit has room for are delivered again in pages, and all settled."""
    store = open_store()
    number = MAX_SETTLED + 40
    store.create_consumer("c", OUTBOUND)
    store.append(OUTBOUND, [new(f"id-{n}") for n in range(number)])
    copies = [
        QuarantineRecord(
            Quarantined(n, "c", OUTBOUND, n, "bad", "", 1, 1.0, "released"), is_served=n % 2 == 0
        )
        for n in range(1, number + 1)
    ]
    store.records.load(copies)
    store.serve("c", number, PLENTY)
    assert store.confirm("c", number) == number
    left = {each.state for each in store.quarantine(state=None)}
    assert left == {"settled"}


def test_a_step_that_is_too_large_is_refused(open_store: Open) -> None:
    """Nothing is ever written in halves: what does not fit into one commit is not written."""
    store = open_store()

    def work(transaction: StreamTransaction) -> None:
        for n in range(1001):
            transaction.put(transaction.subjects.note(n), JournalNote(1.0, "test", ""))

    with pytest.raises(StoreError, match="at once"):
        store.database.transaction(work, "desk")


def test_instants_are_never_whole_numbers(open_store: Open) -> None:
    """A lease that was given as 1 is kept as 1.0, as any other store keeps it."""
    store = open_store()
    store.create_consumer("c", OUTBOUND)
    store.serve("c", 9, PLENTY, holder="h", lease=1)
    assert isinstance(open_store().consumer("c").lease, float)
