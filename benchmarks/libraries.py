"""What we wrote by hand, beside the libraries that do the same.

One JSON line per case and contestant goes to standard output, a table to standard error. Servers
are private and temporary; whoever or whatever is missing is reported as skipped. A ratio is our
processor time divided by the library's: below 0.83 the library takes at least 20 % more.
"""

from __future__ import annotations

import sys
from importlib import metadata

from comparison import Record
from harness import Benchmark
from library_parts.drivers import arrays, nats_headers, nats_key, pool, redis_command, statements
from library_parts.event_loop import event_loop, migrations
from library_parts.http_cases import http_client, http_client_async, http_server
from library_parts.telemetry import metrics, spans
from library_parts.values import (
    canonical_json,
    fact_records,
    facts,
    given_facts,
    ids,
    instants,
    jobs,
    retry_after,
)

CASES = {
    "http-server": http_server,
    "http-client": http_client,
    "http-client-async": http_client_async,
    "pool": pool,
    "statements": statements,
    "arrays": arrays,
    "redis-command": redis_command,
    "nats-headers": nats_headers,
    "nats-key": nats_key,
    "metrics": metrics,
    "spans": spans,
    "facts": facts,
    "given-facts": given_facts,
    "fact-records": fact_records,
    "jobs": jobs,
    "canonical-json": canonical_json,
    "instants": instants,
    "ids": ids,
    "retry-after": retry_after,
    "event-loop": event_loop,
    "migrations": migrations,
}
LIBRARIES = (
    *(
        "aiohttp",
        "alembic",
        "httptools",
        "httpx",
        "msgspec",
        "nats-py",
        "nkeys",
        "opentelemetry-sdk",
    ),
    *("prometheus-client", "psycopg", "psycopg-pool", "pydantic", "redis", "rfc8785", "sqlalchemy"),
    *("urllib3", "uuid6", "uuid-utils", "uvicorn"),
)


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
    return [f"{record['cpu_us']:,.4g}" if "cpu_us" in record else "", ratio, spread]


BENCHMARK = Benchmark(
    name="libraries",
    text=__doc__,
    cases=CASES,
    huge="nothing here",
    seconds=(0.05, 0.4),
    titles=("cpu us", "ratio", "spread"),
    cells=cells,
)

if __name__ == "__main__":
    sys.exit(main())
