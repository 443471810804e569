"""Reads rows of Parquet files, a few at a time, from a place on."""

from __future__ import annotations

import copy
import io
import zlib
from collections.abc import Iterator
from typing import Any

from ergon_framework.connector.broker.url import import_client
from ergon_framework.connector.files.errors import (
    FileChangedError,
    MalformedFileError,
    MalformedRowError,
)
from ergon_framework.connector.files.formats import twice_in
from ergon_framework.connector.files.rows import FoundRow, TextPlace

_BATCH_BYTES = 4 << 20
_BATCH_ROWS = 1024
_TAIL = 8  # the length of the footer, and a magic word
_MAX_FOOTER = 256 << 20
_UNREADABLE = (ValueError, OverflowError, NotImplementedError)


class ParquetRows:
    """The rows of one open file. Close it after the last use.

    A place counts rows instead of bytes, and its checksum is that of the footer: that has the size
    and the place of everything in the file.
    """

    def __init__(self, raw: io.BufferedReader, file: Any, place: TextPlace, limit: int) -> None:
        self._at = place
        self._raw = raw
        self._file = file
        self._limit = limit
        self._rows = self._read(place.rows)

    @property
    def place(self) -> TextPlace:
        """The place after the row that was read last."""
        return self._at

    def next(self) -> FoundRow | None:
        """The next row. None at the end of the file."""
        try:
            found = next(self._rows, None)
        except OSError as error:
            raise _told(error) from error
        except _UNREADABLE as error:
            raise _broken(error) from error
        if found is None:
            return None
        data, size = found
        start, self._at = self._at.offset, _place(self._at.rows + 1, self._at.check)
        problem = data if isinstance(data, str) else self._problem(data, size)
        return FoundRow(self._at.rows, start, self._at, data, problem, weight=size)

    def payload(self, row: FoundRow) -> Any:
        """A new dict of the columns."""
        if row.problem:
            raise MalformedRowError(row.problem)
        is_deep = any(isinstance(each, list | dict) for each in row.data.values())
        return copy.deepcopy(row.data) if is_deep else dict(row.data)

    def text(self, row: FoundRow) -> dict[str, Any]:
        """The text of a row in a dead letter."""
        return {} if row.problem else {"value": row.data}

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        self._raw.close()

    def _read(self, skipped: int) -> Iterator[tuple[dict[str, Any] | str, int]]:
        metadata = self._file.metadata
        for group in range(metadata.num_row_groups):
            part = metadata.row_group(group)
            if skipped >= part.num_rows:
                skipped -= part.num_rows
                continue
            fitting = _BATCH_BYTES * part.num_rows // max(1, part.total_byte_size)
            size = max(1, min(_BATCH_ROWS, fitting))
            for batch in self._file.iter_batches(size, row_groups=[group], use_threads=False):
                rest = batch.slice(skipped)
                skipped -= batch.num_rows - rest.num_rows
                weight = rest.nbytes // max(1, rest.num_rows)
                for row in _rows_of(rest):
                    yield row, weight

    def _problem(self, data: dict[str, Any], size: int) -> str:
        """Why a row is too large, if it is: the rows of one batch share its size, so long values
        are searched for.
        """
        values = [each for each in data.values() if isinstance(each, str | bytes)]
        found = max(size, sum(map(len, values)))
        if found <= self._limit:
            return ""
        return f"it is about {found} bytes long; at most {self._limit} are allowed"


def _rows_of(batch: Any) -> list[dict[str, Any] | str]:
    """Each row as a dict, or why Python has no value for it: an instant in the year 20000, say."""
    try:
        found: list[dict[str, Any] | str] = batch.to_pylist()
    except _UNREADABLE:
        found = [_row_of(batch.slice(place, 1)) for place in range(batch.num_rows)]
    return found


def _row_of(batch: Any) -> dict[str, Any] | str:
    """The one row of a batch. If a value cannot be read, the error names its column."""
    row: dict[str, Any] = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        try:
            row[name] = column[0].as_py()
        except _UNREADABLE as error:
            text = f"the column {name[:64]!r} ({column.type}): {type(error).__name__}: {error}"
            return text[:300]
    return row


def open_parquet(raw: io.BufferedReader, place: TextPlace, limit: int) -> ParquetRows:
    """The rows of a file from a place on. The place must be of this file."""
    pyarrow = import_client("pyarrow.parquet", extra="parquet", connector="files")
    try:
        check = _footer(raw)
        if place.rows and check != place.check:
            raise FileChangedError("the file is not the one any more that was read before")
        file = pyarrow.ParquetFile(raw)
        twice = twice_in(file.schema_arrow.names)
        if twice is not None:
            raise MalformedFileError(f"the column {twice[:64]!r} is there twice")
        return ParquetRows(raw, file, _place(place.rows, check), limit)
    except OSError as error:
        raise _told(error) from error
    except _UNREADABLE as error:
        raise _broken(error) from error


def _footer(raw: io.BufferedReader) -> int:
    end = raw.seek(0, io.SEEK_END)
    raw.seek(max(0, end - _TAIL))
    tail = raw.read(_TAIL)
    size = int.from_bytes(tail[:4], "little") + _TAIL
    if len(tail) < _TAIL or tail[4:] not in (b"PAR1", b"PARE") or size > min(end, _MAX_FOOTER):
        raise MalformedFileError("it is no Parquet file, or a part of one")
    raw.seek(end - size)
    found = zlib.crc32(raw.read(size))
    raw.seek(0)
    return found


def _place(rows: int, check: int) -> TextPlace:
    return TextPlace(rows, rows, check)


def _told(error: OSError) -> Exception:
    """The text of an error. Data that cannot be decoded raises OSError, too, without a number."""
    return error if error.errno is not None else _broken(error)


def _broken(error: BaseException) -> MalformedFileError:
    text = f"it cannot be read from here on: {type(error).__name__}: {error}"
    return MalformedFileError(text[:300])
