"""One delivery of a task in a process of its own, which may be told to die on the way.

``task_child.py STORE CALLS [redelivered]``: every call of the provider is a line in CALLS.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from ergon_framework.providers.base import ProviderBase
from ergon_framework.providers.runner import ProviderTaskRunner
from ergon_framework.providers.tasks import TaskCall


class Counting(ProviderBase):
    """Counts its calls in a file."""

    provider_name, capability = "counting", "count"

    def _execute_impl(self, **given: Any) -> dict[str, Any]:
        with Path(sys.argv[2]).open("a") as calls:
            calls.write("called\n")
        return {"is": "done"}


if __name__ == "__main__":
    runner = ProviderTaskRunner(Counting(store=sys.argv[1]), task_name="counting")
    call = TaskCall(
        tenant_id="t",
        campaign_id=None,
        operation="count",
        payload={},
        idempotency_key="k",
        call_id="message-1",
        is_redelivered="redelivered" in sys.argv,
    )
    print(runner.run(call).end.value, flush=True)
