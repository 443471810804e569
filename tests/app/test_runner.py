"""One run in this process: what it ends with, and what it leaves behind."""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ergon_framework.app.console import ExitCode
from ergon_framework.app.imports import load
from ergon_framework.app.liveness import Liveness, LivenessState
from ergon_framework.app.liveness_outputs import LivenessOutputs
from ergon_framework.app.outcome import RunOutcome
from ergon_framework.app.run_parts import Run, run_here, run_task
from ergon_framework.app.signals import Shutdown, ShutdownTimeouts, SignalListener, exit_within
from ergon_framework.errors import ErgonError
from ergon_framework.testing.clock import VirtualClock
from tests.app.workplace import Workplace

SOURCE = """
    @staticmethod
    def build_connectors():
        return {"source": MemoryConnector([Transaction(f"t{n}") for n in range(3)])}
"""
QUIET = LivenessOutputs()


def run(workplace: Workplace, text: str, target: str = "shop:Orders") -> RunOutcome:
    """The outcome of a task in a module of this text."""
    workplace.module(text)
    with Shutdown() as shutdown:
        return run_here(workplace.wire(target), shutdown, QUIET)


@pytest.mark.req("R0-R")
@pytest.mark.parametrize("prefix", ["", "Async"])
def test_a_consumer(workplace: Workplace, prefix: str) -> None:
    """It is executed with its policy and ends with its report."""
    word = "async def" if prefix else "def"
    outcome = run(
        workplace,
        f"""
class Orders({prefix}ConsumerTask):
    {word} process_transaction(self, transaction):
        return None
{SOURCE}
policy = ConsumerPolicy(loop={{"limit": 2}})
""",
    )
    assert outcome.exit_code is ExitCode.DONE
    assert outcome.report == 2
    assert not outcome.leaves_threads


@pytest.mark.parametrize("prefix", ["", "Async"])
def test_a_producer(workplace: Workplace, prefix: str) -> None:
    """What is beyond the limit was left out on purpose: that is no failure."""
    word = "async def" if prefix else "def"
    outcome = run(
        workplace,
        f"""
class Orders({prefix}ProducerTask):
    {word} produce_transaction(self, transaction):
        return None

    def transactions(self):
        return [Transaction(f"t{{n}}") for n in range(5)]

policy = ProducerPolicy(loop={{"limit": 2}})
""",
    )
    assert outcome.exit_code is ExitCode.DONE
    assert outcome.report is not None
    assert outcome.report.succeeded == 2
    assert len(outcome.report.stranded) == 3


def test_a_task_of_its_own_kind(workplace: Workplace) -> None:
    """Anything with an execute can be run; without a report there is none to show."""
    outcome = run(workplace, "class Orders(BaseTask):\n    def execute(self):\n        return 5\n")
    assert (outcome.exit_code, outcome.report) == (ExitCode.DONE, None)


def test_a_coroutine_as_execute(workplace: Workplace) -> None:
    """It is awaited, whatever the base class."""
    text = (
        "class Orders(BaseTask):\n    async def execute(self):\n        raise OSError('inside')\n"
    )
    outcome = run(workplace, text)
    assert isinstance(outcome.error, OSError)


@pytest.mark.parametrize(
    ("body", "code", "told"),
    [
        ("raise ValueError('mine')", 1, "mine"),
        ("raise SystemExit(3)", 1, "3"),
        ("raise SystemExit", 0, ""),
        ("raise KeyboardInterrupt", 130, ""),
        ("raise RuntimeError", 1, ""),
    ],
)
def test_what_execute_raises(workplace: Workplace, body: str, code: int, told: str) -> None:
    """Every exception becomes an exit code of the list, and none escapes."""
    outcome = run(workplace, f"class Orders(BaseTask):\n    def execute(self):\n        {body}\n")
    assert outcome.exit_code == code
    assert told in str(outcome.error)
    assert not outcome.is_complete


def test_a_source_that_cannot_be_read(workplace: Workplace) -> None:
    """The run has failed, has a report all the same, and may be tried again."""
    outcome = run(
        workplace,
        """
class Broken:
    def fetch_transactions(self, batch_size, **extra):
        raise ConnectionError("no route")

class Orders(ConsumerTask):
    build_connectors = staticmethod(lambda: {"source": Broken()})

    def process_transaction(self, transaction):
        return None
""",
    )
    assert (outcome.exit_code, outcome.is_complete) == (ExitCode.FAILED, False)
    assert isinstance(outcome.error, ErgonError)
    assert outcome.error.code == "fetch"
    assert outcome.to_dict()["report"]["stop_reason"] == "fetch_failed"


def test_handlers_that_fail_make_the_run_fail(workplace: Workplace) -> None:
    """It came to its end, so doing it again would repair nothing."""
    outcome = run(
        workplace,
        f"""
class Orders(ConsumerTask):
    def process_transaction(self, transaction):
        raise ValueError

    def handle_transaction_exception(self, transaction, exc):
        raise ValueError
{SOURCE}
""",
    )
    assert (outcome.exit_code, outcome.is_complete) == (ExitCode.FAILED, True)
    assert "3 exception handlers failed themselves" in str(outcome.error)


def test_failed_transactions_do_not_make_the_run_fail(workplace: Workplace) -> None:
    """Each has its recorded outcome: that is what a run is for."""
    outcome = run(
        workplace,
        f"""
class Orders(ConsumerTask):
    def process_transaction(self, transaction):
        raise TransactionException("no", category=ExceptionType.BUSINESS)
{SOURCE}
""",
    )
    assert outcome.exit_code is ExitCode.DONE
    assert outcome.report is not None
    assert outcome.report.failed == 3


def test_a_wrong_hook_found_late_is_refused(workplace: Workplace) -> None:
    """What only the instance shows is still an error of configuration."""
    outcome = run(
        workplace,
        f"""
class Orders(ConsumerTask):
    def __init__(self, connectors, services):
        super().__init__(connectors, services)
        self.process_transaction = 5

    def process_transaction(self, transaction):
        return None
{SOURCE}
""",
    )
    assert outcome.exit_code is ExitCode.REFUSED


def test_a_hung_thread_does_not_keep_an_async_run(
    workplace: Workplace, caplog: pytest.LogCaptureFixture
) -> None:
    """A call of to_thread that never returns is abandoned, and the loop is closed without it."""
    timeouts = ShutdownTimeouts(loop_close=0.05)
    gate = threading.Event()
    workplace.module(
        """
import asyncio

GATE = []

class Orders(AsyncConsumerTask):
    async def process_transaction(self, transaction):
        await asyncio.to_thread(GATE[0].wait)

    @staticmethod
    def build_connectors():
        return {"source": MemoryConnector([Transaction("t0")])}

policy = ConsumerPolicy(
    loop={"cancel_grace": 0.01}, steps={"process": {"retry": {"timeout": 0.01}}}
)
"""
    )
    wiring = workplace.wire()
    load("shop:GATE").append(gate)
    try:
        with caplog.at_level(logging.WARNING), Shutdown(timeouts=timeouts) as shutdown:
            outcome = run_here(wiring, shutdown, QUIET)
    finally:
        gate.set()
    assert outcome.report is not None
    assert outcome.report.timed_out == 1
    assert "could not be closed in time" in caplog.text


# ---- stopping -----------------------------------------------------------------------------------

STREAM = """
class Orders(ConsumerTask):
    build_connectors = staticmethod(lambda: {"source": MemoryConnector()})

    def process_transaction(self, transaction):
        return None

policy = ConsumerPolicy(loop={"streaming": True})
"""


@pytest.mark.req("T3.30")
def test_a_stop_before_the_run(workplace: Workplace) -> None:
    """The parts are opened and closed, and nothing is executed."""
    workplace.module(STREAM)
    with Shutdown() as shutdown:
        shutdown.take(signal.SIGTERM)
        outcome = run_task(workplace.wire(), shutdown)
    assert (outcome.exit_code, outcome.report) == (ExitCode.TERMINATED, None)


@pytest.mark.req("T3.30")
def test_a_stop_before_the_call_begins(workplace: Workplace) -> None:
    """A signal while execute still prepares its input reaches the call that begins later."""
    workplace.module(
        """
ASK = []

class Orders(ConsumerTask):
    build_connectors = staticmethod(lambda: {"source": MemoryConnector()})

    def execute(self, policy):
        ASK[0]()
        return self.consume_transactions(policy)

    def process_transaction(self, transaction):
        return None

policy = ConsumerPolicy(loop={"streaming": True})
"""
    )
    wiring = workplace.wire()
    with Shutdown() as shutdown:
        load("shop:ASK").append(lambda: shutdown.take(signal.SIGINT))
        outcome = run_task(wiring, shutdown)
    assert outcome.exit_code is ExitCode.INTERRUPTED
    assert outcome.report is not None
    assert outcome.report.stop_reason == "stopped"


def test_a_third_signal_ends_the_process_at_once() -> None:
    """Whatever is stuck, the user is not kept waiting."""
    left: list[int] = []
    is_left = threading.Event()

    def leave(code: int) -> None:
        left.append(code)
        is_left.set()

    with Shutdown(leave=leave) as shutdown:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGTERM):
            shutdown.take(number)
        assert is_left.wait(10)
    assert left[0] == 130


def test_the_second_signal_sets_a_time_limit() -> None:
    """A run that is stuck outside of the engine is ended when it is over."""
    left: list[int] = []
    is_left = threading.Event()

    def leave(code: int) -> None:
        left.append(code)
        is_left.set()

    with Shutdown(leave=leave, timeouts=ShutdownTimeouts(force=0.0)) as shutdown:
        shutdown.take(signal.SIGTERM)
        shutdown.take(signal.SIGTERM)
        assert is_left.wait(10)
    assert left[0] == 143


def test_a_process_is_gone_in_time() -> None:
    """Threads that hang do not keep it, and whoever watches is told."""
    left: list[tuple[float, int]] = []
    with VirtualClock() as clock:
        clock.join_time()
        exit_within(1, 2.0, leave=lambda code: left.append((clock.now(), code)), clock=clock)
        lock = threading.Lock()
        signalled = clock.signal(lock)
        began = clock.now()
        with lock:
            signalled.wait(began + 3.0)
        clock.leave_time()
    assert left == [(began + 2.0, 1)]


def test_the_ear_hears_each_signal_once() -> None:
    """Although each comes by two ways; afterwards the handlers are as before.

    A second one within half a second is the same wish: terminals, ``timeout`` and supervisors
    signal a process and its group.
    """
    before = signal.getsignal(signal.SIGTERM)
    heard: list[int] = []
    is_read = threading.Semaphore(0)
    times = iter([10.0, 10.001, 10.499, 10.5, 10.9, 11.0])

    def now() -> float:
        is_read.release()
        return next(times)

    numbers = [signal.SIGINT, signal.SIGINT, signal.SIGTERM] * 2
    with SignalListener(heard.append, now=now):
        for number in numbers:
            signal.raise_signal(number)
            assert is_read.acquire(timeout=10)
    assert _within(10, lambda: heard == [signal.SIGINT, signal.SIGINT, signal.SIGTERM]), heard
    assert signal.getsignal(signal.SIGTERM) is before


def _within(seconds: float, is_so: Callable[[], bool]) -> bool:
    """Whether a thread brings it about in time."""
    until = time.monotonic() + seconds
    while not is_so() and time.monotonic() < until:
        time.sleep(0.001)
    return is_so()


def test_hang_ups_after_the_first_signal_are_no_second_wish() -> None:
    """A terminal that closes sends one by its shell and one by the kernel."""
    heard: list[int] = []
    now = iter(range(0, 1000, 10))  # further apart than one signal's two deliveries
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        with SignalListener(heard.append, now=lambda: next(now)):
            signal.raise_signal(signal.SIGHUP)
            assert _within(10, lambda: heard == [signal.SIGTERM]), heard
            signal.raise_signal(signal.SIGHUP)
            signal.raise_signal(signal.SIGINT)
            assert _within(10, lambda: len(heard) > 1), heard
    finally:
        signal.signal(signal.SIGHUP, before)
    assert heard == [signal.SIGTERM, signal.SIGINT]


def test_the_ear_hears_although_a_loop_took_the_descriptor() -> None:
    """Handlers of an event loop redirect the interpreter's bytes; the signal arrives anyway."""
    is_heard = threading.Event()
    with SignalListener(lambda _number: is_heard.set()):

        async def body() -> None:
            asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, lambda: None)
            signal.raise_signal(signal.SIGTERM)
            await asyncio.sleep(0)

        asyncio.run(body())
        assert is_heard.wait(10)


# ---- telling ------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix", ["", "Async"])
def test_liveness_of_a_run(workplace: Workplace, prefix: str) -> None:
    """The notices of the engine make it healthy; after the run it is stopped and forgotten."""
    word = "async def" if prefix else "def"
    states: list[LivenessState] = []
    workplace.module(
        f"""
STATES = []

class Orders({prefix}ConsumerTask):
    {word} process_transaction(self, transaction):
        STATES[0]()
{SOURCE}
"""
    )
    wiring = workplace.wire()
    liveness = Liveness()
    load("shop:STATES").append(lambda: states.append(liveness.snapshot().state))
    with Shutdown() as shutdown:
        run_task(wiring, shutdown, liveness)
    assert states == [LivenessState.HEALTHY] * 3
    assert liveness.snapshot().state is LivenessState.STOPPED


def test_publication_of_a_run(workplace: Workplace, tmp_path: Path) -> None:
    """File and probe are there while it runs."""
    workplace.module(
        f"class Orders(ConsumerTask):\n    def process_transaction(self, it): ...{SOURCE}"
    )
    publication = LivenessOutputs(tmp_path / "live.json", port=0)
    with Shutdown() as shutdown:
        outcome = run_here(workplace.wire(), shutdown, publication)
    assert outcome.exit_code is ExitCode.DONE
    assert '"state": "stopped"' in (tmp_path / "live.json").read_text()


def test_telemetry_follows_the_settings(
    workplace: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runner hands ``[telemetry]`` to the engine's calls."""
    workplace.module(STREAM)
    workplace.settings('[telemetry]\nspans = false\nparent = "parent"\n')
    seen: list[Any] = []
    monkeypatch.setattr("ergon_framework.app.run_parts.configure", seen.append)
    Run("shop:Orders").wired()
    assert (seen[0].spans, seen[0].parent, seen[0].metrics) == (False, "parent", True)
