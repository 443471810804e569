"""Which parameters of a test run in ``make test``, and which only in ``make campaign``.

A kill at one step is shown on every store at the steps that differ between stores. That the same
steps hold on a second pair of stores, or at the fourth commit as at the first, is shown by the
campaign: each of these tests starts processes and takes seconds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def campaign(*values: Any) -> Any:
    """One parameter set that only ``make campaign`` runs."""
    return pytest.param(*values, marks=pytest.mark.campaign)


def sampled(values: Iterable[Any], kept: Collection[Any]) -> list[Any]:
    """All values as parameters, of which ``make test`` runs those that are kept."""
    found = list(values)
    unknown = [each for each in kept if each not in found]
    assert not unknown, f"these are no parameters: {unknown}"
    return [each if each in kept else _only_in_campaign(each) for each in found]


def _only_in_campaign(value: Any) -> Any:
    return campaign(*value) if isinstance(value, tuple) else campaign(value)
