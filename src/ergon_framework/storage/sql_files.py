"""SQL in files: named statements, and the numbered schema files of one part.

::

    -- claim: take up to so many due jobs
    UPDATE …

A line such as ``-- claim:`` starts the statement of that name, with a description after the colon;
the statement ends before the next such line. ``-- name: claim``, the form of other loaders, is read
as well.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import resources

from ergon_framework.errors import WiringError

_HEADING = re.compile(r"--\s+(?:name:\s*)?(?P<name>[a-z][a-z0-9_]*)\b(?P<text>.*)")
_MADE = re.compile(r"^CREATE TABLE (\w+)", re.MULTILINE)
_FILE = re.compile(r"(\d{4})_\w+\.sql")


class Statements(dict[str, str]):
    """The statements of one file by name; a wrong name is answered with the right ones."""

    def __init__(self, source: str, found: Mapping[str, str]) -> None:
        super().__init__(found)
        self._source = source

    def __missing__(self, name: str) -> str:
        raise KeyError(f"{self._source} has no statement {name!r}; it has {', '.join(self)}")


@cache
def load(package: str, file: str) -> Mapping[str, str]:
    """The named statements of a file beside the modules of ``package``."""
    source = f"{package}/{file}"
    try:
        text = (resources.files(package) / file).read_text(encoding="utf-8")
    except (ModuleNotFoundError, OSError) as error:
        raise WiringError(
            f"there is no file {source} with SQL statements",
            remedy="it belongs to the installed package; install it again",
        ) from error
    return parse(text, source)


def parse(text: str, source: str) -> Statements:
    """The named statements of a text."""
    found: dict[str, list[str]] = {}
    lines: list[str] | None = None
    for number, line in enumerate(text.splitlines(), 1):
        name = _name(line)
        if name is not None:
            if name in found:
                raise WiringError(f"{source} line {number}: a second statement {name!r}")
            lines = found[name] = []
        elif lines is not None:
            lines.append(line)
        elif line.strip() and not line.startswith("--"):
            raise WiringError(
                f"{source} line {number}: SQL before the first name",
                remedy="put a line `-- name: what it does` above it",
            )
    return Statements(source, {name: _body(name, body, source) for name, body in found.items()})


def _name(line: str) -> str | None:
    heading = _HEADING.fullmatch(line.rstrip())
    if heading is None:
        return None
    is_spelt_out = re.match(r"--\s+name:", line) is not None
    is_ours = heading["text"].startswith(":")
    return heading["name"] if is_spelt_out or is_ours else None


def _body(name: str, lines: list[str], source: str) -> str:
    body = "\n".join(lines).strip().removesuffix(";").rstrip()
    if all(not line.strip() or line.lstrip().startswith("--") for line in lines):
        raise WiringError(
            f"{source}: the statement {name!r} is empty",
            remedy="write SQL below it; a comment inside a statement must not read `-- word:`",
        )
    return body


@dataclass(frozen=True)
class SchemaFiles:
    """The tables of one part: files ``0001_name.sql``, ``0002_name.sql``, … of a package."""

    part: str
    package: str

    @cached_property
    def files(self) -> tuple[tuple[str, str], ...]:
        """Name and text of each file, in order; their numbers start at 1 and leave none out."""
        try:
            folder = resources.files(self.package)
            found = sorted(each.name for each in folder.iterdir() if _FILE.fullmatch(each.name))
        except (ModuleNotFoundError, FileNotFoundError, NotADirectoryError) as error:
            raise WiringError(f"there is no package {self.package} with SQL files") from error
        numbers = [int(name[:4]) for name in found]
        if not found or numbers != list(range(1, len(found) + 1)):
            raise WiringError(
                f"the schema files of {self.package} are {', '.join(found) or 'missing'}",
                remedy="number them 0001_, 0002_, … and leave none out",
            )
        return tuple((name, (folder / name).read_text(encoding="utf-8")) for name in found)

    @property
    def version(self) -> int:
        """The version this code works with."""
        return len(self.files)

    def made(self, version: int) -> list[str]:
        """The tables that the first ``version`` files create, each once."""
        found = (name for _, text in self.files[:version] for name in _MADE.findall(text))
        return list(dict.fromkeys(found))


def statements_of(text: str) -> Iterator[str]:
    """The single statements of a script, triggers included."""
    statement = ""
    for piece in text.split(";"):
        statement += piece + ";"
        if sqlite3.complete_statement(statement):
            if not _is_blank(statement):
                yield statement.strip()
            statement = ""
    if not _is_blank(statement):
        raise WiringError(f"an SQL script ends within a statement: {statement.strip()[:80]!r}")


def _is_blank(statement: str) -> bool:
    lines = (line.strip() for line in statement.replace(";", "").splitlines())
    return all(not line or line.startswith("--") for line in lines)
