"""No-op transactions per second through the whole lifecycle, beside others, in one run.

One JSON line per case and contestant goes to standard output, a table to standard error. Telemetry
providers are global, so each group runs in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from engine_parts import memory
from engine_parts.cases import with_sdk, without_sdk
from engine_parts.rounds import EngineOptions, Instrumentation, race

GROUPS = ("plain", "sdk", "sdk+metrics", *memory.workloads())
LONGEST = 300.0
"""Seconds after which a group is given up."""


def main() -> int:
    """Run every group in a child and show what they say."""
    arguments = _parse_arguments()
    if arguments.group is not None:
        for record in _run_group(arguments):
            print(json.dumps(record), flush=True)
        return 0
    records = []
    for group in GROUPS:
        for record in _ask_child(group):
            records.append(record)
            print(json.dumps(record), flush=True)
    _show(records)
    return 0


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, help="turns of each contestant (5; quick: 3)")
    parser.add_argument("--count", type=int, help="transactions per turn, instead of a time")
    parser.add_argument("--case", default="", help="only cases whose name contains this")
    parser.add_argument("--quick", action="store_true", help="a rough answer within 40 seconds")
    parser.add_argument("--group", choices=GROUPS, help=argparse.SUPPRESS)
    return parser.parse_args()


def _ask_child(group: str) -> Iterator[dict[str, Any]]:
    command = [sys.executable, __file__, *sys.argv[1:], "--group", group]
    try:
        child = subprocess.run(  # noqa: S603 - this very file
            command, stdout=subprocess.PIPE, text=True, timeout=LONGEST, check=False
        )
    except subprocess.TimeoutExpired:
        yield {"case": group, "skipped": f"not finished after {LONGEST:g} seconds"}
        return
    yield from map(json.loads, child.stdout.splitlines())
    if child.returncode != 0:
        yield {"case": group, "skipped": f"the process ended with exit code {child.returncode}"}


def _run_group(arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    group: str = arguments.group
    if group in memory.workloads():
        if arguments.case in group:
            yield memory.measure(
                group, arguments.count or (50_000 if arguments.quick else 1_000_000)
            )
        return
    instrumentation = Instrumentation()
    if group != "plain":
        try:
            from engine_parts.telemetry_sdk import SdkInstrumentation
        except ImportError as error:
            yield {"case": group, "skipped": f"opentelemetry-sdk is not installed: {error}"}
            return
        instrumentation = SdkInstrumentation(with_metrics=group == "sdk+metrics")
    cases = without_sdk() if group == "plain" else with_sdk(group)
    yield from race(
        [case for case in cases if arguments.case in case.name],
        _run_options(arguments),
        instrumentation,
    )


def _run_options(arguments: argparse.Namespace) -> EngineOptions:
    rounds = arguments.rounds or (3 if arguments.quick else 5)
    return EngineOptions(rounds, 0.03 if arguments.quick else 0.15, arguments.count)


def _show(records: list[dict[str, Any]]) -> None:
    lines: list[tuple[str, ...]] = [
        ("case", "who", "per second", "spread", "ratio", "target", "met")
    ]
    lines += [_cells(record) for record in records]
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    for line in lines:
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        print("  ".join(cells).rstrip(), file=sys.stderr)


def _cells(record: dict[str, Any]) -> tuple[str, ...]:
    if "skipped" in record:
        return (record["case"], record.get("who", ""), "skipped", record["skipped"], "", "", "")
    if "per_second" in record:
        rate, spread = f"{record['per_second']:,}", "{:,} to {:,}".format(*record["spread"])
    else:
        rate, spread = "", f"{record['resident_growth_bytes'] / 1024:,.0f} KiB more"
    met = {True: "yes", False: "NO"}.get(record.get("met"), "")  # type: ignore[arg-type]
    ratio = f"{record['ratio']:.3g}" if "ratio" in record else ""
    return (record["case"], record["who"], rate, spread, ratio, record.get("target", ""), met)


if __name__ == "__main__":
    sys.exit(main())
