"""Looking at what the settings say about jobs: can the executors start, does the store answer?"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

from ergon_framework.app.checking.findings import Finding, Status
from ergon_framework.app.reading.sections import Settings
from ergon_framework.errors import ErgonError


def examine_jobs(settings: Settings, *, connects: bool) -> Iterator[Finding]:
    """One finding for each executor and for the store; nothing without executors or ``[jobs]``."""
    if not {"executors", "jobs"} & settings.extensions.keys():
        return
    from ergon_framework.app.jobs import setup_of
    from ergon_framework.jobs.commands import checked
    from ergon_framework.jobs.stores.opening import open_store
    from ergon_framework.jobs.worker import default_executor

    setup = setup_of(settings)
    for name, executor in setup.executors.items():
        try:
            found = checked(name, executor).command[0]
            yield Finding(f"executor {name}", Status.OK, found)
        except ErgonError as error:
            yield _bad(f"executor {name}", error)
    if setup.executors:
        try:
            default = default_executor(setup.jobs, setup.executors)
            yield Finding("default executor", Status.OK, default)
        except ErgonError as error:
            yield _bad("default executor", error)
    if not connects or not setup.url:
        return
    try:
        with closing(open_store(setup.url)) as store:
            yield Finding("job store", Status.OK, store.durability)
    except ErgonError as error:
        yield _bad("job store", error)


def _bad(check: str, error: ErgonError) -> Finding:
    return Finding(check, Status.BAD, error.message, error.remedy)
