"""What a lane takes in memory once nobody uses it."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterator

from comparison import Record, RunOptions

from ergon_framework.providers.base import ProviderBase
from ergon_framework.providers.execution import ProviderExecutionContext
from provider_parts.calls import PAYLOAD, PLENTY, Noop

TARGET = 4096


def memory(options: RunOptions) -> Iterator[Record]:
    """Growth per lane, each of which has had one call; the first thousand are not counted."""
    count = 500 if options.is_quick else 5_000
    filed = Noop(quota=PLENTY, store=f"sqlite:///{options.folder / 'lanes.db'}")
    yield _record("Ergon on SQLite", _growth(filed, count), count)
    filed.store.close()
    bare = Noop(quota=PLENTY)
    yield _record("Ergon in memory, with its row and health", _growth(bare, count), count)


def _growth(provider: ProviderBase, count: int) -> float:
    tracemalloc.start()
    try:
        before = _after(provider, range(1_000))
        return (_after(provider, range(1_000, 1_000 + count)) - before) / count
    finally:
        tracemalloc.stop()


def _after(provider: ProviderBase, tenants: range) -> int:
    context = ProviderExecutionContext()
    for number in tenants:
        provider.execute(
            tenant_id=f"tenant-{number:06}",
            campaign_id=None,
            operation="send",
            payload=PAYLOAD,
            context=context,
        )
    provider.flush(60.0)
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def _record(name: str, bytes_each: float, count: int) -> Record:
    is_lane = "SQLite" in name
    made: Record = {"case": "memory", "who": name, "bytes": round(bytes_each), "count": count}
    if is_lane:
        made |= {"target": f"<= {TARGET} bytes", "met": bytes_each <= TARGET}
    return made
