"""Does what scripts say, in the thread that calls."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

from ergon_framework.boundary.conversing.script import (
    Do,
    Effect,
    Get,
    Handle,
    Now,
    Put,
    Read,
    Script,
    Send,
    Shut,
    Wait,
    refuse_unrun,
)
from ergon_framework.boundary.conversing.transport import Reported, Transport
from ergon_framework.ports.clock import Clock, Signal

T = TypeVar("T")

LOOK = 0.25
"""Seconds between two looks at a stop flag that cannot wake anybody."""


def never() -> bool:
    """Nobody says stop."""
    return False


class ThreadHands:
    """Drives scripts over one transport. ``is_stopped`` cuts waits short."""

    def __init__(
        self, transport: Transport, clock: Clock, is_stopped: Callable[[], bool] = never
    ) -> None:
        self._transport = transport
        self._clock = clock
        self._is_stopped = is_stopped
        self._lock = threading.Lock()
        self._signal: Signal | None = None

    def run(self, script: Script[T]) -> T:
        """Do what the script says until it ends; its value, or what it raised."""
        answer: Any = None
        error: BaseException | None = None
        while True:
            try:
                effect = script.send(answer) if error is None else script.throw(error)
            except StopIteration as end:
                value: T = end.value
                return value
            answer, error = None, None
            try:
                answer = self._do(effect)
            except BaseException as raised:
                error = raised

    def wake(self) -> None:
        """Let whoever waits look whether to stop."""
        with self._lock:
            if self._signal is not None:
                self._signal.notify_all()

    def _do(self, effect: Effect) -> Any:
        match effect:
            case Send(method, body, timeout):
                return self._transport.call(method, body, timeout=timeout)
            case Now():
                return self._clock.now()
            case Wait(seconds):
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
            if self._signal is None:
                self._signal = self._clock.signal(self._lock)
            while not self._is_stopped():
                now = self._clock.now()
                if now >= until:
                    return False
                is_deaf = self._is_stopped is never
                self._signal.wait(until if is_deaf else min(until, now + LOOK))
            return True


def _handled(function: Callable[[Any], Any], argument: Any) -> Any:
    answer = function(argument)
    refuse_unrun(answer, "the handler")
    return answer
