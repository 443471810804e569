"""How stored things look on the wire."""

from __future__ import annotations

import json
from typing import Any

from ergon_framework.boundary.facts.schema import digest_text
from ergon_framework.ports.factstore import (
    ConsumerInfo,
    Fetched,
    Gap,
    Link,
    Quarantined,
    StoredFact,
    StoredObject,
)

_FACT = (
    b'{"offset":%d,"envelope":%b,"fact":%b,"digest":"sha256:%b","previous_offset":%d%b,'
    b'"recorded_at_unix_ms":%d}'
)


def milliseconds(at: float | None) -> int | None:
    """An instant as the wire has it."""
    return None if at is None else round(at * 1000)


def page_json(serving: Fetched, epoch: str, zone: str) -> bytes:
    """A page, spliced together from the JSON that lies in the log."""
    page, consumer = serving.page, serving.consumer
    rest: dict[str, Any] = {
        "head_offset": page.head,
        "through_offset": page.through,
        "cursor": consumer.cursor,
        "epoch": epoch,
        "zone": zone,
        "deliveries": consumer.deliveries,
        "chain": page.chain.hex(),
        "through_chain": page.end_chain.hex(),
        "gaps": [gap_view(gap) for gap in page.gaps],
    }
    facts = b",".join([_fact_json(fact, serving.is_released) for fact in page.facts])
    return b'{"facts":[' + facts + b"]," + json.dumps(rest).encode()[1:]


def _fact_json(fact: StoredFact, is_released: bool) -> bytes:
    source = b""
    if fact.source_offset is not None:
        source = b',"source_offset":%d' % fact.source_offset
    if is_released:
        source += b',"released":true'
    return _FACT % (
        fact.offset,
        fact.envelope,
        fact.fact,
        fact.digest.hex().encode(),
        fact.previous,
        source,
        round(fact.recorded_at * 1000),
    )


def gap_view(gap: Gap) -> dict[str, Any]:
    """A recorded loss."""
    view = {
        "log": gap.log,
        "first_offset": gap.first,
        "last_offset": gap.last,
        "reason": gap.reason,
        "recorded_at_unix_ms": milliseconds(gap.at),
    }
    if gap.source_first is not None:
        view |= {"source_first_offset": gap.source_first, "source_last_offset": gap.source_last}
    return view


def consumer_view(info: ConsumerInfo, now: float) -> dict[str, Any]:
    """A consumer."""
    is_held = info.is_held(now)
    return {
        "consumer_name": info.name,
        "log": info.log,
        "cursor": info.cursor,
        "to_zone": info.to_zone,
        "required": info.is_required,
        "lag": info.lag,
        "waiting_since_unix_ms": milliseconds(info.waiting_since),
        "deliveries": info.deliveries,
        "holder": info.holder if is_held else None,
        "held_until_unix_ms": milliseconds(info.held_until) if is_held else None,
        "created_at_unix_ms": milliseconds(info.created_at),
    }


def quarantine_view(item: Quarantined) -> dict[str, Any]:
    """A fact that was set aside; its content stays out of listings."""
    return {
        "id": item.id,
        "consumer_name": item.consumer,
        "log": item.log,
        "offset": item.offset,
        "reason": item.reason,
        "message": item.message,
        "attempts": item.attempts,
        "at_unix_ms": milliseconds(item.at),
        "state": item.state,
    }


def link_view(link: Link) -> dict[str, Any]:
    """A link to a peer, as the store knows it."""
    return {
        "peer": link.peer or None,
        "sealed": link.is_sealed,
        "reason": link.reason,
        "epoch": link.epoch,
        "source_offset": link.offset,
    }


def object_view(stored: StoredObject) -> dict[str, Any]:
    """An object's name and what it stands for."""
    return {
        "bucket": stored.bucket,
        "key": stored.key,
        "digest": digest_text(stored.digest),
        "size": stored.size,
    }
