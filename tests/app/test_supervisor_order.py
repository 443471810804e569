"""What a supervisor of different parts decides: who is started and stopped after whom."""

from __future__ import annotations

import signal
from queue import Empty

import pytest

from ergon_framework.app.console import ExitCode
from ergon_framework.app.supervisor import (
    LATE_AFTER,
    ProcessSpec,
    SignalReceived,
    Supervisor,
    SupervisorEvent,
    WorkerEnded,
    WorkerReady,
)
from tests.app.test_supervisor import RULE, TimedEvents

pytestmark = pytest.mark.req("ONE:run")

ZONE, WORKER, TASK = range(3)
POSTS = [
    ProcessSpec("zones.plant", "zones.plant", stop_rank=2, is_endless=True),
    ProcessSpec("worker", "worker", stop_rank=1, is_endless=True),
    ProcessSpec("tasks.orders", "tasks.orders", start_rank=1),
]


class Patient(TimedEvents):
    """Moves the time on only when the next event is of a process that does not run yet."""

    past: list[SupervisorEvent]

    def get(self, block: bool = True, timeout: float | None = None) -> SupervisorEvent:
        event = self.script[0] if self.script else None
        if isinstance(event, WorkerEnded) and self.count(event.worker) <= self.ended(event.worker):
            assert timeout is not None, "the supervisor waits for ever"
            self.time += timeout
            raise Empty
        assert event is not None, "the supervisor waits for ever"
        self.past.append(self.script.pop(0))
        return event

    def count(self, worker: int) -> int:
        """How often it was started."""
        return sum(number == worker for _, number, _ in self.children)

    def ended(self, worker: int) -> int:
        """How often it has ended."""
        return sum(isinstance(each, WorkerEnded) and each.worker == worker for each in self.past)


class Play:
    """A supervisor of the three posts above, with a script of events."""

    def __init__(self, *events: SupervisorEvent) -> None:
        self.timed = Patient(*events)
        self.timed.past = []
        self.lines: list[str] = []
        self.supervisor = Supervisor(
            self.timed.start,
            POSTS,
            self.timed,
            rule=RULE,
            tell=self.lines.append,
            now=lambda: self.timed.time,
        )

    def done_to(self, worker: int) -> list[int | str]:
        """What was done to the last process of a post."""
        return [child.done for _, number, child in self.timed.children if number == worker][-1]


STOP = SignalReceived(signal.SIGTERM)
UP = (WorkerReady(ZONE, "listen=here"), WorkerReady(WORKER))
DOWN = (WorkerEnded(TASK, 143), WorkerEnded(WORKER, 0), WorkerEnded(ZONE, 0))


def test_tasks_wait_for_the_others() -> None:
    """Until each of them is ready; what happens is told in lines."""
    play = Play(*UP, WorkerReady(TASK), STOP, *DOWN)
    assert play.supervisor.run() is ExitCode.TERMINATED
    assert play.timed.starts == [(0.0, ZONE), (0.0, WORKER), (0.0, TASK)]
    assert play.lines == [
        "ready zones.plant listen=here",
        "ready worker",
        "ready tasks.orders",
        "ended tasks.orders with code 143",
        "ended worker with code 0",
        "ended zones.plant with code 0",
    ]


def test_they_do_not_wait_for_ever() -> None:
    """One that never says it is ready holds up nobody for long."""
    play = Play(WorkerReady(ZONE))
    supervisor = play.supervisor
    supervisor.start_due()
    assert len(play.timed.starts) == 2
    play.timed.time = LATE_AFTER
    supervisor.start_due()
    assert play.timed.starts[2] == (LATE_AFTER, TASK)


def test_each_is_asked_to_stop_when_those_before_it_are_over() -> None:
    """Tasks first, so that what they need is there to the end."""
    play = Play()
    supervisor = play.supervisor
    supervisor.start_due()
    for event in UP:
        supervisor.take(event)
    supervisor.start_due()
    supervisor.take(STOP)
    asked = [play.done_to(each) for each in (ZONE, WORKER, TASK)]
    assert asked == [[], [], [signal.SIGTERM]]
    supervisor.take(DOWN[0])
    assert [play.done_to(each) for each in (ZONE, WORKER)] == [[], [signal.SIGTERM]]
    supervisor.take(DOWN[1])
    assert play.done_to(ZONE) == [signal.SIGTERM]
    supervisor.take(DOWN[2])
    assert all(slot.is_over for slot in supervisor.slots)


def test_the_second_signal_kills_everybody() -> None:
    """Whoever is impatient is understood."""
    play = Play(
        *UP, STOP, STOP, WorkerEnded(TASK, -9), WorkerEnded(WORKER, -9), WorkerEnded(ZONE, -9)
    )
    assert play.supervisor.run() is ExitCode.TERMINATED
    assert play.done_to(TASK) == [signal.SIGTERM, "kill"]
    assert play.done_to(ZONE) == ["kill"]


def test_the_first_signal_after_a_give_up_is_the_first() -> None:
    """All parts are on their way out then; only a second one kills them."""
    refused = (*UP, WorkerEnded(TASK, 2), STOP)
    play = Play(*refused, WorkerEnded(WORKER, 0), WorkerEnded(ZONE, 0))
    assert play.supervisor.run() is ExitCode.REFUSED
    assert [play.done_to(each) for each in (WORKER, ZONE)] == [[signal.SIGTERM]] * 2
    impatient = Play(*refused, STOP, WorkerEnded(WORKER, -9), WorkerEnded(ZONE, -9))
    assert impatient.supervisor.run() is ExitCode.REFUSED
    assert impatient.done_to(ZONE) == ["kill"]


def test_a_stop_before_all_are_started_starts_no_more() -> None:
    """Nobody begins in order to end."""
    play = Play(
        WorkerReady(ZONE),
        SignalReceived(signal.SIGINT),
        WorkerEnded(WORKER, 0),
        WorkerEnded(ZONE, 0),
    )
    assert play.supervisor.run() is ExitCode.INTERRUPTED
    assert [worker for _, worker in play.timed.starts] == [ZONE, WORKER]


def test_what_has_no_end_is_started_again_after_any() -> None:
    """Also after a good one that nobody asked for; a task that is done is done."""
    play = Play(*UP, WorkerEnded(TASK, 0), WorkerEnded(ZONE, 0), STOP, WorkerEnded(WORKER, 0))
    assert play.supervisor.run() is ExitCode.TERMINATED
    assert "ended tasks.orders with code 0" in play.lines
    assert "ended zones.plant with code 0; started again in 0.5 s" in play.lines
    assert [slot.code for slot in play.supervisor.slots] == [0, 0, 0]


def test_one_that_keeps_dying_ends_them_all_in_order() -> None:
    """The others are stopped as by a signal, and the reason names the part."""
    play = Play(*UP, *[WorkerEnded(WORKER, 1)] * 4, WorkerEnded(TASK, 143), WorkerEnded(ZONE, 0))
    assert play.supervisor.run() is ExitCode.FAILED
    reason = play.supervisor.reason
    assert reason is not None
    assert reason.message == (
        "worker died more than 3 times within 60 s, at last with code 1; all parts were stopped"
    )
    assert reason.details["part"] == "worker"
    assert play.lines[-3:] == [
        "ended worker with code 1; all parts are stopped",
        "ended tasks.orders with code 143",
        "ended zones.plant with code 0",
    ]
