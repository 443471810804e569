"""What a supervisor decides, with children and time that are only played."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from queue import Empty, SimpleQueue
from typing import Any

import pytest

from ergon_framework.app.console import ExitCode
from ergon_framework.app.liveness import LivenessState, Snapshot
from ergon_framework.app.processes import WorkersOutcome
from ergon_framework.app.supervisor import (
    KILL_AFTER,
    Heartbeat,
    SignalReceived,
    Supervisor,
    SupervisorEvent,
    WorkerEnded,
    worker_specs,
)
from ergon_framework.core.process_restart import (
    Finished,
    Restart,
    RestartDecision,
    RestartRule,
    StopAll,
    after_exit,
)

RULE = RestartRule(limit=3, window=60.0)


class PlayedChild:
    """Takes note of what is done to it."""

    def __init__(self) -> None:
        self.done: list[int | str] = []

    def send(self, number: int) -> None:
        self.done.append(number)

    def kill(self) -> None:
        self.done.append("kill")


class TimedEvents(SimpleQueue[SupervisorEvent]):
    """A queue of events that moves the time on when there is none."""

    def __init__(self, *events: SupervisorEvent) -> None:
        super().__init__()
        self.time = 0.0
        self.script = list(events)
        self.children: list[tuple[float, int, PlayedChild]] = []

    def get(self, block: bool = True, timeout: float | None = None) -> SupervisorEvent:
        is_signal = bool(self.script) and isinstance(self.script[0], SignalReceived)
        if timeout is not None and not is_signal:
            self.time += timeout
            raise Empty
        assert self.script, "the supervisor waits for ever"
        return self.script.pop(0)

    def start(self, worker: int) -> PlayedChild:
        child = PlayedChild()
        self.children.append((self.time, worker, child))
        return child

    def supervise(self, workers: int, **more: object) -> Supervisor:
        return Supervisor(
            self.start,
            worker_specs(workers),
            self,
            rule=RULE,
            now=lambda: self.time,
            **more,  # type: ignore[arg-type]
        )

    @property
    def starts(self) -> list[tuple[float, int]]:
        return [(at, worker) for at, worker, _ in self.children]


def exited(
    code: int, *, deaths: Sequence[float] = (), now: float = 0.0, is_complete: bool = False
) -> RestartDecision:
    """The decision about a worker that ended with an exit code."""
    is_done = code == ExitCode.DONE or is_complete
    is_refused = code == ExitCode.REFUSED
    return after_exit(RULE, deaths=deaths, now=now, is_refused=is_refused, is_done=is_done)


@pytest.mark.parametrize("code", [1, -9, -11, 143, 130, 77])
def test_an_unexpected_end_is_followed_by_a_restart(code: int) -> None:
    """A crash, a signal from elsewhere and a failed run all are."""
    decision = exited(code)
    assert decision == Restart(0.5)


def test_an_expected_end_is_not() -> None:
    """Done is done, a run that came to its end is not repeated, and refused stays refused."""
    assert exited(0) == Finished()
    assert exited(1, is_complete=True) == Finished()
    refused = exited(2)
    assert refused == StopAll(is_refused=True)


def test_restarts_back_off_and_end() -> None:
    """Each death within the window doubles the wait; old ones are forgotten."""
    waits = [exited(1, deaths=[0.0] * n, now=1.0) for n in range(RULE.limit)]
    assert waits == [Restart(0.5), Restart(1.0), Restart(2.0)]
    spent = exited(1, deaths=[0.0] * 3, now=59.0)
    assert spent == StopAll(is_refused=False)
    later = exited(1, deaths=[0.0] * 3, now=60.0)
    assert later == Restart(0.5)


def test_all_done() -> None:
    """Every worker ended well: so did the run."""
    timed = TimedEvents(WorkerEnded(1, 0), WorkerEnded(0, 0))
    assert timed.supervise(2).run() is ExitCode.DONE
    assert timed.starts == [(0.0, 0), (0.0, 1)]


def test_only_the_dead_one_is_started_again() -> None:
    """After its backoff, while the other one goes on."""
    timed = TimedEvents(WorkerEnded(0, -9), WorkerEnded(0, 0), WorkerEnded(1, 0))
    supervisor = timed.supervise(2)
    assert supervisor.run() is ExitCode.DONE
    assert timed.starts == [(0.0, 0), (0.0, 1), (0.5, 0)]
    assert supervisor.restarts == 1


def test_one_that_keeps_dying_ends_them_all() -> None:
    """The others are asked to stop, and the run has failed."""
    timed = TimedEvents(*[WorkerEnded(0, 1)] * 4, WorkerEnded(1, 143))
    supervisor = timed.supervise(2)
    assert supervisor.run() is ExitCode.FAILED
    assert supervisor.reason is not None
    assert "worker 0 died more than 3 times within 60 s" in supervisor.reason.message
    assert [at for at, worker in timed.starts if worker == 0] == [0.0, 0.5, 1.5, 3.5]
    assert timed.children[1][2].done == [signal.SIGTERM]


def _told(message: str) -> dict[str, Any]:
    """What a worker says when it ends with an error."""
    return {"report": None, "error": {"message": message, "details": {}}}


def test_what_was_overcome_is_not_what_it_ended_with() -> None:
    """One was started again and stopped well, the other waited for its start."""
    timed = TimedEvents(
        WorkerEnded(0, 1, _told("the store is away")),
        Heartbeat(0, Snapshot()),
        WorkerEnded(1, 1, _told("no such folder")),
        SignalReceived(signal.SIGTERM),
        WorkerEnded(0, 143),
    )
    supervisor = timed.supervise(2)
    code = supervisor.run()
    outcome = WorkersOutcome("orders", code, supervisor.restarts, supervisor.slots)
    assert code == 143
    assert timed.starts == [(0.0, 0), (0.0, 1), (0.5, 0)]
    assert [error["message"] for error in outcome.errors] == ["no such folder"]


def test_a_refusal_ends_them_all() -> None:
    """What one worker refuses, the next would refuse as well."""
    timed = TimedEvents(WorkerEnded(0, 2), WorkerEnded(1, 143))
    supervisor = timed.supervise(2)
    assert supervisor.run() is ExitCode.REFUSED
    assert supervisor.reason is not None
    assert "worker 0 ended with code 2" in supervisor.reason.message


def test_a_refusal_that_is_told_is_reason_enough() -> None:
    """The worker's own words say it better than its supervisor could."""
    refusal = {"error": {"message": "no such task"}, "report": None}
    supervisor = TimedEvents(WorkerEnded(0, 2, refusal)).supervise(1)
    assert supervisor.run() is ExitCode.REFUSED
    assert supervisor.reason is None


def test_the_reason_tells_how_the_worker_ended() -> None:
    """The last ends stay with it, each with what the worker told."""
    told = {"error": {"message": "no hope"}, "report": None}
    supervisor = TimedEvents(WorkerEnded(0, -11), *[WorkerEnded(0, 1, told)] * 3).supervise(1)
    supervisor.run()
    assert supervisor.reason is not None
    assert supervisor.reason.details == {
        "worker": 0,
        "ends": ["by signal 11", *["with code 1 (no hope)"] * 3],
    }


def test_a_run_with_defects_has_failed_without_a_restart() -> None:
    """A worker that came to its end with code 1 is not started again."""
    outcome = {"is_complete": True, "error": None, "report": None}
    timed = TimedEvents(WorkerEnded(0, 1, outcome))
    assert timed.supervise(1).run() is ExitCode.FAILED
    assert len(timed.starts) == 1


@pytest.mark.req("T3.30")
def test_two_signals_are_forwarded_and_the_third_kills() -> None:
    """Workers tell the first two apart by themselves; nobody is started again."""
    timed = TimedEvents(
        WorkerEnded(0, -9),
        SignalReceived(signal.SIGINT),
        SignalReceived(signal.SIGTERM),
        SignalReceived(signal.SIGTERM),
        WorkerEnded(1, -9),
    )
    assert timed.supervise(2).run() is ExitCode.INTERRUPTED
    assert timed.children[1][2].done == [signal.SIGINT, signal.SIGTERM, "kill"]
    assert len(timed.starts) == 2
    assert timed.time == 0.0


@pytest.mark.req("T3.30")
def test_who_outlives_the_second_signal_is_killed() -> None:
    """A worker has its own time to be cut off and to report, and then a little more."""
    timed = TimedEvents(
        SignalReceived(signal.SIGTERM), SignalReceived(signal.SIGTERM), WorkerEnded(0, -9)
    )
    assert timed.supervise(1).run() is ExitCode.TERMINATED
    assert timed.children[0][2].done == [signal.SIGTERM, signal.SIGTERM, "kill"]
    assert timed.time == KILL_AFTER


def test_who_ends_after_the_second_signal_is_not_killed() -> None:
    """Then there is nothing left to wait for."""
    timed = TimedEvents()
    supervisor = timed.supervise(1)
    supervisor.start_due()
    for event in (
        SignalReceived(signal.SIGTERM),
        SignalReceived(signal.SIGTERM),
        WorkerEnded(0, 143),
    ):
        supervisor.take(event)
    assert supervisor.run() is ExitCode.TERMINATED
    assert timed.children[0][2].done == [signal.SIGTERM, signal.SIGTERM]


def test_a_signal_after_giving_up_is_the_second_stop() -> None:
    """The workers were asked to stop before: now they are cut off, and the verdict stays."""
    timed = TimedEvents(WorkerEnded(0, 2), SignalReceived(signal.SIGINT), WorkerEnded(1, 143))
    assert timed.supervise(2).run() is ExitCode.REFUSED
    assert timed.children[1][2].done == [signal.SIGTERM, signal.SIGINT, "kill"]


def test_a_worker_that_cannot_be_started_is_tried_again() -> None:
    """A lack of processes may pass; it counts like a death."""
    timed = TimedEvents(WorkerEnded(0, 0))
    refusals = [OSError("no more processes")]

    def start(worker: int) -> PlayedChild:
        if refusals:
            raise refusals.pop()
        return timed.start(worker)

    supervisor = Supervisor(start, worker_specs(1), timed, rule=RULE, now=lambda: timed.time)
    assert supervisor.run() is ExitCode.DONE
    assert timed.starts == [(0.5, 0)]
    assert supervisor.slots[0].ends[0] == "with code 1 (OSError: no more processes)"


def test_how_the_workers_are() -> None:
    """As the worst of them; one that says nothing for long is stalled; stopping is stopping."""
    timed = TimedEvents()
    supervisor = timed.supervise(2, has_beats=True)
    assert supervisor.snapshot().state is LivenessState.STARTING
    supervisor.start_due()
    for worker in range(2):
        supervisor.take(Heartbeat(worker, Snapshot(LivenessState.HEALTHY, in_flight=2)))
    assert supervisor.snapshot() == Snapshot(LivenessState.HEALTHY, in_flight=4)
    supervisor.take(Heartbeat(1, Snapshot(LivenessState.STALLED, "hangs", abandoned=1)))
    assert supervisor.snapshot() == Snapshot(LivenessState.STALLED, "hangs", 2, 1)
    supervisor.take(Heartbeat(1, Snapshot(LivenessState.HEALTHY)))
    supervisor.take(WorkerEnded(0, 0))
    assert supervisor.snapshot().state is LivenessState.HEALTHY
    timed.time += 31.0
    assert supervisor.snapshot() == Snapshot(LivenessState.STALLED, "worker 1 is silent")
    supervisor.take(SignalReceived(signal.SIGTERM))
    assert supervisor.snapshot().state is LivenessState.STOPPING
