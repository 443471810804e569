"""A backup put in the place of a zone's folder.

The copy is made beside its place and gets its name when it is whole and synced. What was there is
moved aside, never removed. The restored log begins a new epoch when a node opens it, so that peers
notice that it went back in time.
"""

from __future__ import annotations

import contextlib
import secrets
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ergon_framework.boundary.folder import FILE, DataFolder
from ergon_framework.boundary.objects.disk import sync_folder
from ergon_framework.boundary.upkeep.backing_up import backed_up
from ergon_framework.boundary.upkeep.local import looked_into
from ergon_framework.boundary.upkeep.verifying import Finding, verified
from ergon_framework.boundary.zone import Zone
from ergon_framework.errors import ConfigurationError, DataLossError, StoreUnavailableError
from ergon_framework.storage.failpoints import declare, failpoint

declare("boundary.restore_aside.after", "boundary.restore_name.after")


@dataclass(frozen=True, slots=True)
class Restored:
    """What was restored, and where."""

    zone: str
    folder: str
    facts: int
    objects: int
    object_bytes: int
    last_at: float | None
    """When the last fact of the backup was recorded, in Unix seconds: producers tell again what
    they told since."""
    aside: str = ""
    """Where the folder is that was there before; empty when there was none."""


def restored(
    backup: str | Path,
    data: str | Path,
    *,
    replace: bool = False,
    checks: bool = True,
    report: Callable[[int], None] = lambda _objects: None,
) -> Restored:
    """Copy the zone in the folder ``backup`` to the folder ``data``, where no node may run.

    With ``checks`` every fact and object of the backup is read first. A folder that holds a zone is
    refused, or moved aside with ``replace``.
    """
    source, place = Path(backup).absolute(), Path(data).absolute()
    if source == place or place in source.parents or source in place.parents:
        raise ConfigurationError(
            f"{source} and {place} are not apart", remedy="name the folder of the zone with --data"
        )
    with looked_into(source) as zone:
        if checks:
            _check_whole(source, zone)
        name, last = zone.name, max((log.last_at or 0.0 for log in zone.store.logs()), default=0.0)
        with contextlib.ExitStack() as held:
            is_there = place.exists() and any(place.iterdir())
            if is_there:
                _check_replaceable(place, name, replace=replace)
                held.callback(DataFolder.lock(place).close)  # no node runs there
            draft = place.with_name(f"{place.name}.{secrets.token_hex(4)}.restoring")
            try:
                made = backed_up(zone, draft, shares=False, report=report)
                aside = _put(draft, place, is_there=is_there)
            except BaseException:
                shutil.rmtree(draft, ignore_errors=True)
                raise
    return Restored(
        name, str(place), made.facts, made.objects, made.object_bytes, last or None, aside
    )


def _check_whole(source: Path, zone: Zone) -> None:
    flaws = [told for told in verified(zone) if isinstance(told, Finding)]
    if flaws:
        raise DataLossError(
            f"the backup {source} is damaged: {flaws[0].where}: {flaws[0].what}"
            + (f", and {len(flaws) - 1} flaws more" if len(flaws) > 1 else ""),
            reason="backup_damaged",
            remedy=f"take another backup; `ergon boundary verify --data {source}` lists the flaws,"
            " and --no-verify restores what there is",
        )


def _check_replaceable(place: Path, name: str, *, replace: bool) -> None:
    if not replace:
        raise ConfigurationError(
            f"{place} is not empty; nothing was changed",
            remedy="stop its node and give --replace: the folder is moved aside, not removed",
        )
    if not (place / FILE).is_file():
        raise ConfigurationError(
            f"{place} holds something else than a zone; nothing was changed",
            remedy="name the folder of the zone",
        )
    with contextlib.suppress(StoreUnavailableError, DataLossError), looked_into(place) as there:
        if there.name != name:
            raise ConfigurationError(
                f"{place} holds zone {there.name!r}, and the backup is of {name!r}",
                remedy="name the folder of the zone that was backed up",
            )


def _put(draft: Path, place: Path, *, is_there: bool) -> str:
    """Give the copy its name; what has that name gets another one first."""
    aside = ""
    try:
        if is_there:
            stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
            moved = place.with_name(f"{place.name}.before-{stamp}-{secrets.token_hex(2)}")
            place.rename(moved)
            aside = str(moved)
            failpoint("boundary.restore_aside.after")
        elif place.exists():
            place.rmdir()
        draft.rename(place)
        failpoint("boundary.restore_name.after")
        sync_folder(place.parent)
    except OSError as error:
        raise StoreUnavailableError(
            f"{place} could not be replaced: {error.strerror or error}"
            + (f"; what was there is {aside}" if aside else ""),
            remedy="see that its parent folder may be written, then try again",
        ) from error
    return aside
