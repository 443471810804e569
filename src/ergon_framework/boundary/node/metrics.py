"""The metrics of a zone, as Prometheus reads them. The names are those of the producer contract."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ergon_framework.boundary.telemetry import Histogram
from ergon_framework.core.zone_link import Mode
from ergon_framework.ports.factstore import OUTBOUND
from ergon_framework.telemetry.prometheus_text import Family, HistogramFamily, Series, text_of

if TYPE_CHECKING:
    from ergon_framework.boundary.zone import LocalZone

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


def metrics(zone: LocalZone) -> str:
    """Everything, as Prometheus reads it."""
    return text_of(_families(zone))


def _families(zone: LocalZone) -> Iterator[Family | HistogramFamily]:
    counts = dict(zone.events.counts)
    for metric, (what, text) in _COUNTERS.items():
        label = _LABELS.get(what)
        found = [(value, count) for (name, value), count in counts.items() if name == what]
        if label is None:
            series = [_plain(sum(count for _value, count in found))]
        else:
            series = [({label: value}, count) for value, count in found]
        yield Family(metric, "counter", text, series)
    seen = zone.events
    yield _histogram(
        "bsfg_append_latency_seconds",
        "From an append's arrival to its answer.",
        seen.append_seconds,
    )
    yield _histogram(
        "bsfg_fsync_seconds", "Until a group of appends is on disk.", seen.commit_seconds
    )
    yield _histogram("bsfg_group_commit_size", "Facts in a group.", seen.commit_sizes)
    yield from _levels(zone)


def _histogram(name: str, text: str, seen: Histogram) -> HistogramFamily:
    return HistogramFamily(name, text, seen.bounds, seen.counts, seen.total)


def _plain(value: float) -> Series:
    return {}, value


def _levels(zone: LocalZone) -> Iterator[Family]:
    yield from _log_levels(zone)
    yield from _consumer_levels(zone)
    yield from _link_levels(zone)
    yield from _zone_levels(zone)


def _log_levels(zone: LocalZone) -> Iterator[Family]:
    logs = zone.store.logs()
    by_log = [({"log": log.name}, log) for log in logs]
    yield Family(
        "bsfg_head_offset", "gauge", "The highest offset.", [(k, v.head) for k, v in by_log]
    )
    yield Family("bsfg_log_bytes", "gauge", "Payload kept.", [(k, v.size) for k, v in by_log])
    capacity = zone.settings.capacity_bytes
    if capacity:
        fill = [_plain(round(100 * log.size / capacity, 2)) for log in logs if log.name == OUTBOUND]
        yield Family("bsfg_store_buffer_fill_percent", "gauge", "Of the capacity.", fill)
    ledger = sum(log.head for log in logs)
    yield Family("bsfg_ledger_rows", "gauge", "Ids remembered.", [_plain(ledger)])


def _consumer_levels(zone: LocalZone) -> Iterator[Family]:
    now = zone.clock()
    named = [({"consumer": info.name}, info) for info in zone.store.consumers()]
    yield Family(
        "bsfg_frontier_offset", "gauge", "Confirmed up to.", [(k, v.cursor) for k, v in named]
    )
    yield Family("bsfg_consumer_lag", "gauge", "Facts waiting.", [(k, v.lag) for k, v in named])
    waits = [(k, max(0.0, now - v.waiting_since)) for k, v in named if v.waiting_since is not None]
    yield Family(
        "bsfg_oldest_unconfirmed_seconds", "gauge", "Age of the oldest one waiting.", waits
    )


def _link_levels(zone: LocalZone) -> Iterator[Family]:
    links = [({"peer": peer}, link) for peer, link in zone.gates.items()]
    lags = [(labels, link.get("lag_seconds", 0.0)) for labels, link in links]
    yield Family(
        "bsfg_replication_lag_seconds", "gauge", "How far behind the peer's log we are.", lags
    )
    highest = [(labels, link.get("lag_high", 0.0)) for labels, link in links]
    yield Family(
        "bsfg_replication_lag_high_watermark", "gauge", "The highest such lag so far.", highest
    )
    modes = [
        ({**labels, "mode": mode}, int(link.get("mode") == mode))
        for labels, link in links
        for mode in Mode
    ]
    yield Family("bsfg_gate_mode", "gauge", "1 for the mode of the link.", modes)


def _zone_levels(zone: LocalZone) -> Iterator[Family]:
    store = zone.store
    lost = sum(gap.count for gap in store.gaps())
    yield Family("bsfg_lost_facts_total", "counter", "Given up on purpose.", [_plain(lost)])
    yield Family(
        "bsfg_quarantine_items", "gauge", "Facts set aside.", [_plain(len(store.quarantine()))]
    )
    objects, size = store.object_totals()
    yield Family("bsfg_artifacts", "gauge", "Names of objects.", [_plain(objects)])
    yield Family("bsfg_artifact_bytes", "gauge", "What they stand for.", [_plain(size)])
    if zone.certificate_expiry is not None:
        left = round(zone.certificate_expiry - zone.clock())
        yield Family("bsfg_cert_expiry_seconds", "gauge", "Until it ends.", [_plain(left)])
