"""The status of a zone: figures, which of them deserve an alert, and Prometheus text."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from threading import Thread
from typing import TYPE_CHECKING, Any

from ergon_framework.boundary.factstore.sqlite import SqliteFactStore
from ergon_framework.boundary.node.wire import consumer_shape, link_shape, milliseconds
from ergon_framework.boundary.settings import DAY
from ergon_framework.boundary.telemetry import Histogram
from ergon_framework.core.link import Mode
from ergon_framework.errors import BoundaryError, StoreError
from ergon_framework.ports.factstore import NEW_EPOCH, OUTBOUND, ConsumerInfo, LogInfo
from ergon_framework.ports.moving import mark_of
from ergon_framework.ports.objectstore import Blob

if TYPE_CHECKING:
    from ergon_framework.boundary.zone import Zone


PATIENCE = 2.0
"""Seconds. A bucket's client goes on trying for much longer."""
_NOBODYS = bytes(32)


def objects_trouble(zone: Zone) -> str | None:
    """Why objects cannot be had, or None; the first name stands for all of them."""
    first = next(iter(zone.store.objects(limit=1)), None)
    try:
        found = _asked(zone, _NOBODYS if first is None else first.digest).result(PATIENCE)
    except TimeoutError:
        return f"their store does not answer within {PATIENCE:g} seconds"
    except (StoreError, BoundaryError) as error:
        return error.message
    if first is None or found is not None:
        return None
    return f"the bytes of {first.bucket}/{first.key} are missing, and others may be"


def _asked(zone: Zone, digest: bytes) -> Future[Blob | None]:
    answer: Future[Blob | None] = Future()

    def ask() -> None:
        try:
            answer.set_result(zone.objects.stat(digest))
        except BaseException as error:
            answer.set_exception(error)

    Thread(target=ask, name="ergon-objects", daemon=True).start()
    return answer


BACKLOG = 10_000
"""Facts waiting for one consumer from which an operator wants to know."""
EXPIRY = 30 * DAY
"""Seconds before a certificate ends from which an operator wants to know."""
_TROUBLES = {
    "away": "{peer} does not answer",
    "store": "what {peer} sends cannot be kept here",
    "refused": "nothing is pulled from {peer}",
}
EPOCH = 7 * DAY
"""Seconds for which an operator is told that the store began a new epoch."""
_MENDED = (3, 51, 3)
"""The SQLite release from which two writers of one file cannot spoil its log."""


def status(zone: Zone) -> dict[str, Any]:
    """Everything about a zone, and ``alerts``: what a person should look at."""
    now = zone.clock()
    store = zone.store
    is_file = isinstance(store, SqliteFactStore)
    info, mark = store.info(), mark_of(store)
    logs, consumers = store.logs(), store.consumers()
    quarantined = store.quarantine()
    links = [{**link_shape(link), **zone.gates.get(link.peer, {})} for link in store.links()]
    known = {link["peer"] for link in links}
    links += [
        {"peer": peer, "sealed": False, **gate}
        for peer, gate in sorted(zone.gates.items())
        if peer not in known
    ]
    shape: dict[str, Any] = {
        "zone": info.zone,
        "epoch": info.epoch,
        "created_at_unix_ms": milliseconds(info.created_at),
        "now_unix_ms": milliseconds(now),
        "logs": [_log_shape(log, zone) for log in logs],
        "consumers": [consumer_shape(each, now) for each in consumers],
        "links": links,
        "quarantined": len(quarantined),
        "gaps": len(store.gaps()),
        "lost_facts": sum(gap.count for gap in store.gaps()),
        "acknowledgement": store.acknowledgement,
        "is_synced": store.is_synced,
        "sqlite_version": sqlite3.sqlite_version if is_file else None,
        "certificate_expires_unix_ms": milliseconds(zone.certificate_expiry),
        "is_read_only": zone.is_broken,
        "is_half_moved": mark.is_half,
        "moved_to": mark.moved_to or None,
        "objects_trouble": objects_trouble(zone),
        "append_trouble": zone.append_trouble,
        "damage": zone.damage,
        "little_room": zone.little_room(),
        "new_epoch": _new_epoch(store.attribute(NEW_EPOCH), now),
    }
    shape["alerts"] = list(_alerts(shape, consumers, now))
    shape["notes"] = list(_notes()) if is_file else []
    return shape


def _new_epoch(written: str | None, now: float) -> str | None:
    """Why the store began its epoch, if that was not long ago."""
    at, _, why = (written or "0 ").partition(" ")
    return why if float(at) > 0 and now - float(at) < EPOCH else None


def _log_shape(log: LogInfo, zone: Zone) -> dict[str, Any]:
    capacity = zone.settings.capacity_bytes
    return {
        "log": log.name,
        "head_offset": log.head,
        "first_offset": log.first,
        "bytes": log.size,
        "last_at_unix_ms": milliseconds(log.last_at),
        "fill_percent": round(100 * log.size / capacity, 1) if capacity else None,
    }


def _alerts(
    shape: dict[str, Any], consumers: list[ConsumerInfo], now: float
) -> Iterator[dict[str, Any]]:
    yield from _move_alerts(shape)
    if shape["is_read_only"]:
        yield _alert("read_only", "the disk did not confirm a write: start the node again")
    if shape["objects_trouble"] is not None:
        yield _alert("objects", f"objects cannot be had: {shape['objects_trouble']}")
    yield from _store_alerts(shape)
    for log in shape["logs"]:
        fill = log["fill_percent"]
        if fill is not None and fill >= 50:
            yield _alert("fill", f"{log['log']} is {fill} % full", log=log["log"])
    for info in consumers:
        if info.lag >= BACKLOG:
            yield _alert("backlog", f"{info.lag} facts wait for {info.name}", consumer=info.name)
    for link in shape["links"]:
        yield from _link_alerts(link)
    if shape["quarantined"]:
        yield _alert("quarantine", f"{shape['quarantined']} facts are set aside")
    if shape["lost_facts"]:
        yield _alert(
            "loss", f"{shape['lost_facts']} facts were given up: see `ergon boundary gaps`"
        )
    expiry = shape["certificate_expires_unix_ms"]
    if expiry is not None and expiry / 1000 - now < EXPIRY:
        days = max(0, int((expiry / 1000 - now) / DAY))
        yield _alert("certificate", f"the certificate ends in {days} days")


def _store_alerts(shape: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if shape["append_trouble"] is not None:
        yield _alert("appends", f"the last append failed: {shape['append_trouble']}")
    if shape["damage"] is not None:
        yield _alert("damage", shape["damage"])
    if shape["little_room"] is not None:
        yield _alert("disk", shape["little_room"])
    if not shape["is_synced"]:
        yield _alert("unsynced", shape["acknowledgement"])
    if shape["new_epoch"] is not None:
        text = f"the store began a new epoch: {shape['new_epoch']}"
        yield _alert("new_epoch", f"{text}; peers pull again when they accept it")


def _move_alerts(shape: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if shape["is_half_moved"]:
        yield _alert("move", "a move into it has not ended: run the same `ergon move` again")
    if shape["moved_to"] is not None:
        text = f"what it held was moved to {shape['moved_to']}: nothing more is taken in here"
        yield _alert("moved", text, place=shape["moved_to"])


def _link_alerts(link: dict[str, Any]) -> Iterator[dict[str, Any]]:
    peer = link["peer"] or "every peer"
    if link["sealed"]:
        yield _alert("sealed", f"sealed for {peer}: {link.get('reason', '')}", peer=link["peer"])
    if link.get("epoch_changed"):
        yield _alert(
            "epoch",
            f"the store of {peer} is another one or went back in time: nothing is pulled until"
            " an operator accepts it",
            peer=link["peer"],
        )
    elif link.get("mode") == "autonomous" and not link["sealed"]:
        said = _TROUBLES.get(link.get("trouble", ""), _TROUBLES["refused"]).format(peer=peer)
        yield _alert("link", f"{said}: {link.get('error', '')}", peer=link["peer"])


def _alert(kind: str, text: str, **about: Any) -> dict[str, Any]:
    return {"kind": kind, "text": text, **about}


def _notes() -> Iterator[str]:
    if sqlite3.sqlite_version_info < _MENDED:
        yield (
            f"SQLite {sqlite3.sqlite_version} has a defect that only two writing processes meet;"
            " this node is the only one that writes its file"
        )


_COUNTERS = {
    "bsfg_append_requests_total": ("appends", "Appends asked for."),
    "bsfg_append_failures_total": ("append_failures", "Appends refused or failed, by reason."),
    "bsfg_duplicates_total": ("duplicates", "Appends answered with the offset of an earlier one."),
    "bsfg_conflicts_total": ("conflicts", "Ids that came again with other content."),
    "bsfg_envelope_differences_total": (
        "envelope_differences",
        "Duplicates that came with other advisory fields.",
    ),
    "bsfg_warnings_total": ("warnings", "Facts taken in spite of a doubt, such as an unstable id."),
    "bsfg_fetch_requests_total": ("fetches", "Pages asked for."),
    "bsfg_confirm_requests_total": ("confirms", "Confirmations."),
    "bsfg_put_requests_total": ("puts", "Objects stored."),
    "bsfg_denied_total": ("denied", "Calls and handshakes refused, by reason."),
    "bsfg_pulled_facts_total": ("pulled", "Facts pulled, by peer."),
    "bsfg_pull_failures_total": ("pull_failures", "Pulls that failed, by peer."),
    "bsfg_collected_objects_total": ("collected", "Orphaned objects removed."),
}
_LABELS = {
    "append_failures": "reason",
    "denied": "reason",
    "pulled": "peer",
    "pull_failures": "peer",
}


def metrics(zone: Zone) -> str:
    """Everything, as Prometheus reads it."""
    return "".join(f"{line}\n" for line in _lines(zone))


def _lines(zone: Zone) -> Iterator[str]:
    counts = dict(zone.telling.counts)
    for metric, (what, text) in _COUNTERS.items():
        label = _LABELS.get(what)
        found = [(value, count) for (name, value), count in counts.items() if name == what]
        if label is None:
            values = [("", sum(count for _value, count in found))]
        else:
            values = [(f'{{{label}="{_escaped(value)}"}}', count) for value, count in found]
        yield from _family(metric, "counter", text, values)
    seen = zone.telling
    yield from _histogram(
        "bsfg_append_latency_seconds",
        "From an append's arrival to its answer.",
        seen.append_seconds,
    )
    yield from _histogram(
        "bsfg_fsync_seconds", "Until a group of appends is on disk.", seen.commit_seconds
    )
    yield from _histogram("bsfg_group_commit_size", "Facts in a group.", seen.commit_sizes)
    yield from _levels(zone)


def _histogram(name: str, text: str, seen: Histogram) -> Iterator[str]:
    yield f"# HELP {name} {text}"
    yield f"# TYPE {name} histogram"
    below = 0
    for bound, count in zip((*seen.bounds, "+Inf"), seen.counts, strict=True):
        below += count
        yield f'{name}_bucket{{le="{bound}"}} {below}'
    yield f"{name}_sum {seen.total:.6f}"
    yield f"{name}_count {below}"


def _levels(zone: Zone) -> Iterator[str]:
    yield from _log_levels(zone)
    yield from _consumer_levels(zone)
    yield from _link_levels(zone)
    yield from _zone_levels(zone)


def _log_levels(zone: Zone) -> Iterator[str]:
    logs = zone.store.logs()
    by_log = [(f'{{log="{_escaped(log.name)}"}}', log) for log in logs]
    yield from _family(
        "bsfg_head_offset", "gauge", "The highest offset.", [(k, v.head) for k, v in by_log]
    )
    yield from _family("bsfg_log_bytes", "gauge", "Payload kept.", [(k, v.size) for k, v in by_log])
    capacity = zone.settings.capacity_bytes
    if capacity:
        fill = [("", round(100 * log.size / capacity, 2)) for log in logs if log.name == OUTBOUND]
        yield from _family("bsfg_store_buffer_fill_percent", "gauge", "Of the capacity.", fill)
    ledger = sum(log.head for log in logs)
    yield from _family("bsfg_ledger_rows", "gauge", "Ids remembered.", [("", ledger)])


def _consumer_levels(zone: Zone) -> Iterator[str]:
    now = zone.clock()
    named = [(f'{{consumer="{_escaped(info.name)}"}}', info) for info in zone.store.consumers()]
    yield from _family(
        "bsfg_frontier_offset", "gauge", "Confirmed up to.", [(k, v.cursor) for k, v in named]
    )
    yield from _family(
        "bsfg_consumer_lag", "gauge", "Facts waiting.", [(k, v.lag) for k, v in named]
    )
    waits = [(k, max(0.0, now - v.waiting_since)) for k, v in named if v.waiting_since is not None]
    yield from _family(
        "bsfg_oldest_unconfirmed_seconds", "gauge", "Age of the oldest one waiting.", waits
    )


def _link_levels(zone: Zone) -> Iterator[str]:
    links = [(f'peer="{_escaped(peer)}"', link) for peer, link in zone.gates.items()]
    lags = [(f"{{{label}}}", link.get("lag_seconds", 0.0)) for label, link in links]
    yield from _family(
        "bsfg_replication_lag_seconds", "gauge", "How far behind the peer's log we are.", lags
    )
    highest = [(f"{{{label}}}", link.get("lag_high", 0.0)) for label, link in links]
    yield from _family(
        "bsfg_replication_lag_high_watermark", "gauge", "The highest such lag so far.", highest
    )
    modes = [
        (f'{{{label},mode="{mode}"}}', int(link.get("mode") == mode))
        for label, link in links
        for mode in Mode
    ]
    yield from _family("bsfg_gate_mode", "gauge", "1 for the mode of the link.", modes)


def _zone_levels(zone: Zone) -> Iterator[str]:
    store = zone.store
    lost = sum(gap.count for gap in store.gaps())
    yield from _family("bsfg_lost_facts_total", "counter", "Given up on purpose.", [("", lost)])
    yield from _family(
        "bsfg_quarantine_items", "gauge", "Facts set aside.", [("", len(store.quarantine()))]
    )
    objects, size = store.object_totals()
    yield from _family("bsfg_artifacts", "gauge", "Names of objects.", [("", objects)])
    yield from _family("bsfg_artifact_bytes", "gauge", "What they stand for.", [("", size)])
    if zone.certificate_expiry is not None:
        left = round(zone.certificate_expiry - zone.clock())
        yield from _family("bsfg_cert_expiry_seconds", "gauge", "Until it ends.", [("", left)])


def _family(name: str, kind: str, text: str, values: Iterable[tuple[str, float]]) -> Iterator[str]:
    yield f"# HELP {name} {text}"
    yield f"# TYPE {name} {kind}"
    for labels, value in values:
        yield f"{name}{labels} {value}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
