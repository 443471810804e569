"""The summary of a tenant's lanes: health rows, windows that run, and the last hour's rates."""

from __future__ import annotations

from ergon_framework.core.breaker import Breaker
from ergon_framework.core.quota import Account, Window
from ergon_framework.ports.providerstore import LaneHealth, LaneKey
from ergon_framework.providers.stores.ground import (
    PACKAGE,
    Hand,
    Row,
    instant_of,
    sure_instant,
)
from ergon_framework.providers.stores.sql_gates import breaker_of
from ergon_framework.providers.stores.sql_rates import Lane, Rate
from ergon_framework.providers.stores.sql_records import Records
from ergon_framework.storage.sql_files import load

_LANES = load(PACKAGE, "records.sql")["lanes"]
_RUNNING = load(PACKAGE, "quota.sql")["running"]


_MONTH = 32 * 86_400.0
"""Seconds: a window that begins later than this was opened by a clock that ran ahead."""


class Health(Records):
    """How a tenant's lanes are."""

    def health(self, tenant_id: str) -> list[LaneHealth]:
        """Every lane of a tenant, in order; rates over the last hour as of now."""
        now = self._ground.now()
        stamp = self._ground.stamp
        values = {"tenant_id": tenant_id, "now": stamp(now), "latest": stamp(now + _MONTH)}

        def work(hand: Hand) -> list[LaneHealth]:
            lanes = {(row[0], row[1]): row[2:] for row in hand.rows(_LANES, values)}
            budgets = _budgets(hand.rows(_RUNNING, values))
            rates = self._rates.of_tenant(hand, tenant_id, now) if lanes else {}
            return [
                _health(
                    LaneKey(tenant_id, *lane),
                    lanes.get(lane),
                    rates.get(lane, (None, None)),
                    budgets.get(lane),
                )
                for lane in sorted({*lanes, *budgets})
            ]

        return self._ground.read(work)


def _budgets(rows: list[Row]) -> dict[Lane, tuple[Account, float]]:
    """The window of each lane, and when it was last counted."""
    found: dict[Lane, tuple[Account, float]] = {}
    for provider_name, capability, start, end, limit, used, updated_at in rows:
        window = Window(sure_instant(start), sure_instant(end))
        found[provider_name, capability] = Account(window, limit, used), sure_instant(updated_at)
    return found


def _health(
    key: LaneKey, row: Row | None, rate: Rate, budget: tuple[Account, float] | None
) -> LaneHealth:
    account, counted_at = budget or (None, 0.0)
    if row is None:
        return _unheard(key, account, counted_at)
    state, failures, open_until, cooldown_until, code, error_at, success_at, at, detail = row
    breaker = breaker_of(key, state, failures, open_until, detail)
    return LaneHealth(
        key=key,
        breaker_state=breaker.state.value,
        consecutive_failures=breaker.failures,
        open_until=breaker.open_until,
        cooldown_until=instant_of(cooldown_until),
        success_rate_1h=rate[0],
        p95_latency_ms_1h=rate[1],
        last_error_code=code,
        last_error_at=instant_of(error_at),
        last_success_at=instant_of(success_at),
        updated_at=sure_instant(at),
        account=account,
    )


def _unheard(key: LaneKey, account: Account | None, counted_at: float) -> LaneHealth:
    """A lane that has a budget and nothing else yet."""
    return LaneHealth(
        key=key,
        breaker_state=Breaker().state.value,
        consecutive_failures=0,
        open_until=None,
        cooldown_until=None,
        success_rate_1h=None,
        p95_latency_ms_1h=None,
        last_error_code=None,
        last_error_at=None,
        last_success_at=None,
        updated_at=counted_at,
        account=account,
    )
