"""Random histories of callers, compared with a model that only knows what was acknowledged."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from ergon_framework.errors import StoreError
from ergon_framework.storage.sqlite.database import Database
from tests.storage.conftest import SAMPLE, WAIT, Script, checkpointed, items, seen_by_others, until

Work = Callable[[sqlite3.Connection], int]
NAMES = st.sampled_from("abcdef")


class Refused(Exception):
    """What a work raises on purpose."""


class Callers(RuleBasedStateMachine):
    """Groups of callers, each of which changes some values and raises or does not."""

    def __init__(self) -> None:
        super().__init__()
        self.home = Path(tempfile.mkdtemp())
        self.script = Script()
        self.database = self.open()
        self.pool = ThreadPoolExecutor(16)
        self.model: dict[str, int] = {}
        self.clock = 0

    def open(self) -> Database:
        return Database(self.home / "store.db", schema=SAMPLE, connect=self.script.connect)

    @rule(changes=st.lists(NAMES, max_size=3), raises=st.booleans())
    def alone(self, changes: list[str], raises: bool) -> None:
        """One caller that finds nobody."""
        work, effect = self.work(changes, raises)
        if raises:
            with pytest.raises(Refused):
                self.database.write(work)
        else:
            assert self.database.write(work) == len(changes)
            self.model |= effect

    @rule(
        members=st.lists(
            st.tuples(st.lists(NAMES, min_size=1, max_size=3), st.booleans()),
            min_size=2,
            max_size=5,
        ),
        breaks=st.sampled_from([None, None, None, "COMMIT", "RELEASE ergon_caller"]),
    )
    def together(self, members: list[tuple[list[str], bool]], breaks: str | None) -> None:
        """Several that share a commit, which may fail and then fails for all of them."""
        checkpointed()  # one that a full disk has begun waits for its turn as callers do
        go_on, inside = Event(), Event()

        def hold(connection: sqlite3.Connection) -> None:
            inside.set()
            assert go_on.wait(WAIT)

        held = self.pool.submit(self.database.write, hold)
        assert inside.wait(WAIT)
        futures: list[tuple[Future[int], bool, dict[str, int]]] = []
        for n, (changes, raises) in enumerate(members, 1):
            work, effect = self.work(changes, raises)
            futures.append((self.pool.submit(self.database.write, work), raises, effect))
            until(lambda n=n: self.database.pending_writes == n)  # type: ignore[misc]
        if breaks is not None:
            full = sqlite3.SQLITE_FULL
            self.script.before("SAVEPOINT ergon_caller", lambda: self.script.fail(breaks, full))
        go_on.set()
        held.result(WAIT)
        for future, raises, effect in futures:
            error = future.exception(WAIT)
            if error is None:
                assert breaks is None
                assert not raises
                self.model |= effect
            else:
                assert isinstance(
                    error, Refused if raises and breaks is None else StoreError | Refused
                )

    @rule()
    def reopen(self) -> None:
        """Close and open the file."""
        self.database.close()
        self.database = self.open()

    @invariant()
    def nothing_but_what_was_acknowledged(self) -> None:
        """Values are as of the last acknowledged change, here and for other connections."""
        assert items(self.database) == self.model
        assert seen_by_others(self.home / "store.db") == self.model.keys()

    def teardown(self) -> None:
        self.pool.shutdown()
        self.database.close()
        shutil.rmtree(self.home)

    def work(self, changes: list[str], raises: bool) -> tuple[Work, dict[str, int]]:
        self.clock += 1
        stamp = self.clock

        def work(connection: sqlite3.Connection) -> int:
            for name in changes:
                connection.execute("REPLACE INTO ergon_item VALUES (?, ?)", (name, stamp))
            if raises:
                raise Refused
            return len(changes)

        return work, dict.fromkeys(changes, stamp)


TestCallers = Callers.TestCase
TestCallers.settings = settings(max_examples=15, stateful_step_count=15, deadline=None)
TestCallers.pytestmark = [  # type: ignore[attr-defined]
    pytest.mark.slow,
    pytest.mark.req("JOBS:store"),
]
