"""How the lanes of a tenant stand, as one process can tell it: its own latest rows included."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from ergon_framework.ports.providerstore import LaneHealth, ProviderStore
from ergon_framework.providers.recorder import Recorder, RecorderStats

_PATIENCE = 5.0  # seconds to wait for rows that are on their way


@dataclass(frozen=True, slots=True)
class ProviderHealth:
    """A tenant's lanes, and whether everything this process knows of them is in it."""

    tenant_id: str
    lanes: list[LaneHealth]
    is_current: bool
    recorder: RecorderStats

    def as_dict(self) -> dict[str, Any]:
        """The same as plain values, for a command or a page."""
        return {
            "tenant_id": self.tenant_id,
            "lanes": [lane_dict(lane) for lane in self.lanes],
            "is_current": self.is_current,
            "recorder": asdict(self.recorder),
        }


def provider_health(
    store: ProviderStore, recorder: Recorder, tenant_id: str, timeout: float = _PATIENCE
) -> ProviderHealth:
    """Write what is on its way, then read. ``StoreError`` when the store cannot answer."""
    is_current = recorder.flush(timeout)
    lanes = [lane.told(store.now()) for lane in store.health(tenant_id)]
    return ProviderHealth(tenant_id, lanes, is_current, recorder.stats())


def health_of(store: ProviderStore, recorder: Recorder, tenant_id: str) -> list[LaneHealth]:
    """Every lane of a tenant, in order. ``StoreError`` when the store cannot answer."""
    return provider_health(store, recorder, tenant_id).lanes


def lane_dict(lane: LaneHealth) -> dict[str, Any]:
    """A lane as plain values, its key and its quota spread out; instants stay seconds."""
    account = lane.account
    values = {
        name: getattr(lane, name) for name in lane.__slots__ if name not in {"key", "account"}
    }
    quota = None
    if account is not None:
        quota = {
            "limit_count": account.limit,
            "used_count": account.used,
            "remaining_count": account.remaining,
            "window_start": account.window.start,
            "window_end": account.window.end,
        }
    return {**lane.key._asdict(), **values, "quota": quota}
