"""What users test with. Nothing here needs pytest, and a name is loaded when it is first used.

- ``sandbox``: a whole program in memory and in virtual time, and fakes of what it talks to
- ``clock``: virtual time; ``scripted``: tasks and connectors that follow a script
- ``link``: a connection that can be cut; ``plugin``: fixtures for pytest
- ``suites``: what an adapter must do
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ergon_framework.lazy_exports import lazy_exports

# For type checkers. At run time lazy_exports imports a name from _HOMES when it is first used.
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

_HOMES = {
    "CONNECTOR_CHECKS": "testing.suites",
    "EXECUTOR_CHECKS": "testing.suites",
    "JOB_STORE_CHECKS": "testing.suites",
    "PROVIDER_STORE_CHECKS": "testing.suites",
    "AsyncScriptedConsumer": "testing.scripted",
    "AsyncScriptedProducer": "testing.scripted",
    "ConnectorSuiteError": "testing.suites",
    "ExecutorSuiteError": "testing.suites",
    "Happened": "testing.scripted",
    "JobStoreSuiteError": "testing.suites",
    "ProviderStoreSuiteError": "testing.suites",
    "Sandbox": "testing.sandbox",
    "ScriptedConnector": "testing.scripted",
    "ScriptedConsumer": "testing.scripted",
    "ScriptedProducer": "testing.scripted",
    "SuiteReport": "testing.suites",
    "Takes": "testing.scripted",
    "VirtualClock": "testing.clock",
    "exercise_connector": "testing.suites",
    "exercise_executor": "testing.suites",
    "exercise_job_store": "testing.suites",
    "exercise_provider_store": "testing.suites",
    "transactions": "testing.scripted",
}

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

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_exports(__name__, _HOMES)
