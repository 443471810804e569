"""Rows of Parquet files."""

from __future__ import annotations

import datetime as dt
import os
import sys
from decimal import Decimal
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from ergon_framework.connector import from_url
from ergon_framework.errors import MissingExtraError
from tests.connectors.files.folders import payloads, reading

pa: Any = import_module("pyarrow")
parquet: Any = import_module("pyarrow.parquet")


def write(path: Path, rows: list[dict[str, Any]], group: int = 10) -> None:
    """A file of groups of so many rows."""
    parquet.write_table(pa.Table.from_pylist(rows), path, row_group_size=group)


def test_rows_have_the_types_of_their_columns(tmp_path: Path) -> None:
    """Instants, numbers, lists, bytes and nothing."""
    row = {
        "id": 7,
        "at": dt.datetime(2030, 1, 2, tzinfo=dt.UTC),
        "price": Decimal("1.50"),
        "tags": ["a", "b"],
        "raw": b"\xff",
        "none": None,
    }
    write(tmp_path / "a.parquet", [row])
    with reading(tmp_path, ids="id") as connector:
        (found,) = connector.fetch_transactions(5)
        assert (found.transaction_id, found.payload) == ("7", row)
        found.payload["tags"].append("c")
        connector.release(found)
        (again,) = connector.fetch_transactions(5)
        assert again.payload == row
        connector.nack(again, ValueError("no"))
        (letter,) = connector.read_dead_letters()
        assert letter["value"]["tags"] == ["a", "b"]


def test_it_goes_on_in_the_middle_of_a_group(tmp_path: Path) -> None:
    """Of rows, whatever order they were settled in; a touched file is the same one."""
    path = tmp_path / "a.parquet"
    write(path, [{"n": n} for n in range(35)])
    with reading(tmp_path) as connector:
        held = connector.fetch_transactions(20)
        for each in held:
            if each.payload["n"] != 13:
                connector.ack(each)
    os.utime(path, (1, 1))
    with reading(tmp_path) as connector:
        assert connector.get_transactions_count() == 16
        assert [each["n"] for each in payloads(connector)] == [13, *range(20, 35)]
        assert payloads(connector) == []


def test_another_file_of_the_name_is_read_anew(tmp_path: Path) -> None:
    """Its footer tells it."""
    path = tmp_path / "a.parquet"
    write(path, [{"n": n} for n in range(5)])
    with reading(tmp_path) as connector:
        assert len(payloads(connector, 3)) == 3
        write(path, [{"n": n} for n in range(10, 15)])
        assert [each["n"] for each in payloads(connector)] == [10, 11, 12, 13, 14]


@pytest.mark.parametrize("damage", ["cut", "text", "middle", "empty"])
def test_a_broken_file_is_set_aside(tmp_path: Path, damage: str) -> None:
    """And those behind it are read."""
    path = tmp_path / "a.parquet"
    write(path, [{"n": "x" * 100 + str(n)} for n in range(50)])
    whole = path.read_bytes()
    if damage == "middle":
        damaged = whole[:8] + b"\xff" * 200 + whole[208:]
    else:
        damaged = {"cut": whole[:-30], "text": b"n\n1\n", "empty": b""}[damage]
    path.write_bytes(damaged)
    write(tmp_path / "b.parquet", [{"n": 1}])
    with reading(tmp_path) as connector:
        assert payloads(connector) == [{"n": 1}]
        (letter,) = connector.read_dead_letters()
        assert letter["file"] == "a.parquet"
        assert connector.malformed == 1


def test_a_file_that_is_being_written_is_waited_for(tmp_path: Path) -> None:
    """Also with follow: its rows can be found only when its end is there."""
    path = tmp_path / "a.parquet"
    write(path, [{"n": 1}])
    whole = path.read_bytes()
    path.write_bytes(whole[:-10])
    with reading(tmp_path, follow=True, settle=60.0) as connector:
        assert payloads(connector) == []
        path.write_bytes(whole)
        os.utime(path, (1, 1))
        assert payloads(connector) == [{"n": 1}]
        assert connector.malformed == 0


def test_a_long_row_is_set_aside(tmp_path: Path) -> None:
    """It is not delivered, and the others are."""
    write(tmp_path / "a.parquet", [{"n": "a"}, {"n": "b" * 5000}, {"n": "c"}])
    with reading(tmp_path, max_message_bytes=3000) as connector:
        assert [each["n"] for each in payloads(connector)] == ["a", "c"]
        (letter,) = connector.read_dead_letters()
        assert (letter["row"], "5000 bytes long" in letter["reason"]) == (2, True)


def test_a_value_that_python_does_not_have_costs_its_row(tmp_path: Path) -> None:
    """Nanoseconds, and instants after the year 9999: rows before and behind are delivered."""
    table = pa.table(
        {
            "n": [1, 2, 3, 4],
            "at": pa.array([0, 0, 10**18, 0], pa.timestamp("us")),
            "ns": pa.array([1000, 1001, 3000, 4000], pa.duration("ns")),
        }
    )
    parquet.write_table(table, tmp_path / "a.parquet")
    with reading(tmp_path) as connector:
        assert [each["n"] for each in payloads(connector)] == [1, 4]
        letters = list(connector.read_dead_letters())
    assert [each["row"] for each in letters] == [2, 3]
    assert "'ns' (duration[ns])" in letters[0]["reason"]
    assert "'at' (timestamp[us])" in letters[1]["reason"]


def test_a_file_with_two_columns_of_one_name_is_set_aside(tmp_path: Path) -> None:
    """A dict would have one of their values, and the other would be gone."""
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    parquet.write_table(table, tmp_path / "a.parquet")
    with reading(tmp_path) as connector:
        assert payloads(connector) == []
        (letter,) = connector.read_dead_letters()
    assert letter["reason"] == "the column 'a' is there twice"


def test_without_the_library_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once when the format is said, at the first file when its name says it."""
    write(tmp_path / "b.parquet", [{"n": 1}])
    (tmp_path / "a.jsonl").write_text("1\n")
    for module in ("pyarrow", "pyarrow.parquet"):
        monkeypatch.setitem(sys.modules, module, None)
    command = r"pip install 'ergon-framework\[parquet\]'"
    with pytest.raises(MissingExtraError, match=command):
        from_url(f"files://{tmp_path}?format=parquet")
    with reading(tmp_path) as connector:
        assert payloads(connector) == [1]
        with pytest.raises(MissingExtraError, match=command):
            connector.fetch_transactions(1)
