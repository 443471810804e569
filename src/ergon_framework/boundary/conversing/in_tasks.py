"""Does what scripts say, in a task of an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from ergon_framework.boundary.conversing.in_threads import LOOK, never
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
from ergon_framework.boundary.conversing.transport import AsyncTransport, Reported
from ergon_framework.engine.clocks import AsyncSignal

T = TypeVar("T")


class TaskHands:
    """Drives scripts over one transport. ``is_stopped`` cuts waits short."""

    def __init__(self, transport: AsyncTransport, is_stopped: Callable[[], bool] = never) -> None:
        self._transport = transport
        self._is_stopped = is_stopped
        self._loop = asyncio.get_running_loop()
        self._signal = AsyncSignal()

    async def run(self, script: Script[T]) -> T:
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
                answer = await self._do(effect)
            except BaseException as raised:
                error = raised

    def wake(self) -> None:
        """Let whoever waits look whether to stop."""
        self._signal.notify_all()

    async def _do(self, effect: Effect) -> Any:
        match effect:
            case Send(method, body, timeout):
                return await self._transport.call(method, body, timeout=timeout)
            case Now():
                return self._loop.time()
            case Wait(seconds):
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
            await self._signal.wait(until if is_deaf else min(until, now + LOOK))
        return True
