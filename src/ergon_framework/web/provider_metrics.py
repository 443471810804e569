"""What ``/metrics`` tells about providers: all tenants together, so that nobody is named."""

from __future__ import annotations

from collections.abc import Mapping

from ergon_framework.ports.providerlooking import Counted, Ended, Figures, Used
from ergon_framework.web.exposition import Family, Series
from ergon_framework.web.job_metrics import dead_letters
from ergon_framework.web.provider_letters import WAITING
from ergon_framework.web.provider_source import ProviderSource

_STATES = ("closed", "open", "half_open")
_OUTCOMES = ("succeeded", "failed", "dead_lettered")


def provider_metrics(source: ProviderSource) -> list[Family]:
    """Read the tables, then tell; nothing about a store that has none."""
    source.check()
    if source.looking is None or not source.has_tables():
        return []
    found = source.looking.figures(source.opened().now(), WAITING)
    return [
        *_circuits(found),
        *_quotas(found),
        *_calls(found),
        _reasons(found),
        dead_letters("provider", found.letters),
    ]


def _circuits(found: Figures) -> list[Family]:
    counts = {each[:3]: each.number for each in found.circuits}
    lanes = sorted({each[:2] for each in found.circuits})
    return [
        Family(
            "ergon_provider_circuits",
            "gauge",
            "Lanes (a tenant's calls to a capability) by the state of their circuit.",
            [
                (
                    {"provider": provider, "capability": capability, "state": state},
                    counts.get((provider, capability, state), 0),
                )
                for provider, capability in lanes
                for state in _STATES
            ],
        ),
        Family(
            "ergon_provider_lanes_failed_1h",
            "gauge",
            "Lanes that failed in the last hour, by the reason of their latest failure.",
            [({**_labels(each), "reason": str(each.what)}, each.number) for each in found.failures],
        ),
    ]


def _quotas(found: Figures) -> list[Family]:
    used: list[Series] = [(_labels(each), each.used) for each in found.quotas]
    limits: list[Series] = [(_labels(each), each.limit) for each in found.quotas]
    text = "of the quota windows that are running, all tenants together."
    return [
        Family("ergon_provider_quota_used", "gauge", f"Units used {text}", used),
        Family("ergon_provider_quota_limit", "gauge", f"Units allowed {text}", limits),
    ]


def _calls(found: Figures) -> list[Family]:
    ends: list[Series] = [
        ({**_labels(each), "outcome": outcome}, getattr(each, outcome))
        for each in found.ended
        for outcome in _OUTCOMES
    ]
    attempts: list[Series] = [(_labels(each), each.attempts) for each in found.ended]
    return [
        Family(
            "ergon_provider_calls_1h",
            "gauge",
            "Calls that ended in the last hour, by outcome; from one-minute roll-ups.",
            ends,
        ),
        Family(
            "ergon_provider_attempts_1h",
            "gauge",
            "Attempts of the last hour, failed ones included; from one-minute roll-ups.",
            attempts,
        ),
    ]


def _reasons(found: Figures) -> Family:
    return Family(
        "ergon_provider_attempts_5m",
        "gauge",
        "Attempts of the last five minutes, and calls that a gate refused, by reason;"
        " none for those that succeeded.",
        [({**_labels(each), "reason": each.what or "none"}, each.number) for each in found.reasons],
    )


def _labels(each: Counted | Used | Ended) -> Mapping[str, str]:
    return {"provider": each.provider_name, "capability": each.capability}
