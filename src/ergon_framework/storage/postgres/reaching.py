"""Connecting in less time than the driver can be told: it knows whole seconds, and two at least."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Protocol, TypeVar

import psycopg

from ergon_framework.engine.clocks import SYSTEM_CLOCK


class Line(Protocol):
    """What there is of a connection here."""

    def close(self) -> object:
        """Let go of it."""


L = TypeVar("L", bound=Line)


def reached(connect: Callable[[], L], seconds: float) -> L:
    """A connection that is there in time; one that comes later is closed."""
    arrival: Future[L] = Future()

    def go() -> None:
        try:
            line = connect()
        except Exception as error:
            if arrival.set_running_or_notify_cancel():
                arrival.set_exception(error)
        else:
            if arrival.set_running_or_notify_cancel():
                arrival.set_result(line)
            else:
                line.close()

    SYSTEM_CLOCK.spawn("ergon-connect", go)
    try:
        wait([arrival], seconds)
    except BaseException:
        arrival.cancel()
        raise
    if arrival.cancel():
        raise psycopg.OperationalError(f"no connection within {seconds:.3g} seconds")
    return arrival.result()
