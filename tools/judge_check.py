"""Fails when a file outside the core names ``judge``: whether to try again is decided in one place.

import-linter sees modules, not names, and the rest of the product may well import ``Backoff`` and
``RetryRule`` from the same module.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "ergon_framework"
NAME = "judge"


def mentions(source: str) -> Iterator[int]:
    """The lines on which the code imports, reads or defines the name."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.ImportFrom(names=names) if any(alias.name == NAME for alias in names):
                yield node.lineno
            case ast.Name(id=name) | ast.Attribute(attr=name) if name == NAME:
                yield node.lineno
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) if name == NAME:
                yield node.lineno


def violations(package: Path) -> list[str]:
    """``file:line`` of every mention outside ``package/core``."""
    core = package / "core"
    return [
        f"{path.relative_to(package.parent)}:{line}"
        for path in sorted(package.rglob("*.py"))
        if core not in path.parents
        for line in sorted(set(mentions(path.read_text(encoding="utf-8"))))
    ]


def main() -> int:
    """Print the violations; 1 when there are any."""
    found = violations(PACKAGE)
    for place in found:
        print(f"{place}: only the core calls judge; give a machine in the core a RetryRule instead")
    if not found:
        print("judge: named in the core only")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
