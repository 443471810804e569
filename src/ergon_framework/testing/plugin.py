"""The pytest plugin: a virtual clock as a fixture. Loaded by itself once Ergon is installed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from ergon_framework.testing.clock import VirtualClock


@pytest.fixture
def virtual_clock() -> Iterator[VirtualClock]:
    """Time that jumps: engine calls in this test wait without waiting."""
    # Imported late: a plugin is loaded in every run, also in those that never use it.
    from ergon_framework.testing.clock import VirtualClock

    with VirtualClock() as clock:
        yield clock
