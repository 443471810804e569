"""A backup put in the place of a zone's folder.

The copy is made beside its place and gets its name when it is whole and synced. What was there is
moved aside, never removed. The restored log begins a new epoch when a node opens it, so that peers
notice that it went back in time.
"""

from __future__ import annotations

import contextlib
import glob
import os
import re
import secrets
import shlex
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from msgspec import structs

from ergon_framework.boundary import data_folder
from ergon_framework.boundary.anchor import FILE as ANCHOR
from ergon_framework.boundary.backup import BackedUp, backed_up, open_read_only
from ergon_framework.boundary.data_folder import (
    FILE,
    LOCK,
    OBJECTS,
    DataFolder,
    RestoreMark,
    Unfinished,
)
from ergon_framework.boundary.verification import VerificationFinding, named_objects, verified
from ergon_framework.boundary.zone import LocalZone
from ergon_framework.errors import ConfigurationError, DataLossError, StoreUnavailableError
from ergon_framework.storage.failpoints import declare, failpoint
from ergon_framework.storage.objectstore.blob_io import copy_blobs
from ergon_framework.storage.objectstore.disk import sync_folder
from ergon_framework.storage.objectstore.urls import open_object_store
from ergon_framework.storage.secure_files import make_folder

declare(
    "boundary.restore_aside.before", "boundary.restore_aside.after", "boundary.restore_name.after"
)

_OWN = re.compile("|".join((re.escape(FILE) + ".*", OBJECTS, re.escape(LOCK), re.escape(ANCHOR))))
"""What a zone has in its folder."""


@dataclass(frozen=True, slots=True)
class Restored:
    """What was restored, and where."""

    zone: str
    folder: str
    facts: int
    objects: int
    object_bytes: int
    last_at: float | None
    """When the last fact of the backup was recorded, in Unix seconds: producers publish again what
    they published since.
    """
    aside: str = ""
    """Where the folder is that was there before; empty when there was none."""


def restored(
    backup: str | Path,
    data: str | Path,
    *,
    objects: str | None = None,
    replace: bool = False,
    checks: bool = True,
    report: Callable[[int], None] = lambda _objects: None,
) -> Restored:
    """Copy the zone in the folder ``backup`` to the folder ``data``, where no node may run.

    With ``objects`` its objects go there, a folder or bucket to which they are added; otherwise
    into the same folder. With ``checks`` every fact and object of the backup is read first. A
    folder that holds a zone is refused, or moved aside with ``replace``. A restore that was killed
    may be repeated; until then no node begins with what it has left.
    """
    source, place = Path(backup).absolute(), Path(data).absolute()
    # Where the link leads: renaming the link would leave the zone where it was.
    place = place.resolve() if place.is_symlink() else place
    _check_apart(source, place)
    with open_read_only(source) as zone, contextlib.ExitStack() as held:
        # Before anything is moved: a damaged backup must not take the place of what is there.
        if checks:
            _check_whole(source, zone)
        is_there = _is_there(place)
        if is_there:
            _check_replaceable(place, zone.name, replace=replace)
            # No node runs there.
            held.callback(DataFolder.lock(place, is_restored=True).close)
        _make_parent(place)
        # Beside the folder and not in it: the folder itself is renamed.
        mark = held.enter_context(data_folder.held(place))
        made, aside = _restored(zone, place, mark, objects, report, is_there=is_there)
        last = max((log.last_at or 0.0 for log in zone.store.logs()), default=0.0)
    return Restored(
        zone.name, str(place), made.facts, made.objects, made.object_bytes, last or None, aside
    )


def _restored(
    zone: LocalZone,
    place: Path,
    mark: RestoreMark,
    objects: str | None,
    report: Callable[[int], None],
    *,
    is_there: bool,
) -> tuple[BackedUp, str]:
    """Copy the zone beside its place, and give the copy its name; what it is, and what was there.

    Where there is no zone yet, none can be created in the meantime; an existing one stays as it is
    until the copy is complete.
    """
    draft = place.with_name(f"{place.name}.{secrets.token_hex(4)}{data_folder.SUFFIX}")
    earlier = mark.earlier
    # Of a restore that was killed; what it moved aside stays.
    _remove_drafts(earlier.draft)
    aside = earlier.aside if os.path.lexists(earlier.aside) else ""
    said = Unfinished(str(draft), aside, is_armed=not is_there)
    # Before the first byte is copied: a process that finds the draft has to recognise it.
    mark.say(said)
    try:
        made = _copied(zone, draft, objects, report)
        aside = _put(mark, said, place, is_there=is_there)
    except BaseException:
        _remove_drafts(str(draft))
        if is_there == place.exists():  # nothing has changed
            mark.remove()
        raise
    mark.remove()
    return made, aside


def _copied(
    zone: LocalZone, draft: Path, objects: str | None, report: Callable[[int], None]
) -> BackedUp:
    """Copy the backup. Its objects are added to those of another object store, if one is given."""
    if objects is None:
        return backed_up(zone, draft, shares=False, report=report)
    sizes = {stored.digest: stored.size for stored in named_objects(zone)}

    def digests() -> Iterator[bytes]:
        for count, digest in enumerate(sizes, start=1):
            yield digest
            report(count)

    missing = ""
    with contextlib.closing(open_object_store(objects, zone=zone.name)) as target:
        try:
            copy_blobs(zone.objects, target, digests())
        except DataLossError as error:
            missing = error.message
    make_folder(draft, parents=True)
    zone.store.backup(str(draft))
    facts = sum(log.head - log.first + 1 for log in zone.store.logs())
    return BackedUp(zone.name, str(draft), facts, len(sizes), sum(sizes.values()), missing)


def _check_apart(source: Path, place: Path) -> None:
    real, target = source.resolve(), place.resolve()
    if real == target or target in real.parents or real in target.parents:
        raise ConfigurationError(
            f"{source} and {place} are not apart", remedy="name the folder of the zone with --data"
        )
    # A mount point cannot be renamed: the restore would fail at its last step, after all the
    # copying.
    if os.path.ismount(place):
        raise ConfigurationError(
            f"{place} is a mount point, which cannot be replaced as a whole",
            remedy="restore into a folder below it with --data, and let `data` of the zone name it",
        )


def _is_there(place: Path) -> bool:
    try:
        return any(place.iterdir())
    except FileNotFoundError:
        return False
    except OSError as error:
        raise ConfigurationError(
            f"{place} cannot be used: {error.strerror}", remedy="name the folder of the zone"
        ) from error


def _make_parent(place: Path) -> None:
    try:
        make_folder(place.parent, parents=True)
    except OSError as error:
        raise StoreUnavailableError(
            f"{place.parent} cannot be made: {error.strerror}",
            remedy="name a folder that this user may write to",
        ) from error


def _remove_drafts(draft: str) -> None:
    """Remove the copy of a restore that did not end, and what that was made of."""
    if draft.endswith(data_folder.SUFFIX):
        path = Path(draft)
        for each in path.parent.glob(f"{glob.escape(path.name)}*"):
            shutil.rmtree(each, ignore_errors=True)


def _check_whole(source: Path, zone: LocalZone) -> None:
    problems = [told for told in verified(zone) if isinstance(told, VerificationFinding)]
    if problems:
        raise DataLossError(
            f"the backup {source} is damaged: {problems[0].where}: {problems[0].what}"
            + (f", and {len(problems) - 1} flaws more" if len(problems) > 1 else ""),
            reason="backup_damaged",
            remedy="take another backup;"
            f" `ergon boundary verify --data {shlex.quote(str(source))}` lists the flaws,"
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
    others = sorted(each.name for each in place.iterdir() if not _OWN.fullmatch(each.name))
    if others:
        raise ConfigurationError(
            f"{place} holds more than a zone ({', '.join(others[:5])}); nothing was changed",
            remedy="move that elsewhere, since the whole folder is replaced; or restore into a new"
            " folder with --data, and let `store` or `data` of the zone name it",
        )
    # A folder that cannot even be opened is replaced: that is what a restore is for.
    with contextlib.suppress(StoreUnavailableError, DataLossError), open_read_only(place) as there:
        if there.name != name:
            raise ConfigurationError(
                f"{place} holds zone {there.name!r}, and the backup is of {name!r}",
                remedy="name the folder of the zone that was backed up",
            )


def _put(mark: RestoreMark, said: Unfinished, place: Path, *, is_there: bool) -> str:
    """Rename the copy into place. What is there is renamed first."""
    aside, draft = said.aside, Path(said.draft)
    try:
        if is_there:
            stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
            aside = str(place.with_name(f"{place.name}.before-{stamp}-{secrets.token_hex(2)}"))
            # Armed before the rename: killed right after it, nothing would be in the place, and a
            # node would begin an empty log.
            mark.say(structs.replace(said, aside=aside, is_armed=True))
            failpoint("boundary.restore_aside.before")
            place.rename(aside)
            failpoint("boundary.restore_aside.after")
        elif place.exists():
            place.rmdir()
        _name(draft, place, aside if is_there else "")
        failpoint("boundary.restore_name.after")
        # Without it, a power cut could bring the old names back.
        sync_folder(place.parent)
    except OSError as error:
        raise StoreUnavailableError(
            f"{place} could not be replaced: {error.strerror or error}",
            remedy="see that its parent folder may be written, then try again",
        ) from error
    return aside


def _name(draft: Path, place: Path, aside: str) -> None:
    """Rename the copy into place. If that fails, the folder that was moved aside gets its name
    back.
    """
    try:
        draft.rename(place)
    except OSError:
        if aside:
            Path(aside).rename(place)
        raise
