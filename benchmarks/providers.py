"""Guarded calls around nothing, beside retry, breaker and limiter libraries and bare stores.

One JSON line per case and contestant goes to standard output, a table to standard error. Servers
are private and temporary; whoever or whatever is missing is reported as skipped.
"""

from __future__ import annotations

import logging
import sys
from importlib import metadata

from comparison import Record
from harness import Benchmark
from provider_parts.health_summary import summary
from provider_parts.lane_memory import memory
from provider_parts.persistence import persisted
from provider_parts.quota import quota
from provider_parts.recorder import writer
from provider_parts.rejections import rejection
from provider_parts.successes import retries, success, success_async
from provider_parts.threads import threads

CASES = {
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
    logging.getLogger("ergon_framework").setLevel(logging.CRITICAL)  # circuits open on purpose here
    return BENCHMARK.main(packages={name: found for name in PEERS if (found := _version(name))})


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def cells(record: Record) -> list[str]:
    """The figures of a record."""
    figures = [
        f"{record[name]:,.4g}" if name in record else ""
        for name in ("us", "cpu_us", "per_second", "p99_us", "ratio")
    ]
    if "bytes" in record:
        figures[0] = f"{record['bytes']:,} B"
    return figures


BENCHMARK = Benchmark(
    name="providers",
    text=__doc__,
    cases=CASES,
    huge="a summary of ten million attempts too",
    seconds=(0.1, 0.5),
    titles=("us", "cpu us", "per second", "p99 us", "ratio"),
    cells=cells,
)

if __name__ == "__main__":
    sys.exit(main())
