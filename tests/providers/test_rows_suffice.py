"""What the rows of attempts are for: objectives, alerts and roll-ups, without reading a log."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from ergon_framework.providers.circuit_breaker import CircuitBreaker
from ergon_framework.providers.execution import ProviderExecutionContext
from ergon_framework.providers.retry import RetryPolicy
from ergon_framework.providers.synthetic import SyntheticProvider

SLO = """
SELECT tenant_id, provider_name, capability,
    avg(outcome = 'success') AS rate,
    max(attempt_number) AS worst,
    sum(reason_code = 'timeout') AS timeouts
FROM provider_execution_metrics
WHERE outcome <> 'retry' AND attempt_number > 0
GROUP BY tenant_id, provider_name, capability
"""


@pytest.mark.req("PEF:M-5", "PEF:M-2", "PEF:B-9")
def test_objectives_and_the_summary_come_from_the_same_rows(tmp_path: Path) -> None:
    """A success rate by plain SQL is the one that the health record shows."""
    path = tmp_path / "work.db"
    script = ["ok", "timeout", "ok", "auth_failed", "http:503", "http:503", "http:503", "ok"]
    with SyntheticProvider(
        script,
        store=f"sqlite:///{path}",
        retry_policy=RetryPolicy(base_delay_seconds=0.0),
        circuit_breaker=CircuitBreaker(failure_threshold=100),
    ) as provider:
        for _ in range(5):
            provider.execute(
                tenant_id="acme",
                campaign_id=None,
                operation="fetch",
                payload={},
                context=ProviderExecutionContext(),
            )
        [health] = provider.health("acme")
    with closing(sqlite3.connect(path)) as file:
        [row] = file.execute(SLO)
        attempts = file.execute("SELECT count(*) FROM provider_execution_metrics").fetchone()
    assert row == ("acme", "synthetic", health.key.capability, 0.6, 3, 0)
    assert attempts == (len(script),)
    assert health.success_rate_1h == 0.6
