"""The outbox: what is put in, what is sent and in which order, what waits and what is set aside."""

from __future__ import annotations

import logging
import os
import sqlite3
import stat
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ergon_framework.boundary.client import outbox_drain
from ergon_framework.boundary.client.outbox import DrainEnd, Outbox
from ergon_framework.boundary.client.outbox_drain import (
    DrainEffect,
    DrainReport,
    ProducerCall,
    Rest,
    SpoolWork,
)
from ergon_framework.errors import (
    BoundaryError,
    BoundaryNotFoundError,
    BufferFullError,
    ConflictingDuplicateError,
    FactInvalidError,
    NotPermittedError,
    StoreError,
    StoreUnavailableError,
    WiringError,
)
from tests.boundary.outbox_node import Node, away, envelope, fact

Make = Callable[..., Outbox]
NOW = 1_800_000_000.0


@pytest.fixture
def node() -> Node:
    """A node in memory."""
    return Node()


@pytest.fixture
def make(tmp_path: Path, node: Node) -> Iterator[Make]:
    """Makes outboxes on one file."""
    made: list[Outbox] = []

    def make(**options: Any) -> Outbox:
        options = {"clock": lambda: NOW, "dice": lambda: 0.5} | options
        made.append(Outbox(tmp_path / "outbox.db", node, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def outbox(make: Make) -> Outbox:
    """One of them, as it is by default."""
    return make()


def fill(outbox: Outbox, *ids: str) -> list[int]:
    """Add facts with these ids."""
    return [outbox.add(envelope(each), fact(each)) for each in ids]


def play(
    outbox: Outbox, node: Node, most: int = 100, **options: Any
) -> tuple[DrainReport, list[Rest]]:
    """Drain without a clock: waits are written down and over at once; too many are the end."""
    rests: list[Rest] = []

    def perform(effect: DrainEffect) -> Any:
        if isinstance(effect, SpoolWork):
            return effect.work()
        if isinstance(effect, ProducerCall):
            return effect.call(node)
        rests.append(effect)
        return None

    make = outbox.script(**{"until_empty": True} | options)
    return outbox_drain.drive(make(lambda: len(rests) >= most), perform), rests


# ---- putting facts in ----


@pytest.mark.req("BOUNDARY:producer")
def test_facts_are_sent_in_the_order_they_came(outbox: Outbox, node: Node) -> None:
    """Many of them in one call, and nothing is left behind."""
    ids = [f"e:{n}" for n in range(20)]
    numbers = fill(outbox, *ids)
    assert numbers == sorted(numbers)
    report, rests = play(outbox, node)
    assert node.log == ids
    assert node.calls == ["append_facts"]
    assert (report.sent, report.refused, report.ended) == (20, 0, DrainEnd.EMPTY)
    assert rests == []
    assert (outbox.pending(), outbox.size, outbox.oldest_at) == (0, 0, None)


@pytest.mark.parametrize("umask", [0o000, 0o022])
def test_a_spool_is_private_whatever_the_umask(make: Make, tmp_path: Path, umask: int) -> None:
    """Its file, its logs, its lock, and the copies of files that wait with their facts."""
    (tmp_path / "a.txt").write_bytes(b"bytes of a file")
    theirs = set(tmp_path.iterdir())
    before = os.umask(umask)
    try:
        outbox = make()
        fill(outbox, "e:1")
        outbox.add(envelope("e:2"), fact("e:2"), [tmp_path / "a.txt"])
    finally:
        os.umask(before)
    ours = [each for each in tmp_path.rglob("*") if each not in theirs]
    assert {each.name.partition("-")[2] for each in ours} >= {"", "wal", "files"}
    assert any(each.is_file() for each in (tmp_path / "outbox.db-files").iterdir())
    for each in ours:
        mode = stat.S_IMODE(each.stat().st_mode)
        assert mode == (0o700 if each.is_dir() else 0o600), each.name


@pytest.mark.req("BOUNDARY:producer", "P3")
def test_nothing_invalid_is_ever_spooled(outbox: Outbox) -> None:
    """The edge says which field, and the spool stays empty."""
    with pytest.raises(FactInvalidError) as caught:
        outbox.add(envelope("e:1"), fact(subject="no kind"))
    assert caught.value.details["field"] == "fact.subject"
    assert outbox.figures().pending == 0


@pytest.mark.req("BOUNDARY:producer")
def test_the_same_fact_twice_is_in_it_once(outbox: Outbox) -> None:
    """Labels and times may differ; other content under the id is refused at once."""
    [first] = fill(outbox, "e:1")
    again = outbox.add(envelope("e:1", produced_at_unix_ms=5, labels={"a": "b"}), fact("e:1"))
    assert again == first
    with pytest.raises(ConflictingDuplicateError, match="other content"):
        outbox.add(envelope("e:1"), fact("else"))
    assert outbox.pending() == 1


@pytest.mark.req("BOUNDARY:producer")
def test_a_full_spool_refuses_and_keeps_what_it_has(make: Make, node: Node) -> None:
    """By count or by bytes; what is there already may be added again."""
    by_count = make(max_items=2)
    fill(by_count, "e:1", "e:2")
    with pytest.raises(BufferFullError, match="2 facts") as caught:
        fill(by_count, "e:3")
    assert caught.value.is_retryable
    assert caught.value.details == {"items": 2, "bytes": by_count.size, "refused": 0}
    fill(by_count, "e:1")
    by_bytes = make(max_bytes=by_count.size + 10)
    with pytest.raises(BufferFullError):
        fill(by_bytes, "e:3")
    play(by_count, node)
    fill(by_bytes, "e:3")
    assert by_bytes.pending() == 1


@pytest.mark.req("BOUNDARY:producer")
def test_figures_follow_every_change(make: Make, node: Node) -> None:
    """Pending, refused and their bytes, without counting rows."""
    outbox = make()
    fill(outbox, "e:1", "e:2", "e:3")
    assert outbox.oldest_at == NOW
    whole = outbox.size
    node.refusals["e:2"] = FactInvalidError("no")
    play(outbox, node)
    figures = outbox.figures()
    assert (figures.pending, figures.pending_bytes, figures.refused) == (0, 0, 1)
    assert 0 < figures.refused_bytes < whole
    outbox.retry(outbox.refused()[0].id)
    assert (outbox.figures().pending, outbox.figures().refused) == (1, 0)


def test_an_outbox_without_a_producer_only_collects(tmp_path: Path, node: Node) -> None:
    """Any process may add; who drains needs a node."""
    with Outbox(tmp_path / "o.db") as collecting:
        fill(collecting, "e:1")
        with pytest.raises(WiringError, match="no producer"):
            collecting.drain()
        with pytest.raises(WiringError, match="no producer"):
            collecting.start()
    with Outbox(tmp_path / "o.db", node) as draining:
        assert draining.drain(until_empty=True).sent == 1


# ---- in the caller's own transaction ----


@pytest.mark.req("BOUNDARY:producer")
def test_a_fact_comes_and_goes_with_the_callers_transaction(outbox: Outbox, node: Node) -> None:
    """Both rows are there or neither is."""
    with closing(sqlite3.connect(outbox.path)) as mine:
        mine.execute("CREATE TABLE orders (name TEXT)")
        mine.execute("INSERT INTO orders VALUES ('pie')")
        outbox.add_in(mine, envelope("e:1"), fact(1))
        assert outbox.pending() == 0
        mine.rollback()
        assert outbox.pending() == 0
        with mine:
            mine.execute("INSERT INTO orders VALUES ('cake')")
            outbox.add_in(mine, envelope("e:2"), fact(2))
        assert mine.execute("SELECT name FROM orders").fetchall() == [("cake",)]
    play(outbox, node)
    assert node.log == ["e:2"]


@pytest.mark.req("BOUNDARY:producer")
def test_a_refused_fact_leaves_the_callers_transaction_alone(outbox: Outbox) -> None:
    """The caller's own rows are still in it, also under odd row and text factories."""
    fill(outbox, "e:1")
    with closing(sqlite3.connect(outbox.path)) as mine:
        mine.row_factory = sqlite3.Row
        mine.text_factory = bytes
        mine.execute("CREATE TABLE orders (name TEXT)")
        mine.execute("INSERT INTO orders VALUES ('pie')")
        with pytest.raises(ConflictingDuplicateError):
            outbox.add_in(mine, envelope("e:1"), fact("else"))
        assert mine.in_transaction
        assert mine.text_factory is bytes
        outbox.add_in(mine, envelope("e:2"), fact(2))
        mine.commit()
    assert outbox.pending() == 2


def test_a_connection_that_cannot_be_joined_is_refused(outbox: Outbox, tmp_path: Path) -> None:
    """Another file, or one that would commit each statement by itself."""
    with (
        closing(sqlite3.connect(tmp_path / "other.db")) as other,
        pytest.raises(StoreError, match="main database"),
    ):
        outbox.add_in(other, envelope("e:1"), fact())
    with closing(sqlite3.connect(outbox.path, isolation_level=None)) as bare:
        with pytest.raises(StoreError, match="BEGIN IMMEDIATE"):
            outbox.add_in(bare, envelope("e:1"), fact())
        bare.execute("BEGIN IMMEDIATE")
        outbox.add_in(bare, envelope("e:1"), fact())
        bare.execute("COMMIT")
    with (
        closing(sqlite3.connect(outbox.path, isolation_level=None)) as holder,
        closing(sqlite3.connect(outbox.path, timeout=0.0)) as late,
    ):
        holder.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailableError, match="locked"):
            outbox.add_in(late, envelope("e:2"), fact())


# ---- outages ----


@pytest.mark.req("BOUNDARY:producer", "BSFG:Retry")
def test_an_outage_is_waited_out(outbox: Outbox, node: Node) -> None:
    """However long it lasts: ever longer waits up to the cap, then everything goes, in order."""
    fill(outbox, "e:1", "e:2")
    node.faults = [away() for _ in range(40)]
    report, rests = play(outbox, node)
    assert node.log == ["e:1", "e:2"]
    assert (report.sent, report.failures) == (2, 40)
    waits = [rest.seconds for rest in rests]
    assert waits[:4] == pytest.approx([0.15, 0.3, 0.6, 1.2])
    assert waits == sorted(waits)
    assert waits[-1] == pytest.approx(15.0 * 0.75)
    # New facts cut a wait short, but do not make one knock more often than this.
    assert max(rest.least for rest in rests) == 0.2


@pytest.mark.req("P4", "BSFG:RetrySafety")
def test_every_attempt_sends_the_same(outbox: Outbox, node: Node) -> None:
    """Answers are lost three times; the fact is there once and was always the same bytes."""
    outbox.add(envelope("e:1", labels={"b": "2", "a": "1"}), fact([1, 1.5, "é"]))
    node.losses = [away(), away(code="deadline_exceeded"), OSError("cut")]
    report, _ = play(outbox, node)
    assert node.log == ["e:1"]
    assert len(node.wire) == 4
    assert len(set(node.wire)) == 1
    assert (report.sent, report.duplicates, report.failures) == (1, 1, 3)


@pytest.mark.req("BOUNDARY:producer")
def test_a_node_that_says_when_is_not_asked_earlier(outbox: Outbox, node: Node) -> None:
    """Not even when facts are added meanwhile; but nobody makes us wait for ever."""
    fill(outbox, "e:1")
    node.faults = [BufferFullError("full", retry_after=7.0), away(retry_after=1e9)]
    _, rests = play(outbox, node)
    assert rests == [Rest(7.0, 7.0), Rest(60.0, 60.0)]


@pytest.mark.req("BOUNDARY:producer")
def test_waits_begin_anew_after_every_success(outbox: Outbox, node: Node) -> None:
    """A node that comes and goes is not punished for its past."""
    fill(outbox, "e:1")
    node.faults = [away(), away()]
    _, first = play(outbox, node)
    fill(outbox, "e:2")
    node.faults = [away()]
    _, second = play(outbox, node)
    assert [rest.seconds for rest in first] == pytest.approx([0.15, 0.3])
    assert [rest.seconds for rest in second] == pytest.approx([0.15])


@pytest.mark.req("BOUNDARY:producer", "BOUNDARY:badinput")
@pytest.mark.parametrize(
    "error",
    [
        NotPermittedError("expired", code="unauthenticated", reason="tls"),
        BoundaryError("a bug"),
        BoundaryError("odd", code="unknown"),
    ],
)
def test_trouble_that_is_not_about_the_fact_sets_nothing_aside(
    outbox: Outbox, node: Node, error: BoundaryError
) -> None:
    """An expired certificate must not turn a whole spool into dead letters."""
    fill(outbox, "e:1", "e:2")
    node.faults = [error, error]
    report, rests = play(outbox, node)
    assert (report.sent, report.refused, report.failures) == (2, 0, 2)
    assert len(rests) == 2


def test_a_batch_that_is_partly_put_off_keeps_the_rest(outbox: Outbox, node: Node) -> None:
    """What was taken is gone from the spool, what was not is sent again."""
    fill(outbox, "e:1", "e:2", "e:3")
    node.refusals["e:2"] = BufferFullError("full", retry_after=1.0)
    report, _ = play(outbox, node, most=2)
    assert report.ended is DrainEnd.STOPPED
    assert node.log == ["e:1", "e:3"]
    assert outbox.pending() == 1
    node.refusals.clear()
    play(outbox, node)
    assert node.log == ["e:1", "e:3", "e:2"]


def test_an_idle_drain_looks_now_and_then(outbox: Outbox, node: Node) -> None:
    """Bells may be missed, so it does not sleep for ever."""
    _, rests = play(outbox, node, most=2, until_empty=False)
    assert rests == [Rest(1.0), Rest(1.0)]
    assert node.calls == []


# ---- refusals ----


@pytest.mark.req("BOUNDARY:producer", "BOUNDARY:badinput", "P9")
@pytest.mark.parametrize(
    "error",
    [
        ConflictingDuplicateError("other content", details={"offset": 7}),
        FactInvalidError("no", reason="pattern", details={"field": "fact.subject"}),
        NotPermittedError("zone", reason="zone_not_allowed"),
        BoundaryError("no such artifact", code="failed_precondition", reason="artifact_missing"),
    ],
)
def test_a_refused_fact_is_set_aside_and_the_rest_goes_on(
    outbox: Outbox, node: Node, error: BoundaryError, caplog: pytest.LogCaptureFixture
) -> None:
    """With what the node said about it, in words that programs can match."""
    [_, second, _] = fill(outbox, "e:1", "e:2", "e:3")
    node.refusals["e:2"] = error
    with caplog.at_level(logging.ERROR, "ergon.boundary"):
        report, rests = play(outbox, node)
    assert node.log == ["e:1", "e:3"]
    assert (report.sent, report.refused, rests) == (2, 1, [])
    [aside] = outbox.refused()
    assert (aside.id, aside.message_id, aside.from_zone) == (second, "e:2", "plant-a")
    assert (aside.code, aside.reason, aside.message) == (error.code, error.reason, error.message)
    assert error.details.items() <= aside.details.items()
    assert aside.fact == fact("e:2")
    assert "object_json" not in repr(aside)
    assert error.message in caplog.text


@pytest.mark.req("BOUNDARY:producer")
def test_refused_facts_are_retried_or_discarded(outbox: Outbox, node: Node) -> None:
    """A retried one takes its old place in the line."""
    ids = fill(outbox, "e:1", "e:2")
    node.refusals = {each: FactInvalidError("no") for each in ("e:1", "e:2")}
    play(outbox, node)
    node.refusals.clear()
    fill(outbox, "e:3")
    outbox.retry(ids[0])
    outbox.discard(ids[1])
    play(outbox, node)
    assert node.log == ["e:1", "e:3"]
    assert outbox.refused() == []
    for call in (outbox.retry, outbox.discard):
        with pytest.raises(BoundaryNotFoundError, match="no refused fact"):
            call(ids[1])


def test_a_refused_fact_that_is_added_again_is_sent_again(outbox: Outbox, node: Node) -> None:
    """Its content is the same; with other content it has to be discarded first."""
    [number] = fill(outbox, "e:1")
    node.refusals["e:1"] = NotPermittedError("zone")
    play(outbox, node)
    with pytest.raises(ConflictingDuplicateError, match=rf"discard\({number}\)"):
        outbox.add(envelope("e:1"), fact("corrected"))
    node.refusals.clear()
    assert fill(outbox, "e:1") == [number]
    play(outbox, node)
    assert node.log == ["e:1"]


@pytest.mark.req("BOUNDARY:producer")
def test_in_strict_order_nothing_passes_a_refused_fact(make: Make, node: Node) -> None:
    """The drain ends there, again and again, until somebody decides."""
    outbox = make(on_refusal="stop")
    [_, second, _] = fill(outbox, "e:1", "e:2", "e:3")
    node.refusals["e:2"] = FactInvalidError("no")
    for _ in range(2):
        report, _ = play(outbox, node)
        assert report.ended is DrainEnd.REFUSED
        assert node.log == ["e:1"]
    assert set(node.calls) == {"append_fact"}
    node.refusals.clear()
    outbox.retry(second)
    assert play(outbox, node)[0].ended is DrainEnd.EMPTY
    assert node.log == ["e:1", "e:2", "e:3"]


@pytest.mark.req("BOUNDARY:producer", "BOUNDARY:badinput")
@pytest.mark.parametrize(
    "error",
    [
        FactInvalidError("too large", reason="body_too_large"),
        BoundaryError("what is that?", code="unimplemented"),
        NotPermittedError("no batches for you"),
    ],
)
def test_a_batch_refused_as_a_whole_is_sent_one_by_one(
    outbox: Outbox, node: Node, error: BoundaryError
) -> None:
    """It may be about batches, or about one of them: none is set aside for another."""
    fill(outbox, "e:1", "e:2", "e:3")
    node.faults = [error]
    node.refusals["e:2"] = FactInvalidError("no")
    report, _ = play(outbox, node)
    assert node.calls == ["append_facts", *["append_fact"] * 3]
    assert node.log == ["e:1", "e:3"]
    assert (report.sent, report.refused) == (2, 1)


@pytest.mark.req("BOUNDARY:producer")
def test_batches_are_bounded(make: Make, node: Node) -> None:
    """By count and by bytes; a single larger fact still goes."""
    outbox = make(batch_items=3, batch_bytes=2000)
    fill(outbox, *[f"e:{n}" for n in range(7)])
    outbox.add(envelope("e:7"), fact("x" * 5000))
    play(outbox, node)
    assert node.sizes == [3, 3]
    assert len(node.log) == 8


# ---- a crash before ----


@pytest.mark.req("P14", "BSFG:Errors")
@pytest.mark.parametrize("recover", ["append", "lookup"])
def test_what_the_node_had_before_a_crash_is_there_once(
    make: Make, node: Node, recover: str
) -> None:
    """Asked for or sent again: both ways end in one fact, and go on with the rest."""
    dead = make()
    fill(dead, "e:1", "e:2", "e:3")
    node.append_facts([(envelope(each), fact(each)) for each in ("e:1", "e:2")])
    node.calls.clear()
    report, _ = play(make(recover=recover), node)
    assert node.log == ["e:1", "e:2", "e:3"]
    assert (report.sent, report.duplicates) == (3, 2)
    if recover == "lookup":
        assert node.calls == [*["lookup_fact"] * 3, "append_fact"]
    else:
        assert node.calls == ["append_facts"]


@pytest.mark.req("P14")
def test_a_look_up_that_finds_other_content_proves_nothing(make: Make, node: Node) -> None:
    """Then it is sent, and the node says what is wrong."""
    outbox = make(recover="lookup")
    fill(outbox, "e:1", "e:2")
    node.append_fact(envelope("e:1"), fact("else"))
    report, _ = play(outbox, node)
    assert [aside.reason for aside in outbox.refused()] == ["conflicting_duplicate"]
    assert (report.sent, report.refused) == (1, 1)


@pytest.mark.req("P14")
@pytest.mark.parametrize(
    "error", [NotPermittedError("no"), BoundaryError("?", code="unimplemented")]
)
def test_a_node_that_answers_no_look_up_is_told_instead(
    make: Make, node: Node, error: BoundaryError
) -> None:
    """Sending again tells the same; an outage is waited out first."""
    outbox = make(recover="lookup")
    fill(outbox, "e:1")
    node.faults = [away(), error]
    report, rests = play(outbox, node)
    assert node.calls == ["lookup_fact", "lookup_fact", "append_fact"]
    assert (report.sent, report.refused, len(rests)) == (1, 0, 1)


@pytest.mark.req("BOUNDARY:badinput")
@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE ergon_outbox SET fact = replace(CAST(fact AS TEXT), 'e:2', 'e:9') WHERE seq = 2",
        "UPDATE ergon_outbox SET envelope = X'7B' WHERE seq = 2",
        "UPDATE ergon_outbox SET fact = X'7BFF7D' WHERE seq = 2",
    ],
)
def test_a_damaged_row_is_set_aside_and_never_sent(outbox: Outbox, node: Node, damage: str) -> None:
    """What the node is told is what was added, or nothing."""
    fill(outbox, "e:1", "e:2", "e:3")
    with closing(sqlite3.connect(outbox.path)) as db, db:
        db.execute(damage)
    play(outbox, node)
    assert node.log == ["e:1", "e:3"]
    [aside] = outbox.refused()
    assert aside.reason == "spool_corrupted"
    assert "e:9" not in repr(aside)


# ---- a node that was restored ----


def test_what_was_sent_is_forgotten_by_default(outbox: Outbox) -> None:
    """Who does not ask for it pays for no copy."""
    outbox.add(envelope("e:1"), fact(1))
    outbox.drain(until_empty=True)
    assert (outbox.kept().items, outbox.resend()) == (0, 0)


def test_what_was_sent_can_be_sent_again(make: Make, node: Node, tmp_path: Path) -> None:
    """In its old order, before what waits, with its files; the node knows what it has."""
    now = [NOW]
    outbox = make(clock=lambda: now[0], keep_sent=3600.0)
    (tmp_path / "a.txt").write_bytes(b"bytes of a file")
    for number in (1, 2):
        outbox.add(envelope(f"e:{number}"), fact(number))
    outbox.add(
        envelope("e:3"), {"subject": "work_order:3", "predicate": "attached"}, [tmp_path / "a.txt"]
    )
    outbox.drain(until_empty=True)
    now[0] += 60
    outbox.add(envelope("e:4"), fact(4))
    outbox.drain(until_empty=True)
    assert outbox.kept().items == 4
    outbox.add(envelope("e:5"), fact(5))
    node.facts = dict(list(node.facts.items())[:2])  # as the backup has it
    del node.log[2:]
    node.objects.clear()
    assert outbox.resend() == 4
    report = outbox.drain(until_empty=True)
    assert (report.sent, report.duplicates) == (5, 2)
    assert node.log == ["e:1", "e:2", "e:3", "e:4", "e:5"]
    assert len(node.objects) == 1


def test_only_what_was_sent_since(make: Make) -> None:
    """An operator knows when the backup was made."""
    now = [NOW]
    outbox = make(clock=lambda: now[0], keep_sent=3600.0)
    outbox.add(envelope("e:1"), fact(1))
    outbox.drain(until_empty=True)
    now[0] += 60
    outbox.add(envelope("e:2"), fact(2))
    outbox.drain(until_empty=True)
    assert outbox.resend(since=NOW + 1) == 1
    assert [each.message_id for each in outbox.waiting()] == ["e:2"]
    assert outbox.kept().items == 1


def test_what_is_kept_goes_in_the_end(make: Make, tmp_path: Path) -> None:
    """After its time the row goes, and the copy of its file."""
    now = [NOW]
    outbox = make(clock=lambda: now[0], keep_sent=3600.0)
    (tmp_path / "a.txt").write_bytes(b"bytes of a file")
    outbox.add(
        envelope("e:1"), {"subject": "work_order:3", "predicate": "attached"}, [tmp_path / "a.txt"]
    )
    outbox.drain(until_empty=True)
    folder = tmp_path / "outbox.db-files"
    assert len(list(folder.iterdir())) == 1
    now[0] += 3601
    outbox.drain(until_empty=True)
    assert outbox.kept().items == 0
    assert list(folder.iterdir()) == []


def test_a_fact_that_waits_again_is_not_doubled(make: Make) -> None:
    """The same fact was added anew before its old copy is asked for."""
    outbox = make(keep_sent=3600.0)
    outbox.add(envelope("e:1"), fact(1))
    outbox.drain(until_empty=True)
    outbox.add(envelope("e:1"), fact(1))
    assert outbox.resend() == 0
    assert outbox.pending() == 1


def test_a_spool_of_the_first_version_is_brought_up(tmp_path: Path, node: Node) -> None:
    """What waits in it is sent, and kept from then on."""
    path = tmp_path / "outbox.db"
    with Outbox(path) as outbox:
        outbox.add(envelope("e:1"), fact(1))
    with closing(sqlite3.connect(path)) as db:
        db.execute("DROP TABLE ergon_outbox_sent")
        db.execute("UPDATE ergon_schema SET version = 1 WHERE part = 'outbox'")
        db.commit()
    with Outbox(path, node, keep_sent=60.0) as outbox:
        assert outbox.drain(until_empty=True).sent == 1
        assert outbox.kept().items == 1
