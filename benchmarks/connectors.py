"""Consuming from brokers, beside the bare client's own loop and beside FastStream.

One JSON line per case and contestant goes to standard output, a table to standard error. Servers
are private and temporary; whoever or whatever is missing is reported as skipped. All contestants
of a case fetch as many at once, acknowledge each message by itself after it was handled, and handle
one at a time. A ratio is our rate divided by theirs in the same round.
"""

from __future__ import annotations

import sys
from importlib import metadata

from comparison import Record
from connector_parts.nats import nats
from connector_parts.postgres import postgres, postgres_threads
from connector_parts.rabbitmq import rabbitmq, rabbitmq_threads
from connector_parts.redis_streams import redis_streams, redis_streams_threads
from harness import Benchmark

CASES = {
    "nats": nats,
    "postgres": postgres,
    "postgres-threads": postgres_threads,
    "rabbitmq": rabbitmq,
    "rabbitmq-threads": rabbitmq_threads,
    "redis-streams": redis_streams,
    "redis-streams-threads": redis_streams_threads,
}
LIBRARIES = ("aio-pika", "faststream", "nats-py", "pika", "psycopg", "redis")


def main() -> int:
    """Run the cases that were asked for and show what they say."""
    return BENCHMARK.main(packages={name: found for name in LIBRARIES if (found := _version(name))})


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def cells(record: Record) -> list[str]:
    """The figures of a record."""
    spread = " to ".join(f"{each:.3g}" for each in record.get("ratio_spread", ()))
    ratio = f"{record['ratio']:.3g}" if "ratio" in record else ""
    return [f"{record['per_second']:,.0f}", f"{record.get('cpu_us', 0):,.0f}", ratio, spread]


BENCHMARK = Benchmark(
    name="connectors",
    text=__doc__,
    cases=CASES,
    huge="nothing here",
    seconds=(1.0, 4.0),
    titles=("per second", "cpu us", "ratio", "spread"),
    cells=cells,
)

if __name__ == "__main__":
    sys.exit(main())
