"""The catalogue against the source: no notice that is unknown, none that nobody tells."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import ergon_framework
from ergon_framework.ports.notice import CATALOGUE

SOURCE = Path(ergon_framework.__file__).parent
NAME = re.compile(r"[a-z_]+\.[a-z_]+")
TELLERS = frozenset({"emit", "tell", "say", "warn", "note", "_tell", "_report", "Notice"})
"""Functions whose first argument is the name of a notice."""
ADDED = frozenset({"call", "key", "tenant_id", "provider_name", "capability"})
"""Fields that a teller adds: the engine its call, provider calls what a key stands for."""


class Told(ast.NodeVisitor):
    """Every name of a notice in a file, and the fields that are given with it."""

    def __init__(self) -> None:
        self.found: list[tuple[str, set[str] | None]] = []

    def visit_Call(self, node: ast.Call) -> None:
        function = node.func
        name = getattr(function, "attr", getattr(function, "id", ""))
        if name in TELLERS and node.args:
            fields = _fields(node)
            self.found += [(each, fields) for each in _names(node.args[0])]
        self.generic_visit(node)


def _names(node: ast.expr) -> Iterator[str]:
    """Names of notices in an argument: a text, or one of two, or one of a table beside it."""
    for each in ast.walk(node):
        if isinstance(each, ast.Constant) and NAME.fullmatch(str(each.value)):
            yield str(each.value)


def _fields(node: ast.Call) -> set[str] | None:
    """The fields of one call; None when they are not written out."""
    if any(keyword.arg is None for keyword in node.keywords):
        return None
    named = {str(keyword.arg) for keyword in node.keywords}
    table = next((each for each in node.args[1:] if isinstance(each, ast.Dict)), None)
    if table is not None:
        named |= {str(key.value) for key in table.keys if isinstance(key, ast.Constant)}
    elif not named and len(node.args) > 1:
        return None
    return named


@cache
def trees() -> list[tuple[Path, ast.Module]]:
    """Every module of the package, read."""
    files = sorted(SOURCE.rglob("*.py"))
    return [(file, ast.parse(file.read_text(encoding="utf-8"))) for file in files]


@cache
def told() -> dict[str, list[set[str] | None]]:
    """By name: the fields at each place where it is told."""
    places: dict[str, list[set[str] | None]] = defaultdict(list)
    for file, tree in trees():
        if file.name != "notice.py":
            visitor = Told()
            visitor.visit(tree)
            for name, fields in visitor.found:
                places[name].append(fields)
    return places


def mentioned() -> set[str]:
    """Every text in the source that is the name of a notice, for names chosen from tables."""
    return {
        str(node.value)
        for file, tree in trees()
        if file.name not in ("notice.py", "flattening.py")
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and node.value in CATALOGUE
    }


@pytest.mark.req("ONE:notices")
def test_everything_told_is_in_the_catalogue() -> None:
    """A name that the catalogue does not know is a mistake in one of the two."""
    unknown = set(told()) - set(CATALOGUE)
    assert unknown - {"store.broken"} == set()  # between two threads of a worker, told to nobody


@pytest.mark.req("ONE:notices")
def test_everything_in_the_catalogue_is_told() -> None:
    """A name that nobody tells would promise something that never comes."""
    spoken = mentioned() | {f"records.{word}" for word in _ledger_words()}
    assert set(CATALOGUE) - spoken == set()


@pytest.mark.req("ONE:notices")
def test_fields_are_those_of_the_catalogue() -> None:
    """Wherever a notice is told with its fields written out, they are the promised ones."""
    for name, places in told().items():
        if name not in CATALOGUE:
            continue
        promised = set(CATALOGUE[name].fields)
        for fields in places:
            if fields is not None:
                assert fields - ADDED == promised - ADDED, name


def _ledger_words() -> tuple[str, ...]:
    from ergon_framework.providers import write_behind

    return write_behind.COUNTED_AS  # the names are made of these words
