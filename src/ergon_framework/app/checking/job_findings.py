"""Looking at what the settings say about jobs: can the executors start, does the store answer?"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, suppress
from typing import TYPE_CHECKING

from ergon_framework.app.checking.findings import Finding, Status
from ergon_framework.app.checking.patience import TIMEOUT, in_time
from ergon_framework.app.settings.sections import Settings
from ergon_framework.app.settings.stores import file_has_table, has_jobs, is_in_memory, store_url
from ergon_framework.errors import ErgonError, StoreUnavailableError
from ergon_framework.ports.moving import mark_of, refuse_unsettled
from ergon_framework.storage.urls import file_of
from ergon_framework.task.mixins.utils import run_with_timeout

if TYPE_CHECKING:
    from ergon_framework.jobs.requests import Store

STORE = "job store"
"""What the finding about it is called."""


def examine_jobs(
    settings: Settings, *, connects: bool, timeout: float = TIMEOUT
) -> Iterator[Finding]:
    """One finding for each executor and for the store.

    Without executors or ``[jobs]`` only jobs that the store of everything already has.
    """
    if not {"executors", "jobs"} & settings.extensions.keys():
        if connects:
            yield from _shared(settings, timeout)
        return
    from ergon_framework.app.jobs import setup_of
    from ergon_framework.jobs.commands import checked
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
    yield in_time(STORE, lambda: _opened(setup.url), timeout)


def _opened(url: str) -> Finding:
    from ergon_framework.jobs.stores.opening import open_store

    try:
        with closing(open_store(url)) as store:
            return _of(store, url)
    except ErgonError as error:
        return _bad(STORE, error)


def _kept(store: Store, url: str) -> Finding:
    """What an acknowledgement means there."""
    if not is_in_memory(url):  # of a server, the row of its durability tells
        return Finding(STORE, Status.OK, store.durability, store=url)
    remedy = "fine for trials; for work that may not be lost write sqlite:///jobs.db"
    return Finding(STORE, Status.NOTE, store.durability, remedy, store=url)


def _shared(settings: Settings, timeout: float) -> Iterator[Finding]:
    """Whether the jobs there can be worked with, as commands do it; no table is made.

    Of a URL that is wrong, or a server that is away, the row of the store tells.
    """
    from ergon_framework.jobs.stores.opening import check_url

    url = store_url(settings)
    with suppress(ErgonError, TimeoutError):
        check_url(url)
        found = run_with_timeout(lambda: _looked_into(url), timeout)
        if found is not None:
            yield found


def _looked_into(url: str) -> Finding | None:
    from ergon_framework.jobs.stores.opening import open_store

    try:
        if not _are_there(url):
            return None
        with closing(open_store(url, read_only=True)) as store:
            refuse_unsettled(mark_of(store))
            return _of(store, url)
    except StoreUnavailableError:
        return None
    except ErgonError as error:
        return _bad(STORE, error)


def _of(store: Store, url: str) -> Finding:
    """A store that answers, and whether it has rows that cannot be read."""
    aside = len(store.unreadable())
    if not aside:
        return _kept(store, url)
    number = "1 row" if aside == 1 else f"{aside:,} rows"
    found = f"{number} of jobs cannot be read and were set aside"
    return Finding(STORE, Status.BAD, found, "ergon jobs unreadable lists them", store=url)


def _are_there(url: str) -> bool:
    file = file_of(url)
    if file is not None:
        return file.exists() and file_has_table(file, "ergon_jobs")
    return not is_in_memory(url) and has_jobs(url)


def _bad(check: str, error: ErgonError) -> Finding:
    return Finding(check, Status.BAD, error.message, error.remedy)
