"""What users test with. Nothing here needs pytest, and a name is loaded when it is first used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ergon_framework.testing.clock import VirtualClock
    from ergon_framework.testing.sandbox import Sandbox
    from ergon_framework.testing.scripted import (
        AsyncScriptedConsumer,
        AsyncScriptedProducer,
        Happened,
        ScriptedConnector,
        ScriptedConsumer,
        ScriptedProducer,
        Takes,
        transactions,
    )
    from ergon_framework.testing.suites import (
        CONNECTOR_CHECKS,
        EXECUTOR_CHECKS,
        JOB_STORE_CHECKS,
        PROVIDER_STORE_CHECKS,
        ConnectorSuiteError,
        ExecutorSuiteError,
        JobStoreSuiteError,
        ProviderStoreSuiteError,
        SuiteReport,
        exercise_connector,
        exercise_executor,
        exercise_job_store,
        exercise_provider_store,
    )

__all__ = [
    "CONNECTOR_CHECKS",
    "EXECUTOR_CHECKS",
    "JOB_STORE_CHECKS",
    "PROVIDER_STORE_CHECKS",
    "AsyncScriptedConsumer",
    "AsyncScriptedProducer",
    "ConnectorSuiteError",
    "ExecutorSuiteError",
    "Happened",
    "JobStoreSuiteError",
    "ProviderStoreSuiteError",
    "Sandbox",
    "ScriptedConnector",
    "ScriptedConsumer",
    "ScriptedProducer",
    "SuiteReport",
    "Takes",
    "VirtualClock",
    "exercise_connector",
    "exercise_executor",
    "exercise_job_store",
    "exercise_provider_store",
    "transactions",
]

_SUITES = [name for name in __all__ if name.endswith(("_CHECKS", "SuiteError", "SuiteReport"))]
_SUITES += [name for name in __all__ if name.startswith("exercise_")]
_HOME = dict.fromkeys(__all__, "scripted") | dict.fromkeys(_SUITES, "suites")
_HOME |= {"Sandbox": "sandbox", "VirtualClock": "clock"}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
