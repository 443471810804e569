"""A zone's node in this process: signals in, one word when it is ready."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress

from ergon_framework.app.boundary import ZoneSetup
from ergon_framework.app.console import of_signal, say
from ergon_framework.app.running.signals import SignalEar
from ergon_framework.boundary.node import run_node
from ergon_framework.storage import failpoints


class _Stops:
    """The first signal asks for a graceful stop, the second ends the process."""

    def __init__(self) -> None:
        self._count = 0
        self._ask: Callable[[], object] = lambda: None

    def attach(self, loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
        """From now on there is something to stop; a signal may have come before."""
        self._ask = lambda: loop.call_soon_threadsafe(stop.set)
        if self._count:
            stop.set()

    def heard(self, number: int) -> None:
        self._count += 1
        if self._count > 1:
            say("stopped by force; what was acknowledged is on disk")
            os._exit(of_signal(number))
        say("stopping; what runs may finish (a second signal ends it at once)")
        with suppress(RuntimeError):  # the loop is closed: it has ended by itself
            self._ask()


def serve(setup: ZoneSetup, ready: Callable[[str], None]) -> None:
    """Run the node until a signal asks it to stop; ``ready`` is told where it listens."""
    failpoints.check()
    stops = _Stops()
    with SignalEar(stops.heard):
        asyncio.run(_serve(setup, ready, stops))


async def _serve(setup: ZoneSetup, ready: Callable[[str], None], stops: _Stops) -> None:
    stop = asyncio.Event()
    stops.attach(asyncio.get_running_loop(), stop)
    await run_node(setup.name, setup.settings, ready=ready, stop=stop)
