"""The conformance kit for executors: checks that any command can be put to.

``exercise`` runs the checks; ``harness`` is the process under test with its lines, ``under_test``
the executor as the checks see it. The checks stand by subject: ``first_request``, ``outcomes``,
``requests``, ``malformed``, ``handlers``, ``lifecycle``.
"""

from __future__ import annotations

from ergon_framework.testing.suites.executor.exercise import (
    EXECUTOR_CHECKS,
    ExecutorSuiteError,
    Progress,
    chosen_checks,
    exercise_executor,
)

__all__ = [
    "EXECUTOR_CHECKS",
    "ExecutorSuiteError",
    "Progress",
    "chosen_checks",
    "exercise_executor",
]
