"""A worker in this process: signals in, a report out."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import closing

from ergon_framework.app.exit_codes import of_signal
from ergon_framework.app.jobs import JobSetup
from ergon_framework.app.running.signals import SignalEar
from ergon_framework.app.saying import say
from ergon_framework.executor.loading import refuse_while_loading
from ergon_framework.jobs.requests import Store
from ergon_framework.jobs.stores.opening import open_store
from ergon_framework.jobs.worker import Worker, WorkerReport
from ergon_framework.storage import failpoints


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


def work(
    setup: JobSetup,
    *,
    store: Store | None = None,
    queues: Sequence[str] | None = None,
    burst: bool = False,
    name: str | None = None,
    ready: Callable[[], object] = lambda: None,
) -> WorkerReport:
    """Run a worker until it is stopped by a signal, or in ``burst`` until nothing is due.

    ``ready`` is called when its store is open and it begins to look for work.
    """
    refuse_while_loading("starts a worker")
    if store is None:
        with closing(open_store(setup.url)) as opened:
            return work(setup, store=opened, queues=queues, burst=burst, name=name, ready=ready)
    failpoints.check()
    worker = setup.worker(store, queues=queues, burst=burst, name=name)
    setup.limit_queues(store)
    with SignalEar(_Stops(worker).heard):
        ready()
        return worker.run()
