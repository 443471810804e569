"""Builds the notices of flows: how the end of a step that failed or was cancelled changed its flow.

The store decides that within the settlement, and answers only whether the settlement was applied.
So the worker that settled such a step reads the flow afterwards, and only when somebody listens.
Steps that complete cost nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any, cast

from ergon_framework.core.flow import FlowStatus
from ergon_framework.core.job import JobStatus
from ergon_framework.errors import StoreError
from ergon_framework.ports.jobstore import FlowStore, FullJobStore, JobStore, Search, Settlement
from ergon_framework.telemetry.notices import has_listeners

logger = logging.getLogger("ergon.jobs")

NOTICE_OF_FLOW = {
    FlowStatus.HELD: "flow.held",
    FlowStatus.FAILING: "flow.failed",
    FlowStatus.FAILED: "flow.failed",
}
_BAD_ENDS = (JobStatus.FAILED, JobStatus.CANCELLED)


def flow_notices(
    store: JobStore, applied: Sequence[Settlement]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """The notices of flows that follow from settlements which were applied, with their fields."""
    ids = tuple(each.id for each in applied if each.transition.status in _BAD_ENDS)
    flows: FlowStore | None = getattr(store, "flows", None)
    if not ids or flows is None or not any(map(has_listeners, set(NOTICE_OF_FLOW.values()))):
        return
    searched = cast("FullJobStore", store)  # Every store that keeps flows has these methods.
    try:
        steps = {
            job.step.flow_id: job.id
            for job in searched.search(Search(ids=ids))
            if job.step is not None
        }
        found = [(flows.find(flow_id), job_id) for flow_id, job_id in steps.items()]
    except StoreError as error:  # The settlement is stored; only the notice is lost.
        logger.warning("what became of the flows of failed steps is not known: %s", error)
        return
    for flow, job_id in found:
        if flow is not None and flow.status in NOTICE_OF_FLOW:
            fields = {"flow_id": flow.id, "flow": flow.name, "job_id": job_id}
            yield NOTICE_OF_FLOW[flow.status], fields | {"failed": flow.state.failed}
