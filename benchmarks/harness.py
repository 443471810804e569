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

from comparison import ContestantError, Record, RunOptions


@dataclass(frozen=True)
class Benchmark:
    """The cases of a part, and how they are shown."""

    name: str
    text: str
    cases: dict[str, Callable[[RunOptions], Iterator[Record]]]
    huge: str
    """What ``--huge`` adds."""
    seconds: tuple[float, float]
    """The length of a turn: of a quick one, and of a full one."""
    titles: Sequence[str]
    cells: Callable[[Record], Sequence[str]]
    """The line of a record in the table, but for target and verdict."""

    def main(self, **about: Any) -> int:
        """Run the cases that were asked for and show what they say."""
        parser = argument_parser(self.text, self.cases)
        parser.add_argument("--huge", action="store_true", help=self.huge)
        arguments = parser.parse_args()
        with temporary_folder(f"{self.name}-bench-", arguments.folder) as folder:
            print(json.dumps(describe_machine(folder, **about)), flush=True)
            names = arguments.case or self.cases
            records = print_records(
                each for name in names for each in self._case(name, folder, arguments)
            )
        print_table(self.titles, self.cells, records)
        return 0

    def _case(self, name: str, folder: Path, arguments: argparse.Namespace) -> Iterator[Record]:
        quick, full = self.seconds
        with temporary_folder(f"{name}-", folder) as inner:
            options = RunOptions(
                folder=inner,
                rounds=arguments.rounds or (1 if arguments.quick else 5),
                seconds=quick if arguments.quick else full,
                is_quick=arguments.quick,
                is_huge=arguments.huge,
            )
            try:
                yield from self.cases[name](options)
            except ContestantError as error:
                yield {"case": name, "who": "", "skipped": str(error)}


def argument_parser(text: str, cases: Iterable[str]) -> argparse.ArgumentParser:
    """The arguments that every benchmark of a part has."""
    parser = argparse.ArgumentParser(description=text)
    parser.add_argument("--quick", action="store_true", help="a rough answer within a minute")
    parser.add_argument("--case", action="append", choices=list(cases), help="this one; repeatable")
    parser.add_argument("--rounds", type=int, help="turns of each contestant; quick: 1")
    parser.add_argument("--folder", type=Path, help="where to keep the files; a real disk")
    return parser


@contextmanager
def temporary_folder(prefix: str, parent: Path | None) -> Iterator[Path]:
    """A folder that is gone afterwards, also when we are told to stop."""
    signal.signal(signal.SIGTERM, _exit_on_signal)
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _exit_on_signal(_number: int, _frame: FrameType | None) -> None:
    raise SystemExit(143)  # through every finally: nobody is left behind


def describe_machine(folder: Path, **more: Any) -> Record:
    """What absolute figures depend on."""
    path, waits = folder / "sync", []
    with path.open("wb") as file:
        for _ in range(100):
            file.write(bytes(4096))
            file.flush()
            began = time.perf_counter()
            os.fdatasync(file.fileno()) if hasattr(os, "fdatasync") else os.fsync(file.fileno())
            waits.append((time.perf_counter() - began) * 1e3)
    return {
        "case": "machine",
        "cores": os.cpu_count(),
        "architecture": platform.machine(),
        "kernel": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        **more,
        "sync_ms": round(statistics.median(waits), 3),
        "load": [round(each, 1) for each in os.getloadavg()],
    }


def print_records(records: Iterable[Record]) -> list[Record]:
    """Each record as a line of JSON as soon as it is there, and all of them."""
    kept = []
    for record in records:
        kept.append(record)
        print(json.dumps(record), flush=True)
    return kept


def print_table(
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
    head = (record["case"], record.get("who", ""))
    if "skipped" in record:
        return (*head, "skipped", *[""] * columns, record["skipped"])
    met = {True: "yes", False: "NO"}.get(record.get("met"), "")  # type: ignore[arg-type]
    return (*head, *cells(record), record.get("target", ""), met)
