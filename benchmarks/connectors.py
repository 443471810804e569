"""Consuming from brokers, beside the bare client's own loop and beside FastStream.

One JSON line per case and contestant goes to standard output, a table to standard error. Brokers
are private and temporary; whoever or whatever is missing is reported as skipped. All contestants of
a broker are interleaved: each has a turn in every round. They ask for as many messages at once,
acknowledge each by itself after it was handled, and handle one at a time. ``ratio`` is our rate by
the clock divided by theirs in the same round, ``cpu_ratio`` their processor time of a message
divided by ours: other programs on the machine hardly move that one.

FastStream has the settings that its documentation names for speed: no pydantic (``apply_types``
off), no log line for each message, the broker's own prefetch. Modules of ``connector_parts`` say
what an acknowledgement means with each broker.
"""

from __future__ import annotations

import sys
from importlib import metadata

from comparison import Record
from connector_parts.kafka import kafka
from connector_parts.mqtt import mqtt
from connector_parts.nats import nats
from connector_parts.postgres import postgres
from connector_parts.rabbitmq import rabbitmq
from connector_parts.redis_streams import redis_streams
from connector_parts.sqs import sqs
from connector_parts.steady import (
    steady_nats,
    steady_rabbitmq,
    steady_redis_streams,
    steady_redis_streams_threads,
)
from harness import Benchmark

CASES = {
    "redis-streams": redis_streams,
    "postgres": postgres,
    "nats": nats,
    "rabbitmq": rabbitmq,
    "kafka": kafka,
    "sqs": sqs,
    "mqtt": mqtt,
    "steady-redis-streams": steady_redis_streams,
    "steady-redis-streams-threads": steady_redis_streams_threads,
    "steady-nats": steady_nats,
    "steady-rabbitmq": steady_rabbitmq,
}
LIBRARIES = (
    *("aio-pika", "boto3", "confluent-kafka", "faststream", "nats-py", "paho-mqtt", "pika"),
    *("psycopg", "redis", "zmqtt"),
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
    if "lag_ms" in record:
        lag, memory = record["lag_ms"], record["memory_mb"]
        told = f"lag {lag[0]:g} to {lag[-1]:g} ms", "", f"{memory[0]:g} to {memory[-1]:g} MiB"
        return [f"{record['per_second']:,.0f}", f"{record['cpu_us']:,.0f}", *told]
    met = {True: "yes", False: "NO"}.get(record.get("cpu_met"), "")  # type: ignore[arg-type]
    return [
        f"{record['per_second']:,.0f}",
        f"{record.get('cpu_us', 0):,.0f}",
        *(_ratio(record, "cpu_ratio"), met, _ratio(record, "ratio")),
    ]


def _ratio(record: Record, name: str) -> str:
    if name not in record:
        return ""
    low, high = record[f"{name}_spread"]
    return f"{record[name]:.2f} ({low:.2f} to {high:.2f})"


BENCHMARK = Benchmark(
    name="connectors",
    text=__doc__,
    cases=CASES,
    huge="a million messages in the cases that are called steady",
    seconds=(0.2, 1.0),
    titles=("per second", "cpu us", "by cpu", "met", "by clock"),
    cells=cells,
)

if __name__ == "__main__":
    sys.exit(main())
