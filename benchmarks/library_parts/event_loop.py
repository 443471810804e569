"""The worker's event loop beside asyncio, and what migrations take to load beside alembic."""

from __future__ import annotations

import asyncio
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial

from comparison import Record, RunOptions, Turn
from provider_parts.costs import contestant

from ergon_framework.jobs.event_loop import READ, EventLoop
from library_parts.compare import OURS, Call, compare, compare_contestants

PER_CALL = 50
"""Bytes that go round in one call, so that starting a loop does not count."""


def event_loop(options: RunOptions) -> Iterator[Record]:
    """What a loop adds to a system call that waits and two that read and write."""

    def ours() -> Call:
        reading, writing = os.pipe()
        loop, left = EventLoop(), 0

        def handle(_events: int) -> None:
            nonlocal left
            os.read(reading, 1)
            left -= 1
            if left:
                os.write(writing, b"x")

        loop.watch(reading, READ, handle)

        def call() -> None:
            nonlocal left
            left = PER_CALL
            os.write(writing, b"x")
            while left:
                loop.turn(loop.now() + 1.0)

        return call

    yield from compare("event-loop", options, ours, {"asyncio": _asyncio})


def migrations(options: RunOptions) -> Iterator[Record]:
    """A process that loads what brings tables up to date, without a database."""
    ours = "import ergon_framework.storage.sqlite.migrations"
    alembic = "import alembic.command, alembic.script, sqlalchemy"
    made = {
        name: contestant(name, partial(_cold, program))
        for name, program in {OURS: ours, "alembic": alembic}.items()
    }
    yield from compare_contestants("migrations", options, made)


def _cold(program: str) -> Callable[[], Turn]:
    """A turn is one process; the least of three counts."""

    def once() -> Turn:
        before, began = _children(), time.perf_counter()
        subprocess.run([sys.executable, "-c", program], check=True)  # noqa: S603
        return Turn(1, time.perf_counter() - began, cpu_time=_children() - before)

    once()  # so that compiled files are there
    return lambda: min((once() for _ in range(3)), key=lambda turn: turn.cpu_time)


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _asyncio() -> Call:
    reading, writing = os.pipe()
    loop, left = asyncio.new_event_loop(), 0
    timer: asyncio.TimerHandle | None = None

    def handle() -> None:
        nonlocal left, timer
        os.read(reading, 1)
        left -= 1
        if timer is not None:
            timer.cancel()
        if left:
            timer = loop.call_later(1.0, _nothing)
            os.write(writing, b"x")
        else:
            loop.stop()

    loop.add_reader(reading, handle)

    def call() -> None:
        nonlocal left
        left = PER_CALL
        os.write(writing, b"x")
        loop.run_forever()

    return call


def _nothing() -> None:
    """What is due is never due here."""
