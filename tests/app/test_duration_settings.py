"""How durations are called: in a settings file without a unit, in Python with ``_seconds``."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ergon_framework.app.providers import (
    BreakerSettings,
    ProviderRetrySettings,
    ProviderSettings,
    ProvidersSettings,
    QuotaSettings,
    ScriptOptions,
)
from ergon_framework.boundary.settings import LimitSettings
from ergon_framework.jobs.scheduler import ScheduleSettings
from ergon_framework.jobs.settings import JobsSettings
from ergon_framework.ports.settings_model import SettingsModel
from ergon_framework.providers.base import ProviderBase
from ergon_framework.providers.circuit_breaker import CircuitBreaker
from ergon_framework.providers.quota import QuotaPolicy
from ergon_framework.providers.retry import RetryPolicy

PAGE = Path(__file__).parents[2] / "docs/reference/settings.md"
WITH_A_UNIT = {
    *("wait_seconds", "handshake_seconds", "idle_seconds", "body_seconds", "request_seconds"),
    "check_seconds",
}
"""Keys of zones, where the unit tells them from limits that are counts and sizes."""


def models(model: type[SettingsModel] = SettingsModel) -> Iterator[type[SettingsModel]]:
    """Every section and table that a settings file can have."""
    for each in model.__subclasses__():
        if each.__module__.startswith("ergon_framework."):
            yield each
            yield from models(each)


def test_keys_have_no_unit_but_those_of_zones() -> None:
    """The page says so, and names the exceptions."""
    known = set(models())
    assert {LimitSettings, JobsSettings, ScheduleSettings} <= known
    spelled_as_in_python = {ScriptOptions}
    names = {name for model in known - spelled_as_in_python for name in model.model_fields}
    assert {
        name for name in names if re.search(r"_(seconds|sec|s|ms|minutes|hours|days)$", name)
    } == (WITH_A_UNIT)
    section = PAGE.read_text().split("\n## Durations\n")[1].split("\n## ")[0]
    assert set(re.findall(r"`(\w+_seconds)`", section)) - {"window_seconds"} == WITH_A_UNIT


@pytest.mark.parametrize(
    ("table", "target"),
    [
        (QuotaSettings, QuotaPolicy),
        (ProviderRetrySettings, RetryPolicy),
        (BreakerSettings, CircuitBreaker),
    ],
)
def test_a_duration_has_the_name_of_its_parameter_without_the_unit(
    table: type[SettingsModel], target: Callable[..., Any]
) -> None:
    """``window`` in a file is ``window_seconds`` in Python."""
    parameters = inspect.signature(target).parameters
    durations = {name.removesuffix("_seconds") for name in parameters if name.endswith("_seconds")}
    assert durations
    assert durations <= table.model_fields.keys()
    assert not durations & parameters.keys()


def test_durations_of_a_provider() -> None:
    """What is no option of its own class follows the same rule."""
    parameters = inspect.signature(ProviderBase.__init__).parameters
    for name in ("timeout_budget", "attempt_timeout"):
        assert name in ProviderSettings.model_fields
        assert f"{name}_seconds" in parameters
    assert "keep_records" in ProvidersSettings.model_fields
    assert "keep_records_seconds" in parameters
