"""Jobs and facts on every engine, beside the peers that live there: what each operation costs.

One JSON line per case and contestant goes to standard output, a table to standard error. Servers
are private, temporary and durable: PostgreSQL with ``fsync`` and ``synchronous_commit``, Redis with
``appendfsync always``, NATS with ``sync_interval: always``, for us and for the peers. Whoever or
whatever is missing is reported as skipped.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from comparison import Record
from harness import argument_parser, describe_machine, print_records, print_table, temporary_folder
from jobs_parts.session import Session
from scale_parts.appends import ENGINES as LOGS
from scale_parts.appends import appends
from scale_parts.drains import drain, queue_lengths, worker_counts
from scale_parts.engines import ENGINES, KEYS
from scale_parts.options import ScaleOptions
from scale_parts.queue_operations import queue_operations

CASES = {
    "queue": queue_operations,
    "drain": drain,
    "queued": queue_lengths,
    "workers": worker_counts,
    "append": appends,
}
LENGTHS, DRAINED, WORKERS = (1_000, 1_000_000), (10_000, 100_000), (1, 2, 4)


def main() -> int:
    """Run the cases that were asked for and show what they say."""
    arguments = _parse_arguments()
    with temporary_folder("scale-bench-", arguments.folder) as folder:
        folder.chmod(0o711)  # PostgreSQL does not run as root, and has to get to its part of it
        options = _run_options(arguments, folder)
        session = Session(folder, options.rounds)
        try:
            print(json.dumps(describe_machine(folder)), flush=True)
            names = arguments.case or CASES
            records = print_records(
                each for name in names for each in CASES[name](session, options)
            )
        finally:
            session.close()
    print_table(("per second", "spread", "ratio"), _cells, records)
    return 0


def _parse_arguments() -> argparse.Namespace:
    parser = argument_parser(__doc__, CASES)
    engines = list(dict.fromkeys([*(engine.key for engine in ENGINES), *LOGS]))
    parser.add_argument("--engine", action="append", choices=engines, help="this one; repeatable")
    parser.add_argument("--peers", type=_names, help=f"some of {','.join(KEYS)}; all if not given")
    parser.add_argument("--lengths", type=_numbers, help="of queues, such as 1000,1000000")
    parser.add_argument("--drained", type=_numbers, help="jobs queued, such as 10000,100000")
    parser.add_argument("--workers", type=_numbers, help="such as 1,2,4")
    arguments = parser.parse_args()
    unknown = (arguments.peers or frozenset()) - {*KEYS, ""}
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known are {', '.join(KEYS)}")
    return arguments


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split(","))


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(",")))


def _run_options(arguments: argparse.Namespace, folder: Path) -> ScaleOptions:
    quick: bool = arguments.quick
    return ScaleOptions(
        folder=folder,
        rounds=arguments.rounds or (1 if quick else 3),
        seconds=0.2 if quick else 1.5,
        lengths=arguments.lengths or (LENGTHS[:1] if quick else LENGTHS),
        drained=arguments.drained or ((1_000,) if quick else DRAINED),
        window=1.0 if quick else 5.0,
        workers=arguments.workers or (WORKERS[:2] if quick else WORKERS),
        engines=tuple(each for each in ENGINES if each.key in (arguments.engine or [each.key])),
        logs=tuple(each for each in LOGS if each in (arguments.engine or [each])),
        peers=arguments.peers,
    )


def _cells(record: Record) -> tuple[str, ...]:
    low, high = record["spread"]
    ratio = f"{record['ratio']:.3g}" if "ratio" in record else ""
    return f"{record['per_second']:,}", f"{low:,} to {high:,}", ratio


if __name__ == "__main__":
    sys.exit(main())
