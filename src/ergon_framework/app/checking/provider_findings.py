"""Looking at what the settings say about provider calls: do their stores answer?"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial

from ergon_framework.app.checking.findings import Finding, Status
from ergon_framework.app.checking.patience import TIMEOUT, in_time
from ergon_framework.app.reading.sections import Settings
from ergon_framework.app.reading.store_urls import call_stores
from ergon_framework.errors import ErgonError


def examine_providers(
    settings: Settings, *, connects: bool, timeout: float = TIMEOUT
) -> Iterator[Finding]:
    """A finding for each store that ``[providers]`` or one of its providers names."""
    section = settings.extensions.get("providers")
    if not connects or section is None:
        return
    for name, url in call_stores(settings).items():
        label = f"provider store of {name}" if name else "provider store"
        if name or section.store is not None or not _may_keep_calls(url):
            yield in_time(label, partial(_examined, label, url), timeout)


def _may_keep_calls(url: str) -> bool:
    """Whether the store of everything is of a kind that keeps provider calls, too."""
    from ergon_framework.providers.stores.opening import check_url

    try:
        check_url(url)
    except ErgonError:
        return False
    return True


def _examined(label: str, url: str) -> Finding:
    from ergon_framework.providers.stores import open_store

    try:
        # One of our own: closing it must not close that of a program that looks at itself.
        with closing(open_store(url, clock=time.time)) as store:
            store.letters(limit=1)
            said = getattr(store, "durability", "answers")
            return Finding(label, Status.OK, said, store=url)
    except ErgonError as error:
        return Finding(label, Status.BAD, error.message, error.remedy)
