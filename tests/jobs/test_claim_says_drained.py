"""Whether anything due is left: only a claim that looked can tell."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ergon_framework.core.claim import ClaimRequest
from ergon_framework.jobs.settings import JobsSettings
from ergon_framework.jobs.store_thread import StoreThread
from ergon_framework.jobs.stores.sqlite.store import SqliteJobStore
from tests.jobs.real_worker import job

pytestmark = pytest.mark.req("X13")


def _heard(*_: Any) -> None:
    """Nobody listens."""


class IdleStoreThread:
    """A store thread with a job that is due, whose executor has no room, and another that has."""

    def __init__(self, folder: Path) -> None:
        self.store = SqliteJobStore(folder / "work.db")
        self.store.add([job("busy#echo")])
        self.seconds = 0.0
        self.is_thorough = True
        self.store_thread = StoreThread(
            self.store,
            JobsSettings(poll=0.5),
            lambda _slots, _is_thorough: self.ask(),
            _heard,
            _heard,
            _heard,
            now=lambda: self.seconds,
        )
        self.store_thread.offset = self.store.now()
        self.store_thread.offer("free", 1)

    def ask(self) -> ClaimRequest:
        """Room for the jobs of one executor."""
        own = frozenset({"free", "busy"})
        return ClaimRequest(
            worker="me",
            lease=15.0,
            slots={"free": 1},
            default="free",
            own=own,
            wants_more=self.is_thorough,
        )

    def claim(self, *, is_thorough: bool) -> None:
        """One exchange, as the time to ask again has come."""
        self.is_thorough = is_thorough
        self.seconds += 1.0
        self.store_thread.run_once()


@pytest.fixture
def idle(tmp_path: Path) -> Iterator[IdleStoreThread]:
    """A store thread with a store that only looks when it is asked to."""
    found = IdleStoreThread(tmp_path)
    with closing(found.store):
        yield found


def test_a_claim_that_did_not_look_hides_nothing(idle: IdleStoreThread) -> None:
    """Between the look and the decision another executor gets room, and is claimed for."""
    idle.store_thread.probe()
    idle.claim(is_thorough=True)
    assert (idle.store_thread.probes, idle.store_thread.is_left) == (1, True)
    idle.claim(is_thorough=False)
    assert idle.store_thread.is_left


def test_a_claim_under_way_is_no_answer(idle: IdleStoreThread) -> None:
    """Who asks while a claim is under way that does not look waits for the next one."""
    idle.store_thread.probe()
    idle.claim(is_thorough=False)
    assert idle.store_thread.probes == 0
    idle.claim(is_thorough=True)
    assert (idle.store_thread.probes, idle.store_thread.is_left) == (1, True)
