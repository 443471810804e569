"""The import contracts of pyproject.toml, tried on a small package with planted violations."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools.requirements import ROOT

pytestmark = pytest.mark.slow

FOLDERS = ("core/failure", "connector/memory/store")
"""Files of packages that no contract looks into."""
LINT = "from importlinter.cli import lint_imports_command; lint_imports_command()"
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"][
    "importlinter"
]["contracts"]


def named_modules() -> Iterator[str]:
    """Every module of ours that a contract names, as a path without its ending."""
    for contract in CONTRACTS:
        for container in contract.get("containers", ()):
            for name in re.findall(r"\w+", " ".join(contract["layers"])):
                yield f"{container}.{name}".replace(".", "/")
        for name in contract.get("modules", ()):
            if "*" not in name:
                yield name.replace(".", "/")


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package with everything that the contracts name, two connectors, and no imports."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    root = tmp_path / "ergon_framework"
    for module in (*named_modules(), *(f"ergon_framework/{each}" for each in FOLDERS)):
        path = tmp_path / f"{module}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    for folder in [root, *(path for path in root.rglob("*") if path.is_dir())]:
        folder.with_suffix(".py").unlink(missing_ok=True)
        (folder / "__init__.py").touch()
    (root / "connector/transaction.py").touch()
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


def test_packages_that_keep_to_the_rules_pass(package: Path) -> None:
    """Importing downwards is fine."""
    (package / "app.py").write_text("import ergon_framework.engine, time\n")
    (package / "jobs/worker.py").write_text("import ergon_framework.jobs.pool\n")
    code, output = lint(package)
    assert code == 0, output
    assert f"{len(CONTRACTS)} kept, 0 broken" in output


@pytest.mark.parametrize(
    ("module", "imported", "contract"),
    [
        ("engine/__init__", "ergon_framework.task", "Packages import only downwards"),
        ("errors", "ergon_framework.core", "Packages import only downwards"),
        ("task", "ergon_framework.jobs", "Packages import only downwards"),
        ("providers", "ergon_framework.jobs", "Packages import only downwards"),
        ("core/__init__", "time", "The core reads no clock"),
        ("core/__init__", "concurrent.futures", "The core reads no clock"),
        ("errors", "logging", "The core reads no clock"),
        ("connector/memory/__init__", "ergon_framework.connector.jsonl", "Connectors do not know"),
        ("jobs/cron", "ergon_framework.jobs.worker", "Files of jobs"),
        ("jobs/pool", "ergon_framework.jobs.scheduler", "Files of jobs"),
        ("executor/context", "ergon_framework.executor.runtime", "Files of executor"),
        ("boundary/model", "ergon_framework.boundary.zone", "Files of boundary"),
        ("engine/clocks", "ergon_framework.engine.call", "Files of engine"),
        ("storage/urls", "ergon_framework.storage.sqlite", "Files of storage"),
        ("storage/sqlite", "ergon_framework.storage.postgres", "Files of storage"),
        ("jobs/stores/sqlite", "ergon_framework.jobs.stores.postgres", "Job stores do not know"),
        ("jobs/stores/redis", "ergon_framework.jobs.stores.memory", "Job stores do not know"),
        (
            "boundary/factstore/nats",
            "ergon_framework.boundary.factstore.memory",
            "Fact stores do not know",
        ),
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


@pytest.mark.parametrize("is_typing_only", [False, True])
def test_two_files_that_import_each_other_are_refused(package: Path, is_typing_only: bool) -> None:
    """A circle is one, also when one of the imports is for type checkers only."""
    first = "from ergon_framework.app import second\n"
    if is_typing_only:
        first = f"from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    {first}"
    (package / "app.py").unlink()
    (package / "app").mkdir()
    (package / "app/__init__.py").touch()
    (package / "app/first.py").write_text(first)
    (package / "app/second.py").write_text("from ergon_framework.app import first\n")
    code, output = lint(package)
    assert code == 1, output
    assert "in a circle BROKEN" in output


@pytest.mark.parametrize("file", ["helpers.py", "jobs/helpers.py", "storage/helpers.py"])
def test_a_file_that_is_not_listed_is_refused(package: Path, file: str) -> None:
    """A new file must be given its place among the layers."""
    (package / file).touch()
    code, output = lint(package)
    assert code == 1
    assert "helpers" in output
