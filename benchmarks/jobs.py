"""Jobs per second, enqueues per second and idle latency on durable SQLite, beside other queues.

One JSON line per case and contestant goes to standard output, a table to standard error. Servers
are private and temporary; whoever or whatever is missing is reported as skipped.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from harness import argument_parser, describe_machine, print_records, print_table, temporary_folder
from jobs_parts.cases import CASES, JobsOptions
from jobs_parts.queue_systems import ALL
from jobs_parts.session import Session


def main() -> int:
    """Run the cases that were asked for and show what they say."""
    arguments = _parse_arguments()
    with temporary_folder("jobs-bench-", arguments.folder) as folder:
        folder.chmod(0o711)  # PostgreSQL does not run as root, and has to get to its part of it
        session = Session(folder, arguments.rounds or (1 if arguments.quick else 3))
        try:
            print(json.dumps(describe_machine(folder)), flush=True)
            options = _run_options(arguments)
            names = arguments.case or CASES
            records = print_records(
                each for name in names for each in CASES[name](session, options)
            )
        finally:
            session.close()
    print_table(("figure", "spread", "ratio"), _cells, records)
    return 0


def _parse_arguments() -> argparse.Namespace:
    keys = [system.key for system in ALL]
    parser = argument_parser(__doc__, CASES)
    parser.add_argument("--peers", help=f"some of {','.join(keys)}; all if not given")
    parser.add_argument("--million", action="store_true", help="a million queued jobs as well")
    arguments = parser.parse_args()
    unknown = set((arguments.peers or "").split(",")) - {*keys, ""}
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known are {', '.join(keys)}")
    return arguments


def _run_options(arguments: argparse.Namespace) -> JobsOptions:
    peers = None if arguments.peers is None else frozenset(arguments.peers.split(","))
    quick: bool = arguments.quick
    return JobsOptions(
        seconds=0.3 if quick else 1.0,
        samples=15 if quick else 30,
        idle=2.0 if quick else 5.0,
        is_quick=quick,
        with_million=arguments.million,
        peers=peers,
    )


def _cells(record: dict[str, Any]) -> tuple[str, ...]:
    ratio = f"{record['ratio']:.3g}" if "ratio" in record else ""
    return (*_figure(record), ratio)


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
