"""Reports the length of files and functions. It is a report, not a gate: it never fails.

A file is one subject that a reader can hold, usually 150 to 500 lines. A gate on file length once
cut subjects into fragments, so a long file or function is only listed, for a reviewer to look at.
A function's length is that of its body without the docstring: explaining costs nothing.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FILE_LIMITS = {"src": 700, "tests": 900, "tools": 700}
FUNCTION_LIMIT = 50
SHOWN = 10


@dataclass(frozen=True)
class Size:
    """One file or function, its number of lines, and how many are usual at most."""

    name: str
    lines: int
    limit: int

    def __str__(self) -> str:
        return f"{self.lines:5}  {self.name}"

    @property
    def is_over(self) -> bool:
        """Whether a reviewer should look at it."""
        return self.lines > self.limit


Function = ast.FunctionDef | ast.AsyncFunctionDef


def body_lines(function: Function) -> int:
    """Lines from the first statement after the docstring to the end."""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    if not body:
        return 0
    return (body[-1].end_lineno or body[-1].lineno) - body[0].lineno + 1


def functions(tree: ast.AST, above: str = "") -> Iterator[tuple[str, Function]]:
    """Every function with its dotted name, nested ones and methods included."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, Function):
            yield above + node.name, node
            yield from functions(node, f"{above}{node.name}.")
        elif isinstance(node, ast.ClassDef):
            yield from functions(node, f"{above}{node.name}.")
        else:
            yield from functions(node, above)


def measure(root: Path) -> tuple[list[Size], list[Size]]:
    """Sizes of all files and of all functions, largest first."""
    files: list[Size] = []
    parts: list[Size] = []
    for folder, limit in FILE_LIMITS.items():
        for path in sorted((root / folder).rglob("*.py")):
            name, source = path.relative_to(root).as_posix(), path.read_text(encoding="utf-8")
            files.append(Size(name, len(source.splitlines()), limit))
            for function, node in functions(ast.parse(source)):
                parts.append(Size(f"{name}::{function}", body_lines(node), FUNCTION_LIMIT))
    return sorted(files, key=_largest_first), sorted(parts, key=_largest_first)


def _largest_first(size: Size) -> tuple[int, str]:
    return -size.lines, size.name


def report(files: list[Size], parts: list[Size]) -> Iterator[str]:
    """The lines to print."""
    total = sum(size.lines for size in files)
    yield f"{len(files)} files, {len(parts)} functions, {total} lines"
    usual = ", ".join(f"{folder} {most}" for folder, most in FILE_LIMITS.items())
    yield f"\nlargest files (usual at most: {usual})"
    yield from map(str, files[:SHOWN])
    yield f"\nlargest functions (usual at most: {FUNCTION_LIMIT})"
    yield from map(str, parts[:SHOWN])
    over = [size for size in (*files, *parts) if size.is_over]
    if over:
        yield "\nlonger than usual: one subject, or several?"
        yield from (f"{size}  (usual at most {size.limit})" for size in over)


def main(root: Path = ROOT) -> int:
    """Print the report."""
    print("\n".join(report(*measure(root))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
