"""An inbox that other local users put files into: what they cannot make the consumer do."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from ergon_framework.connector.jsonl import JsonlConnector
from ergon_framework.connector.jsonl.codec import JsonlConnectorError
from ergon_framework.connector.transaction import Transaction
from tests.local_users import NOBODY, acting_as, mode_of, needs_root, shared_folder


def line(name: str) -> str:
    """One transaction as a line."""
    return json.dumps({"transaction_id": name, "payload": {}}) + "\n"


def test_only_regular_files_are_work(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A link, a named pipe and a folder are not read, and each is named once in the log."""
    inbox = tmp_path / "inbox"
    inbox.mkdir()
    (tmp_path / "secret").write_text("root:$6$precious\n")
    (inbox / "a.jsonl").symlink_to(tmp_path / "secret")
    os.mkfifo(inbox / "b.jsonl")
    (inbox / "c.jsonl").mkdir()
    (inbox / "d.jsonl").write_text(line("t1"))
    with JsonlConnector(inbox=inbox) as connector:
        taken = connector.fetch_transactions(10) + connector.fetch_transactions(10)
        assert [each.transaction_id for each in taken] == ["t1"]
        assert connector.get_transactions_count() == 0
        assert connector.fetch_transaction_by_id("t1") is not None
        assert list(connector.read_dead_letters()) == []
    told = sorted(record.getMessage() for record in caplog.records)
    assert len(told) == 3
    assert "a.jsonl: it is a symbolic link" in told[0]


def test_a_second_name_of_a_file_is_no_work_where_others_may_write(tmp_path: Path) -> None:
    """A hard link to a private file would show its lines in the dead letters."""
    (tmp_path / "secret").write_text("root:$6$precious\n")
    inbox = tmp_path / "inbox"
    inbox.mkdir()
    inbox.chmod(0o770)
    os.link(tmp_path / "secret", inbox / "a.jsonl")
    with JsonlConnector(inbox=inbox) as connector:
        assert connector.fetch_transactions(10) == []
        assert connector.malformed == 0
        (tmp_path / "secret").write_text(line("t1"))
        (tmp_path / "secret").unlink()  # a sender that links its file into place, then lets go
        assert [each.transaction_id for each in connector.fetch_transactions(10)] == ["t1"]


def test_state_and_dead_letters_are_private(tmp_path: Path) -> None:
    """Whatever the umask; those of an older version become so."""
    state = tmp_path / ".ergon"
    state.mkdir(0o755)
    (state / "dead_letters.jsonl").touch(0o644)
    (tmp_path / "a.jsonl").write_text("no json\n")
    before = os.umask(0)
    try:
        with JsonlConnector(inbox=tmp_path) as connector:
            assert connector.fetch_transactions(1) == []
    finally:
        os.umask(before)
    assert mode_of(state) == 0o700
    assert {mode_of(each) for each in state.iterdir()} == {0o600}


@needs_root
@pytest.mark.parametrize("planted", [".ergon", "dead_letters.jsonl", "progress.jsonl", "lock"])
def test_planted_state_writes_into_no_file(planted: str) -> None:
    """Whoever may write to the inbox cannot lead the connector's state somewhere else."""
    with shared_folder(0o777) as inbox, shared_folder(0o755) as private:
        victim = private / planted
        if planted == ".ergon":
            victim.mkdir()
            with acting_as(NOBODY):
                (inbox / ".ergon").symlink_to(victim)
        else:
            victim.write_text("precious\n")
            with acting_as(NOBODY):
                (inbox / ".ergon").mkdir(0o777)
                (inbox / ".ergon" / planted).symlink_to(victim)
        (inbox / "a.jsonl").write_text("no json\n")
        with pytest.raises(JsonlConnectorError, match=r"\.ergon cannot keep the state"):
            JsonlConnector(inbox=inbox)
        is_untouched = not any(victim.iterdir()) if victim.is_dir() else victim.stat().st_size == 9
        assert is_untouched


@needs_root
def test_state_stays_where_it_was_when_its_folder_is_exchanged() -> None:
    """A folder that is renamed, and a link in its place, lead no dead letter astray."""
    with shared_folder(0o777) as inbox, shared_folder(0o755) as private:
        victim = private / "dead_letters.jsonl"
        victim.write_text("")
        with JsonlConnector(inbox=inbox) as connector:
            with acting_as(NOBODY):
                (inbox / ".ergon").rename(inbox / "aside")
                (inbox / ".ergon").symlink_to(private)
            (inbox / "a.jsonl").write_text("no json\n")
            assert connector.fetch_transactions(1) == []
            assert connector.malformed == 1
            assert len(list(connector.read_dead_letters())) == 1
        assert victim.read_text() == ""


def test_parts_of_an_outbox_are_for_whom_the_umask_says(tmp_path: Path) -> None:
    """They are handed to other programs; but no link is followed there either."""
    before = os.umask(0o027)
    try:
        with JsonlConnector(outbox=tmp_path) as connector:
            connector.dispatch_transactions([Transaction("t1", {})])
    finally:
        os.umask(before)
    assert mode_of(tmp_path / "part-00000001.jsonl") == 0o640
    (tmp_path / "secret").write_text("precious\n")
    (tmp_path / "part-00000002.jsonl").symlink_to(tmp_path / "secret")
    with (
        JsonlConnector(outbox=tmp_path) as connector,
        pytest.raises(JsonlConnectorError, match="symbolic link"),
    ):
        connector.dispatch_transactions([Transaction("t2", {})])
    assert (tmp_path / "secret").read_text() == "precious\n"
