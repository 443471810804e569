from __future__ import annotations

import base64
import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from ergon_framework.connector.jsonl import (
    JsonlConnector,
    JsonlConnectorError,
    LineTooLongError,
    LockedError,
    MalformedLineError,
    append_file,
)
from ergon_framework.connector.jsonl.drop_folder import DropFolder
from ergon_framework.connector.jsonl.offsets import JournalLimits
from ergon_framework.errors import ConfigurationError, FetchException
from ergon_framework.ports.transaction import Transaction
from ergon_framework.storage.secure_files import Folder
from ergon_framework.task.ready import ConsumerTask
from ergon_framework.testing.suites import exercise_connector
from ergon_framework.testing.suites.connector.faults import CHECKS as FAULT_CHECKS

AT_ONCE_STEADY = JournalLimits(steady_after=-1e9)
"""Every file counts as unchanged for long, whatever the clock says."""

Open = Callable[..., JsonlConnector]


@pytest.fixture
def open_inbox(tmp_path: Path) -> Iterator[Open]:
    """Opens connectors on one inbox, and closes what a test leaves open."""
    opened: list[JsonlConnector] = []

    def open_one(**settings: Any) -> JsonlConnector:
        for each in opened:
            each.close()
        opened.append(JsonlConnector(tmp_path, **{"fsync": False, **settings}))
        return opened[-1]

    yield open_one
    for each in opened:
        each.close()


class Ignoring(ConsumerTask):
    """A task that does nothing."""

    def process_transaction(self, transaction: Transaction) -> None:
        """Succeed."""


def line(name: str, payload: Any = None) -> str:
    """One transaction as a line."""
    return json.dumps({"transaction_id": name, "payload": payload}) + "\n"


def ids(transactions: list[Transaction]) -> list[str]:
    """Their ids, in order."""
    return [each.transaction_id for each in transactions]


def ack_all(connector: JsonlConnector, count: int = 100) -> list[str]:
    """Fetch and acknowledge, and say what came."""
    batch = connector.fetch_transactions(count)
    for each in batch:
        connector.ack(each)
    return ids(batch)


@contextmanager
def queue() -> Iterator[JsonlConnector]:
    """A connector whose outbox is its inbox."""
    with TemporaryDirectory() as home, JsonlConnector(home, home, fsync=False) as connector:
        yield connector


@pytest.mark.req("R0-N", "R1-S1", "R1-S2", "R1-S3", "R1-ID2")
@pytest.mark.parametrize("colour", ["sync", "async"])
def test_it_passes_the_suite(colour: Any) -> None:
    """As a durable queue it keeps every promise a connector can make, in both colours."""
    report = exercise_connector(
        queue,
        colour=colour,
        order="strict",
        dead_letters=lambda each: [
            (letter["transaction_id"], letter["reason"]) for letter in each.read_dead_letters()
        ],
    )
    report.raise_for_failures(recommended=True)
    of_faults = {each.name for each in FAULT_CHECKS}  # no fault is given
    assert all("park" in check for check in set(report.skipped) - of_faults)  # files cannot keep it


def test_files_are_read_in_name_order_line_by_line(tmp_path: Path, open_inbox: Open) -> None:
    """Blank lines, other files, hidden files and folders are passed over."""
    (tmp_path / "b.jsonl").write_text(line("b1"))
    (tmp_path / "a.jsonl").write_text("\n" + line("a1") + "  \r\n" + line("a2"))
    (tmp_path / "c.json").write_text(line("no"))
    (tmp_path / ".d.jsonl").write_text(line("no"))
    (tmp_path / "e.jsonl").mkdir()
    assert ids(open_inbox().fetch_transactions(9)) == ["a1", "a2", "b1"]


@pytest.mark.req("R1-S3")
def test_windows_files_are_read(tmp_path: Path, open_inbox: Open) -> None:
    """A byte order mark and carriage returns do no harm."""
    (tmp_path / "a.jsonl").write_bytes(b"\xef\xbb\xbf" + line("a1").encode() + b"\r\n")
    (tmp_path / "b.jsonl").write_bytes(line("b1").replace("\n", "\r\n").encode())
    assert ids(open_inbox().fetch_transactions(9)) == ["a1", "b1"]


def test_what_is_settled_is_not_delivered_again(tmp_path: Path, open_inbox: Open) -> None:
    """After a restart exactly the unsettled lines come, wherever they stand."""
    (tmp_path / "a.jsonl").write_text("".join(line(f"a{n}") for n in range(6)))
    connector = open_inbox()
    batch = connector.fetch_transactions(5)
    connector.ack(batch[0])
    connector.ack(batch[3])
    connector.nack(batch[1], ValueError("bad"))
    connector.release(batch[4])
    assert ids(open_inbox().fetch_transactions(9)) == ["a2", "a4", "a5"]


def test_lines_and_files_may_arrive_while_it_reads(tmp_path: Path, open_inbox: Open) -> None:
    """A file that grew and a new file are found by the next fetch."""
    (tmp_path / "a.jsonl").write_text(line("a1"))
    connector = open_inbox()
    assert ack_all(connector) == ["a1"]
    with (tmp_path / "a.jsonl").open("a") as file:
        file.write(line("a2"))
    (tmp_path / "b.jsonl").write_text(line("b1"))
    assert ack_all(connector) == ["a2", "b1"]
    assert ack_all(open_inbox()) == []


def test_a_torn_last_line_waits_for_its_rest(tmp_path: Path, open_inbox: Open) -> None:
    """Half a line is neither delivered nor called malformed, however often one looks."""
    whole = line("a2", "é")
    half = whole.encode()[:-6]
    (tmp_path / "a.jsonl").write_bytes(line("a1").encode() + half)
    connector = open_inbox()
    assert ack_all(connector) == ["a1"]
    assert connector.fetch_transactions(9) == []
    assert connector.get_transactions_count() == 0
    (tmp_path / "a.jsonl").write_bytes((line("a1") + whole).encode())
    assert ack_all(connector) == ["a2"]
    assert connector.malformed == 0


def test_a_whole_last_line_needs_no_newline(tmp_path: Path, open_inbox: Open) -> None:
    """It is delivered, and its newline, when it comes, is not taken for another line."""
    (tmp_path / "a.jsonl").write_text("[1]\n[2]")
    connector = open_inbox(raw=True)
    assert ack_all(connector) == ["a.jsonl:1", "a.jsonl:2"]
    with (tmp_path / "a.jsonl").open("a") as file:
        file.write("\n[3]")
    assert ack_all(connector) == ["a.jsonl:3"]
    with (tmp_path / "a.jsonl").open("a") as file:
        file.write("\n[4]\n")
    assert ack_all(open_inbox(raw=True)) == ["a.jsonl:4"]


def test_a_last_number_waits_for_its_newline(tmp_path: Path, open_inbox: Open) -> None:
    """12 may be the beginning of 123; true is whole."""
    (tmp_path / "a.jsonl").write_text("12")
    (tmp_path / "b.jsonl").write_text("true")
    connector = open_inbox(raw=True)
    assert [each.payload for each in connector.fetch_transactions(9)] == [True]
    (tmp_path / "a.jsonl").write_text("123\n")
    assert [each.payload for each in connector.fetch_transactions(9)] == [123]


@pytest.mark.req("R1-ID2")
def test_raw_lines_get_stable_ids(tmp_path: Path, open_inbox: Open) -> None:
    """File and line make the id, so it is the same in every run."""
    (tmp_path / "a.jsonl").write_text('{"n": 1}\n\n"two"\nnull\n')
    for _ in range(2):
        batch = open_inbox(raw=True, name="export").fetch_transactions(9)
        assert ids(batch) == ["a.jsonl:1", "a.jsonl:3", "a.jsonl:4"]
        assert [each.payload for each in batch] == [{"n": 1}, "two", None]
        assert dict(batch[1].metadata) == {"file": "a.jsonl", "line": 3}
        assert batch[1].source == "export"


def test_its_name_becomes_the_source_of_those_without_one(tmp_path: Path, open_inbox: Open) -> None:
    """A source that is set stays."""
    text = '{"transaction_id": "a", "source": "till"}\n' + line("b")
    (tmp_path / "a.jsonl").write_text(text)
    batch = open_inbox(name="orders").fetch_transactions(2)
    assert [each.source for each in batch] == ["till", "orders"]


MALFORMED = {
    "not JSON": b"{oops",
    "cut off": b'{"transaction_id": "x"',
    "not text": b'{"transaction_id": "\xff"}',
    "no id": b'{"payload": 1}',
    "empty id": b'{"transaction_id": ""}',
    "no object": b"[1, 2]",
    "bad instant": b'{"transaction_id": "x", "created_at": "yesterday"}',
    "instant out of range": b'{"transaction_id": "x", "created_at": "0001-01-01T00:00:00+14:00"}',
    "bad metadata": b'{"transaction_id": "x", "metadata": 5}',
    "too deep": b"[" * 100_000,
    "two values": b'{"transaction_id": "x"} {"transaction_id": "y"}',
}


@pytest.mark.req("R1-S3")
@pytest.mark.parametrize("kind", MALFORMED)
def test_a_malformed_line_is_set_aside_and_blocks_nothing(
    tmp_path: Path, open_inbox: Open, kind: str
) -> None:
    """It goes to the dead letters with its reason, file, line and every byte; the rest goes on."""
    bad = MALFORMED[kind]
    text = line("a1").encode() + bad + b"\n" + line("a3").encode()
    (tmp_path / "a.jsonl").write_bytes(text)
    connector = open_inbox()
    assert ack_all(connector) == ["a1", "a3"]
    assert connector.malformed == 1
    (letter,) = connector.read_dead_letters()
    assert (letter["file"], letter["line"]) == ("a.jsonl", 2)
    assert letter["reason"].startswith("MalformedLineError: a.jsonl, line 2: not ")
    kept = letter["text"].encode() if "text" in letter else base64.b64decode(letter["base64"])
    assert kept == bad
    again = open_inbox()
    assert again.fetch_transactions(9) == []
    assert len(list(again.read_dead_letters())) == 1


@pytest.mark.req("R1-SEC2")
def test_a_line_sets_nothing_but_the_envelope(tmp_path: Path, open_inbox: Open) -> None:
    """Fields of the engine and unknown ones are dropped; metadata is an object and read-only."""
    shape = {
        "transaction_id": "a1",
        "metadata": {"tenant": "blue"},
        "attempt_count": 7,
        "retry_history": [1.0],
        "owner": "somebody",
        "verb": "ack",
    }
    (tmp_path / "a.jsonl").write_text(json.dumps(shape))
    connector = open_inbox()
    (transaction,) = connector.fetch_transactions(9)
    assert transaction.attempt_count == 0
    assert transaction.to_dict().keys() == {"transaction_id", "payload", "metadata", "created_at"}
    with pytest.raises(TypeError):
        transaction.metadata["tenant"] = "red"  # type: ignore[index]
    connector.ack(transaction)


def test_more_malformed_lines_than_one_batch_holds(tmp_path: Path, open_inbox: Open) -> None:
    """A file full of rubbish is set aside to the last line within one fetch."""
    (tmp_path / "a.jsonl").write_text("rubbish\n" * 700 + line("good"))
    connector = open_inbox()
    assert ack_all(connector) == ["good"]
    assert connector.malformed == 700
    assert [each["line"] for each in connector.read_dead_letters()] == list(range(1, 701))


def test_malformed_lines_are_logged_but_not_each_of_them(
    tmp_path: Path, open_inbox: Open, caplog: pytest.LogCaptureFixture
) -> None:
    """The first one with its place, its reason and where it is kept; of the others the number."""
    connector = open_inbox()
    for number in range(100):
        (tmp_path / f"{number:03}.jsonl").write_text("rubbish\n")
        assert connector.fetch_transactions(9) == []
    connector.close()
    first, *sums = caplog.messages
    assert "000.jsonl, line 1: not JSON" in first
    assert all(str(connector.dead_letter_file) in told for told in caplog.messages)
    assert len(sums) < 10
    assert sums[-1].startswith("set aside 100 malformed lines")


def test_a_report_counts_the_malformed_lines_of_its_own_call(
    tmp_path: Path, open_inbox: Open
) -> None:
    """What an earlier call over the same connector set aside was told by that call."""
    connector = open_inbox()
    task = Ignoring(connectors={"inbox": connector})
    reports = []
    for name, count in (("a", 2), ("b", 1), ("c", 0)):
        (tmp_path / f"{name}.jsonl").write_text("rubbish\n" * count + line(name))
        reports.append(task.consume_transactions())
    assert [(int(each), each.malformed) for each in reports] == [(1, 2), (1, 1), (1, 0)]
    kept_in = (str(connector.dead_letter_file),)
    assert [each.dead_letters for each in reports] == [kept_in, kept_in, ()]


def test_strict_raises_and_goes_no_further(tmp_path: Path, open_inbox: Open) -> None:
    """What came before is delivered first; then every fetch names the line until it is fixed."""
    (tmp_path / "a.jsonl").write_text(line("a1") + "oops\n" + line("a3"))
    connector = open_inbox(strict=True)
    assert ack_all(connector) == ["a1"]
    for _ in range(2):
        with pytest.raises(MalformedLineError, match=r"a\.jsonl, line 2: not JSON"):
            connector.fetch_transactions(9)
    assert list(connector.read_dead_letters()) == []
    (tmp_path / "a.jsonl").write_text(line("a1") + line("a2") + line("a3"))
    assert ack_all(connector) == ["a2", "a3"]


@pytest.mark.parametrize("size", [200, 1_000_000])
def test_a_line_that_is_too_long_is_set_aside_whole(
    tmp_path: Path, open_inbox: Open, size: int
) -> None:
    """It is never held in memory, yet not a byte of it is lost."""
    long = line("long", "x" * size)[:-1]
    (tmp_path / "a.jsonl").write_text(line("a1") + long + "\n" + line("a3"))
    connector = open_inbox(max_line_bytes=100)
    assert ack_all(connector) == ["a1", "a3"]
    (letter,) = connector.read_dead_letters()
    assert base64.b64decode(letter["base64"]).decode().rstrip("\n") == long
    assert f"{len(long) + 1} bytes long; at most 100 are allowed" in letter["reason"]
    assert ack_all(open_inbox(max_line_bytes=100)) == []


def test_a_line_that_is_too_long_has_an_error_of_its_own(tmp_path: Path, open_inbox: Open) -> None:
    """A line of exactly the limit is fine; one byte more is not."""
    exact = line("fits")[:-1]
    (tmp_path / "a.jsonl").write_text(exact + "\n" + exact + " \n")
    connector = open_inbox(strict=True, max_line_bytes=len(exact))
    assert ack_all(connector) == ["fits"]
    with pytest.raises(LineTooLongError, match=r"a\.jsonl, line 2: .* raise max_line_bytes"):
        connector.fetch_transactions(9)


def test_a_nacked_transaction_is_a_dead_letter_that_can_be_sent_again(
    tmp_path: Path, open_inbox: Open
) -> None:
    """Its value is the line as it was; put into a new file it is work again."""
    (tmp_path / "a.jsonl").write_text(line("a1", {"n": [1, None]}))
    connector = open_inbox()
    transaction = connector.fetch_transactions(1)[0]
    transaction.payload["n"].append("changed")
    connector.nack(transaction, ValueError("no such \ud800 customer"))
    (letter,) = connector.read_dead_letters()
    assert letter["transaction_id"] == "a1"
    assert letter["reason"] == "ValueError: no such \\ud800 customer"
    (tmp_path / "again.jsonl").write_text(json.dumps(letter["value"]))
    assert connector.fetch_transactions(1)[0].payload == {"n": [1, None]}


def test_a_new_file_under_an_old_name_is_new_work(
    tmp_path: Path, open_inbox: Open, caplog: pytest.LogCaptureFixture
) -> None:
    """Progress belongs to content: what was replaced, while closed or open, is delivered."""
    (tmp_path / "a.jsonl").write_text(line("old1") + line("old2"))
    assert ack_all(open_inbox()) == ["old1", "old2"]
    (tmp_path / "a.jsonl").write_text(line("new1") + line("new2") + line("new3"))
    connector = open_inbox()
    with caplog.at_level(logging.WARNING):
        assert ack_all(connector, 1) == ["new1"]
    assert "a.jsonl changed where it had been read" in caplog.text
    late = connector.fetch_transactions(1)[0]
    (tmp_path / "a.jsonl").write_text(line("x1"))
    assert ids(connector.fetch_transactions(9)) == ["x1"]
    connector.ack(late)
    assert ids(open_inbox().fetch_transactions(9)) == ["x1"]


@pytest.mark.parametrize("is_malformed", [True, False], ids=["malformed", "nacked"])
@pytest.mark.parametrize("moment", ["before", "written", "synced"])
def test_dead_letters_that_are_taken_away_get_no_more_of_them(
    tmp_path: Path,
    open_inbox: Open,
    monkeypatch: pytest.MonkeyPatch,
    moment: str,
    is_malformed: bool,
) -> None:
    """Who handles them may move the file away; what is set aside later is in a new one."""
    letters = tmp_path / ".ergon" / "dead_letters.jsonl"

    def take(point: str) -> None:
        if point in ("before", f"dead_letters.{moment}") and not (tmp_path / "taken").exists():
            letters.rename(tmp_path / "taken")

    (tmp_path / "a.jsonl").write_text(line("a1") + ("no json\n" if is_malformed else line("a2")))
    connector = open_inbox(fsync=True)
    first = connector.fetch_transactions(1)[0]
    if moment == "before":
        take("before")
    monkeypatch.setattr(append_file, "failpoint", take)
    if is_malformed:
        assert connector.fetch_transactions(1) == []
    else:
        connector.nack(connector.fetch_transactions(1)[0], ValueError("bad"))
    assert [each["line"] for each in connector.read_dead_letters()] == [2]
    connector.nack(first, ValueError("bad"))
    assert [each["line"] for each in connector.read_dead_letters()] == [2, 1]
    monkeypatch.undo()
    assert open_inbox().fetch_transactions(9) == []


def test_a_journal_that_is_taken_away_is_told(tmp_path: Path, open_inbox: Open) -> None:
    """No settlement is promised that the next process could not read, and no work handed out."""
    (tmp_path / "a.jsonl").write_text(line("a1") + line("a2"))
    connector = open_inbox()
    first = connector.fetch_transactions(1)[0]
    (tmp_path / ".ergon" / "progress.jsonl").unlink()
    for _ in range(2):
        with pytest.raises(JsonlConnectorError, match="was moved or deleted while it was in use"):
            connector.ack(first)
    with pytest.raises(JsonlConnectorError, match="was moved or deleted while it was in use"):
        connector.fetch_transactions(1)
    assert not connector.health()
    assert ids(open_inbox().fetch_transactions(9)) == ["a1", "a2"]


def test_nothing_is_handed_out_whose_end_cannot_be_written_down(
    tmp_path: Path, open_inbox: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a full disk, work would be done again and again: all of it, after each restart."""

    def full(_file: Any, _data: bytes) -> None:
        raise OSError(28, "No space left on device")

    (tmp_path / "a.jsonl").write_text("".join(line(f"a{number}") for number in range(50)))
    connector = open_inbox()
    monkeypatch.setattr(append_file, "write_all", full)
    done: list[str] = []

    class Work(ConsumerTask):
        def process_transaction(self, transaction: Any) -> None:
            done.append(transaction.id)

    with pytest.raises(FetchException, match="No space left") as caught:
        Work({"in": connector}).consume_transactions({"loop": {"batch": {"size": 5}}})
    assert len(done) == 5
    report = caught.value.report
    assert report is not None
    assert report.settlement_failures == 5
    monkeypatch.undo()
    assert len(open_inbox().fetch_transactions(99)) == 50


def many(changed: dict[int, str]) -> str:
    """More lines than a checksum of both ends covers, some of them other ones."""
    return "".join(line(changed.get(number, f"a{number:03}")) for number in range(400))


@pytest.mark.parametrize("is_steady", [True, False], ids=["steady", "just-changed"])
@pytest.mark.parametrize("is_open", [True, False], ids=["while-open", "while-closed"])
@pytest.mark.parametrize("is_moved", [True, False], ids=["moved-there", "written-over"])
@pytest.mark.parametrize(
    ("old", "new", "first"),
    [
        (line("old1"), line("new1"), "new1"),
        (many({}), many({200: "x200"}), "a000"),
    ],
    ids=["one-line", "in-the-middle"],
)
def test_a_new_file_of_the_same_length_is_new_work(
    tmp_path: Path,
    open_inbox: Open,
    is_steady: bool,
    is_open: bool,
    is_moved: bool,
    old: str,
    new: str,
    first: str,
) -> None:
    """Not the length of a file says that it is done with, but what is in it."""
    journal = AT_ONCE_STEADY if is_steady else JournalLimits()
    assert len(old) == len(new)
    file = tmp_path / "a.jsonl"
    file.write_text(old)
    connector = open_inbox(journal=journal)
    assert len(ack_all(connector, 999)) == old.count("\n")
    assert ack_all(connector) == []
    if not is_open:
        connector.close()
    if is_moved:
        (tmp_path / "new.tmp").write_text(new)
        (tmp_path / "new.tmp").rename(file)
    else:
        before = file.stat().st_ctime_ns
        while file.stat().st_ctime_ns == before:  # within one tick it is found a second later
            file.write_text(new)
    again = ack_all(connector if is_open else open_inbox(journal=journal), 999)
    assert (again[0], len(again)) == (first, new.count("\n"))
    assert ack_all(open_inbox(journal=journal)) == []


def test_a_file_that_has_not_changed_is_not_read_again(
    tmp_path: Path, open_inbox: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither at the next fetch nor by the next process, unless it changed a moment before."""
    (tmp_path / "a.jsonl").write_text(many({}))
    assert len(ack_all(open_inbox(journal=AT_ONCE_STEADY), 999)) == 400
    opened: list[str] = []
    really = DropFolder.open

    def noted(folder: DropFolder, name: str) -> BufferedReader:
        opened.append(name)
        return really(folder, name)

    monkeypatch.setattr(DropFolder, "open", noted)
    connector = open_inbox(journal=AT_ONCE_STEADY)
    assert connector.fetch_transactions(9) == []
    assert connector.fetch_transactions(9) == []
    assert opened == []
    with (tmp_path / "a.jsonl").open("a") as file:
        file.write(line("b"))
    assert ids(connector.fetch_transactions(9)) == ["b"]


def test_a_line_that_is_finished_with_the_same_length_is_read(
    tmp_path: Path, open_inbox: Open
) -> None:
    """An unfinished last line may be written over by a whole one of its length."""
    (tmp_path / "a.jsonl").write_text(line("a1")[:-2] + "  ")
    connector = open_inbox()
    assert connector.fetch_transactions(9) == []
    (tmp_path / "a.jsonl").write_text(line("a1"))
    assert ids(connector.fetch_transactions(9)) == ["a1"]


def test_a_journal_of_an_earlier_version_counts(tmp_path: Path, open_inbox: Open) -> None:
    """Its entries have a checksum of both ends only; what they settle stays settled."""
    (tmp_path / "a.jsonl").write_text(many({}))
    assert len(ack_all(open_inbox(), 999)) == 400
    open_inbox().close()
    journal = tmp_path / ".ergon" / "progress.jsonl"
    entries = [json.loads(each) for each in journal.read_text().splitlines()]
    short = [
        {key: value for key, value in each.items() if key in ("file", "below", "offset", "check")}
        for each in entries
        if "below" in each
    ]
    journal.write_text("".join(json.dumps(each) + "\n" for each in short))
    connector = open_inbox()
    assert ack_all(connector) == []
    (tmp_path / "a.jsonl").write_text(many({200: "x200"}))
    assert len(ack_all(connector, 999)) == 400


def test_settled_lines_of_a_replaced_file_do_not_hide_others(
    tmp_path: Path, open_inbox: Open
) -> None:
    """A line counts as settled only while it is the same line."""
    (tmp_path / "a.jsonl").write_text(line("a1") + line("a2") + line("a3"))
    connector = open_inbox()
    connector.ack(connector.fetch_transactions(3)[1])
    connector.close()
    (tmp_path / "a.jsonl").write_text(line("a1") + line("b2") + line("a3"))
    assert ids(open_inbox().fetch_transactions(9)) == ["a1", "b2", "a3"]


@pytest.mark.skipif(sys.platform == "darwin", reason="macOS has no names that are not UTF-8")
@pytest.mark.parametrize("raw", [False, True])
def test_a_file_whose_name_is_not_utf8_is_work_like_any_other(
    tmp_path: Path, open_inbox: Open, raw: bool
) -> None:
    """What an old program, or an archive, calls its files must not keep them from being settled."""
    (tmp_path / os.fsdecode(b"caf\xe9.jsonl")).write_text(line("a1") + line("a2") + "no\n")
    (tmp_path / "z.jsonl").write_text(line("z1"))
    connector = open_inbox(raw=raw)
    first, second, third = connector.fetch_transactions(9)
    connector.ack(first)
    connector.nack(second, ValueError("bad"))
    connector.ack(third)
    letters = list(connector.read_dead_letters())
    assert [each["line"] for each in letters] == [3, 2]
    assert open_inbox(raw=raw).fetch_transactions(9) == []


def test_what_is_known_about_a_removed_file_goes_with_it(tmp_path: Path, open_inbox: Open) -> None:
    """A file may be deleted at any time; settling its lines is still fine."""
    file = tmp_path / "a.jsonl"
    file.write_text(line("a1") + line("a2"))
    connector = open_inbox()
    batch = connector.fetch_transactions(2)
    file.unlink()
    assert connector.fetch_transactions(9) == []
    connector.ack(batch[0])
    connector.release(batch[1])
    assert ids(connector.fetch_transactions(9)) == ["a2"]
    file.write_text(line("a1") + line("a2"))
    assert ids(connector.fetch_transactions(9)) == ["a1", "a2"]


def test_the_journal_stays_small(tmp_path: Path, open_inbox: Open) -> None:
    """It is compacted as it grows, and what it says stays true, lines out of order included."""
    limits = JournalLimits(compact_after=10)
    for name in "abc":
        text = "".join(line(f"{name}{n}") for n in range(40))
        (tmp_path / f"{name}.jsonl").write_text(text)
    connector = open_inbox(journal=limits)
    batch = connector.fetch_transactions(120)
    for each in batch[::-1]:
        if each.transaction_id not in {"a7", "b39", "c0"}:
            connector.ack(each)
    journal = tmp_path / ".ergon" / "progress.jsonl"
    assert len(journal.read_text().splitlines()) < 160
    assert ack_all(open_inbox(journal=limits)) == ["a7", "b39", "c0"]
    for _ in range(30):
        with (tmp_path / "c.jsonl").open("a") as file:
            file.write(line("more"))
        assert ack_all(open_inbox(journal=limits)) == ["more"]
    assert len(journal.read_text().splitlines()) < 30
    assert ack_all(open_inbox(journal=limits)) == []


def test_compaction_does_not_bless_a_replaced_file(tmp_path: Path, open_inbox: Open) -> None:
    """When a file was replaced unseen, compaction does not call its new lines settled."""
    limits = JournalLimits(compact_after=3)
    (tmp_path / "a.jsonl").write_text(line("a1") + line("a2") + line("a3"))
    (tmp_path / "b.jsonl").write_text("".join(line(f"b{n}") for n in range(20)))
    connector = open_inbox(journal=limits)
    batch = connector.fetch_transactions(99)
    connector.ack(batch[0])
    (tmp_path / "a.jsonl").write_text(line("x1") + line("x2") + line("x3"))
    for each in batch[3:]:
        connector.ack(each)
    assert ids(open_inbox(journal=limits).fetch_transactions(99)) == ["x1", "x2", "x3"]


def test_a_damaged_journal_costs_only_a_redelivery(tmp_path: Path, open_inbox: Open) -> None:
    """Entries that cannot be read are skipped; nothing is lost and nothing stops."""
    (tmp_path / "a.jsonl").write_text(line("a1") + line("a2") + line("a3"))
    connector = open_inbox()
    batch = connector.fetch_transactions(3)
    for each in batch[:2]:
        connector.ack(each)
    connector.close()
    journal = tmp_path / ".ergon" / "progress.jsonl"
    entries = journal.read_text().splitlines()
    journal.write_text("\n".join(["rubbish", '{"file": 1}', "[]", entries[1]]) + '\n{"file": "a')
    assert ids(open_inbox().fetch_transactions(9)) == ["a1", "a3"]


@pytest.mark.slow
def test_one_inbox_has_one_reader(tmp_path: Path, open_inbox: Open) -> None:
    """A second connector is refused, in this process and in another, and told who holds it."""
    connector = open_inbox()
    with pytest.raises(LockedError, match="already being read by another connector, in this proc"):
        JsonlConnector(tmp_path)
    code = (
        "import sys\nfrom ergon_framework.connector.jsonl import JsonlConnector, LockedError\n"
        "try: JsonlConnector(sys.argv[1])\nexcept LockedError as error: print(error)"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603
    assert f"in process {os.getpid()} (close that one first" in done.stdout
    connector.close()
    JsonlConnector(tmp_path).close()


def test_a_refused_opening_leaves_nothing_locked(tmp_path: Path, open_inbox: Open) -> None:
    """When the dead letters cannot be opened, the inbox is free for the next try."""
    (tmp_path / "dead" / "folder").mkdir(parents=True)
    with pytest.raises(JsonlConnectorError, match=r"cannot open .*folder: Is a directory"):
        open_inbox(dead_letters=tmp_path / "dead" / "folder")
    open_inbox(dead_letters=tmp_path / "dead" / "letters.jsonl")


def test_an_unreadable_file_is_named(
    tmp_path: Path, open_inbox: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What can be read comes first; then the error says which file and what to do."""
    (tmp_path / "a.jsonl").write_text(line("a1"))
    (tmp_path / "b.jsonl").write_text(line("b1"))
    (tmp_path / "c.jsonl").write_text(line("c1"))
    really_open = Folder.open_delivered

    def refuse(folder: Folder, name: str) -> int:
        if name == "b.jsonl":
            raise PermissionError(13, "Permission denied")
        return really_open(folder, name)

    connector = open_inbox()
    monkeypatch.setattr(Folder, "open_delivered", refuse)
    assert ack_all(connector) == ["a1"]
    with pytest.raises(JsonlConnectorError, match=r"cannot read .*b\.jsonl: Permission denied"):
        connector.fetch_transactions(9)
    monkeypatch.undo()
    assert ack_all(connector) == ["b1", "c1"]


def test_it_finds_by_id_whatever_became_of_it(tmp_path: Path, open_inbox: Open) -> None:
    """Settled or not; malformed lines are passed over."""
    (tmp_path / "a.jsonl").write_text("oops\n\n" + line("a1", 1) + line("a2", 2))
    connector = open_inbox()
    ack_all(connector, 1)
    for name, payload in (("a1", 1), ("a2", 2)):
        found = connector.fetch_transaction_by_id(name)
        assert found is not None
        assert found.payload == payload
        with pytest.raises(JsonlConnectorError, match="did not deliver this object"):
            connector.release(found)
    assert connector.fetch_transaction_by_id("a3") is None


def test_a_contradicting_settlement_is_refused(tmp_path: Path, open_inbox: Open) -> None:
    """Once acknowledged it can be acknowledged again, but not set aside; a copy cannot be."""
    (tmp_path / "a.jsonl").write_text(line("a1"))
    connector = open_inbox()
    transaction = connector.fetch_transactions(1)[0]
    with pytest.raises(JsonlConnectorError, match="did not deliver this object"):
        connector.ack(Transaction.from_dict(transaction.to_dict()))
    connector.ack(transaction)
    connector.ack(transaction)
    with pytest.raises(JsonlConnectorError, match="settled with ack before"):
        connector.nack(transaction, ValueError())
    assert list(connector.read_dead_letters()) == []


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({}, "needs an inbox or an outbox"),
        ({"inbox": "missing"}, "the inbox .*missing is not a directory"),
        ({"inbox": ".", "dead_letters": "dead.jsonl"}, "would be read as work"),
        ({"outbox": "out", "dead_letters": "dead.jsonl"}, "dead_letters without an inbox"),
        ({"inbox": ".", "max_line_bytes": 0}, "max_line_bytes must be at least 1"),
        ({"outbox": "out", "rotate_bytes": -1}, "rotate_bytes must be at least 1"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], complaint: str
) -> None:
    """Each gets an error that names it, and no file appears."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match=complaint):
        JsonlConnector(**settings)
    assert list(tmp_path.iterdir()) == []


def test_half_a_connector_says_what_is_missing(tmp_path: Path, open_inbox: Open) -> None:
    """Consuming needs an inbox, producing an outbox; unknown settings are refused."""
    with JsonlConnector(outbox=tmp_path / "out") as connector:
        with pytest.raises(ConfigurationError, match="has no inbox"):
            connector.fetch_transactions(1)
        assert connector.malformed == 0
    with pytest.raises(ConfigurationError, match="has no outbox"):
        open_inbox().dispatch_transactions([])
    with pytest.raises(ConfigurationError, match="does not know the setting 'shard'"):
        open_inbox().fetch_transactions(1, shard=3)
