"""Many callers, an API that has a bad day, and sums that must add up.

    python examples/providers

Five tenants call a local HTTP API (``bad_api.py``) through one provider (``weather.py``): one asks
for what fails now and then, one has a small quota, one asks for what is down, one is throttled, one
is denied. Then the results that callers got are compared with the requests that the API saw and
with the rows in the store (``sides.py``); the exit code is 1 when they do not agree.

It needs httpx.
"""

from __future__ import annotations

import logging
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from bad_api import BadApi
from sides import Sum, Told, endings, problems, sums, table

try:
    from weather import Weather
except ModuleNotFoundError as missing:
    sys.exit(f"this example calls an HTTP API, and {missing.name} is not there: pip install httpx")

from ergon_framework.providers import (
    CircuitBreaker,
    ProviderExecutionContext,
    QuotaPolicy,
    RetryPolicy,
    recorder_of,
)

LIMIT = 20

PLAN: dict[str, Sequence[str]] = {
    "acme": ("steady", "shaky", "dropped", "garbage") * 4,
    "bolt": ("steady",) * 30,  # more than its quota
    "cove": ("down",) * 15,
    "dune": ("busy",) * 2,
    "echo": ("denied",) * 3,
}
"""What each tenant asks for, call after call."""


def main() -> int:
    """Play it, then compare."""
    logging.basicConfig(format="    %(message)s", stream=sys.stdout)
    with tempfile.TemporaryDirectory() as folder, api() as bad:
        told, found = play(bad, Path(folder) / "calls.db")
    print("\nHow the calls ended:")
    print(endings(told))
    print("\nWhat the two sides say:")
    print(table(found))
    wrong = problems(found)
    for each in wrong:
        print(f"does NOT add up: {each}")
    if not wrong:
        print(f"The sums add up: {len(told)} calls, every one accounted for.")
    return 1 if wrong else 0


def play(bad: BadApi, file: Path) -> tuple[list[Told], list[Sum]]:
    """Let every tenant call as planned, all at once."""
    with Weather(
        bad.url,
        retry_policy=RetryPolicy(max_attempts=3, base_delay_seconds=0.05),
        circuit_breaker=CircuitBreaker(failure_threshold=5, open_cooldown_seconds=60),
        quota=QuotaPolicy(limit=LIMIT, period="month"),
        store=f"sqlite:///{file}",
        timeout_budget_seconds=20,
    ) as weather:
        with ThreadPoolExecutor(len(PLAN)) as pool:
            told = [each for many in pool.map(lambda who: ask(weather, who), PLAN) for each in many]
        weather.flush()
        refused = sum(recorder_of(weather.store).stats().refused_total.values())
        found = sums(told, bad.requests.total(), refused, file)
        weather.store.close()
    return told, found


def ask(weather: Weather, tenant_id: str) -> list[Told]:
    """The calls of one tenant, one after the other."""
    return [
        Told(
            tenant_id,
            weather.execute(
                tenant_id=tenant_id,
                campaign_id=None,
                operation=operation,
                payload={"city": "Athens"},
                context=ProviderExecutionContext(),
            ),
        )
        for operation in PLAN[tenant_id]
    ]


@contextmanager
def api() -> Iterator[BadApi]:
    """The API, on a thread of its own."""
    with BadApi() as bad:
        thread = threading.Thread(target=bad.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield bad
        finally:
            bad.shutdown()
            thread.join()


if __name__ == "__main__":
    sys.exit(main())
