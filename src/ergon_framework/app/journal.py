"""Where the journal is, writing to it while something runs, and the traces found in it as trees."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ergon_framework.app.jobs import resolve_url
from ergon_framework.app.settings import load_settings
from ergon_framework.app.settings.sections import Settings
from ergon_framework.app.settings.stores import base_of, script_store, without
from ergon_framework.errors import (
    ConfigurationError,
    ErgonError,
    SettingsError,
    StoreUnavailableError,
)
from ergon_framework.ports.journal import SpanRecord
from ergon_framework.storage.journal import SqliteJournal
from ergon_framework.storage.urls import SQLITE
from ergon_framework.telemetry.journal import VARIABLE

if TYPE_CHECKING:
    from ergon_framework.telemetry.journal import JournalWriter


FILE = "ergon-journal.db"
"""The journal's file name, beside a settings file that names none."""
_REMEDY = 'under [telemetry] write journal = "sqlite:///ergon-journal.db", or "none"'


def journal_path(settings: Settings) -> Path | None:
    """The journal's file, whether it is there or not; None when there is to be none.

    A path in a settings file is relative to that file. Without a settings file it is beside the
    store of a script, ``ergon.db``; where there is none, there is no journal, unless the parent
    process said so.
    """
    named = settings.telemetry.journal
    if named is None:
        if settings.file is not None:
            return settings.file.absolute().with_name(FILE)
        script = script_store(settings)
        beside = "none" if script is None else f"{SQLITE}{script.absolute().with_name(FILE)}"
        named = os.environ.get(VARIABLE) or beside
    if named == "none":
        return None
    url = resolve_url(named, base_of(settings))
    path = url.removeprefix(SQLITE)
    if path in (url, "", ":memory:") or "\0" in path:
        raise SettingsError("telemetry.journal does not name an SQLite file", remedy=_REMEDY)
    return Path(path)


def journal_of(settings: Settings) -> SqliteJournal | None:
    """The journal, for reading; None when there is none, or nothing has written it yet."""
    path = journal_path(settings)
    if path is None or not path.exists():
        return None
    return SqliteJournal(path, read_only=True)


def writer_of(settings: Settings) -> JournalWriter | None:
    """A writer of the journal in the background; None if there is no journal."""
    from ergon_framework.telemetry.journal import JournalWriter

    path = journal_path(settings)
    if path is None:
        return None
    telemetry = settings.telemetry

    def opening() -> SqliteJournal:
        if not path.parent.is_dir():  # a folder is the user's to make
            raise StoreUnavailableError(
                f"there is no folder {path.parent} for the journal", remedy=_REMEDY
            )
        return SqliteJournal(path, keep=telemetry.journal_keep, most=telemetry.journal_most)

    return JournalWriter(opening)


@contextmanager
def journalling(settings: Settings, source: str) -> Iterator[JournalWriter | None]:
    """Write the notices and spans of this process to the journal; every process of ours does so.

    ``source`` says who it is, for example "worker w1" or "zone plant".
    """
    from ergon_framework.telemetry import add_listener, remove_listener
    from ergon_framework.telemetry.journal import JournalListener, record_spans

    path, writer = journal_path(settings), writer_of(settings)
    if path is None or writer is None:
        yield None
        return
    listener = JournalListener(writer, source, keeps_all=settings.telemetry.journal_all)
    add_listener(listener)
    try:
        with record_spans(writer.keep, source, path):
            yield writer
    finally:
        remove_listener(listener)
        writer.close()


MIN_PREFIX = 6
"""Digits of a trace id that may stand for all of it."""
MAX_INDENT = 40
"""How far lines are moved to the right."""
_TRACE = re.compile(r"[0-9a-f]{32}")
_PARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}\b.*")
_PREFIX = re.compile(rf"[0-9a-f]{{{MIN_PREFIX},31}}")


LATEST_SPANS = 3000
"""Spans of a journal, the latest, of which traces and transactions are told."""


class SpanRow(NamedTuple):
    """A row of a printed trace: a span, or the place of a parent that was not recorded."""

    span: SpanRecord | None
    depth: int
    mark: str
    """The lines of the tree in front of it."""


@dataclass(slots=True)
class _Branch:
    span: SpanRecord | None
    children: list[_Branch] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Trace:
    """Everything that was recorded of one trace."""

    trace_id: str
    spans: Sequence[SpanRecord]
    others: Sequence[str] = ()
    """More traces in which the unit took part."""

    @property
    def began_at(self) -> float:
        """When its first span began."""
        return min(span.began_at for span in self.spans)

    @property
    def seconds(self) -> float:
        """Seconds from the first start of a span to the last end."""
        return max(span.ended_at for span in self.spans) - self.began_at

    def to_dict(self) -> dict[str, Any]:
        """The trace as plain values, each span after its parent."""
        return {
            "trace_id": self.trace_id,
            "began_at": self.began_at,
            "seconds": self.seconds,
            "spans": [_view(line, self.began_at) for line in lines(self.spans)],
            "others": list(self.others),
        }


class Journals:
    """The journals that are looked into."""

    def __init__(self, opened: Mapping[Path, SqliteJournal]) -> None:
        self._opened = opened

    def find(self, asked: str) -> Trace:
        """The trace that is meant by its id or a traceparent, or of which a unit was part."""
        asked = asked.strip()
        word = asked.lower()
        parent = _PARENT.fullmatch(word)
        trace_id = parent[1] if parent is not None else word
        if _TRACE.fullmatch(trace_id):
            spans = self._spans(trace_id)
            if spans:
                return Trace(trace_id, spans)
        # Before traces that begin so: the id of a unit may look like the first digits of one.
        found = self._each(lambda journal: journal.traces_of(asked))
        if not found and _PREFIX.fullmatch(word):
            found = self._each(lambda journal: journal.traces_beginning(word))
            if len(found) > 1:
                raise ErgonError(
                    f"several traces begin with {asked}: {', '.join(found[:5])}",
                    remedy="write more digits",
                )
        for trace_id in found:
            spans = self._spans(trace_id)
            if spans:
                return Trace(trace_id, spans, [each for each in found if each != trace_id])
        raise self._nothing(asked)

    def latest(self) -> list[dict[str, Any]]:
        """A row for each of the latest traces, the newest first."""
        found = [
            span for journal in self._opened.values() for span in journal.latest_spans(LATEST_SPANS)
        ]
        if len(self._opened) > 1:
            # Those that each of them would tell of: one that is alone tells of no more either.
            found = sorted(found, key=lambda span: span.ended_at, reverse=True)
        return trace_rows(found)

    def _each(self, ask: Any) -> list[str]:
        """The answers of all journals, each once, in order."""
        found: dict[str, None] = {}
        for journal in self._opened.values():
            found |= dict.fromkeys(ask(journal))
        return list(found)

    def _spans(self, trace_id: str) -> list[SpanRecord]:
        found = {
            span.span_id: span
            for journal in self._opened.values()
            for span in journal.trace(trace_id)
        }
        return sorted(found.values(), key=lambda span: (span.began_at, -span.ended_at))

    def _nothing(self, asked: str) -> ErgonError:
        places = ", ".join(str(path) for path in self._opened)
        return ErgonError(
            f"no trace of {asked!r} is recorded; looked into {places}",
            remedy="give a trace id, or the id of a job, fact or transaction; a journal of another"
            " machine is named with --journal",
        )


@contextmanager
def journals(config: Path | None, named: Sequence[str]) -> Iterator[Journals]:
    """Open journals for reading: the named ones, or else that of the settings."""
    paths = [Path(each.removeprefix(SQLITE)) for each in named] or [_own(config)]
    with ExitStack() as stack:
        opened = {}
        for path in paths:
            if not path.is_file():
                raise ErgonError(
                    f"there is no journal at {path}",
                    remedy="it is written by the first process that has something to tell;"
                    " --journal names another one",
                )
            opened[path] = stack.enter_context(SqliteJournal(path, read_only=True))
        yield Journals(opened)


def _own(config: Path | None) -> Path:
    settings = load_settings(config)
    path = journal_path(settings)
    if path is None:
        raise ConfigurationError(
            f"there is no journal in the settings: {without(settings, 'wants none')}",
            remedy='name one with --journal, or write journal = "sqlite:///ergon-journal.db" under'
            " [telemetry]",
        )
    return path


def trace_rows(spans: Iterable[SpanRecord]) -> list[dict[str, Any]]:
    """A row for each trace; ``spans`` are the latest first, and so are the rows."""
    by_trace: dict[str, dict[str, SpanRecord]] = {}
    for span in spans:
        by_trace.setdefault(span.trace_id, {})[span.span_id] = span
    return [_trace_row(trace_id, [*found.values()]) for trace_id, found in by_trace.items()]


def _trace_row(trace_id: str, spans: Sequence[SpanRecord]) -> dict[str, Any]:
    # A trace of which the beginning is older than what was looked at begins with its first span.
    first = min(spans, key=lambda span: (bool(span.parent_id), span.began_at))
    began = min(span.began_at for span in spans)
    failure = next((span.failure for span in spans if span.failure), None)
    return {
        "trace_id": trace_id,
        "name": first.name,
        "unit": first.unit or next((span.unit for span in spans if span.unit), None),
        "spans": len(spans),
        "sources": sorted({span.source for span in spans}),
        "began_at": began,
        "seconds": max(span.ended_at for span in spans) - began,
        "failed": sum(bool(span.failure) for span in spans),
        "failure": failure,
    }


def lines(spans: Sequence[SpanRecord]) -> Iterator[SpanRow]:
    """The spans as a tree: each behind its parent, those of one parent by their beginning."""
    # With a list of its own and not by recursion: a trace may be deeper than Python's stack.
    waiting = [(branch, 0, "", "") for branch in reversed(_grown(spans))]
    while waiting:
        branch, depth, mark, indent = waiting.pop()
        yield SpanRow(branch.span, depth, mark)
        last = len(branch.children) - 1
        for place, child in reversed(list(enumerate(branch.children))):
            own, rest = ("└ ", "  ") if place == last else ("├ ", "│ ")
            further = indent + rest if depth < MAX_INDENT else indent
            waiting.append((child, depth + 1, indent + own, further))


def _grown(spans: Sequence[SpanRecord]) -> list[_Branch]:
    """The roots; spans of a parent that is not there are kept together in its place."""
    branches, circles = {span.span_id: _Branch(span) for span in spans}, _cyclic_spans(spans)
    roots: list[_Branch] = []
    missing: dict[str, _Branch] = {}
    for span in spans:
        branch = branches[span.span_id]
        if not span.parent_id:
            roots.append(branch)
        elif span.parent_id in branches and span.span_id not in circles:
            branches[span.parent_id].children.append(branch)
        else:
            if span.parent_id not in missing:
                missing[span.parent_id] = _Branch(None)
                roots.append(missing[span.parent_id])
            missing[span.parent_id].children.append(branch)
    return roots


def _cyclic_spans(spans: Sequence[SpanRecord]) -> set[str]:
    """Spans that are their own ancestors: ids come from outside, and must cause no endless loop."""
    parents = {span.span_id: span.parent_id for span in spans}
    found: set[str] = set()
    seen: set[str] = set()
    # Each span is walked over once: a path that meets a span of an earlier walk needs no second
    # look.
    for start in parents:
        path: list[str] = []
        above = start
        while above in parents and above not in seen:
            seen.add(above)
            path.append(above)
            above = parents[above]
        if above in path:
            found.update(path[path.index(above) :])
    return found


def _view(line: SpanRow, began_at: float) -> dict[str, Any]:
    span = line.span
    if span is None:
        return {"name": None, "depth": line.depth, "is_recorded": False}
    return {
        "name": span.name,
        "depth": line.depth,
        "is_recorded": True,
        "span_id": span.span_id,
        "parent_id": span.parent_id or None,
        "source": span.source,
        "unit": span.unit or None,
        "offset": span.began_at - began_at,
        "seconds": span.ended_at - span.began_at,
        "failure": span.failure or None,
        "attributes": span.attributes,
    }
