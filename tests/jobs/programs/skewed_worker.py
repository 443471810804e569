"""A worker on a machine whose clock is wrong: ``skewed_worker.py URL SECONDS``.

It runs until it is stopped. Nothing of the store's server is changed: its clock is right.
"""

import sys
import time

_real, _real_ns, _seconds = time.time, time.time_ns, float(sys.argv[2])
# Before anything else is imported: others take these functions, not the module.
time.time = lambda: _real() + _seconds
time.time_ns = lambda: _real_ns() + int(_seconds * 1e9)

from ergon_framework.app.signals import SignalListener  # noqa: E402
from ergon_framework.jobs.store_urls import open_store  # noqa: E402
from tests.jobs.real_worker import quick, unruly, worker  # noqa: E402

if __name__ == "__main__":
    store = open_store(sys.argv[1])
    subject = worker(store, executor=unruly(pool_size=2), settings=quick(lease=1.0))
    with SignalListener(lambda _count: subject.stop()):
        subject.run()
    store.close()
