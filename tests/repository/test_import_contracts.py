"""The import contracts of pyproject.toml, tried on a small package with planted violations."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tools.requirements import ROOT

pytestmark = pytest.mark.slow

ROOMS = (
    *("app", "boundary", "cli", "connector", "core", "engine", "executor", "jobs", "ports"),
    *("providers", "storage", "task", "telemetry", "testing", "web"),
)
LINT = "from importlinter.cli import lint_imports_command; lint_imports_command()"


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package with all rooms, two connectors and no imports."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    root = tmp_path / "ergon_framework"
    for room in ROOMS:
        (root / room).mkdir(parents=True)
        (root / room / "__init__.py").touch()
    for module in (
        *("__init__", "__main__", "errors", "redaction"),
        *("connector/transaction", "connector/memory"),
    ):
        (root / f"{module}.py").touch()
    (root / "connector/jsonl.py").write_text("import ergon_framework.connector.transaction\n")
    return root


def lint(package: Path) -> tuple[int, str]:
    """The exit code and the output of the import linter."""
    done = subprocess.run(  # noqa: S603 - our own interpreter
        [sys.executable, "-c", LINT, "--no-cache"],
        cwd=package.parent,
        env={**os.environ, "PYTHONPATH": str(package.parent), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_rooms_that_keep_to_the_rules_pass(package: Path) -> None:
    """Rooms that are planned may be missing, and importing downwards is fine."""
    (package / "app/__init__.py").write_text("import ergon_framework.engine, time\n")
    code, output = lint(package)
    assert code == 0, output
    assert "3 kept, 0 broken" in output


@pytest.mark.parametrize(
    ("module", "imported", "contract"),
    [
        ("engine/__init__", "ergon_framework.task", "Rooms import only downwards"),
        ("errors", "ergon_framework.core", "Rooms import only downwards"),
        ("task/__init__", "ergon_framework.jobs", "Rooms import only downwards"),
        ("providers/__init__", "ergon_framework.jobs", "Rooms import only downwards"),
        ("core/__init__", "time", "The core reads no clock"),
        ("core/__init__", "concurrent.futures", "The core reads no clock"),
        ("errors", "logging", "The core reads no clock"),
        ("connector/memory", "ergon_framework.connector.jsonl", "Connectors do not know"),
    ],
)
def test_a_forbidden_import_breaks_its_contract(
    package: Path, module: str, imported: str, contract: str
) -> None:
    """Each contract bites, also when the core reaches the clock through another module."""
    (package / "core/failure.py").write_text("import ergon_framework.errors\n")
    path = package / f"{module}.py"
    path.write_text(f"import {imported}\n")
    code, output = lint(package)
    assert code == 1, output
    broken = [line for line in output.splitlines() if " BROKEN" in line]
    assert [line for line in broken if line.startswith(contract)], output


def test_a_room_that_is_not_listed_is_refused(package: Path) -> None:
    """A new room must be given its place among the layers."""
    (package / "helpers.py").touch()
    code, output = lint(package)
    assert code == 1
    assert "helpers" in output
