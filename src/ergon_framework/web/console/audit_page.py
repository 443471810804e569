"""The audit log as a document: who did what, when, to which job."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.datastructures import QueryParams as Given

from ergon_framework.jobs.views import moment
from ergon_framework.web.audit import AuditEntry, AuditLog, AuditOutcome, AuditSearch
from ergon_framework.web.console.formatting import Chip
from ergon_framework.web.job_routes import Place
from ergon_framework.web.responses import cursor_place, cursor_text, page

AUDIT_COLUMNS = ("id", "at", "actor", "action", "target", "outcome", "number", "detail")
_CHIPS = {
    AuditOutcome.BEGUN: Chip("warn", "not known"),
    AuditOutcome.DONE: Chip("ok", "done"),
    AuditOutcome.REFUSED: Chip("bad", "refused"),
    AuditOutcome.UNKNOWN: Chip("warn", "not known"),
}


def audit_search(given: Given) -> AuditSearch:
    """The filter of a form: a field that was left empty is as one that is not there."""
    wanted = {name: given[name].strip() for name in ("actor", "action", "target") if name in given}
    cursor = given.get("cursor") or None
    below = None if cursor is None else cursor_place(cursor, Place)
    return AuditSearch(**{name: text or None for name, text in wanted.items()}, below=below)


def audit_document(log: AuditLog, search: AuditSearch, limit: int) -> dict[str, Any]:
    """One page of entries, the newest first."""
    found = log.find(search, limit + 1)
    shown = found[:limit]
    following = cursor_text(shown[-1].id) if len(found) > limit else None
    wanted = {
        name: text
        for name, text in msgspec.structs.asdict(search).items()
        if text is not None and name != "below"
    }
    return {
        **page([_view(each) for each in shown], following),
        "filter": wanted,
        "is_kept": log.path is not None,
    }


def outcome_chip(outcome: str) -> Chip:
    """What came of it."""
    return _CHIPS[AuditOutcome(outcome)]


def _view(entry: AuditEntry) -> dict[str, Any]:
    return {**msgspec.structs.asdict(entry), "at": moment(entry.at)}
