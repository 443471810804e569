"""What the benchmarks of the parts share: a folder, a line for each record, a table at the end."""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import signal
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from comparison import Effort, FailedError, Record


@dataclass(frozen=True)
class Bench:
    """The cases of a part, and how they are shown."""

    name: str
    text: str
    cases: dict[str, Callable[[Effort], Iterator[Record]]]
    huge: str
    """What ``--huge`` adds."""
    seconds: tuple[float, float]
    """The length of a turn: of a quick one, and of a full one."""
    titles: Sequence[str]
    cells: Callable[[Record], Sequence[str]]
    """The line of a record in the table, but for target and verdict."""

    def main(self, **about: Any) -> int:
        """Run the cases that were asked for and show what they say."""
        parser = asking(self.text, self.cases)
        parser.add_argument("--huge", action="store_true", help=self.huge)
        options = parser.parse_args()
        with place(f"{self.name}-bench-", options.folder) as folder:
            print(json.dumps(machine(folder, **about)), flush=True)
            names = options.case or self.cases
            records = told(each for name in names for each in self._case(name, folder, options))
        show(self.titles, self.cells, records)
        return 0

    def _case(self, name: str, folder: Path, options: argparse.Namespace) -> Iterator[Record]:
        quick, full = self.seconds
        with place(f"{name}-", folder) as inner:
            effort = Effort(
                folder=inner,
                rounds=options.rounds or (1 if options.quick else 5),
                seconds=quick if options.quick else full,
                is_quick=options.quick,
                is_huge=options.huge,
            )
            try:
                yield from self.cases[name](effort)
            except FailedError as error:
                yield {"case": name, "who": "", "skipped": str(error)}


def asking(text: str, cases: Iterable[str]) -> argparse.ArgumentParser:
    """The options that every benchmark of a part has."""
    parser = argparse.ArgumentParser(description=text)
    parser.add_argument("--quick", action="store_true", help="a rough answer within a minute")
    parser.add_argument("--case", action="append", choices=list(cases), help="this one; repeatable")
    parser.add_argument("--rounds", type=int, help="turns of each contestant; quick: 1")
    parser.add_argument("--folder", type=Path, help="where to keep the files; a real disk")
    return parser


@contextmanager
def place(prefix: str, parent: Path | None) -> Iterator[Path]:
    """A folder that is gone afterwards, also when we are told to stop."""
    signal.signal(signal.SIGTERM, _leave)
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _leave(_number: int, _frame: FrameType | None) -> None:
    raise SystemExit(143)  # through every finally: nobody is left behind


def machine(folder: Path, **more: Any) -> Record:
    """What absolute figures depend on."""
    path, taken = folder / "sync", []
    with path.open("wb") as file:
        for _ in range(100):
            file.write(bytes(4096))
            file.flush()
            began = time.perf_counter()
            os.fdatasync(file.fileno()) if hasattr(os, "fdatasync") else os.fsync(file.fileno())
            taken.append((time.perf_counter() - began) * 1e3)
    return {
        "case": "machine",
        "cores": os.cpu_count(),
        "architecture": platform.machine(),
        "kernel": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        **more,
        "sync_ms": round(statistics.median(taken), 3),
        "load": [round(each, 1) for each in os.getloadavg()],
    }


def told(records: Iterable[Record]) -> list[Record]:
    """Each record as a line of JSON as soon as it is there, and all of them."""
    kept = []
    for record in records:
        kept.append(record)
        print(json.dumps(record), flush=True)
    return kept


def show(
    titles: Sequence[str], cells: Callable[[Record], Sequence[str]], records: Iterable[Record]
) -> None:
    """A table for people: one line per record, with what was aimed at and whether it was met."""
    lines = [("case", "who", *titles, "target", "met")]
    lines += [_line(record, cells, len(titles)) for record in records]
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    for line in lines:
        padded = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        print("  ".join(padded).rstrip(), file=sys.stderr)


def _line(
    record: Record, cells: Callable[[Record], Sequence[str]], columns: int
) -> tuple[str, ...]:
    who = (record["case"], record.get("who", ""))
    if "skipped" in record:
        return (*who, "skipped", *[""] * columns, record["skipped"])
    met = {True: "yes", False: "NO"}.get(record.get("met"), "")  # type: ignore[arg-type]
    return (*who, *cells(record), record.get("target", ""), met)
