"""The store's Lua scripts: what words in capitals stand for, and how pieces become a script."""

from __future__ import annotations

from ergon_framework.core.claim import DEFAULT_BOUNDS
from ergon_framework.jobs.stores.transitions import MAX_HISTORY_BYTES, MAX_HISTORY_ENTRIES
from ergon_framework.storage.redis.client import Script, read_lua

KEYS = {
    "JOB": "job",  # a hash: id to row
    "BODY": "body",  # a hash: id to what running it needs
    "TALE": "tale",  # a hash: id to what happened to it
    "ALL": "all",  # by order of adding
    "LANES": "lanes",  # those with due jobs
    "DUE": "due:",  # … and the jobs of each
    "SOON": "later",  # by due time
    "LEASES": "leases",  # running, by the end of the lease
    "EXPIRING": "expiring",  # waiting, by expiry
    "PURGING": "purging",  # ended, by when they go
    "UNIQUE": "unique",  # a hash: unique key to the id of its holder
    "RUNNING": "running",  # a hash: limit key to how many run
    "ASIDE": "aside",  # groups of jobs that wait for a limit key
    "BLOCKED": "blocked:",  # … and the jobs of each
    "COUNTS": "counts",  # a hash: status and queue to how many
    "QUEUES": "queues",  # a hash: the settings of queues
    "IN": "in:",  # jobs of some statuses, by order of adding
    "WORKERS": "workers",  # a hash
    "EXECUTORS": "executors",  # a hash: name to when it was last seen
    "SCHEDULES": "schedules",  # a hash
    "UNREADABLE": "unreadable",  # a hash: id to what is wrong with a row that was set aside
    "LAST_SEQ": "seq",
    "LAST_FENCE": "fence",
    "BAR": "bar",  # where everything went; not there while the store may be worked with
}
"""All keys of a store but three; those that end with a colon are the beginnings of several."""

_FIELDS = (
    *("STAGE", "STATUS", "FLAGS", "FENCE", "DELIVERIES", "ATTEMPTS", "EXCUSED"),
    *("CHANGED_AT", "CLAIMED_AT", "LEASED_UNTIL", "PURGE_AT", "RUN_AT", "EXPIRES_AT"),
    *("WHY_LENGTH", "WORKER_LENGTH", "SEQ", "MOST_OF_KEY", "PRIORITY", "CREATED_AT"),
    *("QUEUE_LENGTH", "EXECUTOR_LENGTH", "UNIQUE_LENGTH", "KEY_LENGTH"),
    *("QUEUE", "EXECUTOR", "UNIQUE_KEY", "LIMIT_KEY", "WHY", "WORKER"),
    *("ID", "TAG"),  # these two are not part of the row
)
"""The places of a row that was taken apart. What changes most comes first."""
_NUMBERS = (
    {"ENDED": 0, "ACTIVE": 1, "WAITS": 2, "LATER": 3, "LIMITED": 4, "OUTDATED": 5}
    | {"PENDING": 0, "RUNS": 1, "RETRYING": 2, "COMPLETED": 3, "FAILED": 4, "CANCELLED": 5}
    | {"IS_CHARGED": 1, "IS_SOLO": 2, "HAS_EXPIRY": 4, "HAS_TALE": 8, "IS_UNIQUE": 16}
    | {"HAS_KEY": 32, "IS_RESET": 1, "IF_EXPIRED": 2, "SOLO": 4}
    | {"REJECT": 0, "EXISTING": 1, "REPLACE": 2}
    | {"MOST_HISTORY": MAX_HISTORY_BYTES, "MOST_ENTRIES": MAX_HISTORY_ENTRIES}
    | {"MOST_PROMOTED": DEFAULT_BOUNDS.max_promoted, "MOST_LANES": DEFAULT_BOUNDS.max_lanes}
    | {"MOST_REFUSED": DEFAULT_BOUNDS.max_refused, "GLANCE": DEFAULT_BOUNDS.scan_size}
    | {"MOST_AT_ONCE": 1000, "MOST_ARGS": 1000}
)
HEAD = ">BBBI8I4I4I4ddddddI4I4I8I4ddI4I4I4I4"
"""The numbers of a row, as Lua packs them."""

_NAMES = {
    **{name: f"KEYS[{n}]" for n, name in enumerate(KEYS, 1)},
    **{name: str(n) for n, name in enumerate(_FIELDS, 1) if name.strip()},
    **{name: str(number) for name, number in _NUMBERS.items()},
    "HEAD": f'"{HEAD}"',
    "FOREVER": "math.huge",
}


def script(*pieces: str) -> Script:
    """One script of the store, made of pieces that follow each other."""
    return script_of("\n".join(map(source_of, pieces)))


def source_of(piece: str) -> str:
    """The text of one piece."""
    return read_lua(f"{__package__}.lua", f"{piece}.lua")


def script_of(source: str) -> Script:
    """A script that has the keys of the store, and knows the words in capitals."""
    return Script(source, keys=len(KEYS), names=_NAMES)
