"""The commands of the executors beside this file, and the kit's report on them."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import ergon_framework
from ergon_framework.testing.suites.executor import exercise_executor
from ergon_framework.testing.suites.framework import SuiteReport

ROOT = Path(__file__).resolve().parents[2]
SOURCE = Path(ergon_framework.__file__).resolve().parents[1]
GOOD = [sys.executable, os.fspath(Path(__file__).with_name("good.py"))]


def python(source: str) -> list[str]:
    """An executor that is a few lines of Python."""
    return [sys.executable, "-c", source]


def bad(module: str, name: str) -> list[str]:
    """One of the bad executors."""
    return [sys.executable, "-m", f"tests.conform.{module}", name]


def tried(command: list[str], *checks: str, timeout: float = 3.0, **options: Any) -> SuiteReport:
    """The kit's report; without the names of checks, on all of them.

    An executor that answers is not silent because the machine was busy for a second or two.
    """
    env = {"PYTHONPATH": os.fspath(ROOT)}
    return exercise_executor(command, env=env, cwd=ROOT, timeout=timeout, only=checks, **options)
