"""After a fork: an inbox stays its opener's, an outbox gives the child a part of its own."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ergon_framework.connector.jsonl import JsonlConnector, JsonlConnectorError
from ergon_framework.ports.transaction import Transaction


def in_a_child(work: Callable[[], Any]) -> int:
    """A forked process that does it; its exit code is 0 when that raised nothing."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return child


def ended(child: int) -> int:
    """The exit code of a forked process."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_child_that_outlives_its_parent_does_not_hold_the_inbox(tmp_path: Path) -> None:
    """A hook may start a process that goes on: the next reader is let in all the same."""
    (tmp_path / "a.jsonl").write_text('{"transaction_id": "a1"}\n')
    (is_there, there), (until, over) = os.pipe(), os.pipe()

    def go_on() -> None:
        os.close(over)
        os.write(there, b".")
        os.read(until, 1)

    connector = JsonlConnector(tmp_path, fsync=False)
    child = in_a_child(go_on)
    os.read(is_there, 1)
    connector.close()
    try:
        with JsonlConnector(tmp_path, fsync=False) as second:
            assert [each.id for each in second.fetch_transactions(9)] == ["a1"]
    finally:
        for each in (is_there, there, until, over):
            os.close(each)
    assert ended(child) == 0


def test_a_child_settles_and_fetches_nothing(tmp_path: Path) -> None:
    """A hook that forks and returns twice has one outcome: that of the process which fetched."""
    (tmp_path / "a.jsonl").write_text('{"transaction_id": "a1"}\n{"transaction_id": "a2"}\n')
    with JsonlConnector(tmp_path, fsync=False) as connector:
        (came,) = connector.fetch_transactions(1)

        def misuse() -> None:
            with pytest.raises(JsonlConnectorError, match="opened before a fork"):
                connector.ack(came)
            with pytest.raises(JsonlConnectorError, match="opened before a fork"):
                connector.nack(came, ValueError("no"))
            with pytest.raises(JsonlConnectorError, match="opened before a fork"):
                connector.fetch_transactions(1)

        assert ended(in_a_child(misuse)) == 0
        connector.ack(came)
    with JsonlConnector(tmp_path, fsync=False) as connector:
        assert [each.id for each in connector.fetch_transactions(9)] == ["a2"]


def test_parent_and_child_write_into_parts_of_their_own(tmp_path: Path) -> None:
    """They share no part: one that cuts off a torn line would cut what the other wrote."""
    with JsonlConnector(outbox=tmp_path, fsync=False) as connector:
        connector.dispatch_transactions([Transaction("parent-1")])
        child = in_a_child(lambda: connector.dispatch_transactions([Transaction("child")]))
        assert ended(child) == 0
        connector.dispatch_transactions([Transaction("parent-2")])
    found = [each.read_text().count("\n") for each in sorted(tmp_path.glob("part-*.jsonl"))]
    assert found == [2, 1]
