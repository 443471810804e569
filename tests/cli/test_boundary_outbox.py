"""``ergon boundary outbox``: what a producer's outbox holds, and sending it again."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from ergon_framework.boundary.client.outbox import Outbox
from ergon_framework.errors import NotPermittedError
from tests.boundary.outbox_node import Node, envelope, fact
from tests.cli.boundary_node import BoundaryCommands

pytestmark = pytest.mark.req("BOUNDARY:operator")


@pytest.fixture
def commands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> BoundaryCommands:
    """A folder with an outbox: one fact was sent, one refused, one waits."""
    monkeypatch.chdir(tmp_path)
    node = Node()
    node.refusals["e:2"] = NotPermittedError("plant-a may not target mars", reason="not_allowed")
    with Outbox("outbox.db", node, keep_sent=3600.0) as outbox:
        for number in (1, 2):
            outbox.add(envelope(f"e:{number}"), fact("secret"))
        outbox.drain(until_empty=True)
        outbox.add(envelope("e:3"), fact("secret"))
    return BoundaryCommands(tmp_path, capsys, monkeypatch)


def test_what_is_in_it_and_why(commands: BoundaryCommands) -> None:
    """Each fact by its id, with what the node said, and no content."""
    answer = commands("outbox", "list", "outbox.db", "--json")
    shown = [(each["id"], each["state"], each["message_id"]) for each in answer.json]
    assert shown == [(2, "refused", "e:2"), (3, "waiting", "e:3")]
    assert (answer.json[0]["code"], answer.json[0]["reason"]) == (
        "permission_denied",
        "not_allowed",
    )
    assert "secret" not in answer.out
    table = commands("outbox", "list", "outbox.db", "--refused")
    assert "plant-a may not target mars" in table.out
    assert "e:3" not in table.out
    assert [
        each["id"]
        for each in commands("outbox", "list", "outbox.db", "--after", "2", "--json").json
    ] == [3]


def test_figures(commands: BoundaryCommands) -> None:
    """Waiting, refused, kept."""
    shown = commands("outbox", "show", "outbox.db", "--json").json
    assert (shown["pending"], shown["refused"], shown["kept"]) == (1, 1, 1)
    assert shown["oldest_at"] is not None


def test_retry_discard_and_resend(commands: BoundaryCommands) -> None:
    """A refused fact waits again; another is gone; what was sent is before both."""
    assert commands("outbox", "retry", "outbox.db", "2").code == 0
    assert commands("outbox", "resend", "outbox.db", "--since", "0", "--json").json == {"resent": 1}
    with Outbox("outbox.db") as outbox:
        assert [each.message_id for each in outbox.waiting()] == ["e:1", "e:2", "e:3"]
    refused = commands("outbox", "discard", "outbox.db", "3")
    assert refused.code != 0
    assert "no refused fact with the id 3" in refused.err


@pytest.mark.req("BOUNDARY:badinput")
def test_a_file_that_is_not_there(commands: BoundaryCommands) -> None:
    """A mistyped name is told, and makes no file; one that is no outbox is told, too."""
    for command in (("list",), ("show",), ("resend",)):
        answer = commands("outbox", *command, "outbax.db")
        assert answer.code == 2
        assert "there is no outbox outbax.db" in answer.err
    assert not Path("outbax.db").exists()
    Path("letter.txt").write_text("no database" * 100)
    assert "is no outbox" in commands("outbox", "list", "letter.txt").err
    with closing(sqlite3.connect("other.db")) as database:
        database.execute("CREATE TABLE mine (a)")
    assert "is no outbox" in commands("outbox", "resend", "other.db").err
    with closing(sqlite3.connect("other.db")) as database:
        assert database.execute("SELECT count(*) FROM sqlite_master").fetchone() == (1,)
