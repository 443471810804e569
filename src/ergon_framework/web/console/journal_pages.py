"""The pages of the journal, of traces, and of tasks with their latest transactions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ergon_framework.app.explain.explanation import field_text
from ergon_framework.app.journal import LATEST_SPANS, Journals, Trace, trace_rows
from ergon_framework.app.settings.sections import Settings, TaskSettings
from ergon_framework.errors import ErgonError
from ergon_framework.jobs.views import moment
from ergon_framework.ports.journal import JournalEntry, JournalQuery, SpanRecord
from ergon_framework.storage.journal import SqliteJournal
from ergon_framework.telemetry.attributes import LIFECYCLE_SPAN
from ergon_framework.web.console.formatting import Chip
from ergon_framework.web.console.journal_look import JournalLook
from ergon_framework.web.responses import ResourceNotFoundError

ENTRY_COLUMNS = ("number", "at", "name", "source", "unit", "trace_id", "text")
TRACE_COLUMNS = ("trace_id", "name", "unit", "spans", "sources", "began_at", "seconds", "failed")
SPAN_COLUMNS = ("name", "depth", "source", "unit", "offset", "seconds", "failure", "span_id")
TASK_COLUMNS = (
    "name",
    "task",
    "kind",
    "connectors",
    "services",
    "workers",
    "recorded",
    "failed",
    "p50",
    "p95",
    "latest_at",
)
MOST_TRACES = 100
MOST_ROWS = 150
"""How many spans a waterfall draws."""
MAX_TEXT = 240
_BAD = ("failed", "died", "dead_lettered", "lost", "refused", "stalled", "damaged", "exhausted")
_WARN = ("opened", "abandoned", "retrying", "late", "missing", "held", "quarantined", "sealed")
_GOOD = ("completed", "closed", "back", "found", "replayed", "repaired")


# ---- the journal --------------------------------------------------------------------------------


def query_of(given: Mapping[str, str]) -> JournalQuery:
    """The filter of a form. Names are separated by commas."""
    return JournalQuery(
        names=tuple(each.strip() for each in given.get("name", "").split(",") if each.strip()),
        unit=given.get("unit", "").strip(),
        trace_id=given.get("trace", "").strip().lower(),
        source=given.get("source", "").strip(),
    )


async def journal_document(look: JournalLook, wanted: JournalQuery, limit: int) -> dict[str, Any]:
    """The latest entries that match, the newest first."""
    found: list[JournalEntry] = await look.ask(lambda journal: journal.newest(wanted, limit), [])
    asked = {
        "name": ",".join(wanted.names),
        "unit": wanted.unit,
        "trace": wanted.trace_id,
        "source": wanted.source,
    }
    return {
        "problem": look.problem,
        "filter": {name: value for name, value in asked.items() if value},
        "items": [entry_view(each) for each in reversed(found)],
    }


def entry_view(entry: JournalEntry) -> dict[str, Any]:
    """One entry."""
    text = field_text(entry.fields)
    return {
        "number": entry.number,
        "at": moment(entry.at),
        "name": entry.name,
        "level": level_of(entry),
        "source": entry.source,
        "unit": entry.unit or None,
        "trace_id": entry.trace_id or None,
        "text": text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 1]}…",
    }


def level_of(entry: JournalEntry) -> str:
    """The level of an entry, by what it reports."""
    if entry.name.endswith(_BAD) or entry.fields.get("failure") is not None:
        return "bad"
    if entry.name.endswith(_WARN):
        return "warn"
    return "ok" if entry.name.endswith(_GOOD) else "wait"


# ---- traces -------------------------------------------------------------------------------------


async def traces_document(look: JournalLook, *, failed_only: bool) -> dict[str, Any]:
    """The latest traces, the newest first, and whether traces are recorded at all."""
    spans: list[SpanRecord] = await look.ask(lambda journal: journal.latest_spans(LATEST_SPANS), [])
    rows = [
        {**row, "began_at": moment(row["began_at"])}
        for row in trace_rows(spans)
        if row["failed"] or not failed_only
    ]
    return {
        "problem": look.problem,
        "is_recorded": look.settings.telemetry.spans,
        "filter": {"failed": True} if failed_only else {},
        "items": rows[:MOST_TRACES],
    }


async def trace_document(look: JournalLook, asked: str) -> dict[str, Any]:
    """One trace as a waterfall: each span after its parent, all on one time axis."""

    def find(journal: SqliteJournal) -> Trace | None:
        try:
            return Journals({journal.path: journal}).find(asked)
        except ErgonError:
            return None

    found = await look.ask(find, None)
    if found is None:
        raise ResourceNotFoundError(
            "no trace of this is recorded in the journal of this machine",
            remedy=f"a journal of another machine is read there:  ergon trace {_one_word(asked)}",
        )
    return waterfall(found)


def _one_word(text: str) -> str:
    return text if text.replace("-", "").replace(".", "").isalnum() else "ID"


def waterfall(trace: Trace) -> dict[str, Any]:
    """The spans with their places on the axis, in percent."""
    told = trace.to_dict()
    length = max(trace.seconds, 1e-6)
    rows = told["spans"]
    return {
        "trace_id": trace.trace_id,
        "began_at": moment(trace.began_at),
        "seconds": trace.seconds,
        "sources": sorted({span.source for span in trace.spans}),
        "failed": sum(bool(span.failure) for span in trace.spans),
        "number": len(trace.spans),
        "others": list(trace.others),
        "items": [_placed(row, length) for row in rows],
    }


def _placed(row: Mapping[str, Any], length: float) -> dict[str, Any]:
    if not row["is_recorded"]:
        return {**row, "left": 0.0, "width": 0.0, "source": None, "unit": None, "failure": None}
    width = max(0.5, 100 * row["seconds"] / length)
    left = min(max(0.0, 100 * row["offset"] / length), 100 - min(width, 100.0))
    return {**row, "left": round(left, 2), "width": round(min(width, 100.0), 2)}


# ---- tasks --------------------------------------------------------------------------------------


async def tasks_document(look: JournalLook) -> dict[str, Any]:
    """The tasks of the settings, with the outcomes of their latest transactions."""
    names = tuple(LIFECYCLE_SPAN.values())
    spans: list[SpanRecord] = await look.ask(
        lambda journal: journal.latest_spans(LATEST_SPANS, names), []
    )
    return {
        "problem": look.problem,
        "is_recorded": look.settings.telemetry.spans,
        "since": moment(min((span.ended_at for span in spans), default=None)),
        "items": task_rows(look.settings, spans),
        "latest": [_transaction(each) for each in spans[:30]],
    }


def task_rows(settings: Settings, spans: Sequence[SpanRecord]) -> list[dict[str, Any]]:
    """A row for each task: those of the settings first, then those that only a program has."""
    by_task: dict[str, list[SpanRecord]] = {}
    for span in spans:
        by_task.setdefault(_task_of(span), []).append(span)
    rows = []
    for name, task in settings.tasks.items():
        own = {name, task.task, task.task.rpartition(":")[2].rpartition(".")[2]}
        found = [span for key in own & by_task.keys() for span in by_task.pop(key)]
        rows.append({**_task_row(name, task), **_figures(found)})
    others = [
        {**_task_row(name, None), **_figures(found)} for name, found in sorted(by_task.items())
    ]
    return [*rows, *others]


def _task_of(span: SpanRecord) -> str:
    return str(span.attributes.get("ergon.task") or span.attributes.get("task") or span.source)


def _task_row(name: str, task: TaskSettings | None) -> dict[str, Any]:
    if task is None:
        return {
            "name": name,
            "task": None,
            "kind": None,
            "connectors": [],
            "services": [],
            "workers": None,
            "policy": None,
        }
    kind = "producer" if task.producer is not None and task.consumer is None else "consumer"
    return {
        "name": name,
        "task": task.task,
        "kind": kind,
        "connectors": list(task.connectors),
        "services": list(task.services),
        "workers": task.workers,
        "policy": task.policy,
    }


def _figures(spans: Sequence[SpanRecord]) -> dict[str, Any]:
    took = sorted(max(0.0, span.ended_at - span.began_at) for span in spans)
    failed = sum(bool(span.failure) for span in spans)
    latest = max((span.ended_at for span in spans), default=None)
    chip = Chip("wait", "nothing recorded")
    if spans:
        chip = Chip("warn", "some failed") if failed else Chip("ok", "well")
    return {
        "recorded": len(spans),
        "failed": failed,
        "p50": took[(len(took) - 1) // 2] if took else None,
        "p95": took[max(0, -(-len(took) * 95 // 100) - 1)] if took else None,
        "latest_at": moment(latest),
        "state": chip._asdict(),
    }


def _transaction(span: SpanRecord) -> dict[str, Any]:
    return {
        "task": _task_of(span),
        "unit": span.unit or None,
        "source": span.source,
        "at": moment(span.ended_at),
        "seconds": max(0.0, span.ended_at - span.began_at),
        "failure": span.failure or None,
        "trace_id": span.trace_id,
    }
