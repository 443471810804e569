"""Fails when a name contradicts ``docs/glossary.md``: one word has one meaning.

- A file is not called by a word that the glossary lists under "Words we do not use", and neither is
  a class. Classes of tests are left out: planted defects are named by what they do.
- In the package that also holds for functions, arguments, variables and attributes, except for
  words that say something plain there (``PLAIN_IN_NAMES``).
- The map in the ``__init__`` of a package, however deep, names files that are there.
- A public class or type alias of the package has a name of its own: a reader who searches for it
  finds one home.
  ``SHARED`` lists the exceptions and why. A private class is looked for in its own file.
- In the tools and the benchmarks, each for itself, two classes may share a name.
- A word that the glossary explains is not also one that it forbids.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
GLOSSARY = Path("docs/glossary.md")
FORBIDDEN = "Words we do not use"
NAMED_FOLDERS = ("src", "tests", "tools", "benchmarks", "examples")
NAMED_KINDS = (".py", ".sql", ".lua")
PACKAGE = "src/ergon_framework"
CLASS_FOLDERS = (PACKAGE, "tools", "benchmarks", "examples")
EXAMPLES = "examples"  # each is a program of its own: all of them may have an ``Order``
HOMES_OF_SHARED = 2
HOMES_IN_PROGRAMS = 2
"""Of a class name in the tools or the benchmarks, whose files are programs."""
FINE_IN_COMPOUNDS = frozenset({"line"})
"""What says enough beside another word: a ``LineSplitter`` splits lines of text."""
PLAIN_IN_NAMES = frozenset(
    {
        *("bar", "hands", "hurry", "keeping", "line", "looking", "looks", "moves", "moving"),
        *("quick", "review", "reviewed", "ring", "shape", "shapes", "straight", "tale"),
        *("trail", "words"),
    }
)
"""What a file or a class is not called by, but a variable may be: ``moves`` of jobs, ``words``."""
UNNAMED_FOLDERS = ("testing/suites",)
"""Checks of stores are named by what they plant and see, and those names are public."""
SHARED: Mapping[str, str] = {
    "TelemetrySettings": "the section of the settings file, and what a program passes to configure",
    "RetrySettings": "the same section of the settings file, under a job and under a provider",
    "RetryPolicy": "two specifications name it: that of the engines and that of provider calls",
}
MANY: Mapping[str, str] = {
    "Peer": "each module of a queue that is measured offers its client under this name",
}
"""Names with any number of homes."""
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z][a-z0-9]*|[a-z0-9]+")
_BULLET = re.compile(r"^- ((?:\*\*[^*]+\*\*(?:[^*:]*, )?)+[^:]*):", re.MULTILINE)
_BOLD = re.compile(r"\*\*([^*]+)\*\*")
_MAP = re.compile(r"^(?:Where to look first|Start with|- ``\w+``)", re.MULTILINE)
_LISTED = re.compile(r"``([a-z_]\w*)``")


def words(text: str) -> tuple[set[str], set[str]]:
    """The terms that the glossary explains, and the words that it forbids."""
    explained, _, rest = text.partition(f"## {FORBIDDEN}")
    return set(_terms(explained)), set(_terms(rest))


def _terms(text: str) -> Iterator[str]:
    for head in _BULLET.findall(text):
        yield from (term.lower() for term in _BOLD.findall(head))


def contradictions(text: str) -> Iterator[str]:
    """Words that the glossary both explains and forbids."""
    explained, forbidden = words(text)
    for word in sorted(explained & forbidden):
        yield f"{GLOSSARY}: {word!r} is explained and forbidden; decide"


def bad_file_names(root: Path, forbidden: Iterable[str]) -> Iterator[str]:
    """Files whose names have a forbidden word between underscores."""
    refused = set(forbidden)
    for folder in NAMED_FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            if path.stem[0].isdigit():
                continue  # stores remember which migrations were applied by these names
            if path.suffix in NAMED_KINDS and (bad := refused & set(path.stem.split("_"))):
                name = path.relative_to(root)
                yield f"{name}: {min(bad)!r} is not a word of ours; {GLOSSARY} says which one is"


def bad_class_names(
    folder: str, homes: Mapping[str, list[str]], forbidden: Iterable[str]
) -> Iterator[str]:
    """Classes whose names have a forbidden word between capitals."""
    refused = set(forbidden)
    for name, places in sorted(homes.items()):
        found = {word.lower() for word in _WORD.findall(name)}
        bad = refused & found
        if len(found) > 1:
            bad -= FINE_IN_COMPOUNDS
        for place in places if bad else ():
            yield (
                f"{folder}/{place}: class {name}: {min(bad)!r} is not a word of ours;"
                f" {GLOSSARY} says which one is"
            )


def bad_identifiers(package: Path, forbidden: Iterable[str]) -> Iterator[str]:
    """Functions, arguments, variables and attributes whose names have a forbidden word."""
    refused = set(forbidden) - PLAIN_IN_NAMES
    for path in sorted(package.rglob("*.py")):
        place = path.relative_to(package).as_posix()
        if place.startswith(UNNAMED_FOLDERS):
            continue
        seen: set[str] = set()
        for name, number in _bound_names(ast.parse(path.read_text(encoding="utf-8"))):
            bad = refused & set(name.lower().split("_"))
            if bad and name not in seen:
                seen.add(name)
                yield (
                    f"{PACKAGE}/{place}:{number}: {name}: {min(bad)!r} is not a word of ours;"
                    f" {GLOSSARY} says which one is"
                )


def _bound_names(tree: ast.Module) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr, node.lineno


def class_homes(package: Path) -> dict[str, list[str]]:
    """Where each top-level class or type alias below a folder is defined."""
    homes = defaultdict(list)
    for path in sorted(package.rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if name := _type_name(node):
                homes[name].append(path.relative_to(package).as_posix())
    return homes


def _type_name(node: ast.stmt) -> str | None:
    """What a statement calls a type: a class, or ``Name: TypeAlias = …``."""
    match node:
        case ast.ClassDef(name=name):
            return name
        case ast.AnnAssign(target=ast.Name(id=name), annotation=ast.Name(id="TypeAlias")):
            return name
        case _:
            return None


def shared_names(homes: Mapping[str, list[str]], most: int) -> Iterator[str]:
    """Public classes with more homes than ``most``, and than ``SHARED`` allows."""
    for name, places in sorted(homes.items()):
        if name in MANY or name.startswith("_"):
            continue  # a private one is looked for in its own file
        allowed = HOMES_OF_SHARED if name in SHARED else most
        if len(places) > allowed:
            rule = (
                "give each a name of its own" if allowed == 1 else f"at most {allowed} may share it"
            )
            yield f"{name} is defined in {', '.join(places)}: {rule}"


def stale_maps(package: Path) -> Iterator[str]:
    """Maps in packages that name a file which is not there."""
    for path in sorted(package.rglob("*/__init__.py")):
        text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        begin = _MAP.search(text)
        if begin is None:
            continue
        listed, folder = set(_LISTED.findall(text, begin.start())), path.parent
        homes = {
            each.stem
            for each in folder.iterdir()
            if (each.suffix == ".py" or (each / "__init__.py").is_file()) and each.stem[0] != "_"
        }
        name = f"{PACKAGE}/{path.relative_to(package).as_posix()}"
        for each in sorted(listed - homes):
            if not _is_known(each, folder, package):
                yield f"{name}: the map names {each}, which is not there"


def _is_known(word: str, folder: Path, package: Path) -> bool:
    """Whether a word of a map is defined below its folder, or is a command."""
    defined = re.compile(rf"^\s*(?:async def|def|class) {word}\b", re.MULTILINE)
    catalogue = package / "cli" / "catalogue.py"
    commands = catalogue.read_text(encoding="utf-8") if catalogue.is_file() else ""
    return f'"{word}"' in commands or any(
        each.stem == word or defined.search(each.read_text(encoding="utf-8"))
        for each in folder.rglob("*.py")
    )


def violations(root: Path) -> list[str]:
    """Everything in a checkout that contradicts its glossary."""
    text = (root / GLOSSARY).read_text(encoding="utf-8")
    forbidden = words(text)[1]
    homes = {folder: class_homes(root / folder) for folder in CLASS_FOLDERS}
    found = [*contradictions(text), *bad_file_names(root, forbidden)]
    found += bad_identifiers(root / PACKAGE, forbidden)
    found += stale_maps(root / PACKAGE)
    for folder, classes in homes.items():
        found += bad_class_names(folder, classes, forbidden)
        if folder != EXAMPLES:
            found += shared_names(classes, 1 if folder == PACKAGE else HOMES_IN_PROGRAMS)
    return found


def main() -> int:
    """Print the violations; 1 when there are any."""
    found = violations(ROOT)
    for each in found:
        print(each)
    if not found:
        print("glossary: the names of files, classes, functions and variables keep to it")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
