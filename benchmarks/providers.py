"""Guarded calls around nothing, beside retry, breaker and limiter libraries and bare stores.

One JSON line per case and contestant goes to standard output, a table to standard error. Servers
are private and temporary; whoever or whatever is missing is reported as skipped.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import platform
import shutil
import signal
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from types import FrameType
from typing import Any

from boundary_parts.races import Effort, FailedError, Record
from provider_parts.crowds import threads
from provider_parts.idling import memory
from provider_parts.passing import retries, success, success_async
from provider_parts.persisting import persisted
from provider_parts.refusing import rejection
from provider_parts.reserving import quota
from provider_parts.summaries import summary
from provider_parts.writing import writer

CASES: dict[str, Callable[[Effort], Iterator[Record]]] = {
    "success": success,
    "success-async": success_async,
    "retries": retries,
    "rejection": rejection,
    "persisted": persisted,
    "writer": writer,
    "quota": quota,
    "threads": threads,
    "summary": summary,
    "memory": memory,
}
PEERS = ("tenacity", "pybreaker", "aiobreaker", "limits", "stamina", "sqlalchemy", "psycopg")


def main() -> int:
    """Run the cases that were asked for and show what they say."""
    options = _options()
    signal.signal(signal.SIGTERM, _leave)
    logging.getLogger("ergon_framework").setLevel(logging.CRITICAL)  # circuits open on purpose here
    folder = Path(tempfile.mkdtemp(prefix="providers-bench-", dir=options.folder))
    records: list[Record] = []
    try:
        print(json.dumps(_machine(folder)), flush=True)
        for name in options.case or CASES:
            for record in _case(name, folder, options):
                records.append(record)
                print(json.dumps(record), flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    _show(records)
    return 0


def _leave(_number: int, _frame: FrameType | None) -> None:
    raise SystemExit(143)  # through every finally: nobody is left behind


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a rough answer within a minute")
    parser.add_argument("--case", action="append", choices=CASES, help="this case; repeatable")
    parser.add_argument("--rounds", type=int, help="turns of each contestant (5; quick: 1)")
    parser.add_argument("--huge", action="store_true", help="a summary of ten million attempts too")
    parser.add_argument("--folder", type=Path, help="where to keep the files; a real disk")
    return parser.parse_args()


def _case(name: str, folder: Path, options: argparse.Namespace) -> Iterator[Record]:
    place = folder / name
    place.mkdir()
    effort = Effort(
        folder=place,
        rounds=options.rounds or (1 if options.quick else 5),
        seconds=0.1 if options.quick else 0.5,
        is_quick=options.quick,
        is_huge=options.huge,
    )
    try:
        yield from CASES[name](effort)
    except FailedError as error:
        yield {"case": name, "who": "", "skipped": str(error)}
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _machine(folder: Path) -> dict[str, Any]:
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
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "packages": {name: found for name in PEERS if (found := _version(name))},
        "sync_ms": round(statistics.median(taken), 3),
        "load": [round(each, 1) for each in os.getloadavg()],
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _show(records: list[Record]) -> None:
    lines: list[tuple[str, ...]] = [
        ("case", "who", "us", "cpu us", "per second", "p99 us", "ratio", "target", "met")
    ]
    lines += [_cells(record) for record in records]
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    for line in lines:
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        print("  ".join(cells).rstrip(), file=sys.stderr)


def _cells(record: Record) -> tuple[str, ...]:
    if "skipped" in record:
        return (record["case"], record["who"], "skipped", *[""] * 5, record["skipped"])
    met = {True: "yes", False: "NO"}.get(record.get("met"), "")  # type: ignore[arg-type]
    figures = [
        f"{record[name]:,.4g}" if name in record else ""
        for name in ("us", "cpu_us", "per_second", "p99_us", "ratio")
    ]
    if "bytes" in record:
        figures[0] = f"{record['bytes']:,} B"
    return record["case"], record["who"], *figures, record.get("target", ""), met


if __name__ == "__main__":
    sys.exit(main())
