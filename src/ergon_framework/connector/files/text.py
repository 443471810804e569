"""Text files as rows: compression, encoding, header, and payloads."""

from __future__ import annotations

import base64
import codecs
import gzip
import io
import re
import zlib
from collections.abc import Callable, Sequence
from typing import Any, BinaryIO

import msgspec

from ergon_framework.connector.broker.lossless_json import BAD_JSON
from ergon_framework.connector.files.errors import (
    FileChangedError,
    MalformedFileError,
    MalformedRowError,
)
from ergon_framework.connector.files.formats import (
    FileFormat,
    Formats,
    is_gzip,
    problem_of_columns,
)
from ergon_framework.connector.files.rows import (
    FoundRow,
    LineRows,
    QuotedRows,
    TextPlace,
    fields_of,
)

_PIECE = 1 << 18
_LONE_CR = re.compile(rb"\r(?!\n|$)")
_WIDE = {
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
_BROKEN = (EOFError, zlib.error, gzip.BadGzipFile, UnicodeError)
Parse = Callable[[bytes], Any]


class TextRows:
    """The rows of one open text file. Close it after the last use."""

    def __init__(self, raw: BinaryIO, rows: LineRows, parse: Parse) -> None:
        self._raw = raw
        self._rows = rows
        self._parse = parse

    @property
    def place(self) -> TextPlace:
        """The place after the row that was read last."""
        return self._rows.place

    def next(self) -> FoundRow | None:
        """The next row. None at the end of the file."""
        try:
            return self._rows.next()
        except _BROKEN as error:
            raise _broken(error) from error

    def payload(self, row: FoundRow) -> Any:
        """The payload of a row. Raises :class:`MalformedRowError` if it has none."""
        if row.problem:
            raise MalformedRowError(row.problem)
        return self._parse(row.data)

    def text(self, row: FoundRow) -> dict[str, Any]:
        """The text of a row in a dead letter."""
        data = row.data.removesuffix(b"\n").removesuffix(b"\r")
        try:
            return {"text": data.decode()}
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(data).decode("ascii")}

    def close(self) -> None:
        """Close the file."""
        self._raw.close()


def open_text(
    formats: Formats,
    name: str,
    raw: io.BufferedReader,
    place: TextPlace,
    *,
    is_sure: bool,
    may_grow: bool = False,
) -> TextRows | None:
    """The rows of a file from a place on; ``raw`` is at its beginning.

    None when the file ``may_grow`` and has no whole header yet. Unless it ``is_sure`` that the file
    is the same as far as that place, it is compared, and another one is a
    :class:`FileChangedError`. One without rows is a :class:`MalformedFileError`.
    """
    try:
        stream, encoding = _plain(formats, name, raw)
        if formats.of_name(name) is FileFormat.JSONL:
            rows = LineRows(stream, TextPlace(), formats.limit)
            parse: Parse = _json_in(encoding)
            _pass_mark(rows, stream)
        else:
            sign = formats.delimiter_of(name)
            rows = QuotedRows(stream, TextPlace(), formats.limit, sign.encode(encoding))
            may_grow = may_grow and stream is raw
            columns = _columns(formats, rows, stream, sign, encoding, may_grow=may_grow)
            if columns is None and may_grow:
                return None
            parse = _csv(columns or (), sign, encoding)
        _go_to(rows, stream, place, is_sure=is_sure and stream is raw)
        return TextRows(raw, rows, parse)
    except _BROKEN as error:
        raise _broken(error) from error


def _plain(formats: Formats, name: str, raw: io.BufferedReader) -> tuple[io.BufferedReader, str]:
    """The file decompressed, in an encoding whose line breaks are single bytes."""
    stream = raw
    if is_gzip(name):
        stream = io.BufferedReader(_Unzipped(raw), _PIECE)
    head = stream.peek(4)[:4]
    wide = next((each for mark, each in _WIDE.items() if head.startswith(mark)), None)
    encoding = wide or codecs.lookup(formats.encoding).name
    if encoding.startswith(("utf-16", "utf-32")):
        return io.BufferedReader(_Transcoded(stream, encoding), _PIECE), "utf-8"
    return stream, "utf-8" if encoding == "utf-8-sig" else encoding


class _Unzipped(io.RawIOBase):
    """A decompressed stream. It returns everything before the place where the data is damaged."""

    def __init__(self, stream: io.BufferedReader) -> None:
        super().__init__()
        self._stream = gzip.GzipFile(fileobj=stream)

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer with the next bytes."""
        data = self._stream.read1(len(buffer))
        buffer[: len(data)] = data
        return len(data)


class _Transcoded(io.RawIOBase):
    """A stream of UTF-16 or UTF-32 text as UTF-8."""

    def __init__(self, stream: io.BufferedReader, encoding: str) -> None:
        super().__init__()
        self._stream = stream
        # Half of a character becomes bytes that are no UTF-8: then it costs its row, and no more.
        self._decoder = codecs.getincrementaldecoder(encoding)("surrogatepass")
        self._left = b""

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer with the next bytes."""
        while not self._left:
            data = self._stream.read(_PIECE)
            self._left = self._decoder.decode(data, final=not data).encode("utf-8", "surrogatepass")
            if not data:
                break
        count = min(len(buffer), len(self._left))
        buffer[:count] = self._left[:count]
        self._left = self._left[count:]
        return count


def _pass_mark(rows: LineRows, stream: io.BufferedReader) -> None:
    if stream.peek(3)[:3] == codecs.BOM_UTF8:
        mark = stream.read(3)
        rows.place = TextPlace(0, len(mark), zlib.crc32(mark))


def _columns(
    formats: Formats,
    rows: LineRows,
    stream: io.BufferedReader,
    sign: str,
    encoding: str,
    *,
    may_grow: bool,
) -> Sequence[str] | None:
    """The columns in the first row. None when the row is missing or incomplete."""
    _pass_mark(rows, stream)
    if formats.columns:
        return formats.columns
    header = rows.next()
    if header is None or (may_grow and not header.is_terminated):
        return None
    problem, names = header.problem, [""]
    try:
        names = [each.strip() for each in fields_of(_line(header.data, encoding), sign)]
    except MalformedRowError as error:
        problem = problem or error.message
    if b"\0" in header.data:
        problem = problem or "it has a NUL character"
    if _LONE_CR.search(header.data):
        # Lines that end in CR alone: all of the file would be its first row, and no row work.
        problem = problem or "it has a carriage return; let lines end in LF or CRLF"
    problem = problem or problem_of_columns(names)
    if problem:
        raise MalformedFileError(f"its first row names no columns: {problem}")
    rows.place = TextPlace(0, header.end.offset, header.end.check)
    return names


def _go_to(rows: LineRows, stream: io.BufferedReader, place: TextPlace, *, is_sure: bool) -> None:
    """Continue at a place, unless it is within the header."""
    here = rows.place
    if place.offset <= here.offset:
        if place.rows or place.offset not in (0, here.offset):
            raise _changed()
        return
    if is_sure:
        stream.seek(place.offset)
        rows.place = place
        return
    left, check = place.offset - here.offset, here.check
    while left and (piece := stream.read(min(_PIECE, left))):
        left, check = left - len(piece), zlib.crc32(piece, check)
    if left or check != place.check:
        raise _changed()
    rows.place = place


def _json_in(encoding: str) -> Parse:
    """Reads a line of JSON, which need not be UTF-8."""
    if encoding == "utf-8":
        return _json
    return lambda data: _json(_line(data, encoding).encode())


def _json(data: bytes) -> Any:
    try:
        return msgspec.json.decode(data)
    except BAD_JSON as error:
        raise MalformedRowError(f"not JSON: {error}") from error


def _csv(columns: Sequence[str], sign: str, encoding: str) -> Parse:
    def parse(data: bytes) -> dict[str, str]:
        fields = fields_of(_line(data, encoding), sign)
        if len(fields) != len(columns):
            raise MalformedRowError(
                f"it has {len(fields)} fields, and there are {len(columns)} columns"
            )
        if b"\0" in data:
            raise MalformedRowError("it has a NUL character")
        return dict(zip(columns, fields, strict=True))

    return parse


def _line(data: bytes, encoding: str) -> str:
    try:
        return data.decode(encoding).removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        raise MalformedRowError(f"not {encoding}: byte {error.start} of the row") from error


def _broken(error: BaseException) -> MalformedFileError:
    return MalformedFileError(
        f"it cannot be read from here on: {type(error).__name__}: {error}"[:300]
    )


def _changed() -> FileChangedError:
    return FileChangedError("the file is not the one any more that was read before")
