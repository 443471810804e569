"""The races that the page shows: which results each row and each picture takes."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass

STACK = "tenacity + pybreaker + limits"
PYBREAKER = "pybreaker, open"
CORE = "SQLAlchemy Core, a commit per call"
BARE, PLAIN = "bare SQLite group commit", "plain write and fsync"
REDIS, NATS = "Redis, appendfsync always", "NATS JetStream, sync_interval always"
WINDOW, TASKS = "ThreadPoolExecutor window", "create_task window"
PACKAGE = "ergon-framework-python"
JOBS, PG_JOBS = "Ergon (SQLite)", "Ergon (PostgreSQL)"
TIMES = " \N{MULTIPLICATION SIGN}"
UNITS = {
    "cpu_us": "µs of CPU",
    "us": "µs",
    "per_second": "per second",
    "mb_per_second": "MB/s",
    "p50_ms": "ms at p50",
    "p99_ms": "ms at p99",
    "cpu_seconds": "s of CPU",
}


@dataclass(frozen=True)
class Wanted:
    """A bound on our figure, or on the ratio to a peer's."""

    bound: float
    peer: str | None = None
    """Ours itself is bound when no peer is named."""
    is_most: bool = True

    def __str__(self) -> str:
        return f"{'≤' if self.is_most else '≥'} {self.bound:,g}{TIMES if self.peer else ''}"

    def is_met(self, figure: float) -> bool:
        """Whether a figure, or a ratio, is good enough."""
        return (operator.le if self.is_most else operator.ge)(figure, self.bound)


@dataclass(frozen=True)
class Row:
    """One race: ours, and everybody else in its case, unless ``peers`` names some."""

    title: str
    part: str
    case: str
    figure: str
    before: tuple[str, str]
    """What the same race told before this round of work, on another machine, and the ratio."""
    wanted: Sequence[Wanted] = ()
    who: str = "Ergon"
    peers: Sequence[str] | None = None


def _most(bound: float, peer: str | None = None) -> Wanted:
    return Wanted(bound, peer)


def _least(bound: float, peer: str | None = None) -> Wanted:
    return Wanted(bound, peer, is_most=False)


ROWS = (
    Row(
        "provider call, success",
        "providers",
        "success",
        "cpu_us",
        ("25.2 µs", "0.67"),
        [_most(0.25, STACK), _most(9)],
    ),
    Row(
        "… in an event loop",
        "providers",
        "success-async",
        "cpu_us",
        ("35.9 µs", "0.70"),
        [_most(0.25, "tenacity + aiobreaker")],
    ),
    Row("… two retries", "providers", "retries", "cpu_us", ("175 µs", "1.57"), [_most(0.5, STACK)]),
    Row(
        "… refused, circuit open",
        "providers",
        "rejection-open",
        "cpu_us",
        ("14.5 µs", "2.5"),
        [_most(0.7, PYBREAKER), _most(4)],
    ),
    Row(
        "… refused, pause",
        "providers",
        "rejection-cooldown",
        "cpu_us",
        ("34 µs", "5.9"),
        [_most(0.7, PYBREAKER), _most(4)],
    ),
    Row(
        "… refused, quota",
        "providers",
        "rejection-quota",
        "cpu_us",
        ("18 µs", "2.7"),
        [_most(0.7, "limits, used up"), _most(4)],
    ),
    Row(
        "… durable row",
        "providers",
        "durable",
        "us",
        ("557 µs", "2.2"),
        [_most(0.6, CORE)],
        who="Ergon on SQLite, durable",
    ),
    Row("quota in memory", "providers", "quota-memory", "cpu_us", ("2.7 µs", "0.47"), [_most(0.5)]),
    Row(
        "… leased, SQLite",
        "providers",
        "quota-sqlite-leased",
        "us",
        ("2.8 µs", ""),
        [_most(1)],
        who="Ergon, blocks of 100",
    ),
    Row(
        "… leased, PostgreSQL",
        "providers",
        "quota-postgres-leased",
        "us",
        ("8.2 µs", ""),
        [_most(1)],
        who="Ergon, blocks of 100",
    ),
    Row(
        "append, in process, 64 producers",
        "boundary",
        "in-process-64",
        "per_second",
        ("14,900/s", "0.36"),
        [_least(0.7, BARE)],
    ),
    Row(
        "append, socket, 64 connections",
        "boundary",
        "socket-64",
        "per_second",
        ("8,100/s", "0.88"),
        [_least(1.2, REDIS), _least(1.2, NATS)],
    ),
    Row(
        "… with each server's client",
        "boundary",
        "client-64",
        "per_second",
        ("8,100/s", "0.84"),
        [_least(1.2, f"{REDIS}, redis-py"), _least(1.2, f"{NATS}, nats-py")],
    ),
    Row(
        "batches of 100, socket, 8 connections",
        "boundary",
        "batch-8",
        "per_second",
        ("17,000/s", ""),
        [_least(40_000)],
    ),
    Row(
        "put 2 MiB, in process",
        "boundary",
        "put-2MiB",
        "mb_per_second",
        ("395 MB/s", "0.63"),
        [_least(0.85, PLAIN)],
    ),
    Row(
        "… over HTTP",
        "boundary",
        "put-2MiB-http",
        "mb_per_second",
        ("207 MB/s", "0.34"),
        [_least(0.6, PLAIN)],
        who="Ergon, over HTTP",
    ),
    Row(
        "append beside 1,000 idle long polls",
        "boundary",
        "idle-polls-1000",
        "p50_ms",
        ("21 ms (beside 100)", "0.04"),
        [_least(0.77, "Ergon, no idle polls")],
        who="Ergon, 1,000 idle polls",
    ),
    Row(
        "consume, threads, 8",
        "engine",
        "consume-sync-c8",
        "per_second",
        ("", ""),
        [_least(3, WINDOW)],
    ),
    Row(
        "produce, threads, 8",
        "engine",
        "produce-sync-c8",
        "per_second",
        ("139,000/s", "2.7"),
        [_least(4, WINDOW)],
    ),
    Row(
        "consume, event loop, 8",
        "engine",
        "consume-async-c8",
        "per_second",
        ("", ""),
        [_least(1, TASKS)],
    ),
    Row(
        "produce, event loop, 8",
        "engine",
        "produce-async-c8",
        "per_second",
        ("110,000/s", "1.06"),
        [_least(1.5, TASKS)],
    ),
    Row(
        "spans and metrics on",
        "engine",
        "consume-sync-c8+sdk+metrics",
        "per_second",
        ("7,500/s", "2.9"),
        [_least(5, PACKAGE)],
    ),
    Row(
        "drained, 100,000 queued",
        "jobs",
        "drain-100000-queued",
        "per_second",
        ("", "0.90"),
        [_least(0.95, "Ergon (SQLite), 10,000 queued")],
        who="Ergon (SQLite), 100,000 queued",
    ),
    Row(
        "drained from SQLite",
        "jobs",
        "drain",
        "per_second",
        ("20,900/s", "1.31"),
        [_least(1.6, "pgqueuer (PostgreSQL)")],
        who=JOBS,
    ),
    Row(
        "… PostgreSQL, 10,000 queued",
        "scale",
        "postgres-drain-10000",
        "per_second",
        ("21,100/s", "1.23"),
        [_least(1.4, "pgqueuer")],
        who=PG_JOBS,
    ),
    Row(
        "… PostgreSQL, 100,000 queued",
        "scale",
        "postgres-drain-100000",
        "per_second",
        ("19,800/s", "1.35"),
        [_least(1.4, "pgqueuer")],
        who=PG_JOBS,
    ),
    Row(
        "settled, PostgreSQL",
        "scale",
        "postgres-settle-1000",
        "per_second",
        ("", "0.5"),
        [_least(1, "pgqueuer")],
        who=PG_JOBS,
    ),
    Row(
        "enqueued one by one, SQLite",
        "jobs",
        "enqueue",
        "per_second",
        ("4,200/s", "0.46"),
        [_least(0.7, "bare sqlite3"), _least(1.2, "Huey (SQLite)")],
        who=JOBS,
    ),
    Row(
        "from enqueue to start, idle worker",
        "jobs",
        "latency",
        "p50_ms",
        ("1.63 ms", "1.8"),
        [_most(0.8)],
        who=JOBS,
    ),
    Row(
        "… the slowest in a hundred",
        "jobs",
        "latency",
        "p99_ms",
        ("14.4 ms", ""),
        [_most(3)],
        who=JOBS,
    ),
    Row(
        "cold start, `ConsumerTask`",
        "cold",
        "ConsumerTask",
        "cpu_seconds",
        ("0.42 s", "2"),
        [_most(0.15), _most(0.71, "importing celery.Celery")],
    ),
    Row(
        "… `JobClient`",
        "cold",
        "JobClient",
        "cpu_seconds",
        ("0.38 s", "1.8"),
        [_most(0.2), _most(0.95, "importing celery.Celery")],
    ),
    Row(
        "… `ergon --help`",
        "cold",
        "ergon --help",
        "cpu_seconds",
        ("0.31 s", "1.5"),
        [_most(0.2), _most(0.95, "importing celery.Celery")],
    ),
    Row(
        "… `ergon enqueue`",
        "cold",
        "ergon enqueue",
        "cpu_seconds",
        ("0.6 s", "2.9"),
        [_most(0.35), _most(1.67, "importing celery.Celery")],
    ),
)


@dataclass(frozen=True)
class Bars:
    """A picture with one group of bars per case."""

    name: str
    title: str
    note: str
    part: str
    figure: str
    groups: Sequence[tuple[str, str, str]]
    """What a group is called, its case, and who we are in it."""


@dataclass(frozen=True)
class Lines:
    """A picture with one line per contestant."""

    name: str
    title: str
    note: str
    part: str
    figure: str
    across: str
    lines: Sequence[tuple[str, Sequence[tuple[str, str, str]]]]
    """Of each line: its name, and of each point where it stands, its case, and who."""


def _over(cases: Sequence[tuple[str, str]], who: str) -> tuple[str, Sequence[tuple[str, str, str]]]:
    return who, [(place, case, who) for place, case in cases]


_IN_PROCESS = [(str(number), f"in-process-{number}") for number in (1, 8, 64)]
_SOCKET = [(str(number), f"socket-{number}") for number in (1, 8, 64)]
_CPU = "microseconds of processor time, median of the rounds; shorter is better"
_MORE = "median of the rounds, with the least and the most; longer is better"

PICTURES: tuple[Bars | Lines, ...] = (
    Bars("provider-calls", "A guarded call of a provider that answers at once", _CPU,
         "providers", "cpu_us", [
             ("success, on a thread", "success", "Ergon"),
             ("success, in an event loop", "success-async", "Ergon"),
             ("two failures, then success; nobody sleeps", "retries", "Ergon"),
         ]),
    Bars("provider-refusals", "A call that is refused", _CPU, "providers", "cpu_us", [
        ("the circuit is open", "rejection-open", "Ergon"),
        ("the provider asked for a pause", "rejection-cooldown", "Ergon"),
        ("no quota is left", "rejection-quota", "Ergon"),
        ("one unit of quota, in memory", "quota-memory", "Ergon"),
    ]),
    Lines("append-in-process", "Facts appended in one process, each on disk before the answer",
          "facts per second; higher is better", "boundary", "per_second", "producers", [
              _over(_IN_PROCESS, "Ergon"), _over(_IN_PROCESS, BARE),
              _over(_IN_PROCESS, "bare file group commit"),
          ]),
    Lines("append-socket", "Facts appended over a loopback socket",
          "facts per second; higher is better", "boundary", "per_second", "connections", [
              _over(_SOCKET, "Ergon"), _over(_SOCKET, "Ergon, mTLS"), _over(_SOCKET, REDIS),
              _over(_SOCKET, NATS),
          ]),
    Lines("append-latency", "How long an append over a loopback socket takes",
          "milliseconds at the 99th percentile; lower is better", "boundary", "p99_ms",
          "connections", [
              _over(_SOCKET, "Ergon"), _over(_SOCKET, "Ergon, mTLS"), _over(_SOCKET, REDIS),
              _over(_SOCKET, NATS),
          ]),
    Bars("append-batches", "Facts appended a hundred at a time, facts per second", _MORE,
         "boundary", "per_second", [
             ("one connection", "batch-1", "Ergon"), ("eight connections", "batch-8", "Ergon"),
         ]),
    Bars("put", "Artifacts of 2 MiB, MB per second", "longer is better",
         "boundary", "mb_per_second", [
             ("in process", "put-2MiB", "Ergon"),
             ("over HTTP", "put-2MiB-http", "Ergon, over HTTP"),
         ]),
    Lines("idle-consumers", "One append, by the number of consumers that wait for other facts",
          "microseconds of the node's processor time; lower is better", "boundary", "cpu_us",
          "idle long polls", [
              ("Ergon", [
                  ("0", "idle-polls-100", "Ergon, no idle polls"),
                  ("100", "idle-polls-100", "Ergon, 100 idle polls"),
                  ("1,000", "idle-polls-1000", "Ergon, 1,000 idle polls"),
              ]),
          ]),
    Lines("known-ids", "One append by 64 producers, by the number of ids that are known",
          "microseconds of processor time; lower is better", "boundary", "cpu_us", "ids known", [
              ("Ergon", [
                  ("0", "ledger-1000000", "Ergon, empty ledger"),
                  ("100,000", "ledger-100000", "Ergon, 100,000 ids"),
                  ("1,000,000", "ledger-1000000", "Ergon, 1,000,000 ids"),
              ]),
          ]),
    Bars("jobs-drained", "No-op jobs per second, out of a full queue", _MORE,
         "jobs", "per_second", [("state and result kept", "drain", JOBS)]),
    Bars("jobs-enqueued", "Jobs enqueued one by one, per second",
         "in SQLite and PostgreSQL on disk before the next, in Redis not; longer is better",
         "jobs", "per_second", [("from one thread", "enqueue", JOBS)]),
    Bars("jobs-latency", "From enqueue to the start of the handler, in milliseconds",
         "median of the rounds, of a worker that is idle; shorter is better",
         "jobs", "p50_ms", [("in another process", "latency", JOBS)]),
    Lines("queue-length", "One job drained from SQLite, by the length of the queue",
          "microseconds of processor time; lower is better", "jobs", "cpu_us", "jobs queued", [
              ("Ergon", [
                  ("10,000", "drain-100000-queued", "Ergon (SQLite), 10,000 queued"),
                  ("100,000", "drain-100000-queued", "Ergon (SQLite), 100,000 queued"),
              ]),
          ]),
    Bars("engines", "Transactions per second through the whole lifecycle, eight at once", _MORE,
         "engine", "per_second", [
             ("consume, on threads", "consume-sync-c8", "Ergon"),
             ("produce, on threads", "produce-sync-c8", "Ergon"),
             ("consume, in an event loop", "consume-async-c8", "Ergon"),
             ("produce, in an event loop", "produce-async-c8", "Ergon"),
             ("consume, with spans and metrics", "consume-sync-c8+sdk+metrics", "Ergon"),
         ]),
    Bars("cold-starts", "Processor time until a process is ready, seconds",
         "median of the rounds; shorter is better", "cold", "cpu_seconds", [
             ("importing what a worker needs", "ConsumerTask", "Ergon"),
             ("importing what a client needs", "JobClient", "Ergon"),
             ("ergon --help", "ergon --help", "Ergon"),
             ("ergon enqueue", "ergon enqueue", "Ergon"),
         ]),
)  # fmt: skip
