"""Payloads in an object store, of jobs on PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from ergon_framework.jobs.stores.postgres import PostgresJobStore
from tests.jobs.payload_object_suite import CHECKS, Place

pytestmark = [pytest.mark.slow, pytest.mark.req("JOBS:store")]


@pytest.mark.parametrize("check", CHECKS, ids=lambda each: each.__name__)
def test_payloads_in_an_object_store(
    check: Callable[[Place], None], jobs_url: str, tmp_path: Path
) -> None:
    """Each check of the suite holds."""
    with closing(PostgresJobStore(jobs_url)) as store:
        check(Place(store, tmp_path))
