"""The event loop that follows a virtual clock."""

from __future__ import annotations

import asyncio
import warnings

from ergon_framework.testing import VirtualClock


def test_a_loop_waits_for_its_threads_when_it_ends() -> None:
    """The time it has for that is not virtual: a clock that jumps would be over at once."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert VirtualClock().run(asyncio.to_thread(lambda: 7)) == 7
