"""Looking at what the settings say about provider calls: do their stores answer?"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial

from ergon_framework.app.diagnostics.findings import (
    TIMEOUT,
    Finding,
    FindingStatus,
    emptied,
    of_error,
    of_store,
    within,
)
from ergon_framework.app.settings.sections import Settings
from ergon_framework.app.settings.stores import call_stores, has_calls
from ergon_framework.errors import ErgonError, StoreUnavailableError
from ergon_framework.storage.urls import file_of

STORE = "provider store"
"""What the finding about the one of all is called."""


def examine_providers(
    settings: Settings, *, connects: bool, timeout: float = TIMEOUT
) -> Iterator[Finding]:
    """A finding for each store that ``[providers]`` or one of its providers uses.

    Without ``[providers]`` only calls that the store of everything already has.
    """
    if not connects:
        return
    for name, url in call_stores(settings).items():
        if "providers" in settings.extensions:
            label = f"{STORE} of {name}" if name else STORE
            yield within(label, partial(_examined, label, url), timeout)
        else:
            from ergon_framework.providers.store_urls import check_url

            yield from of_store(url, check_url, _looked_into, timeout)


def _examined(label: str, url: str) -> Finding:
    try:
        # Opened, it would get its tables anew.
        return emptied(label, file_of(url), store=url) or _opened(label, url)
    except ErgonError as error:
        return of_error(label, error)


def _looked_into(url: str) -> Sequence[Finding]:
    from ergon_framework.providers.migrations import VERSION_TABLE

    if not has_calls(url, VERSION_TABLE):
        return []
    try:
        return [_opened(STORE, url)]
    except StoreUnavailableError:
        return []
    except ErgonError as error:
        return [of_error(STORE, error)]


def _opened(label: str, url: str) -> Finding:
    from ergon_framework.ports.providerstore import HasDurability
    from ergon_framework.providers.store_urls import open_store

    # One of our own: closing it must not close that of a program that looks at itself.
    with closing(open_store(url, clock=time.time)) as store:
        store.letters(limit=1)
        said = store.durability if isinstance(store, HasDurability) else "answers"
        return Finding(label, FindingStatus.OK, said, store=url)
