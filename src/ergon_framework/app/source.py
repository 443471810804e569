"""Raw settings, where each of them came from, and the mistakes found in them.

A mistake is noted, not raised, so that one run names them all.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from ergon_framework.app.toml_lines import Path as KeyPath
from ergon_framework.app.toml_lines import key_lines, line_of
from ergon_framework.errors import SettingsError
from ergon_framework.ports.document import explain

T = TypeVar("T")

REMEDY = "docs/reference/settings.md describes every key"


@dataclass(frozen=True, slots=True)
class Mistake:
    """One thing that is wrong: where it was written, under which key, and what to do."""

    where: str
    key: str
    problem: str
    remedy: str

    def __str__(self) -> str:
        told = ": ".join(part for part in (self.where, self.key, self.problem) if part)
        return f"{told} ({self.remedy})" if self.remedy else told


@dataclass(slots=True)
class Source:
    """Tables of raw settings that remember the file, the line or the variable of each key."""

    tables: dict[str, Any] = field(default_factory=dict)
    file: Path | None = None
    lines: dict[KeyPath, int] = field(default_factory=dict)
    variables: dict[KeyPath, str] = field(default_factory=dict)
    mistakes: list[Mistake] = field(default_factory=list)

    def where(self, path: KeyPath) -> str:
        """Where ``path`` was written, or failing that, what is nearest around or below it."""
        for n in range(len(path), 0, -1):
            if path[:n] in self.variables:
                return f"environment variable {self.variables[path[:n]]}"
            if path[:n] in self.lines:
                return f"{self.file}, line {line_of(self.lines, path[:n])}"
            below = [name for key, name in self.variables.items() if key[:n] == path[:n]]
            if below:
                return f"environment variable {below[0]}"
        return str(self.file or "settings")

    def is_from_variable(self, path: KeyPath) -> bool:
        """Whether the value at ``path`` was given, alone or in a table, by a variable."""
        return any(path[:n] in self.variables for n in range(1, len(path) + 1))

    def refuse(self, path: KeyPath, problem: str, remedy: str = "", where: str = "") -> None:
        """Note a mistake."""
        key = ".".join(str(part) for part in path)
        self.mistakes.append(Mistake(where or self.where(path), key, problem, remedy))

    def check(self, path: KeyPath, value: object, shape: TypeAdapter[T]) -> T | None:
        """``value`` as ``shape``; None when it does not fit, with its mistakes noted."""
        try:
            return shape.validate_python(value)
        except ValidationError as error:
            for details in error.errors(include_url=False, include_input=False):
                keys = (part for part in details["loc"] if part != "[key]")
                self.refuse((*path, *keys), explain(details))
            return None

    def stop_if_mistaken(self) -> None:
        """Raise one error that tells every mistake noted so far."""
        if not self.mistakes:
            return
        details = {"mistakes": [asdict(mistake) for mistake in self.mistakes]}
        if len(self.mistakes) == 1:
            told = str(self.mistakes[0])
        else:
            told = f"{len(self.mistakes)} mistakes in the settings:"
            told += "".join(f"\n  {mistake}" for mistake in self.mistakes) + "\n"
        raise SettingsError(told, remedy=REMEDY, details=details)


def read_toml(file: Path) -> Source:
    """The tables of a TOML file, with the line of each key."""
    try:
        text = file.read_bytes().decode("utf-8-sig").replace("\r\n", "\n")
        return Source(tomllib.loads(text), file, key_lines(text))
    except FileNotFoundError as error:
        problem, remedy = "there is no such file", "create it, or name another"
        raise SettingsError(f"{file}: {problem}", remedy=remedy) from error
    except OSError as error:
        problem, remedy = f"cannot be read: {error.strerror}", "make it a readable file"
        raise SettingsError(f"{file}: {problem}", remedy=remedy) from error
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise SettingsError(
            f"{file}, line {line}: not UTF-8 text", remedy="save the file as UTF-8"
        ) from error
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(_syntax(file, str(error)), remedy="see https://toml.io") from error


def _syntax(file: Path, told: str) -> str:
    found = re.search(r" \(at line (\d+), column \d+\)$", told)
    if found is None:  # "at end of document"
        return f"{file}: not TOML: {told}"
    return f"{file}, line {found[1]}: not TOML: {told[: found.start()]}"


def did_you_mean(name: str, known: Sequence[str]) -> str:
    """A hint that names the nearest known name, or all of them."""
    near = get_close_matches(name.lower(), known, 1)
    if near:
        return f"did you mean {near[0]!r}?"
    return "known are " + ", ".join(known) if known else "none is defined"
