"""The pytest plugin: fixtures for virtual time and for a whole program in memory.

pytest loads it when Ergon is installed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from ergon_framework.testing.clock import VirtualClock
    from ergon_framework.testing.sandbox import Sandbox


@pytest.fixture
def virtual_clock() -> Iterator[VirtualClock]:
    """A virtual clock: waits of engine calls in this test take no real time."""
    # Imported late: a plugin is loaded in every run, also in runs that never use it.
    from ergon_framework.testing.clock import VirtualClock

    with VirtualClock() as clock:
        yield clock


@pytest.fixture
def ergon(virtual_clock: VirtualClock) -> Iterator[Sandbox]:
    """Jobs in memory, run by ``ergon.drain()`` and ``ergon.advance(seconds)`` in this thread."""
    from ergon_framework.testing.sandbox import Sandbox

    with Sandbox(virtual_clock) as sandbox:
        yield sandbox
