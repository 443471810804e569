"""How the providers of a tenant stand: the summary that the API, the command and a host show."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import msgspec

from ergon_framework.core.quota import QuotaUsage
from ergon_framework.core.rfc3339 import format_rfc3339
from ergon_framework.ports.providerstore import LaneHealth, ProviderStore
from ergon_framework.providers.recorder import known_recorder
from ergon_framework.providers.store_urls import current_store
from ergon_framework.providers.telemetry import logger

FLUSH_TIMEOUT = 1.0
"""Seconds a summary waits for rows of this process that are on their way to the store."""

_FIRST, _LAST = 0.0, 253_402_300_799.0  # no instant of ours is older; later ones have no text


class ProviderHealthService:
    """Reads summaries from one store. Any thread may ask."""

    def __init__(self, store: str | ProviderStore, *, flush_timeout: float = FLUSH_TIMEOUT) -> None:
        """With a ``flush_timeout`` of 0 no rows are waited for: the process makes no calls."""
        self._store = store
        self._flush_timeout = flush_timeout

    def summary(self, tenant_id: str | UUID, detail: bool = False) -> dict[str, Any]:
        """A tenant's summary as plain values; an unknown tenant has no providers.

        A tenant is looked for as it was given and, if nothing is known under that and it is a
        uuid, under its canonical spelling. ``detail`` adds to the agreed fields. ``StoreError``
        when the store cannot answer.
        """
        store = current_store(self._store)
        is_current = self._flush_timeout <= 0 or _is_flushed(store, self._flush_timeout)
        given = str(tenant_id)
        shown = canonical_tenant(given) or given
        lanes = store.health(given) or (store.health(shown) if shown != given else [])
        now = store.now()
        lanes = sorted((lane.observed(now) for lane in lanes), key=lambda lane: lane.key[1:])
        told = {"tenant_id": shown, "generated_at": _text(now)}
        if detail:
            items = [_item(lane) | _more(lane, now) for lane in lanes]
            return {**told, "is_current": is_current, "providers": items}
        return {**told, "providers": [_item(lane) for lane in lanes]}


def summary_json(
    store: str | ProviderStore, tenant_id: str | UUID, *, detail: bool = False
) -> bytes:
    """The body of an answer, for hosts that serve it without FastAPI."""
    return msgspec.json.encode(ProviderHealthService(store).summary(tenant_id, detail))


def canonical_tenant(text: str) -> str | None:
    """A uuid in lower case with its hyphens, however it was written; None when it is none."""
    try:
        return str(UUID(text))
    except ValueError:
        return None


def _is_flushed(store: ProviderStore, flush_timeout: float) -> bool:
    recorder = known_recorder(store)  # without one, this process has made no calls
    try:
        return recorder is None or recorder.flush(flush_timeout)
    except Exception as error:  # an older answer is better than none
        logger.warning("rows could not be flushed: %s", type(error).__name__)
        return False


def _item(lane: LaneHealth) -> dict[str, Any]:
    return {
        "provider_name": lane.key.provider_name,
        "capability": lane.key.capability,
        "breaker_state": lane.breaker_state,
        "success_rate_1h": lane.success_rate_1h,
        "p95_latency_ms_1h": lane.p95_latency_ms_1h,
        "quota": None if lane.account is None else _quota(lane.account),
        "last_error_code": lane.last_error_code,
        "last_error_at": _text(lane.last_error_at),
        "last_success_at": _text(lane.last_success_at),
    }


def _more(lane: LaneHealth, now: float) -> dict[str, Any]:
    cooldown = lane.cooldown_until
    more: dict[str, Any] = {
        "consecutive_failures": lane.consecutive_failures,
        "open_until": _text(lane.open_until),
        "cooldown_until": _text(cooldown) if cooldown is not None and cooldown > now else None,
        "updated_at": _text(lane.updated_at),
    }
    if lane.account is not None:
        begun = {"window_start": _text(lane.account.window.start)}
        more["quota"] = _quota(lane.account) | begun
    return more


def _quota(account: QuotaUsage) -> dict[str, Any]:
    return {
        "limit_count": account.limit,
        "used_count": account.used,
        "remaining_count": account.remaining,
        "window_end": _text(account.window.end),
    }


def _text(at: float | None) -> str | None:
    """RFC 3339; what no calendar has, such as a pause without end, is the last instant it has."""
    return None if at is None else format_rfc3339(min(max(at, _FIRST), _LAST))
