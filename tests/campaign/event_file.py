"""What the processes of a campaign write down, one short line per write, all in one file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path


class Book:
    """A file that several processes append to; a line is there whole or not at all."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write(self, *lines: str) -> None:
        """Add lines with one call."""
        os.write(self._descriptor, "".join(f"{line}\n" for line in lines).encode())

    def lines(self) -> Iterator[list[str]]:
        """Every line, as words, in the order they were written."""
        for line in self.path.read_text(encoding="utf-8").splitlines():
            yield line.split(" ")

    def latest(self, size: int = 4096) -> list[list[str]]:
        """The last lines."""
        with self.path.open("rb") as file:
            file.seek(max(0, self.path.stat().st_size - size))
            whole = file.read().decode().splitlines()[1:]
        return [line.split(" ") for line in whole]

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._descriptor)


def at_work() -> None:
    """Tell whoever started this process that it may be struck now."""
    os.write(1, b"at work\n")
