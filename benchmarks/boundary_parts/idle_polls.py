"""Appends while many consumers of other facts wait for theirs in long polls."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

from comparison import Contestant, ContestantError, Record, RunOptions, Turn, race, records
from jobs_parts.processes import cpu_seconds

from boundary_parts import load_generator
from boundary_parts.messages import split_messages
from boundary_parts.servers import Node
from boundary_parts.wire_protocols import HttpProtocol

POLLS = (100, 1_000)
ELSEWHERE = "plant-idle"
"""A zone for which nobody appends anything."""
WAIT_MS = 25_000
SETTLE_TIMEOUT = 15.0
RESTING = 0.05
"""Seconds of processor time within a quarter of a second that a node at rest may take."""
PACE = 800
"""Rough facts per second of one connection, only to give turns a fitting length."""


def idle_polls(options: RunOptions) -> Iterator[Record]:
    """One connection that appends, beside as many long polls as there are consumers."""
    most = 2 * max(POLLS)
    limits = {"connections": most, "address_connections": most}
    node = Node(options.folder / "node", limits=limits)
    try:
        for number in range(max(POLLS)):
            node.ask(
                "BoundaryAdmin/CreateConsumer",
                consumer_name=f"idle-{number}",
                to_zone=ELSEWHERE,
                required=False,
                **{"from": "end"},
            )
        count = max(50, int(PACE * options.seconds))
        alone = Contestant("Ergon, no idle polls", partial(_turn, node, count, 0))
        beside = [Contestant(f"Ergon, {polls:,} idle polls", partial(_turn, node, count, polls))
                  for polls in POLLS]  # fmt: skip
        race([alone, *beside], options.rounds)
    finally:
        node.stop()
    for polls, contestant in zip(POLLS, beside, strict=True):
        yield from records(f"idle-polls-{polls}", contestant, [(alone, None)])


def _turn(node: Node, count: int, polls: int) -> Turn:
    (part,) = split_messages(count, 1)
    protocol = HttpProtocol()
    plan = load_generator.ConnectionPlan(
        protocol, [protocol.encode_append(message.body) for message in part]
    )
    _settle(node)  # polls of the turn before may still be ending
    with _waiting(node, polls) as waiting:
        cpu_time = cpu_seconds([node.pid])
        turn = load_generator.run(node.port, [plan])
        cpu_time = cpu_seconds([node.pid]) - cpu_time
        for connection in waiting:
            if _is_answered(connection):
                raise ContestantError("a poll for other facts was answered during the turn")
    return Turn(turn.count, turn.seconds, turn.latencies, cpu_time)


@contextmanager
def _waiting(node: Node, polls: int) -> Iterator[list[socket.socket]]:
    """So many long polls, each on a connection and for a consumer of its own."""
    with ExitStack() as stack:
        connections = []
        for number in range(polls):
            connection = stack.enter_context(
                socket.create_connection(("127.0.0.1", node.port), timeout=10.0)
            )
            body = json.dumps({"consumer_name": f"idle-{number}", "wait_ms": WAIT_MS}).encode()
            head = b"POST /bsfg.v1.Boundary/FetchFacts HTTP/1.1\r\nhost: localhost\r\n"
            connection.sendall(head + b"content-length: %d\r\n\r\n" % len(body) + body)
            connections.append(connection)
        _settle(node)
        yield connections


def _settle(node: Node) -> None:
    """Wait until the node has come to rest: what polls cost to begin and to end is not measured."""
    until = time.monotonic() + SETTLE_TIMEOUT
    while time.monotonic() < until:
        before = cpu_seconds([node.pid])
        time.sleep(0.25)
        if cpu_seconds([node.pid]) - before < RESTING:
            return
    raise ContestantError(f"the node is still busy after {SETTLE_TIMEOUT:g} seconds")


def _is_answered(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        connection.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False
    return True
