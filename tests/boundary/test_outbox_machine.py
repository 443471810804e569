"""Any history of an outbox: adds, faults, lost answers, refusals and deaths, beside a list."""

from __future__ import annotations

import contextlib
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from ergon_framework.boundary.client.outbox import Outbox
from ergon_framework.core.retry import Backoff
from ergon_framework.errors import ConflictingDuplicateError, FactInvalidError
from ergon_framework.storage.failpoints import armed
from tests.boundary.outbox_node import Node, away, envelope, fact

faults = st.lists(st.sampled_from([None, None, "fault"]), max_size=4)


class OutboxMachine(RuleBasedStateMachine):
    """What was added is a list; the node must end up with it, but for what it refuses."""

    @initialize(
        is_strict=st.booleans(),
        recover=st.sampled_from(["append", "lookup"]),
        batch=st.integers(1, 4),
    )
    def begin(self, is_strict: bool, recover: str, batch: int) -> None:
        """A fresh spool and a fresh node."""
        self.stack = contextlib.ExitStack()
        self.folder = Path(self.stack.enter_context(tempfile.TemporaryDirectory()))
        self.node = Node()
        self.added: list[str] = []
        self.files: dict[str, list[bytes]] = {}
        self.bad: set[str] = set()
        self.discarded: set[str] = set()
        self.options = {
            "on_refusal": "stop" if is_strict else "set_aside",
            "recover": recover,
            "batch_items": batch,
            "backoff": Backoff(),
        }
        self.is_strict = is_strict
        self.open()

    def open(self) -> None:
        """A process that has the spool."""
        self.outbox = Outbox(self.folder / "o.db", self.node, **self.options)  # type: ignore[arg-type]

    @rule(has_file=st.booleans(), is_bad=st.sampled_from([False, False, True]))
    def a_fact_is_added(self, has_file: bool, is_bad: bool) -> None:
        """Some the node will refuse."""
        name = f"e:{len(self.added)}"
        self.files[name] = [name.encode()] if has_file else []
        self.outbox.add(envelope(name), fact(name), self.files[name])
        self.added.append(name)
        if is_bad:
            self.bad.add(name)
            self.node.refusals[name] = FactInvalidError("no")

    @precondition(lambda self: self.added)
    @rule(data=st.data(), is_same=st.booleans())
    def a_fact_is_added_again(self, data: st.DataObject, is_same: bool) -> None:
        """While it waits that is nothing new; other content is refused."""
        name = data.draw(st.sampled_from(self.added))
        is_in = name not in self.node.log and name not in self.discarded
        if not is_in:
            return
        before = self.outbox.figures()
        if is_same and name not in self.bad:
            self.outbox.add(envelope(name), fact(name), self.files[name])
        elif not is_same:
            with pytest.raises(ConflictingDuplicateError):
                self.outbox.add(envelope(name), fact("else"), self.files[name])
        assert self.outbox.figures() == before

    @rule(before=faults, after=faults)
    def it_is_drained(self, before: list[str | None], after: list[str | None]) -> None:
        """Over a link that fails before the node has heard, or after."""
        self.node.faults = [away() if each else None for each in before]
        self.node.losses = [away() if each else None for each in after]
        self.outbox.drain(until_empty=True)
        self.node.faults, self.node.losses = [], []

    @rule(place=st.sampled_from(["before", "after"]), nth=st.integers(1, 3))
    def it_dies_while_draining(self, place: str, nth: int) -> None:
        """Between the node's answer and the note, or just after."""
        with armed(f"boundary.outbox.sent.{place}=error@{nth}"), contextlib.suppress(OSError):
            self.outbox.drain(until_empty=True)
        self.outbox.close()
        self.open()

    @rule(place=st.sampled_from(["before", "after"]), has_file=st.booleans())
    def it_dies_while_adding(self, place: str, has_file: bool) -> None:
        """Nobody was told anything; whoever starts anew tells it again."""
        name = f"e:{len(self.added)}"
        files = self.files[name] = [name.encode()] if has_file else []
        with armed(f"boundary.outbox.add.{place}=error"), contextlib.suppress(OSError):
            self.outbox.add(envelope(name), fact(name), files)
        self.outbox.close()
        self.open()
        self.outbox.add(envelope(name), fact(name), files)
        self.added.append(name)

    @precondition(lambda self: self.outbox.figures().refused)
    @rule(data=st.data())
    def an_operator_decides(self, data: st.DataObject) -> None:
        """To give a refused fact up; in a strict line the next ones may go then."""
        aside = data.draw(st.sampled_from(self.outbox.refused()))
        self.outbox.discard(aside.id)
        self.discarded.add(aside.message_id)

    def good(self) -> list[str]:
        """What the node may have, in the order in which it must have it."""
        return [name for name in self.added if name not in self.bad]

    @invariant()
    def the_node_has_a_prefix_of_what_was_added(self) -> None:
        """Each once, in order, nothing left out and nothing that it refused."""
        assert self.node.log == self.good()[: len(self.node.log)]

    @invariant()
    def nothing_is_lost(self) -> None:
        """What the node does not have is in the spool, or was given up on purpose."""
        spooled = {each.message_id for each in self.outbox.waiting()}
        missing = set(self.added) - set(self.node.log) - spooled
        assert missing == self.discarded

    @invariant()
    def nothing_passes_a_refused_fact_in_a_strict_line(self) -> None:
        """Until somebody has decided about it."""
        if self.is_strict:
            refused = [each.message_id for each in self.outbox.refused()]
            assert len(refused) <= 1
            for name in refused:
                behind = self.added[self.added.index(name) :]
                assert not set(behind) & set(self.node.log)

    def teardown(self) -> None:
        """In the end everything arrives, and the spool is empty."""
        if not hasattr(self, "outbox"):
            return
        self.outbox.drain(until_empty=True)
        while self.outbox.refused():
            self.outbox.discard(self.outbox.refused()[0].id)
            self.outbox.drain(until_empty=True)
        assert self.node.log == self.good()
        assert self.outbox.size == 0
        self.outbox.close()
        with Outbox(self.folder / "o.db", self.node, clock=lambda: time.time() + 7200.0) as later:
            later.drain(until_empty=True)  # sweeps what deaths have left
        copies = self.folder / "o.db-files"
        assert not copies.is_dir() or not list(copies.iterdir())
        self.stack.close()


@pytest.mark.slow
@pytest.mark.req("P6", "P14", "BOUNDARY:producer", "BSFG:RetrySafety")
def test_any_history_ends_with_each_fact_once_and_in_order() -> None:
    """Whatever fails and whoever dies."""
    run_state_machine_as_test(
        OutboxMachine,
        settings=settings(
            derandomize=True,
            deadline=None,
            max_examples=20,
            stateful_step_count=16,
            phases=[Phase.generate],  # every step is a commit: shrinking would take minutes,
            report_multiple_bugs=False,
        ),
    )
