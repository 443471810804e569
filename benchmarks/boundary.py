"""Appends, puts and crossings of the boundary on disk, beside bare floors and durable logs.

One JSON line per case and contestant goes to standard output, a table to standard error. Servers
are private and temporary; whoever or whatever is missing is reported as skipped.
"""

from __future__ import annotations

import sys

from boundary_parts.appends import batched, in_process, over_socket, with_clients
from boundary_parts.artifacts import put
from boundary_parts.catch_up import catch_up, healing
from boundary_parts.idle_polls import idle_polls
from boundary_parts.ledger import ledger
from boundary_parts.sizes import by_size
from comparison import Record
from harness import Benchmark

CASES = {
    "in-process": in_process,
    "socket": over_socket,
    "client": with_clients,
    "batch": batched,
    "put": put,
    "catch-up": catch_up,
    "healing": healing,
    "idle-polls": idle_polls,
    "ledger": ledger,
    "sizes": by_size,
}


def cells(record: Record) -> list[str]:
    """The figures of a record."""
    ratio, spread = "", ""
    if "ratio" in record:
        low, high = record["ratio_spread"]
        ratio, spread = f"{record['ratio']:.3g}", f"{low:.3g} to {high:.3g}"
    times = [f"{record[name]:.3g}" if name in record else "" for name in ("p50_ms", "p99_ms")]
    return [f"{record['per_second']:,}", *times, ratio, spread]


BENCHMARK = Benchmark(
    name="boundary",
    text=__doc__,
    cases=CASES,
    huge="a ledger of ten million ids as well",
    seconds=(0.2, 1.0),
    titles=("per second", "p50 ms", "p99 ms", "ratio", "spread"),
    cells=cells,
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
