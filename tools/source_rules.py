"""Fails when the source breaks a rule that import-linter cannot see, because it is about names.

- ``core`` imports an allowlist of the standard library, msgspec, ``errors`` and itself.
- Only ``core`` names ``judge``: whether to try again is decided there.
- Only ``core`` lets a delay grow: a pause that is multiplied round by round is a retry policy.
- Only the clocks sleep, so that every wait follows the clock that a test moves.
- Only ``storage`` syncs files: a plain fsync stops at the cache of the drive on macOS.
- Tests use no private attribute and replace no constant of a module: they outlive a refactoring.
  ``tools/test_debt.json`` counts the places that still do, by file. A file may have fewer than it
  says there, never more; ``python tools/source_rules.py --write`` brings it up to date.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "ergon_framework"
TESTS = ROOT / "tests"
DEBT = ROOT / "tools" / "test_debt.json"
CORE_MAY_IMPORT = frozenset(
    {
        *("__future__", "collections", "dataclasses", "enum", "functools", "itertools", "json"),
        *("math", "msgspec", "operator", "re", "struct", "typing"),
        *("ergon_framework.core", "ergon_framework.errors"),
    }
)
CLOCKS = ("engine/clocks.py", "testing/")
SYNCS = ("storage/fsync.py", "storage/secure_files.py")
_JUDGE = "judge"
_SLEEPERS = {"time", "asyncio"}
_PLAIN_SYNCS = {"fsync", "fdatasync"}
_DELAY = re.compile(r"(^|_)(backoff|delay|pause|sleep|wait)(s|_|$)")


# Public in spite of their names: those of named tuples, and how a forked child ends.
_PUBLIC = frozenset({"_asdict", "_exit", "_fields", "_make", "_replace"})
_MAY_TAKE_ONE = re.compile(r"(?<!self)(?<!cls)\._[a-z]|(setattr|object|patch)\([^)]*\b_?[A-Z]{2}")
_CONSTANT = re.compile(r"_?[A-Z][A-Z0-9_]+")


class Violation(NamedTuple):
    """One place that breaks a rule, and what to do there."""

    line: int
    advice: str


def core_imports(tree: ast.AST) -> Iterator[Violation]:
    """Imports that the core may not have: whatever reads a clock, rolls dice or does I/O."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                modules = [alias.name for alias in names]
            case ast.ImportFrom(module=str(module), level=0):
                modules = [module]
            case ast.Call(func=ast.Name(id="__import__")):
                modules = ["__import__"]
            case _:
                continue
        for module in modules:
            if not _is_allowed(module):
                advice = f"the core may not import {module}; pass in what it would have told"
                yield Violation(node.lineno, advice)


def _is_allowed(module: str) -> bool:
    return any(module == each or module.startswith(f"{each}.") for each in CORE_MAY_IMPORT)


def judge_mentions(tree: ast.AST) -> Iterator[Violation]:
    """Code that imports, reads, defines or looks up ``judge``."""
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(names=names) if any(alias.name == _JUDGE for alias in names):
                pass
            case ast.Name(id=name) | ast.Attribute(attr=name) if name == _JUDGE:
                pass
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) if name == _JUDGE:
                pass
            case ast.Call(args=arguments) if any(_is_text(each, _JUDGE) for each in arguments):
                pass  # getattr(retry, "judge"), attrgetter("judge")
            case ast.Subscript(slice=index) if _is_text(index, _JUDGE):
                pass  # vars(retry)["judge"]
            case _:
                continue
        advice = "only the core calls judge; give a machine in the core a RetryRule instead"
        yield Violation(node.lineno, advice)


def growing_delays(tree: ast.AST) -> Iterator[Violation]:
    """Assignments that make a delay a multiple or a power of something that changes."""
    advice = "only the core decides how a delay grows: ask Backoff or a machine in the core"
    for node in ast.walk(tree):
        match node:
            case ast.AugAssign(target=target, op=ast.Mult() | ast.Pow() | ast.LShift()):
                if _is_delay(target):
                    yield Violation(node.lineno, advice)
            case (
                ast.Assign(targets=[target], value=value)
                | ast.NamedExpr(target=target, value=value)
            ):
                if _is_delay(target) and _grows(value, ast.unparse(target)):
                    yield Violation(node.lineno, advice)


def _is_delay(target: ast.expr) -> bool:
    match target:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return _DELAY.search(name.lower()) is not None
    return False


def _grows(value: ast.expr, name: str) -> bool:
    """Whether ``value`` multiplies ``name``, or has a variable exponent or shift."""
    for node in ast.walk(value):
        match node:
            case ast.BinOp(op=ast.Pow() | ast.LShift(), right=right):
                if any(isinstance(each, ast.Name | ast.Attribute) for each in ast.walk(right)):
                    return True
            case ast.BinOp(op=ast.Mult()):
                operands = (node.left, node.right)
                if any(ast.unparse(each) == name for side in operands for each in _names(side)):
                    return True
    return False


def _names(tree: ast.AST) -> Iterator[ast.expr]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute):
            yield node


def sleeps(tree: ast.AST) -> Iterator[Violation]:
    """Mentions of ``time.sleep`` and ``asyncio.sleep``, by whatever name."""
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module=str(module), names=names) if module in _SLEEPERS and any(
                alias.name == "sleep" for alias in names
            ):
                pass
            case ast.Attribute(value=ast.Name(id=module), attr="sleep") if module in _SLEEPERS:
                pass
            case ast.Call(args=[ast.Name(id=module), name, *_]) if module in _SLEEPERS and _is_text(
                name, "sleep"
            ):
                pass  # getattr(time, "sleep")
            case _:
                continue
        advice = "only the clocks sleep: use ergon_framework.engine.clocks"
        yield Violation(node.lineno, advice)


def plain_syncs(tree: ast.AST) -> Iterator[Violation]:
    """Mentions of ``os.fsync`` and ``os.fdatasync``."""
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module="os", names=names) if any(
                alias.name in _PLAIN_SYNCS for alias in names
            ):
                pass
            case ast.Attribute(value=ast.Name(id="os"), attr=name) if name in _PLAIN_SYNCS:
                pass
            case ast.Call(args=[ast.Name(id="os"), ast.Constant(value=name), *_]) if (
                name in _PLAIN_SYNCS
            ):
                pass  # getattr(os, "fdatasync")
            case _:
                continue
        advice = "a plain fsync may stop at the cache of the drive: use storage.fsync.sync_file"
        yield Violation(node.lineno, advice)


def private_attributes(tree: ast.AST) -> Iterator[Violation]:
    """Attributes with an underscore of objects that the test did not make up itself."""
    own = set(_defined(tree)) | _PUBLIC
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id="self" | "cls")):
                continue
            case ast.Attribute(attr=name) if name.startswith("_") and not name.startswith("__"):
                if name not in own:
                    advice = f"{name} is private; observe what it does, or pass in what it is"
                    yield Violation(node.lineno, advice)


def _defined(tree: ast.AST) -> Iterator[str]:
    """Members of the doubles in a test, which are its own."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name, ctx=ast.Store()):
                yield name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield name


def replaced_constants(tree: ast.AST) -> Iterator[Violation]:
    """Constants of modules that a test sets to another value."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(
                func=ast.Attribute(attr="setattr" | "object" | "patch"), args=[*arguments]
            ):
                for each in arguments[:2]:
                    name = each.value if isinstance(each, ast.Constant) else None
                    if isinstance(name, str) and _CONSTANT.fullmatch(name.rpartition(".")[2]):
                        advice = f"{name} is a constant; make it the default of an argument"
                        yield Violation(node.lineno, advice)


def _is_text(node: ast.expr, text: str) -> bool:
    return isinstance(node, ast.Constant) and node.value == text


Rule = Callable[[ast.AST], Iterator[Violation]]


def rules_for(path: str) -> tuple[Rule, ...]:
    """The rules that bind one file of the package, named relative to it."""
    if path.startswith("core/"):
        return (core_imports,)
    rules: tuple[Rule, ...] = (judge_mentions, growing_delays)
    if not path.startswith(CLOCKS):
        rules += (sleeps,)
    if path not in SYNCS:
        rules += (plain_syncs,)
    return rules


def violations(package: Path) -> list[str]:
    """``file:line: advice`` of everything that breaks a rule."""
    found = []
    for path in sorted(package.rglob("*.py")):
        name = path.relative_to(package).as_posix()
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for rule in rules_for(name):
            found += [f"{package.name}/{name}:{line}: {advice}" for line, advice in set(rule(tree))]
    return sorted(found)


def shortcuts(tests: Path) -> dict[str, dict[str, list[Violation]]]:
    """What the tests do that they should not, by rule and file."""
    found: dict[str, dict[str, list[Violation]]] = {rule.__name__: {} for rule in _FOR_TESTS}
    for path in sorted(tests.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if not _MAY_TAKE_ONE.search(text):  # most files, and parsing takes its time
            continue
        tree = ast.parse(text)
        for rule in _FOR_TESTS:
            if places := list(rule(tree)):
                found[rule.__name__][path.relative_to(tests).as_posix()] = places
    return found


def new_shortcuts(
    found: dict[str, dict[str, list[Violation]]], known: dict[str, dict[str, int]]
) -> list[str]:
    """``file:line: advice`` of every place in a file that has more of them than it is known to."""
    return sorted(
        f"tests/{name}:{line}: {advice}"
        for rule, by_file in found.items()
        for name, places in by_file.items()
        if len(places) > known.get(rule, {}).get(name, 0)
        for line, advice in places
    )


_FOR_TESTS: tuple[Rule, ...] = (private_attributes, replaced_constants)


def main(arguments: Sequence[str] = (), package: Path = PACKAGE, tests: Path = TESTS) -> int:
    """Print the violations; 1 when there are any."""
    taken = shortcuts(tests)
    if "--write" in arguments:
        counts = {
            rule: {name: len(places) for name, places in by_file.items()}
            for rule, by_file in taken.items()
        }
        DEBT.write_text(json.dumps(counts, indent=1, sort_keys=True) + "\n")
    known = json.loads(DEBT.read_text(encoding="utf-8"))
    found = violations(package) + new_shortcuts(taken, known)
    for each in found:
        print(each)
    if not found:
        print("source rules: core imports, judge, delays, sleeps and syncs are where they belong")
    left = [f"{rule} {sum(map(len, by_file.values()))}" for rule, by_file in taken.items()]
    print("tests:", ", ".join(left))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
