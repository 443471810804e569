"""Reads and writes archived records as Parquet, for pandas, DuckDB and Spark. Needs pyarrow.

Each record is one row: what analysts ask for in columns of its own, and the whole record as JSON
text beside them, so that nothing is lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib import import_module
from itertools import islice
from typing import IO, Any, NamedTuple

import msgspec

from ergon_framework.errors import MissingExtraError, StoreError, describe

ROWS_AT_ONCE = 5_000
"""How many rows a row group has, and so how many are in memory."""
_TEXTS = ("kind", "key", "archived_at", "record", "status", "handler", "queue", "flow_id")
_MICROSECONDS = 1_000_000


class ParquetRow(NamedTuple):
    """A record as it is archived, whatever the format of its file."""

    kind: str
    key: str
    archived_at: str
    record: bytes


class _Step(msgspec.Struct, frozen=True):
    flow_id: str | None = None


class _Job(msgspec.Struct, frozen=True):
    status: str | None = None
    handler: str | None = None
    queue: str | None = None
    attempts: int | None = None
    created_at: float | None = None
    finished_at: float | None = None
    tags: tuple[str, ...] = ()
    step: _Step | None = None


class _Record(msgspec.Struct, frozen=True):
    job: _Job = _Job()


_read = msgspec.json.Decoder(_Record).decode


def require() -> Any:
    """Import pyarrow. Raises MissingExtraError if it is not installed."""
    try:
        import_module("pyarrow.parquet")
        return import_module("pyarrow")
    except ImportError as error:
        raise MissingExtraError(
            "an archive in Parquet needs pyarrow, which is not installed",
            remedy="pip install 'ergon-framework[parquet]', or write format = \"jsonl\""
            " under [jobs.archive]",
        ) from error


def write_rows(file: IO[bytes], rows: Iterable[ParquetRow]) -> int:
    """Write records into an open file. Returns how many."""
    arrow = require()
    fields = _columns(arrow)
    number, rest = 0, iter(rows)
    with arrow.parquet.ParquetWriter(file, fields, compression="zstd") as writer:
        while some := list(islice(rest, ROWS_AT_ONCE)):
            table = arrow.Table.from_pylist([_row(each) for each in some], schema=fields)
            writer.write_table(table)
            number += len(some)
    return number


def read_rows(file: IO[bytes], name: str) -> Iterator[ParquetRow]:
    """The records of an open file, in order; ``name`` is for errors."""
    arrow = require()
    columns = list(ParquetRow._fields)
    try:
        with arrow.parquet.ParquetFile(file) as found:
            for batch in found.iter_batches(ROWS_AT_ONCE, columns=columns):
                for row in batch.to_pylist():
                    record = row["record"].encode()
                    yield ParquetRow(row["kind"], row["key"], row["archived_at"], record)
    except arrow.ArrowException as error:
        raise StoreError(
            f"the file {name} of the archive cannot be read as Parquet: {describe(error)}",
            remedy="put a copy in its place, or move it out of the folder: no job is in it then",
            details={"file": name},
        ) from error


def _columns(arrow: Any) -> Any:
    text, moment = arrow.string(), arrow.timestamp("us", tz="UTC")
    return arrow.schema(
        [
            *((name, text) for name in _TEXTS),
            ("attempts", arrow.int64()),
            ("created_at", moment),
            ("finished_at", moment),
            ("tags", arrow.list_(text)),
        ]
    )


def _row(row: ParquetRow) -> dict[str, Any]:
    job = _read(row.record).job
    return {
        "kind": row.kind,
        "key": row.key,
        "archived_at": row.archived_at,
        "record": row.record.decode(),
        "status": job.status,
        "handler": job.handler,
        "queue": job.queue,
        "flow_id": None if job.step is None else job.step.flow_id,
        "attempts": job.attempts,
        "created_at": _micros(job.created_at),
        "finished_at": _micros(job.finished_at),
        "tags": list(job.tags),
    }


def _micros(instant: float | None) -> int | None:
    return None if instant is None else round(instant * _MICROSECONDS)
