"""Appends per second: in this process, and over a socket beside other durable logs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeAlias

from jobs_parts.processes import cpu_seconds
from comparison import Effort, Entry, FailedError, Goal, Record, Turn, race, records

from boundary_parts import clients, load_generator, producers
from boundary_parts.messages import FROM, Message, shares
from boundary_parts.servers import NatsServer, Node, RedisServer, Servers, make_certificates
from boundary_parts.wire_protocols import Http, Nats, Redis, Speech

PRODUCERS = (1, 8, 64)
BATCH = 100
IN_PROCESS = {1: 3_000, 8: 8_000, 64: 16_000}
OVER_SOCKET = {1: 1_500, 8: 3_000, 64: 6_000}
IN_BATCHES = {1: 10_000, 8: 15_000}
"""Rough facts per second, only to give turns a fitting length."""
OURS = "Ergon"
REDIS, NATS = "Redis, appendfsync always", "NATS JetStream, sync_interval always"

Server: TypeAlias = Node | RedisServer | NatsServer


def _count(pace: int, connections: int, effort: Effort) -> int:
    return max(connections * 10, int(pace * effort.seconds) // connections * connections)


# ---- in this process ----


def in_process(effort: Effort) -> Iterator[Record]:
    """Threads that append one by one, beside the bare floors."""
    for number in PRODUCERS:
        count = _count(IN_PROCESS[number], number, effort)
        ours = _local(OURS, producers.ours, effort, number, count)
        floor = _local("bare SQLite group commit", producers.bare_sqlite, effort, number, count)
        file = _local("bare file group commit", producers.bare_file, effort, number, count)
        others = [(floor, Goal(ratio=0.7)), (file, None)]
        if number == 1:
            direct = _local("bare SQLite, no queue", producers.direct_sqlite, effort, 1, count)
            others.append((direct, None))
        race([ours, *(entry for entry, _ in others)], effort.rounds)
        goal = Goal(p99_ms=10.0) if number == PRODUCERS[-1] else None
        yield from records(f"in-process-{number}", ours, others, goal)


def _local(who: str, run: Callable[..., Turn], effort: Effort, number: int, count: int) -> Entry:
    return Entry(who, partial(run, effort.folder, number, count))


# ---- over a socket ----


def over_socket(effort: Effort) -> Iterator[Record]:
    """Connections that append one by one."""
    servers = Servers()
    try:
        for number in PRODUCERS:
            count = _count(OVER_SOCKET[number], number, effort)
            ours, secure, redis, nats = _field(
                effort, servers, count, partial(_single, number, count)
            )
            race([ours, secure, redis, nats], effort.rounds)
            goal = Goal(p50_ms=3.0, p99_ms=10.0) if number == 8 else None
            best = Goal(ratio=1.0) if number == PRODUCERS[-1] else None
            others = [(secure, goal), (redis, best), (nats, None)]
            yield from records(f"socket-{number}", ours, others, goal)
    finally:
        servers.stop()


def batched(effort: Effort) -> Iterator[Record]:
    """Connections that append a hundred at a time."""
    servers = Servers()
    try:
        for number, pace in IN_BATCHES.items():
            count = _count(pace, number * BATCH, effort)
            ours, secure, redis, nats = _field(
                effort, servers, count, partial(_batches, number, count)
            )
            race([ours, secure, redis, nats], effort.rounds)
            others = [(secure, None), (redis, None), (nats, None)]
            yield from records(f"batch-{number}", ours, others, Goal(rate=25_000.0))
    finally:
        servers.stop()


def with_clients(effort: Effort) -> Iterator[Record]:
    """The same as one by one, through the Python client of each server."""
    servers, number = Servers(), PRODUCERS[-1]
    count = _count(OVER_SOCKET[number], number, effort)
    ways: list[tuple[str, Callable[[], Server], clients.Connect]] = [
        (OURS, lambda: Node(effort.folder / "plain"), clients.ours),
        (f"{REDIS}, redis-py", lambda: RedisServer(effort.folder / "redis"), clients.redis),
        (f"{NATS}, nats-py", lambda: NatsServer(effort.folder / "nats"), clients.nats),
    ]

    def load_from(connect: clients.Connect) -> Callable[[Server], Turn]:
        return lambda server: clients.run(server.port, connect, shares(count, number))

    try:
        ours, *others = [
            Entry(who, partial(_against, servers, who, start, count, load_from(connect)))
            for who, start, connect in ways
        ]
        race([ours, *others], effort.rounds)
        goals = (Goal(ratio=1.0), None)
        yield from records(f"client-{number}", ours, list(zip(others, goals, strict=True)))
    finally:
        servers.stop()


Plans: TypeAlias = Callable[[Callable[[], Speech]], list[load_generator.Plan]]
"""What each connection does to store its part."""


def _single(number: int, count: int, speech: Callable[[], Speech]) -> list[load_generator.Plan]:
    def plan(part: Sequence[Message]) -> load_generator.Plan:
        spoken = speech()
        return load_generator.Plan(spoken, [spoken.ask(message.body) for message in part])

    return [plan(part) for part in shares(count, number)]


def _batches(number: int, count: int, speech: Callable[[], Speech]) -> list[load_generator.Plan]:
    def plan(part: Sequence[Message]) -> load_generator.Plan:
        spoken = speech()
        bodies = [message.body for message in part]
        asked = [spoken.ask_all(bodies[at : at + BATCH]) for at in range(0, len(bodies), BATCH)]
        return load_generator.Plan(spoken, asked, spoken.answers_to_all(BATCH))

    return [plan(part) for part in shares(count, number)]


def _field(effort: Effort, servers: Servers, count: int, plans: Plans) -> list[Entry]:
    folder = effort.folder
    certificates = folder / "certificates"

    def secure() -> Node:
        make_certificates(certificates, [FROM])
        return Node(folder / "secure", certificates=certificates)

    def load_in(speech: Callable[[], Speech]) -> Callable[[Server], Turn]:
        return lambda server: load_generator.run(server.port, plans(speech), server.tls)

    ways: list[tuple[str, Callable[[], Server], Callable[[], Speech]]] = [
        (OURS, lambda: Node(folder / "plain"), Http),
        (f"{OURS}, mTLS", secure, Http),
        (REDIS, lambda: RedisServer(folder / "redis"), Redis),
        (NATS, lambda: NatsServer(folder / "nats"), Nats),
    ]
    return [
        Entry(who, partial(_against, servers, who, start, count, load_in(speech)))
        for who, start, speech in ways
    ]


def _against(
    servers: Servers,
    who: str,
    start: Callable[[], Server],
    count: int,
    store: Callable[[Server], Turn],
) -> Turn:
    """One turn against a server that keeps what earlier turns stored; all must be there."""
    server: Server = servers.get(who, start)
    before, burnt = server.head(), cpu_seconds([server.pid])
    turn = store(server)
    burnt = cpu_seconds([server.pid]) - burnt
    stored = server.head() - before
    if stored != count:
        raise FailedError(f"{stored} of {count} facts are there")
    return Turn(count, turn.seconds, turn.taken, burnt)
