"""Random histories of an inbox, compared with a model that only keeps sets."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ergon_framework.connector.jsonl import JsonlConnector
from ergon_framework.connector.jsonl.offsets import JournalLimits
from ergon_framework.ports.transaction import Transaction

EARLY = JournalLimits(compact_after=2)


class InboxHistory(RuleBasedStateMachine):
    """Files grow, lines are fetched and settled in any order, the connector is reopened."""

    def __init__(self) -> None:
        super().__init__()
        self.home = Path(tempfile.mkdtemp())
        self.written = 0
        self.spoilt = 0
        self.waiting: set[str] = set()
        self.flying: dict[str, Transaction] = {}
        self.dead: set[str] = set()
        self.connector = JsonlConnector(self.home, fsync=False, journal=EARLY)

    @rule(file=st.sampled_from("abc"), count=st.integers(1, 4), has_newline=st.booleans())
    def write(self, file: str, count: int, has_newline: bool) -> None:
        """Some writer appends lines, the last one with or without its newline."""
        lines = []
        for _ in range(count):
            self.written += 1
            lines.append(json.dumps({"transaction_id": f"{file}{self.written}"}))
        self._append(file, "\n".join(lines) + "\n" * has_newline)
        self.waiting |= {json.loads(line)["transaction_id"] for line in lines}

    @rule(file=st.sampled_from("abc"), text=st.sampled_from(["rubbish", "{}", "\n", "  "]))
    def write_rubbish(self, file: str, text: str) -> None:
        """Some writer appends a malformed or a blank line."""
        self._append(file, text + "\n")
        self.spoilt += bool(text.strip())

    @rule(count=st.integers(1, 6))
    def fetch(self, count: int) -> None:
        """A fetch brings what waits, never more than asked for, and less only when that is all."""
        batch = self.connector.fetch_transactions(count)
        names = {each.transaction_id for each in batch}
        assert len(names) == len(batch) <= count
        assert names <= self.waiting
        assert len(batch) == count or names == self.waiting
        self.waiting -= names
        self.flying |= {each.transaction_id: each for each in batch}

    @precondition(lambda self: self.flying)
    @rule(data=st.data(), verb=st.sampled_from(["ack", "nack", "release"]))
    def settle(self, data: st.DataObject, verb: str) -> None:
        """Any transaction in flight is settled in any way."""
        name = data.draw(st.sampled_from(sorted(self.flying)))
        transaction = self.flying.pop(name)
        if verb == "ack":
            self.connector.ack(transaction)
        elif verb == "nack":
            self.connector.nack(transaction, ValueError("bad"))
            self.dead.add(name)
        else:
            self.connector.release(transaction)
            self.waiting.add(name)

    @rule()
    def reopen(self) -> None:
        """A new connector takes over: what was in flight waits again."""
        self.connector.close()
        self.connector = JsonlConnector(self.home, fsync=False, journal=EARLY)
        self.waiting |= set(self.flying)
        self.flying.clear()

    @invariant()
    def journal_is_bounded(self) -> None:
        """The journal does not grow with what was done."""
        entries = (self.home / ".ergon" / "progress.jsonl").read_bytes().count(b"\n")
        assert entries <= 2 * (3 + self.written + self.spoilt) + 2

    def teardown(self) -> None:
        """In the end all that was not settled is delivered, and all dead letters are there."""
        try:
            self.reopen()
            self.fetch(1000)
            assert self.waiting == set()
            letters = list(self.connector.read_dead_letters())
            assert {each["transaction_id"] for each in letters if "value" in each} == self.dead
            assert sum("value" not in each for each in letters) == self.spoilt
        finally:
            self.connector.close()
            shutil.rmtree(self.home)

    def _append(self, file: str, text: str) -> None:
        path = self.home / f"{file}.jsonl"
        before = path.read_bytes() if path.exists() else b""
        with path.open("a") as target:
            target.write("\n" * (before[-1:] not in {b"", b"\n"}) + text)


TestInboxHistory = InboxHistory.TestCase
TestInboxHistory.settings = settings(max_examples=20, stateful_step_count=25, deadline=None)
TestInboxHistory.pytestmark = [pytest.mark.req("R0-N", "R1-ID2")]  # type: ignore[attr-defined]
