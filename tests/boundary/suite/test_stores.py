"""Every fact store under the behaviour suite."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ergon_framework.testing.suites.factstore import FACT_STORE_CHECKS, exercise_fact_store
from tests.boundary.suite.stores import KINDS, Kind, Sqlite

DURABLE = {check.name for check in FACT_STORE_CHECKS if check.needs & {"reopen", "restore"}}


@pytest.mark.req("BOUNDARY:store", "P6", "P7", "P8", "P9", "P12", "P15", "P16")
@pytest.mark.req("C1", "C2", "C4", "C9", "C10", "C11")
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__.lower())
@pytest.mark.parametrize("check", [check.name for check in FACT_STORE_CHECKS])
def test_a_store_keeps_its_promises(
    check: str, kind: Callable[[Path], Kind], tmp_path: Path
) -> None:
    """Each check of the suite, also the recommended ones; durable stores skip none."""
    subject = kind(tmp_path)
    report = exercise_fact_store(subject.make, only={check}, **subject.ways())
    report.raise_for_failures(recommended=True)
    is_exempt = check in DURABLE and not isinstance(subject, Sqlite)
    assert report.skipped == ((check,) if is_exempt else ())
