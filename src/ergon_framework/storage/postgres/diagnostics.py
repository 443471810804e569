"""What ``doctor`` asks a PostgreSQL server: version, durability, encryption, load."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

from ergon_framework.storage.postgres.address import address_of, verification
from ergon_framework.storage.postgres.database import are_off
from ergon_framework.storage.postgres.migrations import connected
from ergon_framework.storage.postgres.pool import Connection
from ergon_framework.storage.server import Observation, latency, skew

MIN_VERSION = 130_000
"""What the server must be at least; older ones get no corrections any more."""
MAX_USAGE = 0.8
"""The share of the server's connections in use from which on there may soon be none left."""

_SETTINGS = (
    *("fsync", "full_page_writes", "autovacuum", "server_version", "server_version_num"),
    *("max_connections", "superuser_reserved_connections"),
)
_ASK = "SELECT name, setting FROM pg_settings WHERE name = ANY(%s)"
# What the server does for sessions that set nothing; our own connections set it.
_DEFAULT_COMMIT = "SELECT reset_val FROM pg_settings WHERE name = 'synchronous_commit'"
_IN_USE = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'"
_OLDEST_TRANSACTION = """
SELECT max(extract(epoch FROM clock_timestamp() - xact_start))::float8 FROM pg_stat_activity
WHERE state = 'idle in transaction'
"""
_LONG = 300.0  # seconds that an open transaction may be idle before that is worth knowing


def observe(url: str) -> Iterator[Observation]:
    """Yield observations of the server. Raises what connecting raises."""
    yield encryption(url)
    with connected(url) as (connection, _):
        settings = dict(connection.execute(_ASK, (list(_SETTINGS),)).fetchall())
        yield version(settings)
        yield standby(connection)
        yield from durability(settings, _one(connection, _DEFAULT_COMMIT))
        yield connection_usage(settings, int(_one(connection, _IN_USE) or 0))
        yield vacuum(settings, float(_one(connection, _OLDEST_TRANSACTION) or 0.0))
        yield latency(lambda: connection.execute("SELECT 1"))
        asked_at = time.time()
        theirs = float(_one(connection, "SELECT extract(epoch FROM clock_timestamp())") or 0.0)
        yield skew(theirs, asked_at, time.time())


def _one(connection: Connection, statement: str) -> str | None:
    [[found]] = connection.execute(statement.encode()).fetchall()
    return None if found is None else str(found)


def encryption(url: str) -> Observation:
    """Whether a third party could read the connection, or pretend to be the server."""
    found, remedy = verification(address_of(url))
    return Observation("encryption", found, remedy)


def version(settings: Mapping[str, str]) -> Observation:
    """How old the server is."""
    is_fine = int(settings["server_version_num"]) >= MIN_VERSION
    remedy = "" if is_fine else "upgrade the server to PostgreSQL 13 or later"
    return Observation("version", settings["server_version"], remedy, is_grave=not is_fine)


def standby(connection: Connection) -> Observation:
    """Whether the server accepts writes."""
    if _one(connection, "SELECT pg_is_in_recovery()") == "True":
        remedy = "connect to the primary: add target_session_attrs=read-write to the URL"
        return Observation("role", "a standby, which takes no writes", remedy, is_grave=True)
    if _one(connection, "SHOW transaction_read_only") == "on":
        found = "transactions may only read, unless they ask for more"
        remedy = "set default_transaction_read_only = off for the server, the database and the user"
        return Observation("role", found, remedy, is_grave=True)
    return Observation("role", "takes writes")


def durability(settings: Mapping[str, str], commit: str | None) -> Iterator[Observation]:
    """Whether what is acknowledged is on disk."""
    off = [name for name in ("fsync", "full_page_writes") if settings[name] != "on"]
    if off:
        yield Observation(
            "durability",
            f"{are_off(' and '.join(off))}: after a power cut the database may be lost whole",
            f"set {' and '.join(f'{name} = on' for name in off)}",
            is_grave=True,
        )
    else:
        yield Observation("durability", "fsync and full_page_writes are on")
    if commit not in {"on", "remote_apply"}:
        yield Observation(
            "synchronous_commit",
            f"{commit} by default; Ergon's connections turn it on, and so does a fact that is"
            " appended in a transaction of yours; a job that is enqueued there does not",
            "set synchronous_commit = on where you enqueue in transactions of your own",
        )


def connection_usage(settings: Mapping[str, str], in_use: int) -> Observation:
    """How many connections are left. A worker takes up to ten."""
    reserved = int(settings["superuser_reserved_connections"])
    most = int(settings["max_connections"]) - reserved
    remedy = "" if in_use < MAX_USAGE * most else "raise max_connections, or run fewer processes"
    return Observation("connections", f"{in_use} of {most} in use", remedy)


def vacuum(settings: Mapping[str, str], idle: float) -> Observation:
    """Whether what was deleted can be cleared away: a queue deletes as much as it adds."""
    if settings["autovacuum"] != "on":
        return Observation(
            "vacuum",
            "autovacuum is off: a queue grows slower with every job",
            "set autovacuum = on",
            is_grave=True,
        )
    if idle > _LONG:
        return Observation(
            "vacuum",
            f"a transaction has been idle for {idle:.0f} s, and nothing newer can be cleared away",
            "end it; set idle_in_transaction_session_timeout",
        )
    return Observation("vacuum", "autovacuum is on, and no transaction holds it up")
