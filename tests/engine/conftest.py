"""Every test that asks for ``colour`` runs with threads and with asyncio."""

from __future__ import annotations

import pytest


@pytest.fixture(params=["sync", "async"])
def colour(request: pytest.FixtureRequest) -> str:
    """The colour of the engine under test."""
    return str(request.param)
