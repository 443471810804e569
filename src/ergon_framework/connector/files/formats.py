"""Which files are read, and what their names say about their content."""

from __future__ import annotations

import codecs
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase

from ergon_framework.connector.broker.url import import_client
from ergon_framework.errors import ConfigurationError

GZIP = ".gz"
_PUNCTUATION = '\r\n",;\t|{}[]:'
_DELIMITERS = {"tab": "\t", "comma": ",", "semicolon": ";", "pipe": "|", "space": " "}


class FileFormat(StrEnum):
    """What a file holds."""

    CSV = "csv"
    JSONL = "jsonl"
    PARQUET = "parquet"


_SUFFIXES = {
    ".csv": FileFormat.CSV,
    ".tsv": FileFormat.CSV,
    ".jsonl": FileFormat.JSONL,
    ".ndjson": FileFormat.JSONL,
    ".parquet": FileFormat.PARQUET,
}


@dataclass(frozen=True, slots=True)
class Formats:
    """Which files are read, and how."""

    format: FileFormat | None = None
    """The format of all files. None: the name of each file says it."""
    pattern: str | None = None
    delimiter: str = ""
    columns: tuple[str, ...] = ()
    encoding: str = "utf-8"
    limit: int = 0

    @classmethod
    def of(
        cls,
        format_name: str,
        pattern: str | None,
        delimiter: str | None,
        columns: str | None,
        encoding: str,
        limit: int,
    ) -> Formats:
        """Make it from the options of a connector, checked."""
        known = ("auto", *FileFormat)
        if format_name not in known:
            raise ConfigurationError(
                f"format is {', '.join(known[:-1])} or {known[-1]}",
                remedy="leave it out, and the name of each file says it",
            )
        if format_name == FileFormat.PARQUET:
            import_client("pyarrow", extra="parquet", connector="files")
        sign = _DELIMITERS.get(delimiter or "", delimiter or "")
        problem = _problem_of_encoding(encoding, sign)
        if problem:
            raise ConfigurationError(problem, remedy="write utf-8, cp1252 or utf-16")
        if len(sign) > 1 or sign in ('"', "\n", "\r"):
            raise ConfigurationError(
                "delimiter is one character, and no quote or line break",
                remedy=f"write it, or one of {', '.join(_DELIMITERS)}",
            )
        names = tuple(each.strip() for each in columns.split(",")) if columns else ()
        if names and problem_of_columns(names):
            raise ConfigurationError(f"columns: {problem_of_columns(names)}")
        return cls(
            None if format_name == "auto" else FileFormat(format_name),
            pattern,
            sign,
            names,
            encoding,
            limit,
        )

    def takes(self, name: str) -> bool:
        """Whether a file of this name is read."""
        parts = name.split("/")
        base = parts[-1]
        if any(part[:1] in (".", "_", "") for part in parts):
            return False
        if self.pattern is not None:
            return fnmatchcase(base, self.pattern) and self.of_name(base) is not None
        found = _SUFFIXES.get(_suffix(base))
        return found is not None and self.format in (None, found)

    def of_name(self, name: str) -> FileFormat | None:
        """The format of a file."""
        return self.format or _SUFFIXES.get(_suffix(name))

    def has_end(self, name: str) -> bool:
        """Whether a file can only be read when it is complete."""
        return is_gzip(name) or self.of_name(name) is FileFormat.PARQUET

    def delimiter_of(self, name: str) -> str:
        """The delimiter of a CSV file."""
        return self.delimiter or ("\t" if _suffix(name) == ".tsv" else ",")


def is_gzip(name: str) -> bool:
    """Whether the name says that the file is compressed."""
    return name.lower().endswith(GZIP)


def problem_of_columns(names: Sequence[str]) -> str:
    """Why these names cannot be columns; empty when they can."""
    if "" in names:
        return f"column {names.index('') + 1} has no name"
    twice = twice_in(names)
    return f"the column {twice[:64]!r} is there twice" if twice is not None else ""


def twice_in(names: Sequence[str]) -> str | None:
    """The first name that is there more than once."""
    return next((each for each, count in Counter(names).items() if count > 1), None)


def _problem_of_encoding(encoding: str, delimiter: str) -> str:
    """Why files cannot be read in it; empty when they can.

    Rows are found as bytes, so line ends, quotes and delimiters must be the bytes of ASCII, unless
    the encoding is transcoded first. Python's own list also has encodings that are no texts.
    """
    shown = encoding[:32]
    try:
        data = _PUNCTUATION.encode(encoding)
    except (LookupError, ValueError):
        return f"there is no encoding {shown!r} of texts"
    is_wide = codecs.lookup(encoding).name.startswith(("utf-16", "utf-32"))
    if not is_wide and data.removeprefix(codecs.BOM_UTF8) != _PUNCTUATION.encode("ascii"):
        return f"the encoding {shown!r} has other bytes than ASCII for line ends and quotes"
    try:
        delimiter.encode(encoding)
    except UnicodeError:
        return f"the encoding {shown!r} has no character {delimiter!r}, which is the delimiter"
    return ""


def _suffix(name: str) -> str:
    lower = name.lower().removesuffix(GZIP)
    dot = lower.rfind(".")
    return "" if dot < 0 else lower[dot:]
