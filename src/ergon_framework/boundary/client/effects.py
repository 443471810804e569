"""What a client does, as a generator of effects, and what performs them: threads or tasks.

The generator yields what it wants done (``Send``, ``Put``, ``Wait``, …) and is sent what came of
it, so sync and async clients take the same steps. ``repeated`` retries an effect by the rule of
the caller's call.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, TypeVar

import msgspec

from ergon_framework.boundary.client.transport import (
    AsyncTransport,
    BlobSource,
    ReportBytes,
    Reported,
    Transport,
)
from ergon_framework.core.failure import Failure, Kind
from ergon_framework.core.retry import Backoff, RetriedCall, RetryAfter, RetryRule
from ergon_framework.engine.clocks import AsyncSignal
from ergon_framework.errors import (
    BoundaryError,
    BufferFullError,
    ConsumerHeldError,
    NodeUnavailableError,
    WiringError,
)
from ergon_framework.ports.clock import Clock, Signal

T = TypeVar("T")


class Stop(Protocol):
    """What a caller stops a loop with: an event of ``threading`` or ``asyncio``."""

    def is_set(self) -> bool:
        """Whether a stop was requested."""


@dataclass(frozen=True, slots=True)
class Send:
    """Make a unary call; the result is the answer's body."""

    method: str
    body: bytes
    timeout: float | None = None


@dataclass(frozen=True, slots=True)
class Put:
    """Send a blob; the result is the answer's body."""

    bucket: str
    key: str
    source: BlobSource
    digest: str
    report: ReportBytes


@dataclass(frozen=True, slots=True)
class Get:
    """Begin to receive an object; the result is a stream."""

    bucket: str
    key: str
    start: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class Read:
    """The next bytes of a stream."""

    stream: Any


@dataclass(frozen=True, slots=True)
class Shut:
    """Close a stream."""

    stream: Any


@dataclass(frozen=True, slots=True)
class Do:
    """Run something that waits on a disk; the result is what it returns."""

    work: Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Handle:
    """Call the user's code, which may be a coroutine function for tasks."""

    function: Callable[[Any], Any]
    argument: Any


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait for some seconds. The result is whether a stop was requested, which ends the wait."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Now:
    """The result is the time, in seconds that only ever grow."""


ClientEffect: TypeAlias = Send | Put | Get | Read | Shut | Do | Handle | Pause | Now
ClientEffects: TypeAlias = Generator[ClientEffect, Any, T]
Dice: TypeAlias = Callable[[], float]

_DECODERS: dict[type[Any], msgspec.json.Decoder[Any]] = {}

RETRIED_KINDS = frozenset({Kind.TRANSIENT, Kind.THROTTLED, Kind.TIMEOUT})
RETRY_RULE = RetryRule(
    attempts=4,
    backoff=Backoff(base=0.1, factor=2.0, free=1),
    on=RETRIED_KINDS,
    max_retry_after=1.0,
)
"""Retries at once, then after 100 and after 200 ms; then the last error is raised."""


class UnrunHandlerError(WiringError):
    """A function of the user's came back before it did anything: nothing was handled."""


_UNSUPPORTED_RESULTS: dict[str, Callable[[Any], bool]] = {
    "a coroutine": inspect.iscoroutine,
    "a generator": inspect.isgenerator,
    "an asynchronous generator": inspect.isasyncgen,
}
_AWAITED = "a coroutine"


def refuse_unrun(answer: Any, what: str, *, is_awaited: bool = False) -> None:
    """Refuse a result that stands for work not begun, as a coroutine: it would be confirmed undone.

    With ``is_awaited`` a coroutine is fine, since the caller runs it.
    """
    for kind, is_one in _UNSUPPORTED_RESULTS.items():
        if not is_one(answer) or (is_awaited and kind == _AWAITED):
            continue
        # Closed, because Python warns of a coroutine that was never awaited, and that warning would
        # hide our error.
        if not inspect.isasyncgen(answer):  # one of these that never began needs no end
            answer.close()
        usual = "write it without yield"
        if kind == _AWAITED:
            usual = "write it without async, or use the asynchronous class of the same name"
        raise UnrunHandlerError(f"{what} returned {kind}, which nobody runs", remedy=usual)


def failure_of(error: BoundaryError) -> Failure:
    """What a call's error means for another attempt.

    A lease that another process holds is no reason to ask again at once: that process is at work.
    """
    match error:
        case BufferFullError():
            kind = Kind.THROTTLED
        case NodeUnavailableError(code="deadline_exceeded"):
            kind = Kind.TIMEOUT
        case ConsumerHeldError():
            kind = Kind.HELD
        case _:
            kind = Kind.TRANSIENT if error.is_retryable else Kind.REJECTED
    return Failure(kind, error.code, error.message, error.retry_after)


def repeated(effect: Send | Put | Get, call: RetriedCall, dice: Dice) -> ClientEffects[Any]:
    """Repeat an effect until it succeeds. Raises the last error when the rule gives up."""
    while True:
        # Blobs are left alone: how long they take depends on their size, and silence is bounded by
        # the transport.
        if call.rule.budget is None or not isinstance(effect, Send):
            hurried: ClientEffect = effect
        else:
            # The first attempt begins when the call does; asking the clock again would cost every
            # call an effect.
            now = (yield Now()) if call.attempts else call.began_at
            hurried = _within_budget(effect, call.began_at + call.rule.budget - now)
        try:
            return (yield hurried)
        except BoundaryError as error:
            if not isinstance(effect, Send) and error.code != "deadline_exceeded":
                call.began_at = yield Now()  # bytes flowed until now: only silence uses time up
            yield from wait_to_retry(error, call, dice)


def wait_to_retry(error: BoundaryError, call: RetriedCall, dice: Dice) -> ClientEffects[None]:
    """Wait until it is time for another attempt; raise the error when there shall be none."""
    # Dice are rolled only where they matter, so that a script with a fixed schedule is the same
    # each time it is replayed.
    chance = dice() if call.rule.backoff.is_jittered else 0.5
    verdict = call.failed(failure_of(error), (yield Now()), chance)
    if not isinstance(verdict, RetryAfter):
        raise error
    # After a stop the caller wants the error now, not another attempt.
    if verdict.delay > 0 and (yield Pause(verdict.delay)):
        raise error


def called(
    method: str, body: bytes, rule: RetryRule, dice: Dice, *, timeout: float | None = None
) -> ClientEffects[bytes]:
    """Make one unary call, retried by a rule."""
    call = RetriedCall(rule, (yield Now()))
    answer: bytes = yield from repeated(Send(method, body, timeout), call, dice)
    return answer


def record_of_answer(answer: bytes, kind: type[T]) -> T:
    """The answer as a record."""
    try:
        decoder = _DECODERS.get(kind)
        if decoder is None:
            decoder = _DECODERS[kind] = msgspec.json.Decoder(kind)
        found: T = decoder.decode(answer)
        return found
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BoundaryError(
            f"the node's answer is no {kind.__name__}: {error}",
            reason="bad_answer",
            remedy="check the URL, and that node and client are of versions that fit",
        ) from None


def _within_budget(send: Send, left: float) -> Send:
    """A call does not outlast the budget of all its attempts."""
    # A timeout of zero would mean "do not wait" to a socket, and of less an error.
    left = max(0.001, left)
    return Send(send.method, send.body, left if send.timeout is None else min(left, send.timeout))


STOP_POLL_INTERVAL = 0.25
"""Seconds between two checks of a stop flag that cannot wake a waiting thread."""


def never() -> bool:
    """The stop flag of a run that is never stopped."""
    return False


class ThreadRunner:
    """Drives scripts over one transport. ``is_stopped`` cuts waits short."""

    def __init__(
        self, transport: Transport, clock: Clock, is_stopped: Callable[[], bool] = never
    ) -> None:
        self._transport = transport
        self._clock = clock
        self._is_stopped = is_stopped
        self._lock = threading.Lock()
        self._signal: Signal | None = None

    def run(self, effects: ClientEffects[T]) -> T:
        """Carry out the effects of a generator; returns its value, or raises what it raised."""
        answer: Any = None
        error: BaseException | None = None
        while True:
            try:
                effect = effects.send(answer) if error is None else effects.throw(error)
            except StopIteration as end:
                value: T = end.value
                return value
            answer, error = None, None
            try:
                answer = self._do(effect)
            # An interruption as well: the generator ends what it began before it is raised to
            # the caller.
            except BaseException as raised:
                error = raised

    def wake(self) -> None:
        """Wake waits, so that they check whether to stop."""
        with self._lock:
            if self._signal is not None:
                self._signal.notify_all()

    def _do(self, effect: ClientEffect) -> Any:
        match effect:
            case Send(method, body, timeout):
                return self._transport.call(method, body, timeout=timeout)
            case Now():
                return self._clock.now()
            case Pause(seconds):
                return self._wait(self._clock.now() + seconds)
            case Handle(function, argument):
                return _handled(function, argument)
            case Put(bucket, key, source, digest, report):
                return self._transport.put_object(
                    bucket, key, Reported(source, report), size=source.size, digest=digest
                )
            case Get(bucket, key, start, digest):
                return self._transport.get_object(bucket, key, start=start, digest=digest)
            case Read(stream):
                return stream.read()
            case Shut(stream):
                return stream.close()
            case Do(work):
                return work()

    def _wait(self, until: float) -> bool:
        with self._lock:
            # Made at the first wait: most scripts never pause.
            if self._signal is None:
                self._signal = self._clock.signal(self._lock)
            while not self._is_stopped():
                now = self._clock.now()
                if now >= until:
                    return False
                # A flag of the user's cannot wake a waiting thread, so it is polled; a run that is
                # never stopped sleeps through.
                is_deaf = self._is_stopped is never
                self._signal.wait(until if is_deaf else min(until, now + STOP_POLL_INTERVAL))
            return True


def _handled(function: Callable[[Any], Any], argument: Any) -> Any:
    answer = function(argument)
    refuse_unrun(answer, "the handler")
    return answer


class TaskRunner:
    """Drives scripts over one transport. ``is_stopped`` cuts waits short."""

    def __init__(self, transport: AsyncTransport, is_stopped: Callable[[], bool] = never) -> None:
        self._transport = transport
        self._is_stopped = is_stopped
        self._loop = asyncio.get_running_loop()
        self._signal = AsyncSignal()

    async def run(self, effects: ClientEffects[T]) -> T:
        """Carry out the effects of a generator; returns its value, or raises what it raised."""
        answer: Any = None
        error: BaseException | None = None
        while True:
            try:
                effect = effects.send(answer) if error is None else effects.throw(error)
            except StopIteration as end:
                value: T = end.value
                return value
            answer, error = None, None
            try:
                answer = await self._do(effect)
            # A cancellation as well: the generator ends what it began before it is raised to the
            # caller.
            except BaseException as raised:
                error = raised

    def wake(self) -> None:
        """Wake waits, so that they check whether to stop."""
        self._signal.notify_all()

    async def _do(self, effect: ClientEffect) -> Any:
        match effect:
            case Send(method, body, timeout):
                return await self._transport.call(method, body, timeout=timeout)
            case Now():
                return self._loop.time()
            case Pause(seconds):
                return await self._wait(self._loop.time() + seconds)
            case Handle(function, argument):
                answer = function(argument)
                refuse_unrun(answer, "the handler", is_awaited=True)
                return await answer if hasattr(answer, "__await__") else answer
            case Put(bucket, key, source, digest, report):
                return await self._transport.put_object(
                    bucket, key, Reported(source, report), size=source.size, digest=digest
                )
            case Get(bucket, key, start, digest):
                return await self._transport.get_object(bucket, key, start=start, digest=digest)
            case Read(stream):
                return await stream.read()
            case Shut(stream):
                return await stream.close()
            case Do(work):
                return await asyncio.to_thread(work)

    async def _wait(self, until: float) -> bool:
        while not self._is_stopped():
            now = self._loop.time()
            if now >= until:
                return False
            is_deaf = self._is_stopped is never
            await self._signal.wait(until if is_deaf else min(until, now + STOP_POLL_INTERVAL))
        return True
