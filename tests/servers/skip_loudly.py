"""What tests do when a server they need is not there."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest

STARTUP = float(os.environ.get("TEST_SERVER_STARTUP", "120"))
"""Seconds that a server may take to start, and to end; more where others keep the machine busy."""


class MissingServerError(Exception):
    """There is no such server here."""


def missing(what: object) -> NoReturn:
    """Skip a test for want of a server; where everything must be there, fail."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"{what}")
    pytest.skip(f"{what}")
