"""The settings file as it was written: its tables, the line of each key, and problems found in it.

``tomllib`` gives no positions, so a small scanner finds the line of each key. It reads only texts
that ``tomllib`` has accepted.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from pydantic import TypeAdapter, ValidationError

from ergon_framework.core.text import toml_heading
from ergon_framework.errors import SettingsError
from ergon_framework.ports.settings_model import dotted, explain_in

KeyPath: TypeAlias = tuple[str | int, ...]

_GAP = re.compile(r"(?:[ \t\r\n,]|#[^\n]*)*")  # a comma only ever separates
_KEY_PART = re.compile(r"[ \t]*(\"(?:[^\"\\\n]|\\.)*\"|'[^'\n]*'|[A-Za-z0-9_-]+)[ \t]*")
_SCALAR = re.compile(
    r'"""(?:[^\\]|\\.)*?"{3,5}'  # up to two quotes may stand before the closing three
    r"|'''.*?'{3,5}"
    r'|"(?:[^"\\\n]|\\.)*"'
    r"|'[^'\n]*'"
    r"|[^,\]}#\n]+",
    re.DOTALL,
)


def key_lines(text: str) -> dict[KeyPath, int]:
    """Each key path and each table's path, to the 1-based line where it stands."""
    scan = _Scan(text)
    with suppress(
        LookupError, ValueError
    ):  # lost its way: what was found until then is still right
        scan.document()
    return scan.lines


def line_of(lines: Mapping[KeyPath, int], path: KeyPath) -> int | None:
    """The line of ``path``, or of the innermost table around it that has one."""
    return next((lines[path[:n]] for n in range(len(path), 0, -1) if path[:n] in lines), None)


class _Scan:
    """One pass over a text that is valid TOML, to find the line of each key."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.lines: dict[KeyPath, int] = {}
        self.sizes: dict[KeyPath, int] = {}  # how many entries an array of tables has so far
        self.line = 1
        self.counted = 0  # newlines before this position are in self.line

    def document(self) -> None:
        table: KeyPath = ()
        while self.gap():
            if self.text.startswith("[", self.at):
                table = self.header()
            else:
                self.pair(table)

    def gap(self) -> bool:
        """Step over blanks, line ends, commas and comments; False at the end of the text."""
        self.skip(_GAP)
        return self.at < len(self.text)

    def skip(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self.text, self.at)
        if found is None:
            raise LookupError(self.at)
        self.at = found.end()
        return found.group()

    def here(self, path: KeyPath) -> None:
        self.line += self.text.count("\n", self.counted, self.at)
        self.counted = self.at
        for n in range(1, len(path) + 1):
            self.lines.setdefault(path[:n], self.line)

    def header(self) -> KeyPath:
        is_array = self.text.startswith("[[", self.at)
        self.at += 1 + is_array
        start = self.at
        path = self.resolved(self.key(), is_array=is_array)
        end, self.at = self.at, start
        self.here(path)
        # A table that was only implied by a child's header before is found at its own header.
        self.lines[path] = self.line
        self.at = end + 1 + is_array
        return path

    def resolved(self, names: KeyPath, *, is_array: bool) -> KeyPath:
        """The path with the index of the latest entry after each array of tables."""
        path: KeyPath = ()
        for name in names:
            path = (*path, name)
            is_last = len(path) - sum(isinstance(part, int) for part in path) == len(names)
            if is_array and is_last:
                self.sizes[path] = self.sizes.get(path, 0) + 1
            if path in self.sizes:
                path = (*path, self.sizes[path] - 1)
        return path

    def key(self) -> KeyPath:
        names = [self.skip(_KEY_PART).strip()]
        while self.text.startswith(".", self.at):
            self.at += 1
            names.append(self.skip(_KEY_PART).strip())
        return tuple(_plain(name) for name in names)

    def pair(self, table: KeyPath) -> None:
        start = self.at
        path = (*table, *self.key())
        end, self.at = self.at, start
        self.here(path)
        self.at = end + 1  # the equals sign
        self.value(path)

    def value(self, path: KeyPath) -> None:
        self.gap()
        opened = self.text[self.at]
        if opened not in "[{":
            self.skip(_SCALAR)
            return
        self.at += 1
        index = 0
        while self.gap() and self.text[self.at] not in "]}":
            if opened == "{":
                self.pair(path)
            else:
                self.here((*path, index))
                self.value((*path, index))
                index += 1
        self.at += 1


def _plain(name: str) -> str:
    """A key as it reads once its quotes and escapes are gone."""
    if name[0] not in "\"'":
        return name
    value: str = tomllib.loads(f"key = {name}")["key"]
    return value


T = TypeVar("T")

REMEDY = "docs/reference/settings.md describes every key"


@dataclass(frozen=True, slots=True)
class Location:
    """Where a setting was written: a line of a file, or an environment variable."""

    file: str | None = None
    line: int | None = None
    variable: str | None = None

    @property
    def order(self) -> tuple[bool, int]:
        """The order of a report: the file from its beginning, then variables."""
        return self.variable is not None, self.line or 0

    def __str__(self) -> str:
        if self.variable is not None:
            return f"environment variable {self.variable}"
        file = self.file or "settings"
        return file if self.line is None else f"{file}:{self.line}"


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem in the settings: file and line, key, and what to do."""

    place: Location
    key: str
    problem: str
    remedy: str

    @property
    def message(self) -> str:
        """What is wrong and where, without what to do."""
        return ": ".join(part for part in (str(self.place), self.key, self.problem) if part)

    def __str__(self) -> str:
        return f"{self.message} ({self.remedy})" if self.remedy else self.message

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as an error carries them."""
        return {
            "where": str(self.place),
            "file": self.place.file,
            "line": self.place.line,
            "key": self.key,
            "problem": self.problem,
            "remedy": self.remedy,
        }


@dataclass(slots=True)
class SettingsSource:
    """Tables of raw settings that remember the file, the line or the variable of each key."""

    tables: dict[str, Any] = field(default_factory=dict)
    file: Path | None = None
    lines: dict[KeyPath, int] = field(default_factory=dict)
    variables: dict[KeyPath, str] = field(default_factory=dict)
    referred: set[str] = field(default_factory=set)
    """Variables that ``env:`` refers to."""
    problems: list[Problem] = field(default_factory=list)
    mistaken: set[KeyPath] = field(default_factory=set)
    """The paths of mistakes found so far, so that later checks skip what is wrong."""

    def where(self, path: KeyPath) -> Location:
        """Where ``path`` was written, or failing that, what is nearest around or below it."""
        file = None if self.file is None else str(self.file)
        for n in range(len(path), 0, -1):
            if path[:n] in self.variables:
                return Location(variable=self.variables[path[:n]])
            if path[:n] in self.lines:
                return Location(file, line_of(self.lines, path[:n]))
            below = [name for key, name in self.variables.items() if key[:n] == path[:n]]
            if below:
                return Location(variable=below[0])
        return Location(file)

    def is_from_variable(self, path: KeyPath) -> bool:
        """Whether the value at ``path`` was given, alone or in a table, by a variable."""
        return any(path[:n] in self.variables for n in range(1, len(path) + 1))

    def has_problem(self, path: KeyPath) -> bool:
        """Whether something at ``path``, in it or around it, is known to be wrong."""
        return any(
            bad[: len(path)] == path or path[: len(bad)] == bad for bad in self.mistaken if bad
        )

    def add_problem(
        self, path: KeyPath, problem: str, remedy: str = "", variable: str | None = None
    ) -> None:
        """Note a mistake."""
        place = self.where(path) if variable is None else Location(variable=variable)
        mistake = Problem(place, dotted(path), problem, remedy)
        if mistake not in self.problems:  # two parts may stumble over the same thing
            self.problems.append(mistake)
        self.mistaken.add(path)

    def check(self, path: KeyPath, value: object, kind: TypeAdapter[T]) -> T | None:
        """``value`` as ``kind``, with its mistakes noted.

        What is wrong is left out of it, and no more around it than does not stand without it; None
        when nothing is left.
        """
        # Each round leaves out at least one key, or ends.
        gone: set[KeyPath] = set()
        while True:
            try:
                return kind.validate_python(value)
            except ValidationError as error:
                wrong = self._note(path, error, value, gone)
            places = {_reached(value, keys) for keys in wrong}
            if () in places:
                return None
            gone |= places
            for place in places:
                value = _without(value, place)

    def _note(
        self, path: KeyPath, error: ValidationError, value: object, gone: set[KeyPath]
    ) -> list[KeyPath]:
        """Note what is wrong, unless it is so for what was left out; the paths that are wrong.

        A key that is missing may be so because the only one of its table was wrong.
        """
        wrong: list[KeyPath] = []
        for details in error.errors(include_url=False, include_input=False):
            keys = tuple(part for part in details["loc"] if part != "[key]")
            wrong.append(keys)
            there = _reached(value, keys)
            if not any(bad[: len(there)] == there for bad in gone):
                place = (*path, *keys)
                heading = toml_heading(place[:-1]) if place[1:] else ""
                self.add_problem(place, explain_in(heading, details))
        return wrong

    def raise_problems(self) -> None:
        """Raise one error with every problem noted so far."""
        if self.problems:
            raise _refusal(sorted(self.problems, key=lambda each: each.place.order))


def _reached(value: object, path: KeyPath) -> KeyPath:
    """How much of a path leads through tables; of a key that is missing, the table it is not in."""
    for n, key in enumerate(path):
        if not isinstance(value, dict) or key not in value:
            return path[:n]
        value = value[key]
    return path


def _without(value: Any, path: KeyPath) -> Any:
    """A copy of tables without the key at the end of a path; all of it may be gone already."""
    key, *rest = path
    if not isinstance(value, dict) or key not in value:
        return value
    if not rest:
        return {name: each for name, each in value.items() if name != key}
    return value | {key: _without(value[key], tuple(rest))}


def _refusal(mistakes: Sequence[Problem], remedy: str = REMEDY) -> SettingsError:
    details = {"mistakes": [mistake.to_dict() for mistake in mistakes]}
    if len(mistakes) == 1:
        message = mistakes[0].message
        remedy = mistakes[0].remedy or remedy
    else:
        message = f"{len(mistakes)} mistakes in the settings:"
        message += "".join(f"\n  {mistake}" for mistake in mistakes) + "\n"
    return SettingsError(message, remedy=remedy, details=details)


def read_toml(file: Path) -> SettingsSource:
    """The tables of a TOML file, with the line of each key."""
    try:
        text = file.read_bytes().decode("utf-8-sig").replace("\r\n", "\n")
        return SettingsSource(tomllib.loads(text), file, key_lines(text))
    except FileNotFoundError as error:
        raise _unreadable(file, None, "there is no such file", "create it, or name another") from (
            error
        )
    except OSError as error:
        problem, remedy = f"cannot be read: {error.strerror}", "make it a readable file"
        raise _unreadable(file, None, problem, remedy) from error
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise _unreadable(file, line, "not UTF-8 text", "save the file as UTF-8") from error
    except tomllib.TOMLDecodeError as error:
        raise _unreadable(file, *_syntax(str(error)), "see https://toml.io") from error
    except RecursionError as error:
        problem = "it is nested too deeply"
        raise _unreadable(file, None, problem, "see what wrote it: no setting is like that") from (
            error
        )
    except ValueError as error:  # a number that Python does not read
        problem, remedy = "it has a number of too many digits", "correct the number"
        raise _unreadable(file, None, problem, remedy) from error


def _unreadable(file: Path, line: int | None, problem: str, remedy: str) -> SettingsError:
    return _refusal([Problem(Location(str(file), line), "", problem, "")], remedy)


def _syntax(text: str) -> tuple[int | None, str]:
    found = re.search(r" \(at line (\d+), column \d+\)$", text)
    if found is None:  # "at end of document"
        return None, f"not TOML: {text}"
    return int(found[1]), f"not TOML: {text[: found.start()]}"


def did_you_mean(name: str, known: Sequence[str]) -> str:
    """A hint that names the nearest known name, or all of them."""
    near = get_close_matches(name.lower(), known, 1)
    if near:
        return f"did you mean {near[0]!r}?"
    return "known are " + ", ".join(known) if known else "none is defined"
