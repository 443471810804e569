"""Behaviour suites: what an adapter must do, as checks that need no test framework.

::

    from ergon_framework.testing.suites import exercise_connector

    exercise_connector(MyConnector)  # raises, and names every broken promise

- ``connector``, ``jobstore``, ``factstore``, ``objectstore``, ``providerstore``, ``executor``: one
  suite each; its ``under_test`` is what is tested, and its ``exercise`` or ``runner`` begins it
- ``framework``: checks and their report; ``stores``, ``drivers``: what several suites need
"""

from __future__ import annotations

from ergon_framework.testing.suites.connector import (
    CONNECTOR_CHECKS,
    ConnectorFaults,
    exercise_connector,
)
from ergon_framework.testing.suites.executor import (
    EXECUTOR_CHECKS,
    ExecutorSuiteError,
    exercise_executor,
)
from ergon_framework.testing.suites.factstore import (
    FACT_STORE_CHECKS,
    FactStoreSuiteError,
    exercise_fact_store,
)
from ergon_framework.testing.suites.framework import (
    CheckOutcome,
    CheckResult,
    ConnectorSuiteError,
    SuiteFailure,
    SuiteReport,
)
from ergon_framework.testing.suites.jobstore import (
    JOB_STORE_CHECKS,
    JobStoreSuiteError,
    exercise_job_store,
)
from ergon_framework.testing.suites.objectstore import (
    OBJECT_STORE_CHECKS,
    ObjectStoreSuiteError,
    exercise_object_store,
)
from ergon_framework.testing.suites.providerstore import (
    PROVIDER_STORE_CHECKS,
    ProviderStoreSuiteError,
    exercise_provider_store,
)

__all__ = [
    "CONNECTOR_CHECKS",
    "EXECUTOR_CHECKS",
    "FACT_STORE_CHECKS",
    "JOB_STORE_CHECKS",
    "OBJECT_STORE_CHECKS",
    "PROVIDER_STORE_CHECKS",
    "CheckOutcome",
    "CheckResult",
    "ConnectorFaults",
    "ConnectorSuiteError",
    "ExecutorSuiteError",
    "FactStoreSuiteError",
    "JobStoreSuiteError",
    "ObjectStoreSuiteError",
    "ProviderStoreSuiteError",
    "SuiteFailure",
    "SuiteReport",
    "exercise_connector",
    "exercise_executor",
    "exercise_fact_store",
    "exercise_job_store",
    "exercise_object_store",
    "exercise_provider_store",
]
