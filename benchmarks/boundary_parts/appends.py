"""Appends per second: in this process, and over a socket beside other durable logs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeAlias

from comparison import Contestant, ContestantError, Record, RunOptions, Target, Turn, race, records
from jobs_parts.processes import cpu_seconds

from boundary_parts import clients, load_generator, producers
from boundary_parts.messages import FROM, Message, split_messages
from boundary_parts.servers import NatsServer, Node, RedisServer, Servers, make_certificates
from boundary_parts.wire_protocols import HttpProtocol, NatsProtocol, RedisProtocol, WireProtocol

PRODUCERS = (1, 8, 64)
BATCH = 100
IN_PROCESS = {1: 3_000, 8: 8_000, 64: 16_000}
OVER_SOCKET = {1: 1_500, 8: 3_000, 64: 6_000}
IN_BATCHES = {1: 10_000, 8: 15_000}
"""Rough facts per second, only to give turns a fitting length."""
OURS = "Ergon"
REDIS, NATS = "Redis, appendfsync always", "NATS JetStream, sync_interval always"

Server: TypeAlias = Node | RedisServer | NatsServer


def _count(pace: int, connections: int, options: RunOptions) -> int:
    return max(connections * 10, int(pace * options.seconds) // connections * connections)


# ---- in this process ----


def in_process(options: RunOptions) -> Iterator[Record]:
    """Threads that append one by one, beside the bare floors."""
    for number in PRODUCERS:
        count = _count(IN_PROCESS[number], number, options)
        ours = _local(OURS, producers.ours, options, number, count)
        floor = _local("bare SQLite group commit", producers.bare_sqlite, options, number, count)
        file = _local("bare file group commit", producers.bare_file, options, number, count)
        others = [(floor, Target(ratio=0.7)), (file, None)]
        if number == 1:
            direct = _local("bare SQLite, no queue", producers.direct_sqlite, options, 1, count)
            others.append((direct, None))
        race([ours, *(contestant for contestant, _ in others)], options.rounds)
        target = Target(p99_ms=10.0) if number == PRODUCERS[-1] else None
        yield from records(f"in-process-{number}", ours, others, target)


def _local(
    name: str, run: Callable[..., Turn], options: RunOptions, number: int, count: int
) -> Contestant:
    return Contestant(name, partial(run, options.folder, number, count))


# ---- over a socket ----


def over_socket(options: RunOptions) -> Iterator[Record]:
    """Connections that append one by one."""
    servers = Servers()
    try:
        for number in PRODUCERS:
            count = _count(OVER_SOCKET[number], number, options)
            ours, secure, redis, nats = _field(
                options, servers, count, partial(_single, number, count)
            )
            race([ours, secure, redis, nats], options.rounds)
            target = Target(p50_ms=3.0, p99_ms=10.0) if number == 8 else None
            best = Target(ratio=1.0) if number == PRODUCERS[-1] else None
            others = [(secure, target), (redis, best), (nats, None)]
            yield from records(f"socket-{number}", ours, others, target)
    finally:
        servers.stop()


def batched(options: RunOptions) -> Iterator[Record]:
    """Connections that append a hundred at a time."""
    servers = Servers()
    try:
        for number, pace in IN_BATCHES.items():
            count = _count(pace, number * BATCH, options)
            ours, secure, redis, nats = _field(
                options, servers, count, partial(_batches, number, count)
            )
            race([ours, secure, redis, nats], options.rounds)
            others = [(secure, None), (redis, None), (nats, None)]
            yield from records(f"batch-{number}", ours, others, Target(rate=25_000.0))
    finally:
        servers.stop()


def with_clients(options: RunOptions) -> Iterator[Record]:
    """The same as one by one, through the Python client of each server."""
    servers, number = Servers(), PRODUCERS[-1]
    count = _count(OVER_SOCKET[number], number, options)
    ways: list[tuple[str, Callable[[], Server], clients.Connect]] = [
        (OURS, lambda: Node(options.folder / "plain"), clients.ours),
        (f"{REDIS}, redis-py", lambda: RedisServer(options.folder / "redis"), clients.redis),
        (f"{NATS}, nats-py", lambda: NatsServer(options.folder / "nats"), clients.nats),
    ]

    def load_from(connect: clients.Connect) -> Callable[[Server], Turn]:
        return lambda server: clients.run(server.port, connect, split_messages(count, number))

    try:
        ours, *others = [
            Contestant(name, partial(_against, servers, name, start, count, load_from(connect)))
            for name, start, connect in ways
        ]
        race([ours, *others], options.rounds)
        targets = (Target(ratio=1.0), None)
        yield from records(f"client-{number}", ours, list(zip(others, targets, strict=True)))
    finally:
        servers.stop()


Plans: TypeAlias = Callable[[Callable[[], WireProtocol]], list[load_generator.ConnectionPlan]]
"""What each connection does to store its part."""


def _single(
    number: int, count: int, protocol: Callable[[], WireProtocol]
) -> list[load_generator.ConnectionPlan]:
    def plan(part: Sequence[Message]) -> load_generator.ConnectionPlan:
        spoken = protocol()
        return load_generator.ConnectionPlan(
            spoken, [spoken.encode_append(message.body) for message in part]
        )

    return [plan(part) for part in split_messages(count, number)]


def _batches(
    number: int, count: int, protocol: Callable[[], WireProtocol]
) -> list[load_generator.ConnectionPlan]:
    def plan(part: Sequence[Message]) -> load_generator.ConnectionPlan:
        spoken = protocol()
        bodies = [message.body for message in part]
        asked = [
            spoken.encode_appends(bodies[at : at + BATCH]) for at in range(0, len(bodies), BATCH)
        ]
        return load_generator.ConnectionPlan(spoken, asked, spoken.replies_to(BATCH))

    return [plan(part) for part in split_messages(count, number)]


def _field(options: RunOptions, servers: Servers, count: int, plans: Plans) -> list[Contestant]:
    folder = options.folder
    certificates = folder / "certificates"

    def secure() -> Node:
        make_certificates(certificates, [FROM])
        return Node(folder / "secure", certificates=certificates)

    def load_in(protocol: Callable[[], WireProtocol]) -> Callable[[Server], Turn]:
        return lambda server: load_generator.run(server.port, plans(protocol), server.tls)

    ways: list[tuple[str, Callable[[], Server], Callable[[], WireProtocol]]] = [
        (OURS, lambda: Node(folder / "plain"), HttpProtocol),
        (f"{OURS}, mTLS", secure, HttpProtocol),
        (REDIS, lambda: RedisServer(folder / "redis"), RedisProtocol),
        (NATS, lambda: NatsServer(folder / "nats"), NatsProtocol),
    ]
    return [
        Contestant(name, partial(_against, servers, name, start, count, load_in(protocol)))
        for name, start, protocol in ways
    ]


def _against(
    servers: Servers,
    name: str,
    start: Callable[[], Server],
    count: int,
    store: Callable[[Server], Turn],
) -> Turn:
    """One turn against a server that keeps what earlier turns stored; all must be there."""
    server: Server = servers.get(name, start)
    before, cpu_time = server.head(), cpu_seconds([server.pid])
    turn = store(server)
    cpu_time = cpu_seconds([server.pid]) - cpu_time
    stored = server.head() - before
    if stored != count:
        raise ContestantError(f"{stored} of {count} facts are there")
    return Turn(count, turn.seconds, turn.latencies, cpu_time)
