"""Looking at what the settings say about provider calls: does their store answer?"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from ergon_framework.app.checking.findings import Finding, Status
from ergon_framework.app.reading.sections import Settings
from ergon_framework.app.settings import revealed
from ergon_framework.errors import ErgonError


def examine_providers(settings: Settings, *, connects: bool) -> Iterator[Finding]:
    """One finding for the store that ``[providers]`` names; nothing without it."""
    named = revealed(getattr(settings.extensions.get("providers"), "store", None))
    if not connects or not named:
        return
    from ergon_framework.app.jobs import resolve_url
    from ergon_framework.providers.stores import open_store

    url = resolve_url(named, Path() if settings.file is None else settings.file.parent)
    try:
        # One of our own: closing it must not close that of a program that looks at itself.
        with closing(open_store(url, clock=time.time)) as store:
            store.letters(limit=1)
            yield Finding("provider store", Status.OK, getattr(store, "durability", "answers"))
    except ErgonError as error:
        yield Finding("provider store", Status.BAD, error.message, error.remedy)
