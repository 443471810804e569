"""The store's statements, and values as they want them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from ergon_framework.jobs.stores.documents import column_key, label_rows, options_text, text_of
from ergon_framework.ports.jobstore import Job, NewJob
from ergon_framework.storage.postgres.pipeline import ByteaArray, Texts
from ergon_framework.storage.sql_files import load

SQL = "ergon_framework.jobs.stores.postgres.sql"
_NOW = "coalesce(%(now)s::float8, extract(epoch FROM statement_timestamp())::float8)"
"""The caller's clock if there is one, or the server's. One instant for a whole statement, so that
it can be looked up in an index."""
_STAMP = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
"""The least fence to give out now. A counter alone could give one out twice, when the server is
replaced by one that has not heard of the last claim."""
_LONG_HISTORY = """CASE
        WHEN length(j.history) > %(longest)s
            OR length(j.history) - length(replace(j.history, chr(10), '')) > %(most)s
        THEN j.history
    END"""
"""The history of a job that was moved, if it has to be shortened: by characters or by entries."""
_WAITING_KEY = """CASE
        WHEN position('"waiting_key":' IN j.options) > 0 THEN j.options::json ->> 'waiting_key'
    END"""
"""The unique key that a job holds only while it waits."""
COLUMNS = (
    *("seq", "stage", "status", "fence", "deliveries", "attempts", "excused", "is_charged"),
    *("is_solo", "changed_at", "lease_expires_at", "claimed_at", "worker", "why", "purge_at"),
    *("queue", "executor", "priority", "run_at", "expires_at", "unique_key", "limit_key"),
    *("key_limit", "id", "handler", "created_at", "options", "args", "kwargs", "last_error"),
    *("result", "history", "flow_id", "join_id", "feeds", "wait", "signal"),
)
"""All that a job has. By name: a later version may add others while this one runs."""
_CANDIDATE_COLUMNS = (
    *("seq", "fence", "id", "handler", "executor", "queue", "args", "kwargs", "attempts"),
    *("deliveries", "excused", "is_solo", "created_at", "options", "claimed_at", "priority"),
    *("run_at", "status", "expires_at", "limit_key", "key_limit"),
)
"""What a claim reads of a job that it may take."""
_FLOW_COLUMNS = (
    *("id", "on_failure", "status", "unfinished", "completed", "failed", "cancelled", "uncounted"),
    *("keep", "purge_at", "name", "created_at", "changed_at", "plan"),
)
"""What is kept of a flow."""
_SHARED = {
    "now": _NOW,
    "stamp": _STAMP,
    "long_history": _LONG_HISTORY,
    "waiting_key": _WAITING_KEY,
    "columns": ", ".join(COLUMNS),
    "candidate_columns": ", ".join(_CANDIDATE_COLUMNS),
    "flow_columns": ", ".join(_FLOW_COLUMNS),
    "flow_values": ", ".join(f"%({name})s" for name in _FLOW_COLUMNS),
}
_PLACE = re.compile(r"\{(\w+)\}")


@cache
def statements(file: str) -> Mapping[str, bytes]:
    """The named statements of a file, with what several share put in.

    ``{name}`` stands for one of the expressions above, or for another statement of the file.
    """
    found = load(SQL, file)
    pieces = {**found, **_SHARED}
    return {name: _filled(text, pieces).encode() for name, text in found.items()}


def _filled(text: str, pieces: Mapping[str, str]) -> str:
    """A statement with the pieces that it names; other places are filled by whoever sends it."""

    def piece(place: re.Match[str]) -> str:
        return _filled(pieces[place[1]], pieces) if place[1] in pieces else place[0]

    return _PLACE.sub(piece, text)


# Arrays are packed by us: the driver's own way takes ten times as long, and arrays are most of what
# a worker sends. Numbers are short as text; texts and bytes are packed (``Texts``, ``ByteaArray``).


def numbers(values: Iterable[float | None]) -> str:
    """An array of numbers; many have the same one throughout."""
    given = list(values)
    if len(set(given)) == 1:
        text = ",".join([_number(given[0])] * len(given))
    else:
        text = ",".join(map(_number, given))
    return "{" + text + "}"


def _number(value: float | None) -> str:
    return "NULL" if value is None else repr(value)


def flags(values: Iterable[bool]) -> str:
    """An array of truth values."""
    return "{" + ",".join(["t" if each else "f" for each in values]) + "}"


def texts(values: Iterable[str | None]) -> Texts:
    """An array of texts."""
    return Texts([None if each is None else each.encode() for each in values])


def writable(text: str) -> str:
    """A text as the server takes it, which knows no NUL."""
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}")


def plain_values(jobs: Sequence[NewJob]) -> dict[str, Any]:
    """What every new job has."""
    return {
        "delays": numbers([job.delay for job in jobs]),
        "run_ats": numbers([job.run_at for job in jobs]),
        "queues": texts([job.queue for job in jobs]),
        "executors": texts([job.executor for job in jobs]),
        "priorities": numbers([job.priority for job in jobs]),
        "ids": texts([job.id for job in jobs]),
        "handlers": texts([job.handler for job in jobs]),
        "args": ByteaArray([job.args for job in jobs]),
        "kwargs": ByteaArray([job.kwargs for job in jobs]),
    }


def label_values(jobs: Sequence[NewJob | Job]) -> dict[str, Any] | None:
    """What jobs can be found by; None where none of them has anything."""
    rows = label_rows(jobs)
    if not rows:
        return None
    return {
        "labels": texts([label for label, _ in rows]),
        "label_ids": texts([job_id for _, job_id in rows]),
    }


def key_values(jobs: Iterable[NewJob | Job]) -> dict[str, Any] | None:
    """The unique keys that jobs with a rule take; None where there are none."""
    taking = [(job.id, job.unique_key, job.unique) for job in jobs if job.unique is not None]
    if not taking:
        return None
    return {
        "ids": texts([job_id for job_id, _, _ in taking]),
        "keys": texts([key for _, key, _ in taking]),
        "states": texts([text_of(rule.ended_states) for _, _, rule in taking]),
        "periods": numbers([rule.period for _, _, rule in taking]),
    }


def indexed(insert: bytes, index: bytes) -> bytes:
    """One statement that adds jobs, and lets them be found by what they have."""
    added = insert.rstrip().rstrip(b";")
    return b"WITH added AS (" + added + b" RETURNING seq, id) " + index


def special_values(
    jobs: Sequence[NewJob], options: Callable[[NewJob], str | None] = options_text
) -> dict[str, Any]:
    """What some new jobs have."""
    return {
        "expiries": numbers([job.expires_at for job in jobs]),
        "unique_keys": texts([column_key(job) for job in jobs]),
        "limit_keys": texts([job.limit_key for job in jobs]),
        "limits": numbers([job.limit for job in jobs]),
        "options": texts(map(options, jobs)),
    }
