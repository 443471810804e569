"""Does memory stay flat while a source that never ends makes transactions on the fly?"""

from __future__ import annotations

import gc
import os
import resource
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from engine_parts import ours
from engine_parts.noop import Hooks, Workload

SLACK = 2 * 1024 * 1024
"""Bytes the resident set may wander; a million kept pointers would take four times as much."""

PER_ID = 16
"""Bytes a producer may keep for each id of one call, to recognise duplicates."""


def workloads() -> dict[str, Workload]:
    """The four engine kinds, by case name."""
    return {
        f"memory-{role}-{'async' if is_async else 'sync'}": Workload(role, is_async, concurrency=8)
        for role in ("consume", "produce")
        for is_async in (False, True)
    }


def measure(name: str, count: int) -> dict[str, Any]:
    """Run ``count`` transactions in one call and say how much memory was added on the way."""
    record: dict[str, Any] = {"case": name, "who": ours.US}
    workload = workloads()[name]
    skipped = ours.engine(workload).skipped
    if skipped is not None:
        return record | {"skipped": skipped}
    grown = _growth(workload, count, resident)
    tracemalloc.start()
    traced_count = count // 20
    traced = _growth(workload, traced_count, _traced)
    allowed = SLACK + (PER_ID * count if workload.role == "produce" else 0)
    kept = f" + {PER_ID} bytes per id" if workload.role == "produce" else ""
    return record | {
        "count": count,
        "resident_growth_bytes": grown,
        "bytes_per_transaction": round(grown / count, 2),
        "traced_count": traced_count,
        "traced_growth_bytes": traced,
        "target": f"resident growth <= {SLACK >> 20} MiB{kept}",
        "met": grown <= allowed,
    }


def _growth(workload: Workload, count: int, used: Callable[[], int]) -> int:
    """Bytes added between the first tenth and the last transaction."""
    from ergon_framework.connector.transaction import Transaction

    samples: list[int] = []

    def transactions() -> Iterator[Transaction]:
        for number in range(count):
            if number == count // 10 or number == count - 1:
                samples.append(used())
            yield Transaction(transaction_id=f"transaction-{number}")

    ended = ours.start(workload, ours.policy(workload), transactions(), Hooks())()
    if ended != count:
        raise RuntimeError(f"{ended} of {count} transactions ended well")
    return samples[-1] - samples[0]


def resident() -> int:
    """Bytes of this process that are in memory."""
    try:
        pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")
    except OSError:  # no procfs: the peak serves as well, since only growth is asked for
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _traced() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]
