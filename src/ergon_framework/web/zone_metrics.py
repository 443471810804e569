"""What ``/metrics`` tells about a zone, from its status."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ergon_framework.core.gate import Mode
from ergon_framework.web.exposition import Family, Series
from ergon_framework.web.zone_source import ZoneSource


def zone_metrics(source: ZoneSource) -> list[Family]:
    """Ask the zone, then tell."""
    status = source.status()
    zone = {"zone": source.name}
    return [
        *_of_logs(zone, status["logs"]),
        *_of_consumers(zone, status["consumers"], status["now_unix_ms"]),
        *_of_links(zone, [link for link in status["links"] if link["peer"]]),
        _gauge(
            "ergon_zone_quarantined", "Facts that are set aside.", [(zone, status["quarantined"])]
        ),
        _gauge(
            "ergon_zone_lost_facts", "Facts given up on purpose.", [(zone, status["lost_facts"])]
        ),
        _gauge(
            "ergon_zone_alerts", "What a person should look at.", [(zone, len(status["alerts"]))]
        ),
        _gauge(
            "ergon_zone_by_node",
            "1 when the node itself told this, 0 when its folder was looked into.",
            [(zone, int(status["source"] == "node"))],
        ),
    ]


def _of_logs(zone: Mapping[str, str], logs: Iterable[Mapping[str, Any]]) -> list[Family]:
    named = [({**zone, "log": log["log"]}, log) for log in logs]
    return [
        _gauge(
            "ergon_zone_head_offset",
            "The highest offset of a log.",
            [(labels, log["head_offset"]) for labels, log in named],
        ),
        _gauge(
            "ergon_zone_log_bytes",
            "Payload kept in a log.",
            [(labels, log["bytes"]) for labels, log in named],
        ),
    ]


def _of_consumers(
    zone: Mapping[str, str], consumers: Iterable[Mapping[str, Any]], now: int
) -> list[Family]:
    named = [({**zone, "consumer": each["consumer_name"]}, each) for each in consumers]
    waits = [(labels, each.get("waiting_since_unix_ms")) for labels, each in named]
    return [
        _gauge(
            "ergon_zone_consumer_lag",
            "Facts that wait for a consumer.",
            [(labels, each["lag"]) for labels, each in named],
        ),
        _gauge(
            "ergon_zone_consumer_waiting_seconds",
            "How long the oldest of them has waited; 0 when none does.",
            [
                (labels, 0.0 if since is None else max(0.0, (now - since) / 1000))
                for labels, since in waits
            ],
        ),
    ]


def _of_links(zone: Mapping[str, str], links: Iterable[Mapping[str, Any]]) -> list[Family]:
    named = [({**zone, "peer": link["peer"]}, link) for link in links]
    known = [(labels, link) for labels, link in named if link.get("mode") is not None]
    return [
        _gauge(
            "ergon_zone_link_sealed",
            "1 for a link that an operator has shut.",
            [(labels, int(link["sealed"])) for labels, link in named],
        ),
        _gauge(
            "ergon_zone_link_mode",
            "1 for the mode of a link; only its node knows it.",
            [
                ({**labels, "mode": mode.value}, int(link["mode"] == mode.value))
                for labels, link in known
                for mode in Mode
            ],
        ),
        _gauge(
            "ergon_zone_link_lag_seconds",
            "How far behind the peer's log this zone is; only its node knows it.",
            [(labels, float(link.get("lag_seconds") or 0.0)) for labels, link in known],
        ),
    ]


def _gauge(name: str, text: str, series: list[Series]) -> Family:
    return Family(name, "gauge", text, series)
