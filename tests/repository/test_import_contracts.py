"""The import contracts of pyproject.toml, tried on a small package with planted violations."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tools.requirements import ROOT

pytestmark = pytest.mark.slow

FOLDERS = ("connector/memory/store",)
"""A file of a package that no contract looks into."""
LINT = """
import os, sys
from importlinter.cli import lint_imports_command

for folder in sys.argv[1:]:
    if os.fork() == 0:
        os.chdir(folder)
        sys.path.insert(0, folder)
        sys.argv = ["lint-imports", "--no-cache"]
        said = os.open("said", os.O_CREAT | os.O_WRONLY)
        os.dup2(said, 1)
        os.dup2(said, 2)
        lint_imports_command()
    print(os.waitstatus_to_exitcode(os.wait()[1]))
"""
"""Lints each package in a process of its own; loading the linter takes longer than that."""
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"][
    "importlinter"
]["contracts"]
ALLOWED = {
    "app.py": "import ergon_framework.engine, time\n",
    "jobs/worker.py": "import ergon_framework.jobs.pool\n",
}
FORBIDDEN = [
    ("engine/__init__", "ergon_framework.task", "Packages import only downwards"),
    ("errors", "ergon_framework.core", "Packages import only downwards"),
    ("task", "ergon_framework.jobs", "Packages import only downwards"),
    ("providers", "ergon_framework.jobs", "Packages import only downwards"),
    ("core/__init__", "time", "The core reads no clock"),
    ("core/__init__", "concurrent.futures", "The core reads no clock"),
    ("errors", "logging", "The core reads no clock"),
    ("connector/memory/__init__", "ergon_framework.connector.jsonl", "Connectors do not know"),
    ("jobs/cron", "ergon_framework.jobs.worker", "Files of jobs"),
    ("jobs/pool", "ergon_framework.jobs.client", "Files of jobs"),
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
    ("core/retry", "ergon_framework.core.provider_call", "Files of core"),
    ("task/payloads", "ergon_framework.task.options", "Files of task"),
    ("telemetry/logs", "ergon_framework.telemetry.spans", "Files of telemetry"),
    ("providers/errors", "ergon_framework.providers.pipeline", "Files of providers"),
    ("web/tokens", "ergon_framework.web.routes", "Files of web"),
    (
        "providers/stores/sqlite",
        "ergon_framework.providers.stores.postgres",
        "Stores of provider calls",
    ),
]
"""A module, what it must not import, and the contract that says so."""
CIRCLE = "from ergon_framework.app import second\n"
CIRCLES = {
    "plain": CIRCLE,
    "for types": f"from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    {CIRCLE}",
}
UNLISTED = ("helpers.py", "core/helpers.py", "jobs/helpers.py", "storage/helpers.py")
Files = Mapping[str, str]
Lints = Mapping[str, tuple[int, str]]


def planted() -> Iterator[tuple[str, Files]]:
    """What each test adds to the package, by a name for it."""
    yield "allowed", ALLOWED
    for module, imported, _ in FORBIDDEN:
        through = {"core/failure.py": "import ergon_framework.errors\n"}
        yield f"{module} {imported}", through | {f"{module}.py": f"import {imported}\n"}
    for kind, first in CIRCLES.items():
        second = "from ergon_framework.app import first\n"
        yield kind, {"app/__init__.py": "", "app/first.py": first, "app/second.py": second}
    for file in UNLISTED:
        yield file, {file: ""}


def named_modules() -> Iterator[str]:
    """Every module of ours that a contract names, as a path without its ending."""
    for contract in CONTRACTS:
        for container in contract.get("containers", ()):
            for name in re.findall(r"\w+", " ".join(contract["layers"])):
                yield f"{container}.{name}".replace(".", "/")
        for name in contract.get("modules", ()):
            if "*" not in name:
                yield name.replace(".", "/")


def made(place: Path, files: Files) -> str:
    """A package with everything that the contracts name, two connectors, and these imports."""
    shutil.copy(ROOT / "pyproject.toml", place)
    root = place / "ergon_framework"
    for module in (*named_modules(), *(f"ergon_framework/{each}" for each in FOLDERS)):
        path = place / f"{module}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (root / "connector/transaction.py").touch()
    (root / "connector/jsonl.py").write_text("import ergon_framework.connector.transaction\n")
    for name in files:
        (root / name).parent.mkdir(exist_ok=True)
    for folder in [root, *(path for path in root.rglob("*") if path.is_dir())]:
        folder.with_suffix(".py").unlink(missing_ok=True)
        (folder / "__init__.py").touch()
    for name, text in files.items():
        (root / name).write_text(text)
    return str(place)


@pytest.fixture(scope="module")
def lints(tmp_path_factory: pytest.TempPathFactory) -> Lints:
    """The exit code and the output of the import linter on each package."""
    packages = {name: made(tmp_path_factory.mktemp("lint"), files) for name, files in planted()}
    done = subprocess.run(  # noqa: S603 - our own interpreter
        [sys.executable, "-c", LINT, *packages.values()],
        env={**os.environ, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=True,
    )
    codes = map(int, done.stdout.split())
    said = (Path(folder, "said").read_text(encoding="utf-8") for folder in packages.values())
    return dict(zip(packages, zip(codes, said, strict=True), strict=True))


def test_packages_that_keep_to_the_rules_pass(lints: Lints) -> None:
    """Importing downwards is fine."""
    code, output = lints["allowed"]
    assert code == 0, output
    assert f"{len(CONTRACTS)} kept, 0 broken" in output


@pytest.mark.parametrize(("module", "imported", "contract"), FORBIDDEN)
def test_a_forbidden_import_breaks_its_contract(
    lints: Lints, module: str, imported: str, contract: str
) -> None:
    """Each contract bites, also when the core reaches the clock through another module."""
    code, output = lints[f"{module} {imported}"]
    assert code == 1, output
    broken = [line for line in output.splitlines() if " BROKEN" in line]
    assert [line for line in broken if line.startswith(contract)], output


@pytest.mark.parametrize("kind", CIRCLES)
def test_two_files_that_import_each_other_are_refused(lints: Lints, kind: str) -> None:
    """A circle is one, also when one of the imports is for type checkers only."""
    code, output = lints[kind]
    assert code == 1, output
    assert "in a circle BROKEN" in output


@pytest.mark.parametrize("file", UNLISTED)
def test_a_file_that_is_not_listed_is_refused(lints: Lints, file: str) -> None:
    """A new file must be given its place among the layers."""
    code, output = lints[file]
    assert code == 1
    assert "helpers" in output
