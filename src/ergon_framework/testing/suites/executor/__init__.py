"""The conformance kit for executors: checks that any command can be put to."""

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
