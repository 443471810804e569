"""The specification's latencies, by size: one producer over HTTP at a healthy node."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from comparison import Contestant, Record, RunOptions, Target, Turn, race, record

from boundary_parts import load_generator
from boundary_parts.artifacts import KIB, MIB, over_http
from boundary_parts.messages import messages
from boundary_parts.servers import Node
from boundary_parts.wire_protocols import HttpProtocol

FACTS = {"200B": 200, "2KiB": 2 * KIB, "32KiB": 32 * KIB}
OBJECTS = {"100KiB": 100 * KIB, "2MiB": 2 * MIB, "20MiB": 20 * MIB}
APPEND, PUT = Target(p99_ms=10.0), Target(p99_ms=500.0)
ENVELOPE = 330
"""Bytes of a fact that are not its payload, roughly."""


def by_size(options: RunOptions) -> Iterator[Record]:
    """Quantiles of an append and of a put."""
    node = Node(options.folder / "sizes")
    try:
        appends = {
            name: Contestant("Ergon, over HTTP", partial(_append, node, size, options))
            for name, size in FACTS.items()
        }
        puts = {
            name: Contestant(
                "Ergon, over HTTP", partial(over_http, node, size, _puts(size, options))
            )
            for name, size in OBJECTS.items()
        }
        race([*appends.values(), *puts.values()], options.rounds)
    finally:
        node.stop()
    for name, contestant in appends.items():
        yield record(f"append-{name}", contestant, None, APPEND)
    for name, contestant in puts.items():
        yield record(f"put-{name}", contestant, None, PUT)


def _append(node: Node, payload: int, options: RunOptions) -> Turn:
    protocol = HttpProtocol()
    made = messages(max(100, int(1000 * options.seconds)), payload + ENVELOPE)
    return load_generator.run(
        node.port,
        [
            load_generator.ConnectionPlan(
                protocol, [protocol.encode_append(each.body) for each in made]
            )
        ],
    )


def _puts(size: int, options: RunOptions) -> int:
    return max(5, int(40 * MIB * options.seconds) // size) if size > MIB else 100
