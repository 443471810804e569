"""How every command prints: a table or plain lines for people, JSON for programs.

With ``--json`` the standard output holds one JSON document and nothing else: an array with one
element per line for a list, one object for a thing, ``{"error": ...}`` for a failure. Without a
terminal a table is plain text, columns two blanks apart. Control characters never reach a terminal.
There, states have colours, unless ``NO_COLOR`` is set or the terminal is dumb, and ids are neither
wrapped nor cut: a list that is too wide with whole ids is shown row by row.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import select
import sys
import threading
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import (
    AbstractContextManager,
    ExitStack,
    contextmanager,
    nullcontext,
    redirect_stdout,
    suppress,
)
from io import BufferedWriter, RawIOBase, TextIOWrapper
from typing import Any, Protocol, Self, TextIO

from ergon_framework.app.console import log_line
from ergon_framework.core.text import quoted_json
from ergon_framework.errors import ConfigurationError, ErgonError, describe, text_of

Row = Mapping[str, Any]

_closed: set[str] = set()
"""Streams that were closed before we began."""
_refused: set[OSError] = set()
"""What the standard output answered when it could not be written."""
_UNWRITABLE = {errno.ENOSPC, errno.EIO, errno.EBADF, errno.EDQUOT, errno.EFBIG}


def show_list(rows: Iterable[Row], columns: Sequence[str], *, as_json: bool) -> None:
    """Rows as a table of these columns, or as a JSON array of whole rows."""
    if as_json:
        _show_array(rows)
        return
    with waiting("reading"):
        lines = [[_text(row.get(column)) for column in columns] for row in rows]
    titles = [column.replace("_", " ") for column in columns]
    if sys.stdout.isatty():
        _show_table(columns, titles, lines)
    else:
        _show_plain([titles, *lines])


def show_one(fields: Row, *, as_json: bool, title: str = "") -> None:
    """Print one record: a line for each field, or one line of JSON."""
    if as_json:
        print_line(json_text(fields))
        return
    lines = [[name.replace("_", " "), _text(value)] for name, value in fields.items()]
    if sys.stdout.isatty():
        _show_fields(title, [(name, _text(value)) for name, value in fields.items()])
        return
    if title:
        print(title)
    _show_plain(lines)


def show_error(error: BaseException, *, as_json: bool = False) -> None:
    """``error: what was wrong (what to do)`` for people; its shape as well for programs."""
    if as_json:
        from ergon_framework.app.outcome import error_shape

        print(json_text({"error": error_shape(error)}), flush=True)
    text = text_of(error) if isinstance(error, ErgonError) else describe(error)
    line = log_line(text, logging.ERROR) or f"error: {printable(text, keeps_lines=True)}"
    print_line(line, sys.stderr)


def show_traceback(error: BaseException) -> None:
    """Where an error was raised, without what looks like a secret."""
    from ergon_framework.redaction import redacted_text

    text = "".join(traceback.format_exception(error))
    print(redacted_text(text), end="", file=sys.stderr, flush=True)


def prepare_streams() -> None:
    """Escape letters that the standard output cannot encode, as on the standard error.

    A stream that was closed before the start is treated as one without a reader.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            _closed.add(name)
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - for good
    # Exactly Python's own stream: a test, or a program that calls us, may have put another one
    # there.
    if type(sys.stdout) is TextIOWrapper:
        sys.stdout = _Stdout.over(sys.stdout)
    elif (reconfigure := getattr(sys.stdout, "reconfigure", None)) is not None:
        reconfigure(errors="backslashreplace")


def standard_input() -> TextIO:
    """What is piped in. Where it was closed before we began, there is nothing to read."""
    if sys.stdin is None:
        raise ConfigurationError(
            "the standard input is closed", remedy="pipe something in, or name a file"
        )
    return sys.stdin


def can_ask() -> bool:
    """Whether a question can be asked: input and error stream are a terminal."""
    # A standard input that was closed before we began is None.
    return sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()


def is_stdout_closed() -> bool:
    """Whether the process was started without a standard output."""
    return "stdout" in _closed


class _Stdout(TextIOWrapper):
    """The standard output, which remembers that it could not be written.

    An ``OSError`` does not say which file it is about: the full disk may be that of a store, while
    the standard output can be written.
    """

    _is_unbuffered = False

    @classmethod
    def over(cls, stream: TextIOWrapper) -> Self:
        """Take over a stream; characters that its encoding does not have are written as escapes.

        With ``PYTHONUNBUFFERED``, Python would take no notice when a disk that is nearly full takes
        only a part of what is written: a buffer sees to it that all is written, or refused.
        """
        encoding, is_by_line = stream.encoding, stream.line_buffering
        is_unbuffered = stream.write_through
        buffer = stream.detach()
        taken = cls(
            BufferedWriter(buffer) if isinstance(buffer, RawIOBase) else buffer,
            encoding=encoding,
            errors="backslashreplace",
            line_buffering=is_by_line,
        )
        taken._is_unbuffered = is_unbuffered
        return taken

    def write(self, text: str) -> int:
        try:
            written = super().write(text)
        except OSError as error:
            _refused.add(error)
            raise
        if self._is_unbuffered:
            self.flush()
        return written

    def flush(self) -> None:
        try:
            super().flush()
        except OSError as error:
            _refused.add(error)
            raise


class StdoutBytes:
    """The standard output for bytes; that it could not be written is remembered here, too."""

    def write(self, data: bytes) -> int:
        """Write all of it."""
        try:
            return sys.stdout.buffer.write(data)
        except OSError as error:
            _refused.add(error)
            raise

    def flush(self) -> None:
        """Hand everything over."""
        try:
            sys.stdout.buffer.flush()
        except OSError as error:
            _refused.add(error)
            raise


def is_about_stdout(error: BaseException) -> bool:
    """Whether an error is about the standard output, which is on a full disk for example."""
    return isinstance(error, OSError) and error.errno in _UNWRITABLE and error in _refused


def is_unread() -> bool:
    """Whether the reader of the standard output was gone when something was written."""
    return any(isinstance(each, BrokenPipeError) for each in _refused)


def is_about_a_disk(error: BaseException) -> bool:
    """Whether a disk is full, broken or may not be written: nothing that we could have avoided."""
    return isinstance(error, OSError) and error.errno in _UNWRITABLE - {errno.EBADF}


def leave_stdout() -> None:
    """Write nothing more there, not even what is still to be written."""
    try:
        place = sys.stdout.fileno()
    except (AttributeError, OSError, ValueError):  # it is no file
        return
    # Python flushes the stream once more at exit, which would fail again and be reported.
    os.dup2(os.open(os.devnull, os.O_WRONLY), place)


def keep_stdout(as_json: bool) -> AbstractContextManager[object]:
    """Send what user code prints to the standard error stream while the output is JSON."""
    return redirect_stdout(sys.stderr) if as_json else nullcontext()


def stop_if_unread() -> None:
    """Raise ``BrokenPipeError`` when the reader of the standard output is gone."""
    try:
        place = sys.stdout.fileno()
    except (OSError, ValueError):  # it is no file
        return
    poll = select.poll()
    poll.register(place, 0)  # POLLERR and POLLHUP are always reported
    if any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0)):
        raise BrokenPipeError


def print_line(line: str, stream: TextIO | None = None) -> None:
    """Print a line at once, and as one: other processes print lines to the same stream.

    With ``PYTHONUNBUFFERED``, ``print`` writes a line and its end apart, and another line may come
    between.
    """
    stream = sys.stdout if stream is None else stream
    stream.write(f"{line}\n")
    stream.flush()


def note(text: str) -> None:
    """Print a note for people on the standard error stream."""
    with suppress(OSError):  # nobody has to listen
        print_line(printable(f"note: {text}"), sys.stderr)


def printable(text: str, *, keeps_lines: bool = False) -> str:
    """Text without characters that could steer a terminal."""
    kept = "\n" if keeps_lines else ""
    return "".join(
        char if char.isprintable() or char in kept else char.encode("unicode_escape").decode()
        for char in text
    )


def _show_array(rows: Iterable[Row]) -> None:
    # Row by row: a listing may be longer than the memory, and its reader may begin meanwhile.
    separator = "[\n"
    for row in rows:
        print(separator + json_text(row), end="")
        separator = ",\n"
    print("[]" if separator == "[\n" else "\n]", flush=True)


def _show_plain(lines: Sequence[Sequence[str]]) -> None:
    widths = [max(len(cell) for cell in column) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        print("  ".join(cells).rstrip())


_GOOD, _BUSY, _UNSURE, _BAD, _OVER = "green", "cyan", "yellow", "bold red", "dim"
_STATES = {
    **dict.fromkeys(("completed", "succeeded", "done", "ok", "running", "settled"), _GOOD),
    **dict.fromkeys(("active",), _BUSY),
    **dict.fromkeys(("retrying", "note", "stopping", "released", "begun", "unknown"), _UNSURE),
    **dict.fromkeys(
        ("failed", "refused", "timed_out", "aborted", "bad", "silent", "quarantined"), _BAD
    ),
    **dict.fromkeys(("cancelled", "discarded"), _OVER),
}
_COLOURS: Mapping[str, Mapping[str, str]] = {
    **dict.fromkeys(("status", "state", "outcome"), _STATES),
    "circuit": {"closed": _GOOD, "half_open": _UNSURE, "open": _BAD},
    "paused": {"yes": _UNSURE},
}
"""The colour of a state, by the column it stands in: an open circuit is bad, an open gate not."""
_GAP = 2
_INSTANT = re.compile(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d:\d\d)(?:\.\d+)?Z")
_LEAST = 9
"""Characters that a column of longer texts must have for a table to be readable."""
_DATE = 10


def colour_of(column: str, cell: str) -> str:
    """The colour of a cell, by its first word; empty for what is no state."""
    return _COLOURS.get(column, {}).get(cell.partition(" ")[0].rstrip(","), "")


def _is_id(column: str) -> bool:
    return column in ("id", "unit") or column.endswith("_id")


def _is_whole(column: str) -> bool:
    """Whether the cells of a column are read, or copied, in one piece."""
    return _is_id(column) or column in _COLOURS


def _at_a_glance(column: str, cell: str) -> str:
    """A time in a table for people: to the second, and where it may be wrapped."""
    found = _INSTANT.fullmatch(cell) if column.endswith("_at") else None
    return cell if found is None else f"{found[1]} {found[2]}Z"


def _show_table(
    columns: Sequence[str], titles: Sequence[str], lines: Sequence[Sequence[str]]
) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    table = Table(box=None, padding=(0, _GAP, 0, 0), header_style="bold")
    lines = [list(map(_at_a_glance, columns, line)) for line in lines]
    needed = 0
    for place, (column, title) in enumerate(zip(columns, titles, strict=True)):
        cells = [line[place] for line in lines]
        # An id that is wrapped cannot be copied, nor is a state recognised: room for the longest
        # cell.
        if _is_whole(column):
            least = max(map(len, (title, *cells)))
        else:
            # Other cells may be wrapped between words, and very long words within.
            words = max((len(word) for cell in cells for word in cell.split()), default=0)
            most = _DATE if column.endswith("_at") else _LEAST
            least = max(min(words, most), *map(len, title.split()))
        needed += least + _GAP
        table.add_column(title, overflow="fold", min_width=least, no_wrap=_is_whole(column))
    if needed > console.width and lines:
        for number, line in enumerate(lines):
            if number:
                print()
            _show_fields("", [each for each in zip(columns, line, strict=True) if each[1]])
        return
    for line in lines:
        found = zip(columns, line, strict=True)
        table.add_row(*(Text(cell, colour_of(column, cell)) for column, cell in found))
    console.print(table)


def _show_fields(title: str, fields: Sequence[tuple[str, str]]) -> None:
    """One thing, a line for each field; the line of an id may be wider than the terminal.

    Where a terminal has no room for values beside their names, each is below its name.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    least = max((len(cell) for name, cell in fields if _is_id(name)), default=1)
    labels = max((len(name) for name, _ in fields), default=0)
    longest = max((len(cell) for _, cell in fields), default=0)
    if console.width - labels - _GAP < max(least, min(longest, _LEAST)):
        _show_stacked(console, title, fields)
        return
    table = Table(box=None, padding=(0, _GAP, 0, 0), header_style="bold", show_header=bool(title))
    table.add_column("", no_wrap=True, min_width=labels)
    table.add_column(title, overflow="fold", min_width=least)
    for name, cell in fields:
        table.add_row(Text(name.replace("_", " ")), Text(cell, colour_of(name, cell)))
    width = max(console.width, labels + least + 2 * _GAP)
    console.print(table, width=width, crop=False, no_wrap=False)


def _show_stacked(console: Any, title: str, fields: Sequence[tuple[str, str]]) -> None:
    """Print fields on a narrow terminal, with long values wrapped."""
    from rich.text import Text

    if title:
        console.print(Text(title, "bold"), soft_wrap=True)
    for name, cell in fields:
        console.print(Text(name.replace("_", " ")), soft_wrap=True)
        console.print(Text(f"  {cell}", colour_of(name, cell)), soft_wrap=True)


def _text(value: object) -> str:
    """A value as a cell: nothing for None, lists with commas."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.3f}"
    if isinstance(value, list | tuple):
        return ", ".join(_text(item) for item in value)
    return printable(str(value))


def json_text(value: object) -> str:
    """A line of JSON, in characters that the standard output can encode."""
    text = quoted_json(json.dumps(value, ensure_ascii=False, default=str))
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        return json.dumps(value, default=str)
    return text


class Progress(Protocol):
    """Moves a progress bar; what is not given stays as it is."""

    def __call__(
        self,
        completed: int | None = None,
        /,
        *,
        advance: int | None = None,
        description: str | None = None,
        total: int | None = None,
    ) -> None:
        """Show how many are completed, or so many more, of how many, and what is being done."""


_bars: list[object] = []
"""The bars that are shown now."""
WAITING_AFTER = 1.0
"""Seconds after which people want to see that something is still being done."""


@contextmanager
def waiting(text: str, *, after: float = WAITING_AFTER) -> Iterator[None]:
    """The bar of what cannot be counted; what is done sooner shows none.

    Nothing may be printed meanwhile but by code of users.
    """
    if not sys.stderr.isatty():
        yield
        return
    lock, shown = threading.Lock(), ExitStack()
    is_over = threading.Event()

    def show() -> None:
        with lock:
            if not is_over.is_set() and not _bars:  # one bar says enough
                shown.enter_context(progress(text, counts=False))

    timer = threading.Timer(after, show)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        with lock:
            is_over.set()
            # Under the lock: the timer may be showing the bar at this very moment.
            shown.close()


@contextmanager
def progress(
    text: str,
    total: int | None = None,
    *,
    in_bytes: bool = False,
    has_text_last: bool = False,
    counts: bool = True,
) -> Iterator[Progress]:
    """A bar on the standard error stream, gone at the end; without a terminal nothing is shown.

    One that ``counts`` nothing shows only that time passes.
    """
    if not sys.stderr.isatty():
        yield lambda *_, **__: None
        return
    from rich import progress as bars
    from rich.console import Console

    described = bars.TextColumn("{task.description}", markup=False)
    columns: tuple[bars.ProgressColumn, ...] = (
        described,
        bars.BarColumn(),
        bars.DownloadColumn() if in_bytes else bars.MofNCompleteColumn(),
        bars.TransferSpeedColumn() if in_bytes else bars.TimeElapsedColumn(),
    )
    if not counts:
        columns = (described, bars.BarColumn(), bars.TimeElapsedColumn())
    if has_text_last:
        columns = (*columns[1:3], described)
    with bars.Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task(text, total=total)
        _bars.append(shown)

        def move(completed: int | None = None, /, **changes: Any) -> None:
            shown.update(task, completed=completed, **changes)

        try:
            yield move
        finally:
            _bars.remove(shown)
