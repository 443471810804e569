"""Resolves every dependency, group and extra anew and writes constraints.txt.

Only names and versions are written: no hashes, no addresses, no paths. Resolving happens with the
oldest Python we support, because a release may drop an old Python but rarely a new one.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tools.requirements import load_pyproject, requirements  # noqa: E402

HEADER = """\
# Exact versions of everything in the dependencies, extras and groups of pyproject.toml.
# Written by `make pins`; make installs with it. Do not edit.
"""


def oldest_python(requires: str) -> str:
    """The lowest version that ``requires-python`` names, such as ``3.11``."""
    bound = re.search(r">=\s*(\d+\.\d+)", requires)
    if bound is None:
        raise SystemExit(f"requires-python = {requires!r} has no lower bound")
    return bound[1]


def find_python(version: str) -> str:
    """An interpreter of exactly this minor version."""
    question = "import sys; print('%d.%d' % sys.version_info[:2])"
    for candidate in (os.environ.get("PYTHON"), sys.executable, f"python{version}"):
        if not candidate:
            continue
        try:
            answer = subprocess.run(  # noqa: S603 - the caller's own interpreter
                [candidate, "-c", question], capture_output=True, text=True, check=False
            )
        except OSError:
            continue
        if answer.stdout.strip() == version:
            return candidate
    raise SystemExit(
        f"pins are resolved with Python {version}, the oldest we support, and none was found. "
        f"Install one, or name it: make pins PYTHON=/path/to/python{version}"
    )


def resolve(python: str, wanted: list[str]) -> list[dict[str, Any]]:
    """pip's own resolution report for ``wanted``, made in a throw-away environment."""
    with tempfile.TemporaryDirectory() as scratch:
        home, report = Path(scratch, "venv"), Path(scratch, "report.json")
        subprocess.run([python, "-m", "venv", str(home)], check=True)  # noqa: S603
        command = [str(home / "bin" / "python"), "-m", "pip", "install", "--quiet"]
        command += ["--dry-run", "--ignore-installed", "--report", str(report), *wanted]
        subprocess.run(command, check=True)  # noqa: S603 - arguments come from pyproject.toml
        installed: list[dict[str, Any]] = json.loads(report.read_text("utf-8"))["install"]
    return installed


def pins(installed: Iterable[dict[str, Any]]) -> list[str]:
    """``name==version`` lines, sorted; refuses versions that no public index can serve."""
    lines: list[str] = []
    for entry in installed:
        name, version = entry["metadata"]["name"], entry["metadata"]["version"]
        if "+" in version:
            raise SystemExit(f"{name} {version} is a local build, which nobody else can install")
        lines.append(f"{re.sub(r'[-_.]+', '-', name).lower()}=={version}")
    return sorted(lines)


def main() -> None:
    """Write constraints.txt."""
    pyproject = load_pyproject()
    python = find_python(oldest_python(pyproject["project"]["requires-python"]))
    print(f"resolving with {python}, which takes a minute …")
    lines = pins(resolve(python, requirements(pyproject, extras=True)))
    (ROOT / "constraints.txt").write_text(HEADER + "\n".join(lines) + "\n", encoding="utf-8")
    print(f"constraints.txt: {len(lines)} versions")


if __name__ == "__main__":
    main()
