"""Jobs per second, enqueues per second and idle latency on durable SQLite, beside other queues.

One JSON line per case and contestant goes to standard output, a table to standard error. Servers
are private and temporary; whoever or whatever is missing is reported as skipped.
"""

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
from pathlib import Path
from types import FrameType
from typing import Any

from jobs_parts.cases import CASES, Effort
from jobs_parts.contestants import ALL
from jobs_parts.races import Ground


def main() -> int:
    """Run the cases that were asked for and show what they say."""
    options = _options()
    signal.signal(signal.SIGTERM, _leave)
    folder = Path(tempfile.mkdtemp(prefix="jobs-bench-", dir=options.folder))
    folder.chmod(0o711)  # PostgreSQL does not run as root, and has to get to its part of it
    ground = Ground(folder, options.rounds or (1 if options.quick else 3))
    records: list[dict[str, Any]] = []
    try:
        records.append(_machine(folder))
        print(json.dumps(records[0]), flush=True)
        for name in options.only or CASES:
            for record in CASES[name](ground, _effort(options)):
                records.append(record)
                print(json.dumps(record), flush=True)
    finally:
        ground.close()
        shutil.rmtree(folder, ignore_errors=True)
    _show(records[1:])
    return 0


def _leave(_number: int, _frame: FrameType | None) -> None:
    raise SystemExit(143)  # through every finally: nobody is left behind


def _options() -> argparse.Namespace:
    keys = [who.key for who in ALL]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a rough answer within a minute")
    parser.add_argument("--only", action="append", choices=CASES, help="this case; repeatable")
    parser.add_argument("--peers", help=f"some of {','.join(keys)}; all if not given")
    parser.add_argument("--rounds", type=int, help="turns of each contestant (3; quick: 1)")
    parser.add_argument("--million", action="store_true", help="a million queued jobs as well")
    parser.add_argument("--folder", type=Path, help="where to keep the files; a real disk")
    options = parser.parse_args()
    unknown = set((options.peers or "").split(",")) - {*keys, ""}
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known are {', '.join(keys)}")
    return options


def _effort(options: argparse.Namespace) -> Effort:
    peers = None if options.peers is None else frozenset(options.peers.split(","))
    quick: bool = options.quick
    return Effort(
        seconds=0.3 if quick else 1.0,
        samples=15 if quick else 30,
        idle=2.0 if quick else 5.0,
        is_quick=quick,
        with_million=options.million,
        peers=peers,
    )


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
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "sync_ms": round(statistics.median(taken), 3),
        "load": [round(each, 1) for each in os.getloadavg()],
    }


def _show(records: list[dict[str, Any]]) -> None:
    lines: list[tuple[str, ...]] = [("case", "who", "figure", "spread", "ratio", "target", "met")]
    lines += [_cells(record) for record in records]
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    for line in lines:
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        print("  ".join(cells).rstrip(), file=sys.stderr)


def _cells(record: dict[str, Any]) -> tuple[str, ...]:
    if "skipped" in record:
        return (record["case"], record.get("who", ""), "skipped", record["skipped"], "", "", "")
    figure, spread = _figure(record)
    met = {True: "yes", False: "NO"}.get(record.get("met"), "")  # type: ignore[arg-type]
    ratio = f"{record['ratio']:.3g}" if "ratio" in record else ""
    return (record["case"], record["who"], figure, spread, ratio, record.get("target", ""), met)


def _figure(record: dict[str, Any]) -> tuple[str, str]:
    if "per_second" in record:
        low, high = record["spread"]
        return f"{record['per_second']:,}/s", f"{low:,} to {high:,}"
    if "p50_ms" in record:
        return f"{record['p50_ms']:.3g} ms", f"p99 {record['p99_ms']:.3g} ms"
    if "cpu_percent" in record:
        return f"{record['cpu_percent']:.2g} %", f"over {record['seconds']:g} s"
    return f"{record['resident_mib']:g} MiB", ""


if __name__ == "__main__":
    sys.exit(main())
