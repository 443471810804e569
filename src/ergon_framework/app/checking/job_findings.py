"""Looking at what the settings say about jobs: can the executors start, does the store answer?"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

from ergon_framework.app.checking.findings import Finding, Status
from ergon_framework.app.reading.sections import Settings
from ergon_framework.app.reading.store_files import file_has_table, has_jobs
from ergon_framework.app.reading.store_urls import is_in_memory, store_url
from ergon_framework.errors import ErgonError, StoreUnavailableError
from ergon_framework.ports.moving import mark_of, refuse_unsettled
from ergon_framework.storage.urls import file_of


def examine_jobs(settings: Settings, *, connects: bool) -> Iterator[Finding]:
    """One finding for each executor and for the store.

    Without executors or ``[jobs]`` only jobs that the store of everything already has.
    """
    if not {"executors", "jobs"} & settings.extensions.keys():
        if connects:
            yield from _shared(settings)
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


def _shared(settings: Settings) -> Iterator[Finding]:
    """Whether the jobs there can be worked with, as commands do it; no table is made.

    Of a URL that is wrong, or a server that is away, the row of the store tells.
    """
    from ergon_framework.jobs.stores.opening import check_url, open_store

    url = store_url(settings)
    try:
        check_url(url)
    except ErgonError:
        return
    try:
        if not _are_there(url):
            return
        with closing(open_store(url, read_only=True)) as store:
            refuse_unsettled(mark_of(store))
            yield Finding("job store", Status.OK, store.durability)
    except StoreUnavailableError:
        return
    except ErgonError as error:
        yield _bad("job store", error)


def _are_there(url: str) -> bool:
    file = file_of(url)
    if file is not None:
        return file.exists() and file_has_table(file, "ergon_jobs")
    return not is_in_memory(url) and has_jobs(url)


def _bad(check: str, error: ErgonError) -> Finding:
    return Finding(check, Status.BAD, error.message, error.remedy)
