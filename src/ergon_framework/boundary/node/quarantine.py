"""Quarantined facts, for operators: what one holds, and what to do about it."""

from __future__ import annotations

from ergon_framework.errors import BoundaryNotFoundError
from ergon_framework.ports.factstore import FactStore, Quarantined

HELPS = {
    "handler_failed": "correct the handler, then release it",
    "crash_loop": "it may end the process that reads it: correct the handler, then release it",
    "corrupted": "run `ergon boundary verify`, then restore a backup",
    "artifact_missing": "put the artifact again at the peer, then release it",
    "artifact_mismatch": "repair the artifact at the peer, then release it",
    "artifact_denied": "let the peer's policy allow it, then release it",
    "object_conflict": "let the peer tell it under another name, then discard it",
    "object_too_large": "raise limits.object_bytes, then release it",
    "too_large": "raise what the store's server takes, then release it",
    "conflicting_duplicate": "ask who told two different things under one id, then discard one",
    "zone_not_allowed": "let the policy of this zone allow it, then release it",
    "malformed": "ask the peer's operator: it is no fact; then discard it",
    "gap": "the peer gave facts up: discard it when that is known",
}
"""What an operator can do, by the reason of the quarantine."""


def help_for(reason: str) -> str:
    """What an operator can do about a fact that is quarantined for this reason."""
    return HELPS.get(
        reason, "ask the operator of the zone it came from; then release or discard it"
    )


def content_of(store: FactStore, item_id: int, max_bytes: int) -> tuple[Quarantined, bytes, bytes]:
    """A quarantined item with its envelope and its fact; both are empty if neither is kept."""
    found = [each for each in store.quarantine(None, None) if each.id == item_id]
    if not found:
        raise BoundaryNotFoundError(
            f"nothing was set aside under the id {item_id}",
            remedy="`ergon boundary quarantine list --state all` shows what was",
        )
    (item,) = found
    if item.envelope or item.fact:
        return item, item.envelope, item.fact
    page = store.page(item.log, item.offset - 1, 1, max_bytes)
    for each in page.facts:
        if each.offset == item.offset:
            return item, each.envelope, each.fact
    return item, b"", b""  # truncated since
