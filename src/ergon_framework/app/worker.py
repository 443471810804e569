"""``ergon worker``: a worker of jobs that runs until a signal asks it to stop."""

from __future__ import annotations

import itertools
import logging
import os
import random
import threading
from collections.abc import Callable, Sequence
from contextlib import closing

from ergon_framework.app.console import of_signal, say
from ergon_framework.app.jobs import JobSetup
from ergon_framework.app.signals import SignalListener
from ergon_framework.errors import StoreUnavailableError
from ergon_framework.executor.loading import refuse_while_loading
from ergon_framework.jobs.store_thread import OUTAGE
from ergon_framework.jobs.stores.opening import open_store
from ergon_framework.jobs.worker import Worker, WorkerReport
from ergon_framework.ports.jobstore import FullJobStore
from ergon_framework.storage import failpoints
from ergon_framework.storage.deadlines import ASKING
from ergon_framework.storage.urls import file_of

logger = logging.getLogger("ergon_framework.app.worker")

LONGEST_TRY = 5.0
"""Seconds for one attempt to reach a server at the start: so soon a signal is heard."""


class _Stops:
    """The first signal asks for a graceful stop, the second for an immediate one."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._count = 0

    def heard(self, number: int) -> None:
        self._count += 1
        if self._count > 2:
            say("stopped by force; leases of what was running will expire")
            os._exit(of_signal(number))
        if self._count == 1:
            say("stopping; what runs may finish (a second signal ends it at once)")
        self._worker.stop(now=self._count > 1)


def waited_for(url: str) -> FullJobStore | None:
    """Open a store; its server may be away for as long as it likes. None: a signal came first.

    A file is never waited for: what is wrong with it does not go away by itself.
    """
    stopped = threading.Event()
    with SignalListener(lambda _number: stopped.set()):
        for failures in itertools.count():
            try:
                return ASKING.hurried(LONGEST_TRY, lambda: open_store(url))
            except StoreUnavailableError as error:
                if file_of(url) is not None:
                    raise
                wait = OUTAGE.delay(failures, random.random())  # noqa: S311 - jitter
                text = "the store does not answer; the worker waits and asks again in %.1f s: %s"
                logger.warning(text, wait, error)
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
    with SignalListener(_Stops(worker).heard):
        ready()
        return worker.run()
