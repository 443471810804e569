"""A model of one call with a fault at one of its seams, from a seed; for both drivers.

The source writes down what it gave out and what it was told. Whatever the fault is, each delivery
must have exactly one place in the end: an outcome, released, or stranded.
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from types import coroutine
from typing import Any
from unittest.mock import patch

from ergon_framework.connector.transaction import Transaction
from ergon_framework.engine.asyncio_engine import AsyncioEngine
from ergon_framework.engine.classify import classify
from ergon_framework.engine.plan import EnginePlan, Hooks
from ergon_framework.engine.thread_engine import ThreadEngine
from ergon_framework.ports.clock import Signal
from ergon_framework.task.mixins.plans import as_policy, consumer_plan, settlement_of
from ergon_framework.task.mixins.policies import ConsumerPolicy
from ergon_framework.testing.clock import VirtualClock
from tests.engine.bodies import by_hand, nap, refusal, rules
from tests.engine.colours import Colour

PATIENCE = 30.0
"""Real seconds after which a thread that has not ended is taken for a hang."""

SEAMS = {
    "sync": ("none", "thread", "no threads", "clock", "no clock", "wait", "classifier", "listener"),
    "async": ("none", "task", "cancel", "cancel", "cancel", "cancels", "shutdown", "clock",
              "no clock", "classifier", "listener"),
}  # fmt: skip
ERRORS: tuple[Callable[[], BaseException], ...] = (
    lambda: ValueError("x"),
    refusal,
    lambda: SystemExit(3),
    asyncio.CancelledError,
    KeyboardInterrupt,
)

SETTLEMENT_ERRORS: tuple[Callable[[], BaseException], ...] = (
    *ERRORS,
    ERRORS[0],
    ERRORS[0],
    lambda: ConnectionResetError("reset"),
)
MOST_ATTEMPTS = 3


def _any_error(dice: random.Random) -> BaseException:
    return dice.choice(ERRORS)()


class Fault:
    """Raises at one of the calls that pass here, or at all from there on."""

    def __init__(self, dice: random.Random, most: int, *, lasts: bool = False) -> None:
        self._left = dice.randint(1, most)
        self._lasts = lasts
        # One that lasts would keep the test itself from reading the clock.
        kinds = [RuntimeError, OSError] if lasts else [RuntimeError, OSError, KeyboardInterrupt]
        self._error = dice.choice(kinds)

    def passes(self) -> None:
        """One more call; it may be the one."""
        self._left -= 1
        if self._left == 0 or (self._lasts and self._left < 0):
            raise self._error("a fault of the model")


class FaultySignal:
    """A condition whose waits may raise."""

    def __init__(self, inner: Signal, fault: Fault) -> None:
        self._inner, self._fault = inner, fault
        self.notify, self.notify_all = inner.notify, inner.notify_all

    def wait(self, until: float | None) -> None:
        self._fault.passes()
        self._inner.wait(until)


class FaultyClock(VirtualClock):
    """Virtual time with a fault in one of its methods."""

    def __init__(self, seam: str, dice: random.Random) -> None:
        super().__init__()
        never = Fault(random.Random(0), 1 << 60)  # noqa: S311
        threads = Fault(dice, 6, lasts=seam == "no threads")
        self._spawning = threads if seam in ("thread", "no threads") else never
        self._waiting = Fault(dice, 30) if seam == "wait" else never
        self.threads: list[threading.Thread] = []

    def spawn(self, name: str, body: Callable[[], None]) -> threading.Thread:
        self._spawning.passes()
        thread = super().spawn(name, body)
        self.threads.append(thread)
        return thread

    def signal(self, lock: threading.Lock) -> Any:
        return FaultySignal(super().signal(lock), self._waiting)


@dataclass
class Source:
    """A connector that writes down what it gave and what it was told."""

    dice: random.Random
    batches: list[list[Transaction]]
    verbs: tuple[str, ...]
    is_healthy: bool
    given: list[Transaction] = field(default_factory=list)
    asked: list[tuple[str, Transaction]] = field(default_factory=list)
    told: list[tuple[str, Transaction]] = field(default_factory=list)
    over: set[int] = field(default_factory=set)
    repeated: list[str] = field(default_factory=list)

    def connector(self, colour: Colour) -> Any:
        """An object with the methods of one colour."""
        members: dict[str, Any] = {}
        for verb in self.verbs:
            members[verb] = self._method(colour, self._teller(verb))
        return type("Connector", (), members)()

    @staticmethod
    def _method(colour: Colour, body: Any) -> Any:
        async def awaits(_self: Any, transaction: Any, exc: Any = None) -> None:
            await body(transaction)

        def calls(_self: Any, transaction: Any, exc: Any = None) -> None:
            by_hand(body(transaction))

        return awaits if colour == "async" else calls

    def _teller(self, verb: str) -> Any:
        async def tell(transaction: Transaction) -> None:
            if id(transaction) in self.over:
                self.repeated.append(f"{verb} of {transaction.transaction_id}")
            self.asked.append((verb, transaction))
            self.over.add(id(transaction))  # unless it fails for a passing reason
            try:
                await self._act()
            except ValueError:
                self.over.discard(id(transaction))
                raise
            self.told.append((verb, transaction))

        return tell

    async def _act(self) -> None:
        if self.dice.random() < 0.3:
            await nap(self.dice.choice([0.0, 1.3, 7.7, 50.0]))
        if not self.is_healthy and self.dice.random() < 0.15:
            kind = self.dice.choice(SETTLEMENT_ERRORS)
            raise kind()

    async def fetch(self, _at_most: int) -> Any:
        """The next batch: late, in spite of a cancellation, or as a generator, now and then."""
        with suppress(asyncio.CancelledError) if self.dice.random() < 0.5 else ExitStack():
            await self._act()
        batch = self.batches.pop(0) if self.batches else []
        if self.dice.random() < 0.3:
            return self._one_by_one(batch)
        self.given.extend(batch)
        return batch

    def _one_by_one(self, batch: list[Transaction]) -> Iterator[Transaction]:
        for transaction in batch:
            if not self.is_healthy and self.dice.random() < 0.1:
                raise OSError("half-way")
            self.given.append(transaction)
            yield transaction


@dataclass
class SeededRun:
    """What a seed stands for."""

    colour: Colour
    seed: int

    def __post_init__(self) -> None:
        self.dice = random.Random(f"{self.colour}{self.seed}")  # noqa: S311
        self.seam = self.dice.choice(SEAMS[self.colour])
        self.is_healthy = self.dice.random() < 0.3
        self.failed: list[str] = []
        self.engine: Any = None
        self.error: BaseException | None = None
        self.critical: list[str] = []
        ids = [f"t{n}" for n in range(1, self.dice.randint(2, 12))]
        batches = []
        while ids:
            size = self.dice.randint(1, 5)
            batches.append([Transaction(each) for each in ids[:size]])
            ids = ids[size:]
        if self.dice.random() < 0.3:
            batches[-1].append(Transaction("t1"))
        verbs = self.dice.choice([(), ("ack", "nack"), ("ack", "nack", "release"), ("release",)])
        self.source = Source(self.dice, batches, verbs, self.is_healthy)

    # -- what it is made of ------------------------------------------------------------------

    def plan(self) -> EnginePlan:
        """The call, ready to be driven."""
        connector = self.source.connector(self.colour)
        is_async = self.colour == "async"
        timeout = self.dice.choice([3.1, 20.0])
        settlement = settlement_of(connector, timeout, MOST_ATTEMPTS, is_async=is_async)
        hooks = Hooks(*(self._hook(name) for name in ("process", "success", "exception")))
        fetch: Any = self.source.fetch
        if not is_async:
            fetch = lambda at_most: by_hand(self.source.fetch(at_most))  # noqa: E731
        policy = as_policy(ConsumerPolicy, self._policy())
        return replace(consumer_plan("Scene", policy, hooks, fetch, settlement))

    def _policy(self) -> dict[str, Any]:
        dice = self.dice
        retry: dict[str, Any] = {
            "max_attempts": dice.randint(1, 3),
            "backoff": dice.choice([0, 9.3]),
        }
        times: dict[str, Any] = {"timeout": dice.choice([None, 29.7])}
        if not self.is_healthy:
            retry["timeout"] = dice.choice([None, 4.9])
            times["transaction_timeout"] = dice.choice([None, 11.7])
        steps = dict.fromkeys(("process", "success", "exception"), retry)
        fetch = {"max_attempts": 2, "timeout": dice.choice([None, 3.7]), "backoff": 0.5}
        return rules(
            size=dice.randint(1, 5),
            concurrency=dice.randint(1, 4),
            max_abandoned=99,
            steps={**steps, "fetch": fetch},
            limit=dice.choice([None, None, 3]),
            mode=dice.choice(["batch", "continuous"]),
            stop_grace=dice.choice([0.5, 40.0]),
            cancel_grace=1.1,
            **times,
        )

    def _hook(self, name: str) -> Any:
        async def body(transaction: Transaction, *_given: Any) -> None:
            if name == "exception":
                self.failed.append(transaction.transaction_id)
            if self.dice.random() < 0.6:
                await nap(self.dice.choice([0.0, 0.7, 6.1, 60.0]))
            if self.dice.random() < 0.03:
                self.engine.request_stop()
            if not self.is_healthy and self.dice.random() < 0.25:
                raise _any_error(self.dice)

        if self.colour == "async":
            return body
        return lambda *given: by_hand(body(*given))

    def _sink(self) -> Any:
        if self.seam != "listener" and self.dice.random() < 0.7:
            return None
        fault = Fault(self.dice, 40) if self.seam == "listener" else None
        return Listener(fault)

    def _spoil(self, engine: Any) -> None:
        """Put the fault where the seam is, as far as the engine itself has it."""
        self.engine = engine
        if self.seam in ("clock", "no clock"):
            fault, now = Fault(self.dice, 60, lasts=self.seam == "no clock"), engine.now

            def faulty() -> float:
                fault.passes()
                return float(now())

            engine.now = faulty

    def _spoiled_classifier(self) -> Any:
        fault = Fault(self.dice, 3, lasts=True)

        def faulty(*given: Any) -> Any:
            fault.passes()
            return classify(*given)

        return patch("ergon_framework.engine.decider.classify", faulty)

    # -- how it is played --------------------------------------------------------------------

    def play(self) -> None:
        """Run the call to its end, and everything that it left behind as well."""
        handler = Critical(self.critical)
        logger = logging.getLogger("ergon.engine")
        logger.addHandler(handler)
        try:
            with self._spoiled_classifier() if self.seam == "classifier" else ExitStack():
                if self.colour == "sync":
                    self._play_threads()
                else:
                    self._play_tasks()
        finally:
            logger.removeHandler(handler)

    def _play_threads(self) -> None:
        clock = FaultyClock(self.seam, self.dice)
        with clock:
            engine = ThreadEngine(self.plan(), clock=clock, sink=self._sink())
            self._spoil(engine)
            try:
                engine.run()
            except BaseException as error:
                self.error = error
        for _ in range(20):
            clock.advance(1e5)
            for thread in clock.threads:
                thread.join(0.0)
            if not any(thread.is_alive() for thread in clock.threads):
                return
            for thread in clock.threads:
                thread.join(PATIENCE / 20)
        raise AssertionError("a thread hangs")

    def _play_tasks(self) -> None:
        clock = VirtualClock()
        with suppress(asyncio.CancelledError, KeyboardInterrupt, SystemExit):
            clock.run(self._main())

    async def _main(self) -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _loop, _about: None)
        loop.set_task_factory(Factory(self.seam, self.dice))
        engine = AsyncioEngine(self.plan(), sink=self._sink())
        self._spoil(engine)
        call = loop.create_task(engine.run())
        try:
            if self.seam == "shutdown":
                await asyncio.sleep(self.dice.choice([0.0, 0.5, 3.3, 10.0]))
                return  # the runner cancels every task
            await asyncio.wait({call})
            with suppress(asyncio.CancelledError):
                self.error = call.exception()
            await asyncio.sleep(1e5)  # whoever hangs comes back
        finally:
            loop.set_task_factory(None)  # the runner needs tasks, too

    # -- what must hold ----------------------------------------------------------------------

    def check(self) -> None:
        """Each delivery has one place, as the source and the engine's report see it."""
        assert self.critical == [], self.critical
        self.engine.now = lambda: 0.0  # the fault may have stayed
        report = self.engine.report()
        given = Counter(each.transaction_id for each in self.source.given)
        outcomes = report.succeeded + report.failed + report.timed_out + report.parked
        found = (outcomes, report.released, len(report.stranded))
        assert sum(found) == given.total(), (found, given, report)
        assert self.source.repeated == [], "told again after an answer, or without one"
        asked = Counter((verb, id(transaction)) for verb, transaction in self.source.asked)
        assert max(asked.values(), default=1) <= MOST_ATTEMPTS, "told too often"
        each = Counter(transaction for _verb, transaction in asked)
        assert max(each.values(), default=1) == 1, "told in two ways"
        self._check_places(report, given)
        if self.is_healthy:
            assert self.failed == [], "nobody failed"
            assert not any(verb == "nack" for verb, _ in self.source.asked)

    def _check_places(self, report: Any, given: Counter[str]) -> None:
        settled = Counter(
            each.transaction_id for verb, each in self.source.told if verb != "release"
        )
        stranded = Counter(report.stranded)
        assert not (settled + stranded) - given, (settled, stranded, given)
        told = Counter(verb for verb, _ in self.source.told)
        assert told["ack"] <= report.succeeded
        assert told["nack"] <= report.failed + report.timed_out
        assert report.released <= told["release"]


class Listener:
    """A sink that may raise."""

    def __init__(self, fault: Fault | None) -> None:
        self._fault = fault

    def emit(self, _notice: Any) -> None:
        if self._fault is not None:
            self._fault.passes()

    def enter(self, _attempt: Any, _context: Any) -> None:
        if self._fault is not None:
            self._fault.passes()


class Factory:
    """Makes tasks, and cancels one of them after a number of steps of all."""

    def __init__(self, seam: str, dice: random.Random) -> None:
        self._dice = dice
        self._making = Fault(dice, 6) if seam == "task" else None
        self._left = dice.randint(1, 60) if seam in ("cancel", "cancels") else -1
        self._again = seam == "cancels"
        self._tasks: list[asyncio.Task[Any]] = []

    def __call__(self, loop: asyncio.AbstractEventLoop, body: Any, **named: Any) -> Any:
        if self._making is not None and self._tasks:  # the first is the call itself
            self._making.passes()
        task = asyncio.Task(_awaited(self._stepped(body)), loop=loop, **named)
        task.add_done_callback(lambda _task: body.close())  # one that was never begun
        self._tasks.append(task)
        return task

    @coroutine
    def _stepped(self, body: Any) -> Any:
        """The coroutine, with a count of its steps."""
        value: Any = None
        error: BaseException | None = None
        while True:
            try:
                answer = body.send(value) if error is None else body.throw(error)
            except StopIteration as stop:
                return stop.value
            self._count()
            value = error = None
            try:
                value = yield answer
            except BaseException as thrown:
                error = thrown

    def _count(self) -> None:
        self._left -= 1
        if self._left == 0:
            alive = [task for task in self._tasks if not task.done()]
            if alive:
                self._dice.choice(alive).cancel()
            if self._again:
                self._left = self._dice.randint(1, 30)


async def _awaited(steps: Any) -> Any:
    """A task takes only what ``async def`` makes."""
    return await steps


class Critical(logging.Handler):
    """Keeps what the engine says at CRITICAL."""

    def __init__(self, texts: list[str]) -> None:
        super().__init__(logging.CRITICAL)
        self._texts = texts

    def emit(self, record: logging.LogRecord) -> None:
        self._texts.append(record.getMessage())


def live(colour: Colour, seed: int) -> str:
    """Play one seed and check it; the seam it had its fault at."""
    seeded = SeededRun(colour, seed)
    seeded.play()
    seeded.check()
    return str(seeded.seam)
