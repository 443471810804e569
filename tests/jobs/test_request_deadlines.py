"""When a process is looked at again: the deadlines of the requests that it has in hand."""

from __future__ import annotations

from typing import Any, cast

import pytest

from ergon_framework.core.executor_protocol import Reply
from ergon_framework.jobs.child_process import ChildProcess
from ergon_framework.jobs.claims import Claim
from ergon_framework.jobs.event_loop import READ, EventLoop, Handler
from ergon_framework.jobs.executor_process import (
    DEADLINE_SLACK,
    ExecutorProcess,
    PendingRequest,
    ProcessListener,
)
from ergon_framework.jobs.settings import ExecutorSettings
from ergon_framework.ports.jobstore import ClaimedJob

pytestmark = pytest.mark.req("JOBS:orchestrator")

STDOUT = 4


class FakeChild:
    """A child whose answers a test writes."""

    stdin, stdout, stderr, ready, progress, exit_fd = 3, STDOUT, 5, 6, 7, -1
    queued = 0

    def __init__(self) -> None:
        self.answers = b""

    def send(self, data: bytes) -> None:
        """Take a request."""
        self.queued += len(data)

    def taken(self) -> int:
        """All is read at once."""
        return self.queued

    def read(self, _descriptor: int) -> bytes | None:
        """What a test has written."""
        data, self.answers = self.answers, b""
        return data or None


class FakeLoop:
    """A loop whose clock a test sets."""

    def __init__(self) -> None:
        self.at = 0.0
        self.handlers: dict[int, Handler] = {}

    def now(self) -> float:
        """The test's clock."""
        return self.at

    def watch(self, descriptor: int, _events: int, handler: Handler) -> None:
        """Note who handles a descriptor."""
        self.handlers[descriptor] = handler


class Listener:
    """Hears of answers."""

    def __init__(self) -> None:
        self.answered_ids: list[str] = []

    def answered(self, _process: ExecutorProcess, _request: PendingRequest, reply: Reply) -> None:
        """An answer came."""
        self.answered_ids.append(reply.job_id)


class Scene:
    """One process with a fake child."""

    def __init__(self, *, is_up: bool = True) -> None:
        self.child, self.loop, self.listener = FakeChild(), FakeLoop(), Listener()
        self.process = ExecutorProcess(
            cast("ChildProcess", self.child),
            ExecutorSettings(command=("true",), max_in_flight=10, startup_grace=30.0),
            cast("EventLoop", self.loop),
            cast("ProcessListener", self.listener),
        )
        if is_up:
            self.process.came_up(0.0)

    def give(self, job_id: str, timeout: float) -> None:
        """Hand a request to the process."""
        names = [job_id, "h", "", "default"]
        values: list[Any] = [1, 1, *names, b"[]", b"{}", 0, 1, 0, False, 0.0, 0.0]
        self.process.give(Claim(ClaimedJob(*values)), b"a request\n", timeout)

    def answer(self, job_id: str) -> None:
        """Let the process answer a request."""
        self.child.answers = b'{"job_id":"%s","status":"success"}\n' % job_id.encode()
        self.loop.handlers[STDOUT](READ)

    def overdue(self, at: float) -> list[str]:
        """The jobs whose time has passed by then."""
        self.loop.at = at
        return [each.claim.job.id for each in self.process.overdue(at)]


def test_an_answer_does_not_take_the_deadline_of_others_along() -> None:
    """The first deadline goes with its request; the next one is met, and only once."""
    scene = Scene()
    scene.give("soon", 1.0)
    scene.give("later", 5.0)
    assert scene.process.next_look(0.0) == 1.0 + DEADLINE_SLACK
    scene.answer("soon")
    assert scene.listener.answered_ids == ["soon"]
    assert scene.overdue(1.0 + DEADLINE_SLACK) == []
    assert scene.process.next_look(2.0) == 5.0 + DEADLINE_SLACK
    assert scene.overdue(5.0 + DEADLINE_SLACK) == ["later"]
    assert scene.overdue(6.0) == []


def test_a_shorter_deadline_that_comes_later_is_met_first() -> None:
    """The order in which requests were given says nothing about their deadlines."""
    scene = Scene()
    scene.give("later", 9.0)
    scene.give("soon", 2.0)
    assert scene.process.next_look(0.0) == 2.0 + DEADLINE_SLACK
    assert scene.overdue(2.0 + DEADLINE_SLACK) == ["soon"]
    assert scene.process.next_look(3.0) == 9.0 + DEADLINE_SLACK
    assert scene.overdue(9.0 + DEADLINE_SLACK) == ["later"]


def test_the_time_of_requests_begins_when_the_process_is_up() -> None:
    """Until then none of them has a deadline."""
    scene = Scene(is_up=False)
    scene.give("a", 1.0)
    assert scene.overdue(20.0) == []
    scene.process.came_up(20.0)
    assert scene.overdue(20.9 + DEADLINE_SLACK) == []
    assert scene.overdue(21.0 + DEADLINE_SLACK) == ["a"]


def test_a_process_with_nothing_in_hand_is_not_looked_at_for_deadlines() -> None:
    """The deadline of a request that was answered wakes nobody."""
    scene = Scene()
    scene.give("a", 1.0)
    scene.answer("a")
    assert scene.process.next_look(0.5) is None
