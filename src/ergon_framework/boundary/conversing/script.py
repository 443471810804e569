"""Conversations with a node, written once for both colours.

A script is a generator: it yields what is to be done and is given the result, or has the error
raised where it stands. It waits for nothing itself. :mod:`.in_threads` and
:mod:`.in_tasks` do what scripts say.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import msgspec

from ergon_framework.boundary.conversing.transport import Report, Source
from ergon_framework.core.call import Call
from ergon_framework.core.failure import Failure, Kind
from ergon_framework.core.retry import Backoff, RetryAfter, RetryRule
from ergon_framework.errors import (
    BoundaryError,
    BufferFullError,
    ConsumerHeldError,
    NodeUnavailableError,
    WiringError,
)

T = TypeVar("T")


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
    source: Source
    digest: str
    report: Report


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
    """Let go of a stream."""

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
class Wait:
    """Let seconds pass; the result is whether somebody said stop, which cuts it short."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Now:
    """The result is the time, in seconds that only ever grow."""


Effect: TypeAlias = Send | Put | Get | Read | Shut | Do | Handle | Wait | Now
Script: TypeAlias = Generator[Effect, Any, T]
Dice: TypeAlias = Callable[[], float]

_DECODERS: dict[type[Any], msgspec.json.Decoder[Any]] = {}

RETRIED = frozenset({Kind.TRANSIENT, Kind.THROTTLED, Kind.TIMEOUT})
SCHEDULE = RetryRule(
    attempts=4,
    backoff=Backoff(base=0.1, factor=2.0, free=1),
    on=RETRIED,
    max_retry_after=1.0,
)
"""Again at once, then after 100 and after 200 ms; then the last error is raised."""


class UnrunHandlerError(WiringError):
    """A function of the user's came back before it did anything: nothing was handled."""


_UNRUN: dict[str, Callable[[Any], bool]] = {
    "a coroutine": inspect.iscoroutine,
    "a generator": inspect.isgenerator,
    "an asynchronous generator": inspect.isasyncgen,
}
_AWAITED = "a coroutine"


def refuse_unrun(answer: Any, what: str, *, is_awaited: bool = False) -> None:
    """Refuse an answer that stands for work which nobody has begun: it would be confirmed undone.

    With ``is_awaited`` a coroutine is fine, since the caller runs it.
    """
    for kind, is_one in _UNRUN.items():
        if not is_one(answer) or (is_awaited and kind == _AWAITED):
            continue
        if not inspect.isasyncgen(answer):  # one of these that never began needs no end
            answer.close()
        usual = "write it without yield"
        if kind == _AWAITED:
            usual = "write it without async, or use the asynchronous class of the same name"
        raise UnrunHandlerError(f"{what} returned {kind}, which nobody runs", remedy=usual)


def failure_of(error: BoundaryError) -> Failure:
    """What a call's error means for another attempt.

    A name that somebody else holds is no reason to ask again at once: who holds it is at work.
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


def repeated(effect: Send | Put | Get, call: Call, dice: Dice) -> Script[Any]:
    """Do the very same until it succeeds or is not worth repeating; then raise the last error."""
    while True:
        if call.rule.budget is None or not isinstance(effect, Send):
            hurried: Effect = effect
        else:
            now = (yield Now()) if call.attempts else call.began_at
            hurried = _hurried(effect, call.began_at + call.rule.budget - now)
        try:
            return (yield hurried)
        except BoundaryError as error:
            if not isinstance(effect, Send) and error.code != "deadline_exceeded":
                call.began_at = yield Now()  # bytes flowed until now: only silence uses time up
            yield from endured(error, call, dice)


def endured(error: BoundaryError, call: Call, dice: Dice) -> Script[None]:
    """Wait until it is time for another attempt; raise the error when there shall be none."""
    chance = dice() if call.rule.backoff.is_jittered else 0.5
    verdict = call.failed(failure_of(error), (yield Now()), chance)
    if not isinstance(verdict, RetryAfter):
        raise error
    # The one who says stop wants to hear how it stands, not to wait for better news.
    if verdict.delay > 0 and (yield Wait(verdict.delay)):
        raise error


def called(
    method: str, body: bytes, rule: RetryRule, dice: Dice, *, timeout: float | None = None
) -> Script[bytes]:
    """One unary call under a rule."""
    call = Call(rule, (yield Now()))
    answer: bytes = yield from repeated(Send(method, body, timeout), call, dice)
    return answer


def understood(answer: bytes, shape: type[T]) -> T:
    """The answer as a record."""
    try:
        decoder = _DECODERS.get(shape)
        if decoder is None:
            decoder = _DECODERS[shape] = msgspec.json.Decoder(shape)
        found: T = decoder.decode(answer)
        return found
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BoundaryError(
            f"the node's answer is no {shape.__name__}: {error}",
            reason="bad_answer",
            remedy="check the URL, and that node and client are of versions that fit",
        ) from None


def _hurried(send: Send, left: float) -> Send:
    """A call does not outlast the budget of all its attempts."""
    left = max(0.001, left)
    return Send(send.method, send.body, left if send.timeout is None else min(left, send.timeout))
