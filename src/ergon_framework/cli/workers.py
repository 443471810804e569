"""``ergon workers``: who runs jobs, and what each is doing."""

from __future__ import annotations

from typing import Any

from ergon_framework.cli.job_client import StoreUrl, opened
from ergon_framework.cli.output import show_list
from ergon_framework.cli.session import ConfigPath, JsonFlag

_ABOUT = ["id", "host", "pid", "app_version", "state"]
_COLUMNS = [*_ABOUT, "queues", "busy", "executors", "started_at", "seen_at"]


def workers(config: ConfigPath = None, url: StoreUrl = None, as_json: JsonFlag = False) -> None:
    """List workers with their executors and counters."""
    from ergon_framework.jobs.views import worker_view

    with opened(config, url, reads=True) as client:
        now = client.store.now()
        rows = [worker_view(record, now) for record in client.store.workers()]
    if not as_json:
        rows = [
            {
                **row,
                "queues": row["queues"] or "all",
                "executors": [
                    _executor_text(name, pool) for name, pool in row["executors"].items()
                ],
            }
            for row in rows
        ]
    show_list(rows, _COLUMNS, as_json=as_json)


def _executor_text(name: str, pool: Any) -> str:
    """An executor in a few words."""
    from ergon_framework.jobs.totals import recycled_of

    if not isinstance(pool, dict):
        return name
    text = f"{name} {pool.get('processes', '?')}/{pool.get('pool_size', '?')}"
    recycled = recycled_of({name: pool}).get(name)
    if recycled:
        text += ", recycled " + ", ".join(
            f"{number} by {reason}" for reason, number in recycled.items()
        )
    return f"{text} does not start: {pool['reason']}" if pool.get("opens_at") else text
