"""Workers and schedules out of rows, of which somebody else may have written some wrongly."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import msgspec

from ergon_framework.ports.jobstore import Schedule, WorkerRecord

T = TypeVar("T")

logger = logging.getLogger("ergon.jobs")

_decode = msgspec.json.Decoder(WorkerRecord).decode


class Reader:
    """Reads rows; one that cannot be read does not hide the others, and is told of once."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    def workers(self, rows: Iterable[tuple[Any, ...]]) -> list[WorkerRecord]:
        """From rows of id, instant and JSON."""
        return list(self._readable("worker", rows, _worker))

    def schedules(self, rows: Iterable[tuple[Any, ...]]) -> list[Schedule]:
        """From rows with the fields of a schedule, in their order."""
        return list(self._readable("schedule", rows, _schedule))

    def _readable(
        self, what: str, rows: Iterable[tuple[Any, ...]], read: Callable[[tuple[Any, ...]], T]
    ) -> Iterator[T]:
        for row in rows:
            try:
                yield read(row)
            except (msgspec.MsgspecError, UnicodeDecodeError, TypeError) as error:
                name = f"{what} {row[0]!r}"
                if name not in self._told:
                    self._told.add(name)
                    logger.warning("the row of %s is left out, it cannot be read: %s", name, error)


def _worker(row: tuple[Any, ...]) -> WorkerRecord:
    _, seen_at, record = row
    return msgspec.structs.replace(_decode(record), seen_at=msgspec.convert(seen_at, float))


def _schedule(row: tuple[Any, ...]) -> Schedule:
    fields = dict(zip(Schedule.__struct_fields__, row, strict=True))
    job, is_paused = fields["job"], fields["is_paused"]
    fields["job"] = job.encode() if isinstance(job, str) else job  # written by hand
    return msgspec.convert(fields | {"is_paused": is_paused == 1}, Schedule)
