"""Sends signals and decides about held flows, until it is told to leave.

    python -m tests.campaign.programs.flow_operator URL ZONE BOOK

Whoever takes its place does again what may not have been done: a signal that was taken is refused
or has the same value, and a flow that was decided about is not held any more.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

from ergon_framework.core.flow import FlowStatus
from ergon_framework.errors import JobStateError
from ergon_framework.jobs.client import JobClient
from ergon_framework.jobs.flow_client import EnqueuedFlow
from ergon_framework.ports.flow import Flow
from tests.campaign.event_file import at_work
from tests.campaign.flow_forms import SIGNAL, form_of, signal_value
from tests.campaign.outage_retry import patiently, pause
from tests.campaign.programs.flow_producer import flow_book
from tests.differential.places import Place, open_jobs

LOOK = 0.05
MOST = 1_000
"""Flows that are looked at together."""


def number_of(flow: Flow) -> int | None:
    """The number in its name; None for a flow that came about by ``after``."""
    return int(flow.name.rpartition("-")[2]) if flow.name else None


def decide(flow: EnqueuedFlow, number: int, repaired: Path) -> None:
    """Skip, retry or cancel; of two operators who saw it held, one is refused."""
    decision = form_of(number).expected(number).decision
    if decision == "retry":
        (repaired / str(number)).touch()
    with suppress(JobStateError):
        getattr(flow, decision)()


def main(url: str, zone: str, path: str) -> None:
    """Look again and again."""
    book, repaired = flow_book(path), Path(f"{path}.repaired")
    repaired.mkdir(exist_ok=True)
    sent = {words[1] for words in book.lines() if words[0] == "signalled"}
    with JobClient(store=patiently(lambda: open_jobs(Place(url, zone)))) as client:
        at_work()
        search = client.store.flows.search  # type: ignore[attr-defined]
        while True:
            for flow in patiently(lambda: search((FlowStatus.RUNNING, FlowStatus.HELD), MOST)):
                number = number_of(flow)
                if number is None:
                    continue
                enqueued = EnqueuedFlow.of(flow.id, client)
                if flow.status is FlowStatus.HELD:
                    patiently(lambda f=enqueued, n=number: decide(f, n, repaired))  # type: ignore[misc]
                elif form_of(number).expected(number).decision == "signal" and flow.id not in sent:
                    with suppress(JobStateError):
                        patiently(lambda f=enqueued, n=number: f.signal(SIGNAL, signal_value(n)))  # type: ignore[misc]
                    sent.add(flow.id)
                    book.write(f"signalled {flow.id}")
            pause(LOOK)


if __name__ == "__main__":
    main(*sys.argv[1:])
