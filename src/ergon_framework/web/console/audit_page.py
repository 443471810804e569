"""The audit log as a page: who did what, when, to which job."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import msgspec
from starlette.datastructures import QueryParams as Given

from ergon_framework.core.rfc3339 import parse_rfc3339
from ergon_framework.jobs.views import moment
from ergon_framework.web.addresses import address_of
from ergon_framework.web.audit import (
    OF_FACTS,
    OF_FLOWS,
    AuditError,
    AuditLog,
    AuditOutcome,
    AuditSearch,
    entry_view,
)
from ergon_framework.web.console.formatting import Chip
from ergon_framework.web.job_routes import Place
from ergon_framework.web.responses import InvalidParameterError, cursor_place, cursor_text, page

MOST_CHANGES = 10
"""How many changes the page of one thing shows: the latest."""
AUDIT_COLUMNS = ("id", "at", "actor", "action", "target", "outcome", "number", "detail")
_CHIPS = {
    AuditOutcome.BEGUN: Chip("warn", "not known"),
    AuditOutcome.DONE: Chip("ok", "done"),
    AuditOutcome.REFUSED: Chip("bad", "refused"),
    AuditOutcome.UNKNOWN: Chip("warn", "not known"),
}


def audit_search(given: Given) -> AuditSearch:
    """The filter of a form. A field that was left empty is ignored."""
    wanted = {name: given[name].strip() for name in ("actor", "action", "target") if name in given}
    cursor = given.get("cursor") or None
    below = None if cursor is None else cursor_place(cursor, Place)
    since = _instant(given.get("since", "").strip())
    return AuditSearch(
        actor=wanted.get("actor") or None,
        action=wanted.get("action") or None,
        target=wanted.get("target") or None,
        since=since,
        below=below,
    )


def _instant(text: str) -> float | None:
    try:
        return parse_rfc3339(text) if text else None
    except ValueError as error:
        remedy = "write it like 2026-01-31T00:00:00Z"
        raise InvalidParameterError("since", str(error), remedy) from None


def audit_document(log: AuditLog, search: AuditSearch, limit: int) -> dict[str, Any]:
    """One page of entries, the newest first."""
    found = log.find(search, limit + 1)
    shown = found[:limit]
    following = cursor_text(shown[-1].id) if len(found) > limit else None
    wanted = {
        name: text
        for name, text in msgspec.structs.asdict(search).items()
        if text is not None and name in ("actor", "action", "target")
    }
    if search.since is not None:
        wanted["since"] = moment(search.since)
    return {
        **page([entry_view(each) for each in shown], following),
        "filter": wanted,
        "is_kept": log.path is not None,
    }


def changes_of(log: AuditLog, target: str, actions: tuple[str, ...]) -> list[dict[str, Any]] | None:
    """What people and programs did to one thing, the latest first. None where that is not known.

    Like the history of a job, it is shown to everybody who may read the thing itself.
    """
    search = AuditSearch(target=target, actions=actions)
    try:
        found = log.find(search, MOST_CHANGES)
    except AuditError:
        return None
    return [
        {
            "at": moment(each.at),
            "by": each.actor,
            "action": each.action,
            "outcome": each.outcome,
            "detail": each.detail,
        }
        for each in found
    ]


def outcome_chip(outcome: str) -> Chip:
    """The outcome of an action."""
    return _CHIPS[AuditOutcome(outcome)]


def target_address(action: str, target: str) -> str:
    """The page of the thing that an entry is about."""
    if action in OF_FACTS:
        zone, _, item = target.rpartition("/")
        return f"/zones/{quote(zone)}/quarantine/{item}"
    return address_of("/flows" if action in OF_FLOWS else "/jobs", target)
