"""Looking at what the settings say about zones: can their facts and objects be kept there?"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

from ergon_framework.app.boundary import ZoneSetup, zones_of
from ergon_framework.app.boundary_stores import unsaid
from ergon_framework.app.checking.findings import Finding, Status
from ergon_framework.app.checking.patience import TIMEOUT, in_time
from ergon_framework.app.running.ensemble import lives_here
from ergon_framework.app.settings.secrets import revealed
from ergon_framework.app.settings.sections import Settings
from ergon_framework.boundary.logs.memory import MemoryFactStore
from ergon_framework.boundary.opening import check_stores, fact_file, folders_of, open_facts
from ergon_framework.boundary.settings import ZoneSettings
from ergon_framework.errors import ConfigurationError, ErgonError
from ergon_framework.ports.moving import mark_of, refuse_unsettled


def examine_zones(
    settings: Settings, *, connects: bool, timeout: float = TIMEOUT
) -> Iterator[Finding]:
    """One finding for each zone whose node is kept here."""
    for zone in zones_of(settings).values():
        if lives_here(settings, zone.name):
            check = f"zone {zone.name}"
            try:
                yield in_time(check, partial(_found, check, zone, connects), timeout)
            except ErgonError as error:
                yield Finding(check, Status.BAD, error.message, error.remedy)


def _found(check: str, zone: ZoneSetup, connects: bool) -> Finding:
    settings = zone.settings
    if not zone.is_store_said:
        settings = unsaid(zone.name, settings, has_folder=False)
    check_stores(settings)
    for folder in folders_of(settings):
        _refuse_unusable(folder)
    file = fact_file(settings)
    if file is not None and not file.exists():
        return Finding(check, Status.OK, "will be made when its node first starts")
    if not connects:
        return Finding(check, Status.OK, "has its stores named")
    return _opened(check, zone.name, settings, file)


def _opened(check: str, name: str, settings: ZoneSettings, file: Path | None) -> Finding:
    """What an acknowledgement means there, and whether all fits that the settings allow.

    A file is only looked at: its node may have it, and whoever asks may be another user.
    """
    with closing(open_facts(name, settings, read_only=file is not None)) as store:
        refuse_unsettled(mark_of(store))
        acknowledgement, largest = store.acknowledgement, store.largest
        is_in_memory = isinstance(store, MemoryFactStore)
    if file is not None and not os.access(file, os.W_OK):
        raise _unusable(file, "this user may not write it")
    allowed = settings.limits.fact_bytes
    if largest is not None and largest < allowed:
        found = f"its server takes facts of {largest:,} bytes, and limits.fact_bytes is {allowed:,}"
        remedy = "raise max_payload of the server, or lower fact_bytes"
        return Finding(check, Status.NOTE, found, remedy)
    if is_in_memory:  # of a server, the row of its durability tells
        remedy = "fine for trials; for facts that may not be lost leave store out, or name a file"
        return Finding(check, Status.NOTE, acknowledgement, remedy)
    return Finding(check, Status.OK, acknowledgement, store=revealed(settings.store) or "")


def _refuse_unusable(folder: Path) -> None:
    """A folder in which nothing can be kept, or that cannot be made; it is not made here."""
    try:
        here = next(each for each in (folder, *folder.parents) if each.exists())
    except OSError as error:  # a folder above that may not be searched
        raise _unusable(folder, error.strerror or str(error)) from error
    if not here.is_dir():
        raise _unusable(folder, f"{here} is no folder")
    if not os.access(here, os.W_OK | os.X_OK):
        raise _unusable(folder, f"this user may not write to {here}")


def _unusable(path: Path, why: str) -> ConfigurationError:
    return ConfigurationError(
        f"{path} cannot be used: {why}", remedy="name a place that this user may write to"
    )
