"""Where the source of a script binds a global name: when it is imported, or only when it is run.

The processes that run the jobs of an App import its script to find it. A name that is bound under
``if __name__ == "__main__":``, or by a function that nobody calls at import, is not there then.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

GUARD = 'under `if __name__ == "__main__":`'
_EVERYTHING = "*"
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


class NameBinding(NamedTuple):
    """A name that a statement binds, and where the statement stands; empty: where imports run."""

    name: str
    where: str
    function: str = ""
    """The function that binds it when it is called."""


def bound_late(file: Path, name: str) -> str:
    """Where a global name is bound that an import of the file does not bind, in words.

    Empty where an import does bind it, or where the source cannot tell.
    """
    statements = _statements(file)
    called = _called_at_import(statements)
    places = [
        "" if each.function in called else each.where
        for each in _bindings(statements, "")
        if each.name in (name, _EVERYTHING)
    ]
    return places[0] if places and all(places) else ""


def made_late(file: Path) -> str:
    """Where a file makes its first App, if an import of the file does not make one."""
    places = list(_apps(_statements(file), ""))
    return places[0] if places and all(places) else ""


def _statements(file: Path) -> list[ast.stmt]:
    """The source of a file; none where it cannot be read."""
    try:
        return ast.parse(file.read_bytes()).body
    except (OSError, SyntaxError, ValueError):
        return []


def _called_at_import(statements: Sequence[ast.stmt]) -> set[str]:
    """The functions that are called outside of functions and of the guard."""
    found: set[str] = set()
    for node in statements:
        if isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
            continue
        blocks = _blocks(node, "")
        for body, where in blocks:
            found |= set() if where else _called_at_import(body)
        if not blocks:
            calls = (each.func for each in ast.walk(node) if isinstance(each, ast.Call))
            # Only calls by a plain name: a method of some object cannot be looked up in the source.
            found |= {each.id for each in calls if isinstance(each, ast.Name)}
    return found


def _bindings(statements: Sequence[ast.stmt], where: str) -> Iterator[NameBinding]:
    for node in statements:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield NameBinding(name, where)
                yield from _global_bindings(node, name)
            case ast.ClassDef(name=name):
                yield NameBinding(name, where)
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                for alias in names:
                    yield NameBinding(alias.asname or alias.name.partition(".")[0], where)
            case _:
                for body, place in _blocks(node, where):
                    yield from _bindings(body, place)
                yield from (NameBinding(name, where) for name in _stored(node))


def _global_bindings(function: ast.AST, name: str) -> Iterator[NameBinding]:
    """The names that a function binds outside of itself."""
    for node in ast.walk(function):
        if isinstance(node, ast.Global):
            yield from (NameBinding(each, f"in {name}()", name) for each in node.names)


def _apps(statements: Sequence[ast.stmt], where: str) -> Iterator[str]:
    for node in statements:
        if isinstance(node, _FUNCTIONS):
            yield from (f"in {node.name}()" for _ in _calls(node))
            continue
        blocks = _blocks(node, where)
        for body, place in blocks:
            yield from _apps(body, place)
        if not blocks and not isinstance(node, ast.ClassDef):
            yield from (where for _ in _calls(node))


def _calls(node: ast.AST) -> Iterator[ast.Call]:
    for each in ast.walk(node):
        if isinstance(each, ast.Call):
            called = each.func
            name = called.id if isinstance(called, ast.Name) else getattr(called, "attr", "")
            if name == "App":
                yield each


def _blocks(node: ast.stmt, where: str) -> list[tuple[list[ast.stmt], str]]:
    """The blocks of a compound statement, and where their statements stand."""
    if isinstance(node, ast.If):
        is_guard = ast.unparse(node.test).replace('"', "'") in (
            "__name__ == '__main__'",
            "'__main__' == __name__",
        )
        return [(node.body, GUARD if is_guard else where), (node.orelse, where)]
    found = [getattr(node, field, None) or [] for field in ("body", "orelse", "finalbody")]
    found += [each.body for each in getattr(node, "handlers", ())]
    found += [each.body for each in getattr(node, "cases", ())]
    return [(body, where) for body in found if body]


def _stored(node: ast.stmt) -> Iterator[str]:
    """The names that a statement itself binds; those in its blocks may be among them."""
    if isinstance(node, ast.If):
        return
    for each in ast.walk(node):
        if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store):
            yield each.id
