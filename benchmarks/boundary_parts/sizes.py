"""The specification's latencies, by size: one producer over HTTP at a healthy node."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from comparison import Effort, Entry, Goal, Record, Turn, race, record

from boundary_parts import load_generator
from boundary_parts.messages import messages
from boundary_parts.artifacts import KIB, MIB, over_http
from boundary_parts.servers import Node
from boundary_parts.wire_protocols import Http

FACTS = {"200B": 200, "2KiB": 2 * KIB, "32KiB": 32 * KIB}
OBJECTS = {"100KiB": 100 * KIB, "2MiB": 2 * MIB, "20MiB": 20 * MIB}
APPEND, PUT = Goal(p99_ms=10.0), Goal(p99_ms=500.0)
ENVELOPE = 330
"""Bytes of a fact that are not its payload, roughly."""


def by_size(effort: Effort) -> Iterator[Record]:
    """Quantiles of an append and of a put."""
    node = Node(effort.folder / "sizes")
    try:
        appends = {
            name: Entry("Ergon, over HTTP", partial(_append, node, size, effort))
            for name, size in FACTS.items()
        }
        puts = {
            name: Entry("Ergon, over HTTP", partial(over_http, node, size, _puts(size, effort)))
            for name, size in OBJECTS.items()
        }
        race([*appends.values(), *puts.values()], effort.rounds)
    finally:
        node.stop()
    for name, entry in appends.items():
        yield record(f"append-{name}", entry, None, APPEND)
    for name, entry in puts.items():
        yield record(f"put-{name}", entry, None, PUT)


def _append(node: Node, payload: int, effort: Effort) -> Turn:
    speech = Http()
    made = messages(max(100, int(1000 * effort.seconds)), payload + ENVELOPE)
    return load_generator.run(node.port, [load_generator.Plan(speech, [speech.ask(each.body) for each in made])])


def _puts(size: int, effort: Effort) -> int:
    return max(5, int(40 * MIB * effort.seconds) // size) if size > MIB else 100
