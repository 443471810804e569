"""Writes docs/reference/conformance.md: every requirement and the tests that show it.

The requirements are the reviewed list docs/conformance/requirements.toml. The tests are found by
reading the test files for ``req`` markers, without running anything: on functions and classes, as
``pytestmark`` of a module or class, and inside a function's decorators (``pytest.param``).

    python tools/conformance.py            write the page
    python tools/conformance.py --check    fail when a requirement has neither tests nor a reason,
                                           when a marker is wrong, or when the page is stale
"""

from __future__ import annotations

import ast
import difflib
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = "docs/conformance/requirements.toml"
PAGE = "docs/reference/conformance.md"
INTRO = """\
# Conformance

Which test shows which requirement. Written by `make docs` from the markers in the tests and from
`docs/conformance/requirements.toml`; `make check` fails when it is stale or has gaps. Do not edit.
"""


@dataclass(frozen=True)
class Requirement:
    """One thing a document demands, in our own words."""

    id: str
    text: str
    source: str
    not_testable: str = ""


@dataclass(frozen=True)
class Marker:
    """One id in one ``req`` marker, and the test that carries it."""

    id: str
    test: str


@dataclass
class Matrix:
    """Requirements beside the tests that name them, and everything that is wrong with that."""

    requirements: list[Requirement]
    tests: dict[str, list[str]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def load_requirements(path: Path) -> list[Requirement]:
    """The reviewed list; an id may occur once."""
    documents = tomllib.loads(path.read_text(encoding="utf-8"))["document"]
    loaded = [
        Requirement(source=document["name"], **entry)
        for document in documents
        for entry in document["requirements"]
    ]
    seen: set[str] = set()
    for one in loaded:
        if one.id in seen:
            raise SystemExit(f"{path.name}: {one.id} is listed twice")
        seen.add(one.id)
    return loaded


def read_markers(source: str, name: str) -> tuple[list[Marker], list[str]]:
    """The markers of one test file, and the ones that belong to no test."""
    tree = ast.parse(source)
    reader = _Reader(name)
    reader.read(tree.body, name, [])
    problems = reader.problems
    for call in _req_calls([tree]):
        if call not in reader.used:
            problems.append(f"{name}:{call.lineno}: this req marker is on no test")
    return reader.markers, problems


class _Reader:
    """Walks a file's tests from the outside in, handing markers down."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.markers: list[Marker] = []
        self.problems: list[str] = []
        self.used: set[ast.Call] = set()

    def read(self, body: list[ast.stmt], prefix: str, inherited: list[str]) -> None:
        """One module's or class's statements; ``inherited`` are the ids from further out."""
        here = [*inherited, *self._pytestmark(body, "pytestmark")]
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                if node.name.startswith("test"):
                    self._add(f"{prefix}::{node.name}", [*here, *self._ids(node.decorator_list)])
            elif isinstance(node, ast.ClassDef):
                if node.name.startswith("Test"):
                    ids = [*here, *self._ids(node.decorator_list)]
                    self.read(node.body, f"{prefix}::{node.name}", ids)
            elif isinstance(node, ast.Assign):
                # A state machine's tests: TestLoop = Loop.TestCase; TestLoop.pytestmark = [...]
                for target in node.targets:
                    if isinstance(target, ast.Name) and target.id.startswith("Test"):
                        own = self._pytestmark(body, f"{target.id}.pytestmark")
                        self._add(f"{prefix}::{target.id}", [*here, *own])

    def _pytestmark(self, body: list[ast.stmt], target: str) -> list[str]:
        assigned: list[ast.AST] = []
        for node in body:
            if isinstance(node, ast.Assign):
                if any(ast.unparse(one) == target for one in node.targets):
                    assigned.append(node.value)
            elif isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == target:
                assigned.append(node)
        return self._ids(assigned)

    def _ids(self, nodes: Iterable[ast.AST]) -> list[str]:
        ids: list[str] = []
        for call in _req_calls(nodes):
            self.used.add(call)
            for argument in call.args:
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                    ids.append(argument.value)
                else:
                    self.problems.append(f"{self.file}:{call.lineno}: write the ids out as text")
        return ids

    def _add(self, test: str, ids: list[str]) -> None:
        self.markers += [Marker(one, test) for one in dict.fromkeys(ids)]


def _req_calls(nodes: Iterable[ast.AST]) -> Iterator[ast.Call]:
    for node in nodes:
        for inner in ast.walk(node):
            if isinstance(inner, ast.Call) and ast.unparse(inner.func) == "pytest.mark.req":
                yield inner


def collect(root: Path) -> tuple[list[Marker], list[str]]:
    """All markers below ``root/tests``."""
    markers: list[Marker] = []
    problems: list[str] = []
    files = {*(root / "tests").rglob("test_*.py"), *(root / "tests").rglob("*_test.py")}
    for path in sorted(files):
        found, wrong = read_markers(
            path.read_text(encoding="utf-8"), path.relative_to(root).as_posix()
        )
        markers += found
        problems += wrong
    return markers, problems


def build(requirements: list[Requirement], markers: list[Marker], problems: list[str]) -> Matrix:
    """Join the two lists and note every gap and every unknown id.

    An id stands for itself: a test that names a section shows none of its statements.
    """
    matrix = Matrix(requirements, problems=list(problems))
    tests_by_id: dict[str, list[str]] = defaultdict(list)
    for marker in markers:
        tests_by_id[marker.id].append(marker.test)
    for one in requirements:
        matrix.tests[one.id] = sorted(tests_by_id[one.id])
        if not matrix.tests[one.id] and not one.not_testable:
            matrix.problems.append(f"{one.id}: no test shows it, and no reason says why not")
    for unknown in sorted(tests_by_id.keys() - {one.id for one in requirements}):
        near = difflib.get_close_matches(unknown, [one.id for one in requirements], n=5, cutoff=0.7)
        hint = f"; did you mean {', '.join(sorted(near))}?" if near else ""
        where = ", ".join(tests_by_id[unknown])
        matrix.problems.append(f"{unknown}: unknown requirement, named by {where}{hint}")
    return matrix


def render(matrix: Matrix) -> str:
    """The page: one table per document."""
    by_source: dict[str, list[Requirement]] = defaultdict(list)
    for one in matrix.requirements:
        by_source[one.source].append(one)
    lines = [INTRO]
    for source, members in by_source.items():
        shown = sum(1 for one in members if matrix.tests[one.id])
        reasons = sum(1 for one in members if one.not_testable and not matrix.tests[one.id])
        lines += [
            f"## {source}\n",
            f"{len(members)} requirements: {shown} shown by tests, {reasons} not testable.\n",
            "| id | requirement | shown by |",
            "| --- | --- | --- |",
        ]
        lines += [f"| {one.id} | {_cell(one.text)} | {_shown_by(matrix, one)} |" for one in members]
        lines.append("")
    return "\n".join(lines).rstrip("\n") + "\n"


def _shown_by(matrix: Matrix, one: Requirement) -> str:
    parts = [f"`{test}`" for test in matrix.tests[one.id]]
    if one.not_testable:
        parts.append(f"not testable: {_cell(one.not_testable)}")
    return "<br>".join(parts) or "**nothing yet**"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def main(arguments: Sequence[str] = (), root: Path = ROOT) -> int:
    """Write or check the page; 1 when something is wrong."""
    unknown = set(arguments) - {"--check"}
    if unknown:
        print(__doc__)
        return 0 if unknown <= {"--help", "-h"} else 2
    markers, problems = collect(root)
    matrix = build(load_requirements(root / REQUIREMENTS), markers, problems)
    page, text = root / PAGE, render(matrix)
    if "--check" not in arguments:
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(text, encoding="utf-8")
        print(f"{PAGE}: {len(matrix.requirements)} requirements, {len(matrix.problems)} problems")
        return 0
    if not page.exists() or page.read_text(encoding="utf-8") != text:
        matrix.problems.append(f"{PAGE} is stale: run make docs, or python tools/conformance.py")
    print("\n".join(matrix.problems) or f"conformance: {len(matrix.requirements)} requirements")
    if matrix.problems:
        print(f"{len(matrix.problems)} problems")
    return 1 if matrix.problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
