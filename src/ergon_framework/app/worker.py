"""``ergon worker``: a worker of jobs that runs until a signal asks it to stop."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import closing

from ergon_framework.app.console import say
from ergon_framework.app.jobs import JobSetup
from ergon_framework.app.signals import SignalListener, StopSignals
from ergon_framework.errors import StoreUnavailableError
from ergon_framework.executor.loading import refuse_while_loading
from ergon_framework.jobs.store_thread import OUTAGE_BACKOFF
from ergon_framework.jobs.store_urls import open_store
from ergon_framework.jobs.worker import WorkerReport
from ergon_framework.ports.dice import roll
from ergon_framework.ports.jobstore import FullJobStore
from ergon_framework.storage import failpoints
from ergon_framework.storage.deadlines import CALL_BUDGET
from ergon_framework.storage.urls import file_of

logger = logging.getLogger("ergon_framework.app.worker")

CONNECT_TIMEOUT = 5.0
"""Seconds for one attempt to reach a server at the start: so soon a signal is heard."""


def waited_for(url: str) -> FullJobStore | None:
    """Open a store; its server may be away for as long as it likes. None: a signal came first.

    A file is never waited for: what is wrong with it does not go away by itself.
    """
    stopped = threading.Event()
    with SignalListener(lambda _number: stopped.set()):
        for failures in itertools.count():
            try:
                found = CALL_BUDGET.run_within(CONNECT_TIMEOUT, lambda: open_store(url))
            except StoreUnavailableError as error:
                if file_of(url) is not None:
                    raise
                wait = OUTAGE_BACKOFF.delay(failures, roll())
                text = "the store does not answer; the worker waits and asks again in %.1f s: %s"
                logger.warning(text, wait, error)
            else:
                if not stopped.is_set():
                    return found
                # This listener has consumed the signal, so the worker would not see it.
                found.close()
                say("stopped while the store was opened")
                return None
            if stopped.wait(wait):
                say("stopped while the store was away")
                return None
    return None


def work(
    setup: JobSetup,
    *,
    store: FullJobStore | None = None,
    queues: Sequence[str] | None = None,
    burst: bool = False,
    name: str | None = None,
    ready: Callable[[], object] = lambda: None,
    waits: bool | None = None,
) -> WorkerReport:
    """Run a worker until it is stopped by a signal, or in ``burst`` until nothing is due.

    ``ready`` is called when its store is open and it begins to look for work. ``waits``: whether a
    server that is away is waited for; without it as the settings say, and never in a burst.
    """
    refuse_while_loading("starts a worker")
    if store is None:
        is_patient = setup.jobs.wait_for_store and not burst if waits is None else waits
        found = waited_for(setup.url) if is_patient else open_store(setup.url)
        if found is None:
            return WorkerReport()
        with closing(found) as opened:
            return work(setup, store=opened, queues=queues, burst=burst, name=name, ready=ready)
    failpoints.check()
    worker = setup.worker(store, queues=queues, burst=burst, name=name)
    setup.limit_queues(store)
    stops = StopSignals(
        lambda count: worker.stop(now=count > 1),
        force_at=3,
        last_words="stopped by force; leases of what was running will expire",
    )
    with SignalListener(stops.take):
        ready()
        return worker.run()
