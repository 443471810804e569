"""Fails when a name contradicts ``docs/glossary.md``: one word has one meaning.

- A file is not called by a word that the glossary lists under "Words we do not use".
- A class name has at most two homes, however private: a reader who searches for it finds one.
- A class that the documentation names has one home. ``SHARED`` lists the exceptions and why.
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
MOST_HOMES = 2
SHARED: Mapping[str, str] = {
    "TelemetrySettings": "the section of the settings file, and what a program passes to configure",
    "RetrySettings": "the same section of the settings file, under a job and under a provider",
    "RetryPolicy": "two specifications name it: that of the engines and that of provider calls",
}
_BULLET = re.compile(r"^- ((?:\*\*[^*]+\*\*(?:[^*:]*, )?)+[^:]*):", re.MULTILINE)
_BOLD = re.compile(r"\*\*([^*]+)\*\*")
_CODE_SPAN = re.compile(r"`([A-Z]\w+)(?:\(\)|\.\w+)*`")
_IMPORT = re.compile(r"from ergon_framework[\w.]* import (?:\(([\w,\s]+)\)|([\w, ]+))")
_UNDOCUMENTED = ("docs/design/", "docs/reference/conformance.md")


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


def class_homes(package: Path) -> dict[str, list[str]]:
    """Where each public top-level class of the package is defined."""
    homes = defaultdict(list)
    for path in sorted(package.rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(path.relative_to(package).as_posix())
    return homes


def documented_names(root: Path) -> set[str]:
    """Names that the pages for users show as code or import."""
    found: set[str] = set()
    for path in [root / "README.md", *sorted((root / "docs").rglob("*.md"))]:
        if path.is_file() and not path.relative_to(root).as_posix().startswith(_UNDOCUMENTED):
            text = path.read_text(encoding="utf-8")
            found.update(_CODE_SPAN.findall(text))
            for several, one_line in _IMPORT.findall(text):
                names = (several or one_line).split(",")
                found.update(name.partition(" as ")[0].strip() for name in names)
    return found


def shared_names(homes: Mapping[str, list[str]], documented: set[str]) -> Iterator[str]:
    """Class names with more homes than a reader can tell apart."""
    for name, places in sorted(homes.items()):
        most = 1 if name in documented and name not in SHARED else MOST_HOMES
        if len(places) > most:
            why = (
                "the documentation names it" if most == 1 else f"at most {MOST_HOMES} may share it"
            )
            yield f"class {name} is defined in {', '.join(places)}: {why}"


def violations(root: Path) -> list[str]:
    """Everything in a checkout that contradicts its glossary."""
    text = (root / GLOSSARY).read_text(encoding="utf-8")
    homes = class_homes(root / "src" / "ergon_framework")
    return [
        *contradictions(text),
        *bad_file_names(root, words(text)[1]),
        *shared_names(homes, documented_names(root)),
    ]


def main() -> int:
    """Print the violations; 1 when there are any."""
    found = violations(ROOT)
    for each in found:
        print(each)
    if not found:
        print("glossary: file names and class names keep to it")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
