"""Payloads in an object store, of jobs on Redis."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.jobs.payload_object_suite import CHECKS, Place
from tests.jobs.redis.conftest import Open

pytestmark = [pytest.mark.slow, pytest.mark.req("JOBS:store")]


@pytest.mark.parametrize("check", CHECKS, ids=lambda each: each.__name__)
def test_payloads_in_an_object_store(
    check: Callable[[Place], None], open_store: Open, tmp_path: Path
) -> None:
    """Each check of the suite holds."""
    check(Place(open_store(), tmp_path))
