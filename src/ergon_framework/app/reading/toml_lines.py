"""On which line of a TOML text each key stands, so that a mistake can be pointed at.

The text must already have been read by :mod:`tomllib`: nothing is checked here, and what the
grammar rules out may be located anywhere.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from typing import TypeAlias

Path: TypeAlias = tuple[str | int, ...]

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


def key_lines(text: str) -> dict[Path, int]:
    """Each key path and each table's path, to the 1-based line where it stands."""
    scan = _Scan(text)
    with suppress(
        LookupError, ValueError
    ):  # lost its way: what was found until then is still right
        scan.document()
    return scan.lines


def line_of(lines: Mapping[Path, int], path: Path) -> int | None:
    """The line of ``path``, or of the innermost table around it that has one."""
    return next((lines[path[:n]] for n in range(len(path), 0, -1) if path[:n] in lines), None)


class _Scan:
    """One pass over a text that is known to be TOML."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.lines: dict[Path, int] = {}
        self.sizes: dict[Path, int] = {}  # how many entries an array of tables has so far
        self.line = 1
        self.counted = 0  # newlines before this position are in self.line

    def document(self) -> None:
        table: Path = ()
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

    def here(self, path: Path) -> None:
        self.line += self.text.count("\n", self.counted, self.at)
        self.counted = self.at
        for n in range(1, len(path) + 1):
            self.lines.setdefault(path[:n], self.line)

    def header(self) -> Path:
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

    def resolved(self, names: Path, *, is_array: bool) -> Path:
        """The path with the index of the latest entry after each array of tables."""
        path: Path = ()
        for name in names:
            path = (*path, name)
            is_last = len(path) - sum(isinstance(part, int) for part in path) == len(names)
            if is_array and is_last:
                self.sizes[path] = self.sizes.get(path, 0) + 1
            if path in self.sizes:
                path = (*path, self.sizes[path] - 1)
        return path

    def key(self) -> Path:
        names = [self.skip(_KEY_PART).strip()]
        while self.text.startswith(".", self.at):
            self.at += 1
            names.append(self.skip(_KEY_PART).strip())
        return tuple(_plain(name) for name in names)

    def pair(self, table: Path) -> None:
        start = self.at
        path = (*table, *self.key())
        end, self.at = self.at, start
        self.here(path)
        self.at = end + 1  # the equals sign
        self.value(path)

    def value(self, path: Path) -> None:
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
