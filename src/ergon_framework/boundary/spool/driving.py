"""The two drivers of a drain: one that blocks its thread, one for an event loop.

Both sleep on a bell, which every process that adds to the spool can ring.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TypeAlias

from ergon_framework.boundary.spool.draining import (
    Ask,
    Do,
    DrainReport,
    Effect,
    Ended,
    Rest,
    Script,
)
from ergon_framework.boundary.spool.store import Spool
from ergon_framework.storage.sqlite.notifier import Bell

MakeScript: TypeAlias = Callable[[Callable[[], bool]], Script[DrainReport]]
"""Makes the script, given how to ask whether it is to stop."""
IsOver: TypeAlias = Callable[[], bool]
"""Whether whoever drains just now has left nothing to do for those who wait."""


class Stop(Protocol):
    """What a caller stops a drain with: an event of ``threading`` or ``asyncio``."""

    def is_set(self) -> bool:
        """Whether it is to stop."""


def drain(
    spool: Spool,
    make: MakeScript,
    producer: Any,
    *,
    stop: threading.Event,
    poll: float,
    waits: bool,
    is_over: IsOver,
) -> DrainReport:
    """Run a drain in this thread, once nobody else does, unless it is over by then."""
    with _listening(spool) as bell:
        lock = spool.lock()
        while not lock.try_gain():
            if not waits:
                raise lock.refusal()
            if stop.is_set():
                return DrainReport()
            if is_over():
                return DrainReport(ended=Ended.EMPTY)
            bell.wait(poll)

        def perform(effect: Effect) -> Any:
            if isinstance(effect, Do):
                return effect.work()
            if isinstance(effect, Ask):
                return effect.call(producer)
            return _rest(bell, effect, stop, poll)

        try:
            return _drive(make(stop.is_set), perform)
        finally:
            lock.release()
            spool.ring()  # somebody may be waiting for the lock


def _drive(script: Script[DrainReport], perform: Callable[[Effect], Any]) -> DrainReport:
    try:
        effect = next(script)
        while True:
            try:
                result = perform(effect)
            except Exception as error:  # what it means is for the script to say
                effect = script.throw(error)
            else:
                effect = script.send(result)
    except StopIteration as end:
        report: DrainReport = end.value
        return report


def _rest(bell: Bell, rest: Rest, stop: Stop, poll: float) -> None:
    began = time.monotonic()
    until = began + rest.seconds
    while not stop.is_set() and (left := until - time.monotonic()) > 0:
        if bell.wait(min(left, poll)):  # an event cannot ring: it is looked at now and then
            until = min(until, max(began + rest.least, time.monotonic()))


async def drain_async(
    spool: Spool,
    make: MakeScript,
    producer: Any,
    *,
    stop: asyncio.Event,
    poll: float,
    waits: bool,
    is_over: IsOver,
) -> DrainReport:
    """Run a drain in this task; work on the spool is done in threads."""
    with _listening(spool) as bell, _hearing(bell) as rung:
        lock = spool.lock()
        while not lock.try_gain():
            if not waits:
                raise lock.refusal()
            if stop.is_set():
                return DrainReport()
            if await asyncio.to_thread(is_over):
                return DrainReport(ended=Ended.EMPTY)
            await _first_of(rung, stop, poll)
            rung.clear()

        async def perform(effect: Effect) -> Any:
            if isinstance(effect, Do):
                return await asyncio.to_thread(effect.work)
            if isinstance(effect, Ask):
                return await effect.call(producer)
            return await _rest_async(rung, effect, stop)

        try:
            return await _drive_async(make(stop.is_set), perform)
        finally:
            lock.release()
            spool.ring()


async def _drive_async(
    script: Script[DrainReport], perform: Callable[[Effect], Any]
) -> DrainReport:
    try:
        effect = next(script)
        while True:
            try:
                result = await perform(effect)
            except Exception as error:  # what it means is for the script to say
                effect = script.throw(error)
            else:
                effect = script.send(result)
    except StopIteration as end:
        report: DrainReport = end.value
        return report


async def _rest_async(rung: asyncio.Event, rest: Rest, stop: asyncio.Event) -> None:
    now = asyncio.get_running_loop().time
    began = now()
    until = began + rest.seconds
    while not stop.is_set() and (left := until - now()) > 0:
        await _first_of(rung, stop, left)
        if rung.is_set():
            rung.clear()
            until = min(until, max(began + rest.least, now()))


async def _first_of(rung: asyncio.Event, stop: asyncio.Event, seconds: float) -> None:
    waits = [asyncio.ensure_future(event.wait()) for event in (rung, stop)]
    try:
        await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in waits:
            each.cancel()


@contextmanager
def _listening(spool: Spool) -> Iterator[Bell]:
    bell = spool.listen()
    try:
        yield bell
    finally:
        bell.close()


@contextmanager
def _hearing(bell: Bell) -> Iterator[asyncio.Event]:
    """The bell as an event of the running loop."""
    rung, loop = asyncio.Event(), asyncio.get_running_loop()

    def heard() -> None:
        if bell.wait(0):
            rung.set()

    loop.add_reader(bell.fileno(), heard)
    try:
        yield rung
    finally:
        loop.remove_reader(bell.fileno())
