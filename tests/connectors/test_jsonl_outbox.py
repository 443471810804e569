from __future__ import annotations

import asyncio
import enum
import json
import threading
import uuid
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ergon_framework.connector.jsonl import JsonlConnector, JsonlConnectorError, append_file, codec
from ergon_framework.connector.jsonl.drop_folder import DropFolder
from ergon_framework.errors import EnvelopeError, PayloadError
from ergon_framework.ports.transaction import Transaction
from ergon_framework.storage.secure_files import Folder

PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner, max_size=4)
    ),
    max_leaves=12,
)


class Point(NamedTuple):
    x: int


class Colour(enum.Enum):
    RED = "red"


def parts(folder: Path) -> dict[str, list[str]]:
    """The ids in each part."""
    return {
        each.name: [json.loads(line)["transaction_id"] for line in each.read_text().splitlines()]
        for each in sorted(folder.glob("*.jsonl"))
    }


def send(connector: JsonlConnector, *names: str) -> None:
    """Dispatch so many small transactions."""
    connector.dispatch_transactions(Transaction(name) for name in names)


@pytest.mark.req("R1-S1", "R1-S2")
@settings(max_examples=100, deadline=None)
@given(payload=PLAIN, metadata=st.dictionaries(st.text("abc/ é", max_size=5), PLAIN, max_size=3))
def test_plain_values_survive_the_round_trip(payload: Any, metadata: dict[str, Any]) -> None:
    """Any JSON value comes back equal, and on one line."""
    sent = Transaction("t1", payload, metadata, correlation_id="c", parent_id="p", source="s")
    line = codec.encode(sent, 1 << 24)
    assert line.count(b"\n") == 1
    assert Transaction.from_dict(codec.decode(line)) == sent


LOOP: list[Any] = []
LOOP.append(LOOP)


@pytest.mark.req("R1-S1")
@pytest.mark.parametrize(
    ("payload", "complaint"),
    [
        ({"a": [1, b"raw"]}, r"payload\.a\[1\] is of type bytes .*base64"),
        ({"a": {"b c": (1, 2)}}, r"payload\.a\['b c'\] is of type tuple .*use a list"),
        (Point(1), "payload is of type Point"),
        ({"when": datetime.now(UTC)}, r"payload\.when is of type datetime .*isoformat"),
        ([date(2026, 1, 1)], r"payload\[0\] is of type date .*isoformat"),
        (Decimal("1.5"), r"payload is of type Decimal .*use str"),
        (uuid.UUID(int=1), r"payload is of type UUID .*use str"),
        ({1: "a"}, "payload is an object with a key of type int .*use text keys"),
        ({None: "a"}, "payload is an object with a key of type NoneType"),
        ([float("nan")], r"payload\[0\] is not a finite number .*use None"),
        ({"x": float("-inf")}, r"payload\.x is not a finite number"),
        ("\ud800", "payload is text with a lone surrogate"),
        ({"\ud800": 1}, "a key of payload is text with a lone surrogate"),
        ({1, 2}, "payload is of type set .*sorted list"),
        ({"a": [{}, []], "b": {"c": "d"}, "e": object()}, r"payload\.e is of type object"),
        (Colour.RED, "payload is of type Colour .*convert it to plain JSON values"),
        (object(), "payload is of type object"),
        (LOOP, "nested more than 200 levels deep, or inside itself"),
        ({"x" * 99: b""}, r"payload\.x{40}… is of type bytes"),
    ],
)
def test_what_would_not_come_back_equal_is_refused_with_its_path(
    tmp_path: Path, payload: Any, complaint: str
) -> None:
    """The error names the transaction, the path and the remedy, and nothing is written."""
    with JsonlConnector(outbox=tmp_path, fsync=False) as connector:
        with pytest.raises(
            PayloadError, match=rf"(?s)'bad' cannot be written .*{complaint}"
        ) as got:
            connector.dispatch_transactions([Transaction("ok"), Transaction("bad", payload)])
        assert got.value.details["transaction_id"] == "bad"
        assert parts(tmp_path) == {}
        send(connector, "after")
    assert parts(tmp_path) == {"part-00000001.jsonl": ["after"]}


def test_metadata_is_held_to_the_same_rule(tmp_path: Path) -> None:
    """The path says that it is the metadata."""
    with (
        JsonlConnector(outbox=tmp_path) as connector,
        pytest.raises(PayloadError, match=r"metadata\.tags is of type tuple"),
    ):
        connector.dispatch_transactions([Transaction("t", 1, {"tags": ("a",)})])


def test_errors_do_not_show_the_payload(tmp_path: Path) -> None:
    """Where and of what type, but never what."""
    with JsonlConnector(outbox=tmp_path) as connector, pytest.raises(PayloadError) as caught:
        connector.dispatch_transactions([Transaction("t", {"password": b"hunter2"})])
    assert "hunter2" not in f"{caught.value} {caught.value.to_dict()}"


def test_a_line_that_could_not_be_read_back_is_not_written(tmp_path: Path) -> None:
    """The bound on lines holds for writing too."""
    with JsonlConnector(outbox=tmp_path, max_line_bytes=200) as connector:
        with pytest.raises(PayloadError, match=r"'t' is \d+ bytes long as a line; at most 200"):
            connector.dispatch_transactions([Transaction("t", "x" * 200)])
        unfit: Any = [{"transaction_id": "t"}]
        with pytest.raises(EnvelopeError, match="takes Transactions, not dict"):
            connector.dispatch_transactions(unfit)
    assert parts(tmp_path) == {}


def test_parts_turn_over_by_size_and_go_on_after_a_restart(tmp_path: Path) -> None:
    """A part is filled before the next begins; a batch stays together."""
    for names in (["a", "b"], ["c"], ["d", "e"], ["f"]):
        with JsonlConnector(outbox=tmp_path, rotate_bytes=200, fsync=False) as connector:
            send(connector, *names)
    assert list(parts(tmp_path).values()) == [["a", "b", "c"], ["d", "e", "f"]]


def test_parts_turn_over_while_it_is_open(tmp_path: Path) -> None:
    """The next part follows the last one there is, whoever wrote it."""
    with JsonlConnector(outbox=tmp_path, rotate_bytes=1, fsync=False) as connector:
        send(connector, "a")
        (tmp_path / "part-00000007.jsonl").write_text('{"transaction_id": "theirs"}\n')
        send(connector, "b", "c")
        send(connector)
    assert list(parts(tmp_path)) == [f"part-0000000{n}.jsonl" for n in (1, 7, 8)]
    assert list(parts(tmp_path).values()) == [["a"], ["theirs"], ["b", "c"]]


def test_each_writer_has_a_part_of_its_own(tmp_path: Path) -> None:
    """Two connectors on one outbox do not write into each other's lines."""
    with (
        JsonlConnector(outbox=tmp_path, fsync=False) as one,
        JsonlConnector(outbox=tmp_path, fsync=False) as two,
    ):
        for name in ("a", "b"):
            send(one, f"one-{name}")
            send(two, f"two-{name}")
    assert list(parts(tmp_path).values()) == [["one-a", "one-b"], ["two-a", "two-b"]]


@pytest.mark.parametrize(
    ("tail", "kept"),
    [(b'{"transaction_id": "torn"', []), (b'{"transaction_id": "whole"}', ["whole"])],
)
def test_a_torn_tail_is_repaired(tmp_path: Path, tail: bytes, kept: list[str]) -> None:
    """Half a line is cut off, since nobody was promised it; a whole one gets its newline."""
    with JsonlConnector(outbox=tmp_path, fsync=False) as connector:
        send(connector, "a")
    with (tmp_path / "part-00000001.jsonl").open("ab") as file:
        file.write(tail)
    with JsonlConnector(outbox=tmp_path, fsync=False) as connector:
        send(connector, "b")
    assert parts(tmp_path) == {"part-00000001.jsonl": ["a", *kept, "b"]}


@pytest.mark.parametrize("torn", [10, 200_000])
def test_a_tail_without_any_newline_is_repaired(tmp_path: Path, torn: int) -> None:
    """Also when it is longer than one block of reading."""
    (tmp_path / "part-00000001.jsonl").write_bytes(b'"' + b"x" * torn)
    with JsonlConnector(outbox=tmp_path, fsync=False) as connector:
        send(connector, "b")
    assert parts(tmp_path) == {"part-00000001.jsonl": ["b"]}


@pytest.mark.parametrize("is_deleted", [True, False], ids=["deleted", "moved"])
@pytest.mark.parametrize("moment", ["before", "written", "synced"])
def test_what_is_dispatched_is_in_no_part_that_was_taken_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str, is_deleted: bool
) -> None:
    """Whoever reads a part may take it away at any moment: later lines are in another one."""
    out, taken = tmp_path / "out", tmp_path / "taken"

    def take(point: str) -> None:
        part = out / "part-00000001.jsonl"
        if point in ("before", f"outbox.{moment}") and part.exists():
            part.rename(taken)
            if is_deleted:
                taken.unlink()

    with JsonlConnector(outbox=out) as connector:
        send(connector, "a")
        if moment == "before":
            take("before")
        monkeypatch.setattr(append_file, "failpoint", take)
        send(connector, "b")
        send(connector, "c")
    assert parts(out) == {"part-00000002.jsonl": ["b", "c"]}


def test_parts_that_are_taken_away_all_the_time_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is promised then, and nobody tries for ever."""

    def take(point: str) -> None:
        for part in tmp_path.glob("*.jsonl") if point == "outbox.synced" else ():
            part.unlink()

    monkeypatch.setattr(append_file, "failpoint", take)
    with (
        JsonlConnector(outbox=tmp_path) as connector,
        pytest.raises(JsonlConnectorError, match="moved or deleted while it was in use"),
    ):
        send(connector, "a")


def test_a_full_disk_is_told_and_nothing_half_written_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a failed write nobody knows what the part holds, so that another one is begun."""
    write_all = append_file.write_all

    def full(file: Any, data: bytes) -> None:
        write_all(file, data[: len(data) // 2])
        raise OSError(28, "No space left on device")

    with JsonlConnector(outbox=tmp_path, fsync=False) as connector:
        send(connector, "a")
        with monkeypatch.context() as patched:
            patched.setattr(append_file, "write_all", full)
            with pytest.raises(JsonlConnectorError, match=r"cannot write .*No space left"):
                send(connector, "b", "c")
            assert not connector.health()
            with pytest.raises(JsonlConnectorError, match=r"cannot write .*No space left"):
                send(connector, "d")
        send(connector, "e")
        assert connector.health()
    found = parts(tmp_path)
    assert found.pop("part-00000001.jsonl") == ["a"]
    assert [each for part in found.values() for each in part] == ["e"]


def test_an_interrupted_write_leaves_no_half_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A KeyboardInterrupt in the middle of a write is undone, and writing goes on."""
    write_all = append_file.write_all

    def interrupted(file: Any, data: bytes) -> None:
        write_all(file, data[:5])
        raise KeyboardInterrupt

    with JsonlConnector(outbox=tmp_path, fsync=False) as connector:
        send(connector, "a")
        monkeypatch.setattr(append_file, "write_all", interrupted)
        with pytest.raises(KeyboardInterrupt):
            send(connector, "b")
        monkeypatch.undo()
        send(connector, "c")
    assert parts(tmp_path) == {"part-00000001.jsonl": ["a", "c"]}


def test_after_a_failed_fsync_nothing_is_promised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An ack whose fsync failed is an error, stays one, and the line comes again."""

    def fail(_: int) -> None:
        raise OSError(5, "Input/output error")

    (tmp_path / "a.jsonl").write_text('{"transaction_id": "a1"}\n{"transaction_id": "a2"}\n')
    with JsonlConnector(tmp_path) as connector:
        first, second = connector.fetch_transactions(2)
        with monkeypatch.context() as patched:
            patched.setattr(append_file, "sync_file", fail)
            with pytest.raises(JsonlConnectorError, match=r"cannot write .*Input/output error"):
                connector.ack(first)
        for each in (first, second):
            with pytest.raises(JsonlConnectorError, match="failed before"):
                connector.ack(each)
        assert not connector.health()


def test_a_failed_rewrite_is_told_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the journal cannot be compacted, the old one stays and nothing more is promised."""

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    file = append_file.AppendFile(Folder.open(tmp_path), "log", "log")
    file.append(lambda: [b"1\n"])
    monkeypatch.setattr(append_file, "write_all", fail)
    with pytest.raises(JsonlConnectorError, match=r"cannot write .*No space left"):
        file.replace(b"2\n")
    monkeypatch.undo()
    with pytest.raises(JsonlConnectorError, match="failed before"):
        file.append(lambda: [b"3\n"])
    file.close()
    assert (tmp_path / "log").read_bytes() == b"1\n"
    again = append_file.AppendFile(Folder.open(tmp_path), "log", "log")
    again.replace(b"2\n")
    again.close()
    again.close()
    assert (tmp_path / "log").read_bytes() == b"2\n"
    with pytest.raises(JsonlConnectorError, match="is closed"):
        again.append(lambda: [b"3\n"])


def test_a_closed_connector_writes_nothing(tmp_path: Path) -> None:
    """Not even when the close comes between the check and the write."""
    connector = JsonlConnector(outbox=tmp_path, fsync=False)
    connector.close()
    with pytest.raises(JsonlConnectorError, match="this JsonlConnector is closed"):
        send(connector, "a")
    outbox = append_file.RotatingWriter(tmp_path, rotate_bytes=1000, fsync=False)
    outbox.close()
    with pytest.raises(JsonlConnectorError, match="the outbox is closed"):
        outbox.append([b"a\n"])
    assert parts(tmp_path) == {}


def test_threads_that_settle_together_share_an_fsync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While one fsync runs others write; the next fsync covers all of them."""
    calls: list[int] = []
    entered, go_on = threading.Event(), threading.Event()

    def slow(descriptor: int) -> None:
        calls.append(descriptor)
        entered.set()
        assert go_on.wait(10)

    file = append_file.AppendFile(Folder.open(tmp_path), "log", "log")
    monkeypatch.setattr(append_file, "sync_file", slow)
    tickets = [file.write([b"1\n"])]
    first = threading.Thread(target=file.sync, args=tickets)
    first.start()
    assert entered.wait(10)
    tickets += [file.write([b"2\n"]), file.write([b"3\n"])]
    others = [threading.Thread(target=file.sync, args=(ticket,)) for ticket in tickets[1:]]
    for each in others:
        each.start()
    go_on.set()
    for each in (first, *others):
        each.join(10)
    assert len(calls) == 2
    monkeypatch.undo()
    file.close()


def test_everything_is_on_disk_before_dispatch_and_ack_return(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With fsync on, each promise is preceded by a sync; with fsync off there is none."""
    synced: list[str] = []

    def note(descriptor: int) -> None:
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)

    if not Path("/proc/self/fd").exists():
        pytest.skip("needs /proc to name a descriptor")
    monkeypatch.setattr(append_file, "sync_file", note)
    for fsync in (True, False):
        with JsonlConnector(tmp_path, tmp_path, fsync=fsync) as connector:
            send(connector, "a", "b")
            assert synced == (["part-00000001.jsonl"] if fsync else [])
            one, two = connector.fetch_transactions(2)
            synced.clear()
            connector.ack(one)
            assert synced == (["progress.jsonl"] if fsync else [])
            synced.clear()
            connector.nack(two, ValueError("bad"))
            assert synced == (["dead_letters.jsonl", "progress.jsonl"] if fsync else [])
            synced.clear()
        synced.clear()


def test_a_cancelled_fetch_gives_back_what_its_thread_still_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cancelling waits for the thread, so the next fetch finds everything."""
    (tmp_path / "a.jsonl").write_text('{"transaction_id": "a1"}\n{"transaction_id": "a2"}\n')
    connector = JsonlConnector(tmp_path, fsync=False)
    taking, go_on = threading.Event(), threading.Event()
    really_open = DropFolder.open

    def slow_open(folder: DropFolder, name: str) -> Any:
        taking.set()
        assert go_on.wait(10)
        return really_open(folder, name)

    async def scenario() -> list[Transaction]:
        fetch = asyncio.create_task(connector.fetch_transactions_async(1))
        assert await asyncio.to_thread(taking.wait, 10)
        monkeypatch.undo()
        fetch.cancel()
        asyncio.get_running_loop().run_in_executor(None, go_on.set)
        with pytest.raises(asyncio.CancelledError):
            await fetch
        return await connector.fetch_transactions_async(9)

    monkeypatch.setattr(DropFolder, "open", slow_open)
    batch = asyncio.run(scenario())
    assert [each.transaction_id for each in batch] == ["a1", "a2"]
    asyncio.run(connector.aclose())
    assert not connector.health()
