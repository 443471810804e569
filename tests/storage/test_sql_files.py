"""Named statements in SQL files."""

from __future__ import annotations

import pytest

from ergon_framework.errors import WiringError
from ergon_framework.storage.sql_files import load, parse


def test_statements_are_found_by_name() -> None:
    """Each goes from its name to the next; remarks inside are kept, the last semicolon is not."""
    found = load("tests.storage.sample", "statements.sql")
    assert list(found) == ["add", "count"]
    assert found["count"] == "SELECT count(*) FROM ergon_item"
    assert found["add"].startswith("INSERT")
    assert "-- a remark" in found["add"]
    assert found["add"].endswith("VALUES (:name, :value)")
    assert load("tests.storage.sample", "statements.sql") is found


def test_the_word_name_may_be_spelt_out() -> None:
    """Files written for other loaders are understood."""
    assert parse("-- name: one\nSELECT 1;\n-- name: two: both\nSELECT 2", "x") == {
        "one": "SELECT 1",
        "two": "SELECT 2",
    }


def test_a_wrong_name_is_answered_with_the_right_ones() -> None:
    """The error lists what the file has."""
    with pytest.raises(KeyError, match=r"x\.sql has no statement 'tow'; it has one, two"):
        parse("-- one: 1\nSELECT 1\n-- two: 2\nSELECT 2", "x.sql")["tow"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("-- a: b\nSELECT 1\n-- a: c\nSELECT 2", "line 3: a second statement 'a'"),
        ("-- a: b\n-- only a remark\n", "'a' is empty"),
        ("\nSELECT 1\n-- a: b\nSELECT 2", "line 2: SQL before the first name"),
    ],
)
def test_malformed_files_are_refused(text: str, message: str) -> None:
    """With the place and what is wrong there."""
    with pytest.raises(WiringError, match=message):
        parse(text, "x.sql")


@pytest.mark.parametrize("place", [("tests.storage.sample", "no.sql"), ("no_package", "no.sql")])
def test_a_file_that_is_not_there(place: tuple[str, str]) -> None:
    """The error names it."""
    with pytest.raises(WiringError, match=r"no\.sql"):
        load(*place)
