"""Rows of files: what is read, when, where it goes on, and what is set aside."""

from __future__ import annotations

import gzip
import os
import shutil
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ergon_framework.connector import from_url
from ergon_framework.connector.files import FilesConnector
from ergon_framework.errors import ConfigurationError, ConnectorError
from ergon_framework.testing.clock import VirtualClock
from tests import fork_server
from tests.connectors.files.folders import payloads, reading
from tests.waiting import until


def reasons(connector: FilesConnector) -> list[tuple[int | None, str]]:
    """Row and reason of what was set aside."""
    return [(each["row"], each["reason"]) for each in connector.read_dead_letters()]


def test_rows_of_csv_are_dicts_of_texts(tmp_path: Path) -> None:
    """With quoted line breaks, doubled quotes, a byte order mark, CRLF and blank lines."""
    text = '\ufeffid,note\r\n1,"a, ""b""\r\nc"\r\n\r\n2,plain "quote"\r\n3,"x"'
    (tmp_path / "a.csv").write_bytes(text.encode())
    with reading(tmp_path) as connector:
        assert payloads(connector) == [
            {"id": "1", "note": 'a, "b"\r\nc'},
            {"id": "2", "note": 'plain "quote"'},
            {"id": "3", "note": "x"},
        ]
        assert connector.malformed == 0


@pytest.mark.parametrize(
    ("name", "content", "options"),
    [
        ("a.tsv", b"id\tnote\n1\t\xc3\xa4\n", {}),
        ("a.csv", b"id;note\n1;\xe4\n", {"delimiter": "semicolon", "encoding": "cp1252"}),
        ("a.csv", "id,note\n1,ä\n".encode("utf-16"), {}),
        ("a.csv", b"1,\xc3\xa4\n", {"columns": "id, note"}),
        ("a.csv.gz", gzip.compress("id,note\n1,ä\n".encode()), {}),
        ("a.jsonl", '{"id":"1","note":"ä"}\n\n'.encode(), {}),
        ("a.jsonl", b'{"id":"1","note":"\xe4"}\n', {"encoding": "cp1252"}),
        ("a.ndjson.gz", gzip.compress(b'\xef\xbb\xbf{"id":"1","note":"\xc3\xa4"}'), {}),
        ("day.txt", b"id,note\n1,\xc3\xa4\n", {"format": "csv", "pattern": "*.txt"}),
    ],
)
def test_forms_of_files(tmp_path: Path, name: str, content: bytes, options: Any) -> None:
    """Separators, encodings, compression and names give the same row."""
    (tmp_path / name).write_bytes(content)
    with reading(tmp_path, **options) as connector:
        assert payloads(connector) == [{"id": "1", "note": "ä"}]


def test_files_come_in_the_order_of_their_names(tmp_path: Path) -> None:
    """Others, hidden ones and folders are passed over; later ones are found."""
    for name in ("b.jsonl", "a.jsonl", ".c.jsonl", "_d.jsonl", "e.txt"):
        (tmp_path / name).write_text(f'"{name}"\n')
    (tmp_path / "z.jsonl").mkdir()
    with reading(tmp_path) as connector:
        assert payloads(connector) == ["a.jsonl", "b.jsonl"]
        assert payloads(connector) == []
        (tmp_path / "a2.jsonl").write_text("2\n3\n")
        assert payloads(connector) == [2, 3]


def test_ids_are_stable_and_tell_files_of_one_name_apart(tmp_path: Path) -> None:
    """A row has the same id again; the row of another file under the name has another one."""
    path = tmp_path / "a.jsonl"
    path.write_text("1\n2\n")
    with reading(tmp_path) as connector:
        (first,) = connector.fetch_transactions(1)
        assert first.metadata["file"] == "a.jsonl"
        assert first.metadata["row"] == 1
    with reading(tmp_path) as connector:
        (again, _) = connector.fetch_transactions(5)
        assert again.transaction_id == first.transaction_id
    path.unlink()
    path.write_text("9\n2\n")
    with reading(tmp_path) as connector:
        (other, _) = connector.fetch_transactions(5)
        assert (other.payload, other.metadata["row"]) == (9, 1)
        assert other.transaction_id != first.transaction_id


def test_it_goes_on_where_it_stopped(tmp_path: Path) -> None:
    """Settled rows do not come again, whatever their order; also of compressed files."""
    lines = "".join(f"{n}\n" for n in range(10)).encode()
    (tmp_path / "a.jsonl").write_bytes(lines)
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(lines))
    for settled in ({0, 1, 4}, {2, 9}, {3, 5, 6, 7, 8}):
        with reading(tmp_path) as connector:
            for each in connector.fetch_transactions(99):
                if each.payload in settled:
                    connector.ack(each)
    with reading(tmp_path) as connector:
        assert connector.fetch_transactions(99) == []


@pytest.mark.parametrize("rows", [1, 2, 3, 4])
def test_what_is_settled_outlives_a_compaction(tmp_path: Path, rows: int) -> None:
    """The journal is written anew after 1000 entries, whatever kind of entry is due by then."""
    for n in range(260):
        (tmp_path / f"{n:03}.jsonl").write_text("1\n" * (1 if n else rows))
    with reading(tmp_path, fsync=False) as connector:
        while payloads(connector, 1):
            pass
    with reading(tmp_path, fsync=False) as connector:
        assert payloads(connector) == []
        assert connector.get_transactions_count() == 0


def test_a_damaged_journal_repeats_rows_and_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Entries that cannot be read are passed over, whatever they hold."""
    (tmp_path / "a.jsonl").write_text("1\n2\n")
    with reading(tmp_path) as connector:
        connector.ack(connector.fetch_transactions(1)[0])
    journal = tmp_path / ".ergon" / "files-ergon" / "positions.jsonl"
    damage = ['{"file": 1}', '{"file": "a.jsonl", "row": "x"}', '{"rows": 3}', "[]", "null", "\xff"]
    damage += ['{"file": "b.jsonl", "id": "zz", "head": [1]}', '{"file": "a.jsonl", "rows": -1}']
    journal.write_text(journal.read_text() + "\n".join(damage) + "\n", encoding="latin-1")
    with reading(tmp_path) as connector:
        assert payloads(connector) == [2]
    assert "skipped a damaged entry" in caplog.text


def test_a_second_consumer_waits_for_the_first(tmp_path: Path) -> None:
    """And goes on where that one has stopped; another name reads everything."""
    (tmp_path / "a.jsonl").write_text("1\n2\n")
    with ThreadPoolExecutor() as pool, reading(tmp_path) as second:
        with reading(tmp_path) as first, reading(tmp_path, consumer="other") as other:
            assert payloads(first, 1) == [1]
            waiting = pool.submit(payloads, second)
            until(lambda: not second.health(), "the second to find the lock")
            assert payloads(other) == [1, 2]
        assert waiting.result(30) == [2]


def test_a_full_disk_loses_no_settlement(tmp_path: Path) -> None:
    """An ack raises while nothing can be written, and counts when it is made again."""
    code = """
import resource, signal, sys
from ergon_framework.connector.files import FilesConnector
from ergon_framework.errors import ConnectorError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
with FilesConnector(sys.argv[1], settle=0.0) as connector:
    first, second = connector.fetch_transactions(2)
    resource.setrlimit(resource.RLIMIT_FSIZE, (40, resource.RLIM_INFINITY))
    try:
        connector.ack(first)
    except ConnectorError:
        print("refused", connector.health())
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
    connector.ack(first)
    print(connector.health())
"""
    (tmp_path / "a.jsonl").write_text("1\n2\n")
    done = fork_server.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=60
    )
    assert done.stdout.split() == ["refused", "False", "True"], done.stderr
    with reading(tmp_path) as connector:
        assert payloads(connector) == [2]


def test_a_bad_row_is_kept_and_blocks_nothing(tmp_path: Path) -> None:
    """With its reason and its text; rows behind it come."""
    rows = b"id,note\n1,a\n2\n3,\xff\n4,a\0b\n5,e\n"
    (tmp_path / "a.csv").write_bytes(rows)
    with reading(tmp_path) as connector:
        assert [each["id"] for each in payloads(connector)] == ["1", "5"]
        found = reasons(connector)
        assert [row for row, _ in found] == [2, 3, 4]
        assert "1 fields" in found[0][1]
        assert "not utf-8" in found[1][1]
        assert "NUL" in found[2][1]
        letters = list(connector.read_dead_letters())
        assert (letters[0]["text"], letters[1]["base64"]) == ("2", "Myz/")
    with reading(tmp_path) as connector:
        assert payloads(connector) == []


def test_a_quote_that_is_never_closed_costs_one_line(tmp_path: Path) -> None:
    """What comes behind it is read, at the end of the file as within the limit."""
    rows = b'id,note\n1,"open\n2,b\n3,c\n'
    (tmp_path / "a.csv").write_bytes(rows)
    (tmp_path / "b.csv").write_bytes(rows + b"4,x\n" * 100 + b'5,"y"\n')
    with reading(tmp_path, max_message_bytes=100) as connector:
        found = [each["id"] for each in payloads(connector)]
        assert found == ["2", "3", "2", "3", *["4"] * 100, "5"]
        assert [row for row, _ in reasons(connector)] == [1, 1]


def test_a_row_that_is_too_long_is_not_held(tmp_path: Path) -> None:
    """It is set aside with its beginning, and the next one is read."""
    (tmp_path / "a.jsonl").write_bytes(b'"' + b"x" * 5_000_000 + b'"\n1\n')
    with reading(tmp_path, max_message_bytes=1000) as connector:
        assert payloads(connector) == [1]
        (letter,) = connector.read_dead_letters()
        assert "5000003 bytes long" in letter["reason"]
        assert len(letter["text"]) == 1000


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("a.csv.gz", b"no gzip", "BadGzipFile"),
        ("a.csv", b"id,id\n1,2\n", "twice"),
        ("a.csv", b"id,\xff\n1,2\n", "not utf-8"),
        ("a.csv", b"id,\n1,2\n", "no name"),
        ("a.csv", b"\0" * 5000, "NUL"),
    ],
)
def test_a_file_that_cannot_be_read_is_set_aside(
    tmp_path: Path, name: str, content: bytes, reason: str
) -> None:
    """Once; and those behind it are read."""
    (tmp_path / name).write_bytes(content)
    (tmp_path / "b.jsonl").write_text("1\n")
    with reading(tmp_path) as connector:
        assert payloads(connector) == [1]
    with reading(tmp_path) as connector:
        assert payloads(connector) == []
        ((row, found),) = reasons(connector)
        assert row is None
        assert reason in found


def test_rows_before_a_torn_end_are_delivered(tmp_path: Path) -> None:
    """Of a compressed file that was cut off."""
    whole = gzip.compress(b'"x"\n' * 2000, 1)
    (tmp_path / "a.jsonl.gz").write_bytes(whole[: len(whole) // 2])
    with reading(tmp_path) as connector:
        assert len(payloads(connector, 9999)) > 100
        assert "EOFError" in reasons(connector)[-1][1]
    with reading(tmp_path) as connector:
        assert payloads(connector) == []


def test_half_of_a_character_costs_one_row(tmp_path: Path) -> None:
    """Of a file in UTF-16, too: rows before and behind it are delivered."""
    broken = "5,x\ud800\n".encode("utf-16-le", "surrogatepass")
    text = "\ufeffa,b\n1,2\n".encode("utf-16-le") + broken + "3,4\n".encode("utf-16-le")
    (tmp_path / "a.csv").write_bytes(text)
    with reading(tmp_path) as connector:
        assert payloads(connector) == [{"a": "1", "b": "2"}, {"a": "3", "b": "4"}]
        assert reasons(connector) == [(2, "not utf-8: byte 3 of the row")]


def test_a_file_whose_lines_end_in_cr_alone_is_not_taken_for_a_row_of_columns(
    tmp_path: Path,
) -> None:
    """Its rows would all be column names, and be gone without an outcome: it is set aside."""
    (tmp_path / "a.csv").write_bytes(b"order,amount\r1,2\r3,4\r")
    (tmp_path / "b.csv").write_bytes(b'"the\r\namount",b\r\n1,2\r\n')
    with reading(tmp_path) as connector:
        assert payloads(connector) == [{"the\r\namount": "1", "b": "2"}]
        ((row, reason),) = reasons(connector)
    assert (row, "let lines end in LF or CRLF" in reason) == (None, True)


def test_ten_thousand_columns_are_compared_once(tmp_path: Path) -> None:
    """Looking for a name that is there twice takes no time worth noting: it took ten seconds."""
    names = [f"column {n}" for n in range(10_000)]
    (tmp_path / "a.csv").write_text(",".join(names) + "\n" + "," * 9_999 + "\n")
    began = time.process_time()
    with reading(tmp_path) as connector:
        (row,) = payloads(connector)
    assert list(row) == names
    assert time.process_time() - began < 2.0


def test_empty_files_are_done_at_once(tmp_path: Path) -> None:
    """And read when something is in them."""
    (tmp_path / "a.csv").touch()
    (tmp_path / "b.csv").write_text("id\n")
    with reading(tmp_path) as connector:
        assert payloads(connector) == []
        (tmp_path / "a.csv").write_text("id\n7\n")
        assert payloads(connector) == [{"id": "7"}]
        assert connector.malformed == 0


# ---- files that are written ---------------------------------------------------------------------


def test_a_file_is_left_alone_until_it_is_steady(tmp_path: Path) -> None:
    """By its own time, or by what was seen when the clock of its writer is ahead."""
    old, new, ahead = (tmp_path / f"{name}.jsonl" for name in ("old", "new", "ahead"))
    for path, age in ((old, 60), (new, 1), (ahead, -3600)):
        path.write_text(f'"{path.stem}"\n')
        os.utime(path, (time.time() - age,) * 2)
    with VirtualClock() as clock, reading(tmp_path, settle=5.0) as connector:
        assert payloads(connector) == ["old"]
        clock.advance(6)
        assert payloads(connector) == ["ahead", "new"]


def test_a_marker_says_that_a_file_is_complete(tmp_path: Path) -> None:
    """However old it is."""
    path = tmp_path / "a.jsonl"
    path.write_text("1\n")
    os.utime(path, (0, 0))
    with reading(tmp_path, marker=".done") as connector:
        assert payloads(connector) == []
        (tmp_path / "a.jsonl.done").touch()
        assert payloads(connector) == [1]


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_a_file_is_followed(tmp_path: Path, form: str, caplog: pytest.LogCaptureFixture) -> None:
    """Whole rows come as they are written, from the header on; half a row waits for its rest."""
    csv = form == "csv"
    path = tmp_path / f"a.{form}"
    parts = (
        ["i", "d\n1\n", '"2', '\n2"\n', "3"]
        if csv
        else ["", '{"id":"1"}\n', '{"id":', '"2"}\n', "3"]
    )
    wanted = [[], ["1"], [], ["2\n2" if csv else "2"], []]
    with reading(tmp_path, follow=True, settle=60.0) as connector:
        for part, ids in zip(parts, wanted, strict=True):
            with path.open("a") as file:
                file.write(part)
            assert [each["id"] for each in payloads(connector)] == ids
            assert payloads(connector) == []
        os.utime(path, (0, 0))  # nobody has written for long
        assert payloads(connector) == ([{"id": "3"}] if csv else [3])
        with path.open("a") as file:
            file.write("\n4\n")
        assert payloads(connector) == ([{"id": "4"}] if csv else [4])
        assert connector.malformed == 0
        assert caplog.text == ""


def test_what_was_appended_later_is_read(tmp_path: Path) -> None:
    """By the same connector, and by one that was opened meanwhile."""
    path = tmp_path / "a.csv"
    path.write_text("id\n1\n")
    with reading(tmp_path) as connector:
        assert payloads(connector) == [{"id": "1"}]
        with path.open("a") as file:
            file.write("2\n")
        assert payloads(connector) == [{"id": "2"}]
    with path.open("a") as file:
        file.write("3\n")
    with reading(tmp_path) as connector:
        assert payloads(connector) == [{"id": "3"}]


@pytest.mark.parametrize("how", ["replaced", "truncated", "in_place"])
def test_a_file_that_changes_while_it_is_read_is_told(
    tmp_path: Path, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It counts as a new file, and rows of the old one settle nothing of it."""
    path = tmp_path / "a.jsonl"
    path.write_text("1\n2\n3\n")
    with reading(tmp_path) as connector:
        held = connector.fetch_transactions(2)
        if how == "replaced":
            (tmp_path / "new").write_text("8\n9\n10\n")
            (tmp_path / "new").rename(path)
        elif how == "truncated":
            path.write_text("8\n")
        else:
            with path.open("r+") as file:
                file.write("8\n")
            os.utime(path, (1, 1))
        new = connector.fetch_transactions(9)
        assert new[0].payload == 8
        assert "changed where it had been read, after row 2" in caplog.text
        for each in held:
            connector.ack(each)
    with reading(tmp_path) as connector:
        assert connector.fetch_transactions(9)[0].payload == 8


def test_a_file_that_was_only_touched_goes_on(tmp_path: Path) -> None:
    """The same content is the same file, also under another inode."""
    path = tmp_path / "a.jsonl"
    path.write_text("1\n2\n3\n")
    with reading(tmp_path) as connector:
        assert payloads(connector, 1) == [1]
        (tmp_path / "copy").write_text("1\n2\n3\n")
        (tmp_path / "copy").rename(path)
        assert payloads(connector) == [2, 3]
        os.utime(path, (1, 1))
        assert payloads(connector) == []


# ---- URLs and options ---------------------------------------------------------------------------


def test_a_url_names_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Absolute, or beside where the program runs; options have their types."""
    (tmp_path / "in put").mkdir()
    (tmp_path / "in put" / "a.csv").write_text("id;n\n1;2\n")
    monkeypatch.chdir(tmp_path)
    for place in (f"files://{tmp_path}/in%20put", "files://./in%20put"):
        with from_url(f"{place}?settle=0&delimiter=semicolon&ids=id&payload=n") as connector:
            (found,) = connector.fetch_transactions(5)
            assert (found.transaction_id, found.payload) == ("1", "2")
            assert connector.observe()[0].found.endswith("has 1 files to read")


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("files://host/in", "files:///folder"),
        ("files:///in?format=xml", "auto, csv, jsonl or parquet"),
        ("files:///in?delimiter=ab", "one character"),
        ("files:///in?encoding=klingon", "no encoding"),
        ("files:///in?encoding=hex", "no encoding"),
        ("files:///in?encoding=cp037", "other bytes than ASCII"),
        ("files:///in?encoding=ascii&delimiter=%C2%A7", "which is the delimiter"),
        ("files:///in?columns=a,,b", "no name"),
        ("files:///in?settle=-1", "settle"),
        ("files:///in?max_message_bytes=0", "max_message_bytes"),
        ("files:///in?consumer=a/b", "consumer"),
        ("s3://bucket/in", "state is missing"),
        ("s3://bucket/in?state=x&follow=true", "does not grow"),
        ("s3://user:hunter2@bucket/in?state=x", "holds no credentials"),
        ("files:///in?region=x", "for buckets"),
        ("files:///in?folow=true", "did you mean 'follow'"),
    ],
)
def test_a_mistake_in_the_url_is_told(url: str, message: str) -> None:
    """What is wrong, and what to write."""
    with pytest.raises(ConfigurationError) as caught:
        from_url(url)
    assert message in str(caught.value)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("is_own", [True, False], ids=["in the folder", "elsewhere"])
def test_a_state_that_is_deleted_while_it_is_used_is_begun_anew(
    tmp_path: Path, is_own: bool
) -> None:
    """As after a restart: what it had kept is delivered again, and nothing waits for ever."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").write_text("n\n1\n2\n3\n")
    state = tmp_path / "in" / ".ergon" if is_own else tmp_path / "state"
    given = {} if is_own else {"state": str(state)}
    with reading(tmp_path / "in", **given) as connector:
        assert payloads(connector, 1) == [{"n": "1"}]
        (second,) = connector.fetch_transactions(1)
        shutil.rmtree(state)
        with pytest.raises(ConnectorError, match="No such file"):
            connector.ack(second)
        assert payloads(connector) == [{"n": "1"}, {"n": "2"}, {"n": "3"}]
        assert connector.health()
    with reading(tmp_path / "in", **given) as connector:
        assert payloads(connector) == []
