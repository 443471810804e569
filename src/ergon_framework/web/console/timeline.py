"""The attempts of a job on one time axis, made from its history."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ergon_framework.jobs.views import moment
from ergon_framework.web.console.formatting import instant, span

MAX_ROWS = 40
"""How many rows are drawn: the latest."""
LONGEST_WAIT = 4
"""The wait before the first row takes at most this fraction of what follows."""
NARROWEST = 0.6
"""The least percentage of the axis that a stretch takes, so that a short attempt is visible."""

_LEVELS = {
    "completed": "ok",
    "discarded": "ok",
    "signalled": "ok",
    "failed": "bad",
    "expired": "bad",
    "unserved": "bad",
    "lost": "wait",
    "held": "warn",
    "released": "wait",
    "cancelled": "wait",
}
_NOT_COUNTED = frozenset({"lost", "held", "released"})


def timeline_of(view: Mapping[str, Any], now: float) -> dict[str, Any] | None:
    """Rows of stretches in percent of the axis. None when nothing has happened yet.

    ``view`` is the job as :func:`~ergon_framework.jobs.views.job_view` shows it.
    """
    begin = _seconds(view["created_at"])
    if begin is None:
        return None
    rows, waits_from, reason = [], begin, "wait"
    for entry in view["history"]:
        at = _seconds(entry.get("at"))
        event = str(entry.get("event", ""))
        if at is None or event not in _LEVELS:
            continue
        started = max(begin, at - _number(entry.get("seconds")))
        rows.append(_row(entry, event, waits_from, reason, started, at))
        # A gate costs no attempt: the wait that follows is drawn as one that the gate causes.
        waits_from, reason = at, "hold" if event == "held" else "wait"
    is_over = view["finished_at"] is not None
    if not is_over:
        rows.append(_present(view, waits_from, reason, now))
    if not rows:
        return None
    end = max([row["to"] for row in rows] + [begin + 0.001])
    shown = rows[-MAX_ROWS:]
    if len(shown) < len(rows):
        begin = shown[0]["from"]
    waited = shown[0]["begun"] - begin
    rest = end - shown[0]["begun"]
    # A long wait at the beginning would leave no room for what follows.
    cut = max(0.0, waited - rest / LONGEST_WAIT) if rest > 0 and len(shown) > 1 else 0.0
    begin += cut
    return {
        "from": moment(begin),
        "cut": round(cut, 3),
        "seconds": round(end - begin, 3),
        "left_out": len(rows) - len(shown),
        "rows": [_placed(row, begin, end - begin) for row in shown],
    }


def _row(
    entry: Mapping[str, Any], event: str, waits_from: float, reason: str, started: float, at: float
) -> dict[str, Any]:
    notes = [str(entry.get("lost_by") or entry.get("worker") or "")]
    if entry.get("seconds") is not None:
        notes.append(span(_number(entry["seconds"])))
    if event in _NOT_COUNTED:
        notes.append("not counted")
    return {
        "event": event,
        "level": _LEVELS[event],
        "attempt": None if event in _NOT_COUNTED else entry.get("attempt"),
        "note": ", ".join(filter(None, notes)),
        "from": waits_from,
        "begun": started,
        "to": at,
        "stretches": [(reason, waits_from, started), (_LEVELS[event], started, at)],
    }


def _present(view: Mapping[str, Any], waits_from: float, reason: str, now: float) -> dict[str, Any]:
    """The present stretch: the job runs, or it waits."""
    claimed = _seconds(view["claimed_at"])
    is_running = view["status"] == "active" and claimed is not None
    started = now if claimed is None or not is_running else max(waits_from, claimed)
    until = max(now, started)
    stretches = [(reason, waits_from, started)]
    if is_running:
        stretches.append(("run", started, until))
    return {
        "event": "running" if is_running else "waiting",
        "level": "run" if is_running else "wait",
        "attempt": view["attempts"] + 1 if is_running else None,
        "note": str(view["worker"] or "") if is_running else "",
        "from": waits_from,
        "begun": started,
        "to": until,
        "stretches": stretches,
    }


def _placed(row: Mapping[str, Any], begin: float, length: float) -> dict[str, Any]:
    placed = []
    for kind, began, stop in row["stretches"]:
        start = max(began, begin)
        width = 100 * (stop - start) / length
        if width <= 0 and kind in ("wait", "hold"):
            continue
        wide = max(NARROWEST, width)
        left = min(100 * (start - begin) / length, 100 - wide)
        placed.append({"kind": kind, "left": round(max(0.0, left), 2), "width": round(wide, 2)})
    return {
        **{name: row[name] for name in ("event", "level", "attempt", "note")},
        "stretches": placed,
    }


def _seconds(text: Any) -> float | None:
    found = instant(text) if isinstance(text, str) else None
    return None if found is None else found.timestamp()


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
