"""Retention: old payloads, orphaned objects and the remains of broken uploads are removed.

Each round decides from the settings and works in small steps; a round that is cut short is finished
by the next one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

from ergon_framework.boundary.factstore.consumers import OPEN
from ergon_framework.boundary.zone import LocalZone
from ergon_framework.errors import BoundaryError
from ergon_framework.storage.objectstore.blob_io import SharedObjectStore
from ergon_framework.storage.objectstore.filesystem import FilesystemObjectStore

LOSS = "retention"
"""The reason of gaps that the loss policy makes."""
NAMES_PER_READ = 500
"""Objects that one read returns."""


class MaintenanceResult(NamedTuple):
    """What one round of maintenance deleted."""

    facts: int = 0
    lost: int = 0
    objects: int = 0
    uploads: int = 0


def run_maintenance(
    zone: LocalZone,
    *,
    is_thorough: bool = False,
    is_stopping: Callable[[], bool] = lambda: False,
) -> MaintenanceResult:
    """Run one round. A thorough one also removes blobs without any name."""
    zone.tell_new_epoch()
    facts, lost = truncate(zone)
    if isinstance(zone.objects, SharedObjectStore):
        reconcile_removed(zone, zone.objects, is_stopping)
    objects = collect(zone, is_stopping)
    if is_thorough:
        objects += _sweep_nameless(zone, is_stopping)
    uploads = zone.objects.sweep(zone.settings.retention.uploads)
    return MaintenanceResult(facts, lost, objects, uploads)


def truncate(zone: LocalZone) -> tuple[int, int]:
    """Drop payloads past their time: how many, and how many of them a consumer still wanted."""
    rule = zone.settings.retention
    if rule.facts is None:
        return 0, 0
    reason = LOSS if rule.loss == "oldest" else None
    dropped = lost = 0
    for log in zone.store.logs():
        through = min(
            zone.store.aged(log.name, zone.clock() - rule.facts), _before_aside(zone, log.name)
        )
        if through < log.first:
            continue
        # Counted before and after: what a truncation gives up is known only when it was made.
        before = _lost(zone, log.name)
        count = zone.store.truncate(log.name, int(through), loss_reason=reason)
        given_up = _lost(zone, log.name) - before
        if count:
            zone.events.tell("log.truncated", log=log.name, facts=count, lost=given_up)
        dropped, lost = dropped + count, lost + given_up
    return dropped, lost


def _before_aside(zone: LocalZone, log: str) -> float:
    """The offset up to which nothing of a log is in quarantine: an operator has yet to decide about
    those items, and cannot release a fact that was dropped. An item that is stored whole in the
    quarantine does not need the log.
    """
    items = (item for state in OPEN for item in zone.store.quarantine(None, state))
    aside = (item.offset - 1 for item in items if item.log == log and not item.fact)
    return min(aside, default=math.inf)


def collect(zone: LocalZone, is_stopping: Callable[[], bool] = lambda: False) -> int:
    """Remove objects that no fact has referred to within the grace; how many."""
    # Without it, an object whose fact is not read yet would look like an orphan.
    if not zone.knows_references(is_stopping):
        return 0
    before = zone.clock() - zone.settings.retention.orphans
    removed = 0
    while orphans := zone.store.orphans(before, NAMES_PER_READ):
        done = 0
        for orphan in orphans:
            if is_stopping():
                return removed + done
            try:
                # With the same instant: a fact may have come since, and then it is refused.
                zone.delete(orphan.bucket, orphan.key, before=before)
            except BoundaryError:  # meanwhile a fact refers to it, or it was removed
                continue
            done += 1
            zone.events.count("collected")
            zone.events.tell("object.collected", bucket=orphan.bucket, size=orphan.size)
        removed += done
        # Nothing went although some are orphans: the next look would find the same ones.
        if not done:
            break
    return removed


def reconcile_removed(
    zone: LocalZone, objects: SharedObjectStore, is_stopping: Callable[[], bool]
) -> None:
    """Restore what was removed while another node named it; forget what has no name."""
    before = zone.clock() - zone.settings.retention.orphans
    for gone in objects.removed():
        if is_stopping():
            return
        # A fact on another node came at the same moment: the copy aside is why nothing is lost.
        if zone.store.is_bound(gone.digest):
            objects.restore(gone.digest)
        elif gone.at < before:
            objects.forget(gone.digest)


def _lost(zone: LocalZone, log: str) -> int:
    """Facts that this zone gave up; what its peers did may come to light at any moment."""
    return sum(gap.count for gap in zone.store.gaps(log) if gap.source_first is None)


def _sweep_nameless(zone: LocalZone, is_stopping: Callable[[], bool]) -> int:
    """Bytes whose put died before they were named, or whose removal died half way."""
    removed = 0
    for digest in _candidates(zone):
        if is_stopping():
            break
        removed += zone.blobs.remove(
            # Asked under the lock of the blob: a put may be about to give it a name.
            lambda digest=digest: not zone.store.is_bound(digest),  # type: ignore[misc]
            lambda digest=digest: zone.objects.delete(digest),  # type: ignore[misc]
        )
    return removed


def _candidates(zone: LocalZone) -> Iterator[bytes]:
    """What may have no name; what other nodes have just put is about to get one.

    What was there before the log itself is not looked at: the log cannot have its names. A log that
    was lost, or is another one than was meant, would take all artifacts along otherwise.
    """
    objects = zone.objects
    if isinstance(objects, SharedObjectStore):
        before = zone.clock() - zone.settings.retention.orphans
        # Only the server's clock says what came first: the clock of this machine may be anywhere.
        # The server counts whole seconds.
        since = objects.own(zone.store.info().epoch) + 1.0
        return objects.put_before(before, since=since)
    if isinstance(objects, FilesystemObjectStore):
        return objects.put_since(objects.own(zone.store.info().epoch))
    return objects.digests()
