"""An interrupt at the very first step of leaving: somebody else can lead afterwards."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from ergon_framework.boundary.factstore.append_queue import AppendQueue
from ergon_framework.storage.sqlite.database import Database
from ergon_framework.storage.sqlite.group_commit import CommitQueue
from tests.storage.conftest import WAIT, add, items, until

Call = Callable[[Database], Any]


@pytest.fixture
def interrupted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The main thread is interrupted when it first leaves, before it has done anything."""
    leave, left = CommitQueue.leave, list[str]()

    def once(queue: CommitQueue) -> None:
        if threading.current_thread() is threading.main_thread():
            left.append("")
            if len(left) == 1:
                raise KeyboardInterrupt
        leave(queue)

    monkeypatch.setattr(CommitQueue, "leave", once)
    return left


@pytest.mark.parametrize(
    "call",
    [
        lambda database: database.write(add("a")),
        lambda database: database.write(add("a"), within=WAIT),
        lambda database: database.maintain(),
    ],
    ids=["write", "write within", "turn"],
)
def test_others_can_write_afterwards(
    database: Database, interrupted: list[str], call: Call
) -> None:
    """The turn is not kept by somebody who is gone."""
    with pytest.raises(KeyboardInterrupt):
        call(database)
    other = threading.Thread(target=database.write, args=(add("b"),))
    other.start()
    other.join(WAIT)
    assert not other.is_alive()
    assert "b" in items(database)
    assert len(interrupted) == 2


@pytest.mark.parametrize("is_closed", [False, True], ids=["by itself", "without a thread"])
def test_others_are_served_afterwards(interrupted: list[str], is_closed: bool) -> None:
    """In whatever way a turn was taken: at once, or after waiting for it in a closed group."""
    leads = threading.Event()

    def serve(requests: Sequence[int]) -> list[int]:
        if 0 in requests:
            leads.set()
            until(lambda: appends.pending > 1)  # the end of the line, and the main thread
        return list(requests)

    appends: AppendQueue[int, int] = AppendQueue(serve)
    if is_closed:
        appends.close()  # there is no thread then that would serve who waits
        threading.Thread(target=appends.call, args=(0,)).start()
        assert leads.wait(WAIT)
    with pytest.raises(KeyboardInterrupt):
        appends.call(1)
    answers: list[int] = []
    other = threading.Thread(target=lambda: answers.append(appends.call(2)))
    other.start()
    other.join(WAIT)
    assert answers == [2]
    assert interrupted
