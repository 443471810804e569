"""The page of one zone: its logs, consumers and links, what was set aside, and what was lost."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from ergon_framework.core.text import counted
from ergon_framework.errors import ConfigurationError
from ergon_framework.jobs.views import moment
from ergon_framework.web.audit import OF_FACTS
from ergon_framework.web.backend_pool import BackendPool
from ergon_framework.web.backends import ZoneBackend, zone_name
from ergon_framework.web.boundary_routes import zone_state
from ergon_framework.web.console.audit_page import changes_of
from ergon_framework.web.console.formatting import Chip, number
from ergon_framework.web.fact_actions import fact_actions_for, fact_target, listed_fact
from ergon_framework.web.responses import ResourceNotFoundError

QUARANTINE_COLUMNS = (
    "id",
    "consumer_name",
    "log",
    "offset",
    "reason",
    "message",
    "attempts",
    "at",
    "state",
)
MOST_ITEMS = 100
"""How many facts that were set aside a page shows: the oldest."""
MOST_GAPS = 50
_ITEM = re.compile("[1-9][0-9]{0,17}")
MAX_CONTENT = 64 * 1024
"""How many bytes of a fact a page shows."""


async def zone_document(pool: BackendPool, name: str, limit: int) -> dict[str, Any]:
    """Everything about a zone. What was set aside is shown without its content."""
    source = pool.zone(name)
    state = await zone_state(pool, name)
    if not state["up"]:
        return {**state, "sentences": [], "items": [], "gaps_found": [], "number_of_items": 0}
    part = zone_name(name)
    items = (await pool.call(part, partial(source.quarantine, "quarantined", None)))["items"]
    gaps = (await pool.call(part, source.gaps))["gaps"]
    return {
        **state,
        "sentences": list(sentences_of(state)),
        "logs": [{**each, "last_at": at_of(each["last_at_unix_ms"])} for each in state["logs"]],
        "consumers": [_consumer(each) for each in state["consumers"]],
        "items": [{**each, "at": at_of(each["at_unix_ms"])} for each in items[:limit]],
        "number_of_items": len(items),
        "gaps_found": [
            {**each, "at": at_of(each["recorded_at_unix_ms"])} for each in gaps[-MOST_GAPS:][::-1]
        ],
    }


def at_of(milliseconds: Any) -> str | None:
    """An instant of the protocol in the form that pages use."""
    return None if not isinstance(milliseconds, int | float) else moment(milliseconds / 1000)


def _consumer(view: Mapping[str, Any]) -> dict[str, Any]:
    return {**view, "waiting_since": at_of(view.get("waiting_since_unix_ms"))}


def sentences_of(state: Mapping[str, Any]) -> Iterator[str]:
    """Sentences: the zone's own alerts first, then what else needs attention, and how far its
    readers are.
    """
    for each in state.get("alerts", ()):
        text = str(each["text"])
        yield f"{text[:1].upper()}{text[1:]}."
    waiting = [each for each in state["consumers"] if each["lag"]]
    if waiting:
        worst = max(waiting, key=lambda each: int(each["lag"]))
        yield (
            f"{counted(len(waiting), 'consumer')} of {len(state['consumers'])} still"
            f" {'has' if len(waiting) == 1 else 'have'} facts to read;"
            f" {worst['consumer_name']} has the most: {number(int(worst['lag']))}."
        )
    elif state["consumers"]:
        yield "Every consumer has read everything."
    else:
        yield "Nobody reads this zone yet: no consumer was created."
    if state["source"] == "folder":
        yield "Its node is not up: this is what its folder holds, and nothing is pulled or served."


def gate_chip(link: Mapping[str, Any]) -> Chip:
    """The state of the link to a peer."""
    if link.get("sealed"):
        return Chip("bad", "sealed")
    if link.get("epoch_changed"):
        return Chip("bad", "another store")
    mode = str(link.get("mode") or "")
    if mode == "autonomous":
        return Chip("warn", "peer is away")
    return Chip("ok", mode.replace("_", " ")) if mode else Chip("wait", "known to its node")


# ---- content ------------------------------------------------------------------------------------


def item_number(zone: str, text: str) -> int:
    """The number of a fact that was set aside, from an address or a form."""
    if not _ITEM.fullmatch(text):  # Starlette's own conversion fails beyond 4,300 digits.
        remedy = f"look at the quarantine of the zone {zone!r}"
        raise ResourceNotFoundError("there is no such fact", remedy=remedy)
    return int(text)


async def content_document(pool: BackendPool, name: str, item_id: int) -> dict[str, Any]:
    """One fact that was set aside, with its content if the store of the zone can be read."""
    found = await pool.call(zone_name(name), partial(_content, pool.zone(name), item_id))
    state = str(found["state"])
    # In a thread, because a locked file makes the caller wait.
    changes = await asyncio.to_thread(changes_of, pool.audit, fact_target(name, item_id), OF_FACTS)
    return {
        **found,
        "actions": [each.name for each in fact_actions_for(state)],
        "changes": changes,
    }


def _content(source: ZoneBackend, item_id: int) -> dict[str, Any]:
    from ergon_framework.boundary.backup import looked_at
    from ergon_framework.boundary.node.quarantine import content_of, help_for
    from ergon_framework.boundary.node.wire import quarantine_view

    try:
        with looked_at(source.name, source.settings) as zone:
            item, envelope, fact = content_of(zone.store, item_id, MAX_CONTENT)
        view = quarantine_view(item)
        content = {
            "envelope": _readable(envelope),
            "fact": _readable(fact),
            "bytes": len(envelope) + len(fact),
        }
    except ConfigurationError:  # its node has the store elsewhere, and gives no content out
        view, content = listed_fact(source, item_id), {}
    return {
        **view,
        "at": at_of(view["at_unix_ms"]),
        "what_helps": help_for(view["reason"]),
        **content,
    }


def _readable(content: bytes) -> str:
    """JSON formatted for people; anything else as text."""
    text = content[:MAX_CONTENT].decode("utf-8", "replace")
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except ValueError:
        return text
