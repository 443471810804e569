"""The status of a zone: figures, and which of them deserve an alert."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from concurrent.futures import Future
from threading import Thread
from typing import TYPE_CHECKING, Any

from ergon_framework.boundary.factstore.sqlite import SqliteFactStore
from ergon_framework.boundary.node.wire import consumer_view, link_view, milliseconds
from ergon_framework.boundary.settings import DAY
from ergon_framework.core.text import counted
from ergon_framework.errors import BoundaryError, StoreError
from ergon_framework.ports.factstore import NEW_EPOCH, ConsumerInfo, LogInfo, StoredObject
from ergon_framework.ports.objectstore import Blob
from ergon_framework.ports.transfer import move_state_of

if TYPE_CHECKING:
    from ergon_framework.boundary.zone import LocalZone


OBJECTS_TIMEOUT = 2.0
"""Seconds for the object store to answer. A bucket's client goes on trying for much longer."""
OBJECTS_SAMPLE = 8
"""Names whose bytes each status checks."""
MAX_NAMED = 3
"""Objects without bytes that an alert names."""
_NO_DIGEST = bytes(32)  # of no object: whether the store answers is all that is asked


def objects_trouble(zone: LocalZone, timeout: float = OBJECTS_TIMEOUT) -> str | None:
    """Why objects cannot be read, or None. Each call checks a few names, the next one others."""
    names = zone.store.objects(after=zone.looked_at, limit=OBJECTS_SAMPLE)
    if len(names) < OBJECTS_SAMPLE and zone.looked_at != ("", ""):  # and from the beginning again
        names += zone.store.objects(limit=OBJECTS_SAMPLE - len(names))
    zone.looked_at = (names[-1].bucket, names[-1].key) if names else ("", "")
    until = time.monotonic() + timeout
    missing: list[StoredObject] = []
    try:
        if not names:
            _stat(zone, _NO_DIGEST).result(timeout)
        missing.extend(each for each in names if _stat_by(zone, each, until) is None)
    except TimeoutError:
        if not missing:
            return f"their store does not answer within {timeout:g} seconds"
    except (StoreError, BoundaryError) as error:
        return error.message
    if not missing:
        return None
    shown = ", ".join(f"{each.bucket}/{each.key}" for each in missing[:MAX_NAMED])
    return f"the bytes of {shown} are missing, and others may be"


def _stat_by(zone: LocalZone, name: StoredObject, until: float) -> Blob | None:
    """Whether the bytes of a name are there; ``TimeoutError`` when that is not known in time."""
    return _stat(zone, name.digest).result(max(0.0, until - time.monotonic()))


def _stat(zone: LocalZone, digest: bytes) -> Future[Blob | None]:
    """Ask the object store in a thread of its own, which may be left behind."""
    answer: Future[Blob | None] = Future()

    def ask() -> None:
        try:
            answer.set_result(zone.objects.stat(digest))
        except BaseException as error:
            answer.set_exception(error)

    Thread(target=ask, name="ergon-objects", daemon=True).start()
    return answer


BACKLOG_ALERT = 10_000
"""Facts waiting for one consumer from which an operator wants to know."""
EXPIRY_ALERT = 30 * DAY
"""Seconds before a certificate ends from which an operator wants to know."""
_TROUBLES = {
    "away": "{peer} does not answer",
    "store": "what {peer} sends cannot be kept here",
    "refused": "nothing is pulled from {peer}",
}
EPOCH_ALERT = 7 * DAY
"""Seconds for which the alert about a new epoch is shown."""
_FIXED_SQLITE = (3, 51, 3)
"""The SQLite release from which two writers of one file cannot spoil its log."""


def status(zone: LocalZone, *, objects_timeout: float = OBJECTS_TIMEOUT) -> dict[str, Any]:
    """Everything about a zone, and ``alerts``: what a person should look at."""
    now = zone.clock()
    store = zone.store
    is_file = isinstance(store, SqliteFactStore)
    info, mark = store.info(), move_state_of(store)
    logs, consumers = store.logs(), store.consumers()
    quarantined = store.quarantine()
    links = [{**link_view(link), **zone.gates.get(link.peer, {})} for link in store.links()]
    known = {link["peer"] for link in links}
    links += [
        {"peer": peer, "sealed": False, **gate}
        for peer, gate in sorted(zone.gates.items())
        if peer not in known
    ]
    view: dict[str, Any] = {
        "zone": info.zone,
        "epoch": info.epoch,
        "created_at_unix_ms": milliseconds(info.created_at),
        "now_unix_ms": milliseconds(now),
        "logs": [_log_view(log, zone) for log in logs],
        "consumers": [consumer_view(each, now) for each in consumers],
        "links": links,
        "quarantined": len(quarantined),
        "gaps": len(store.gaps()),
        "lost_facts": sum(gap.count for gap in store.gaps()),
        "acknowledgement": store.acknowledgement,
        "is_synced": store.is_synced,
        "sqlite_version": sqlite3.sqlite_version if is_file else None,
        "certificate_expires_unix_ms": milliseconds(zone.certificate_expiry),
        "is_read_only": zone.is_broken,
        "is_half_moved": mark.is_incomplete,
        "moved_to": mark.moved_to or None,
        "objects_trouble": objects_trouble(zone, objects_timeout),
        "append_trouble": zone.append_trouble,
        "damage": zone.damage,
        "little_room": zone.low_disk_space(),
        "new_epoch": _new_epoch(store.attribute(NEW_EPOCH), now),
    }
    view["alerts"] = list(_alerts(view, consumers, now))
    view["notes"] = list(_notes()) if is_file else []
    return view


def _new_epoch(written: str | None, now: float) -> str | None:
    """Why the store began its epoch, if that was not long ago."""
    at, _, why = (written or "0 ").partition(" ")
    return why if float(at) > 0 and now - float(at) < EPOCH_ALERT else None


def _log_view(log: LogInfo, zone: LocalZone) -> dict[str, Any]:
    capacity = zone.settings.capacity_bytes
    return {
        "log": log.name,
        "head_offset": log.head,
        "first_offset": log.first,
        "bytes": log.size,
        "last_at_unix_ms": milliseconds(log.last_at),
        "fill_percent": round(100 * log.size / capacity, 1) if capacity else None,
    }


def _alerts(
    view: dict[str, Any], consumers: list[ConsumerInfo], now: float
) -> Iterator[dict[str, Any]]:
    yield from _move_alerts(view)
    if view["is_read_only"]:
        yield _alert("read_only", "the disk did not confirm a write: start the node again")
    if view["objects_trouble"] is not None:
        yield _alert("objects", f"objects cannot be had: {view['objects_trouble']}")
    yield from _store_alerts(view)
    for log in view["logs"]:
        fill = log["fill_percent"]
        if fill is not None and fill >= 50:
            yield _alert("fill", f"{log['log']} is {fill} % full", log=log["log"])
    for info in consumers:
        if info.lag >= BACKLOG_ALERT:
            yield _alert("backlog", f"{info.lag} facts wait for {info.name}", consumer=info.name)
    for link in view["links"]:
        yield from _link_alerts(link)
    if view["quarantined"]:
        number = view["quarantined"]
        are = "is" if number == 1 else "are"
        yield _alert("quarantine", f"{counted(number, 'fact')} {are} set aside")
    if view["lost_facts"]:
        yield _alert("loss", f"{view['lost_facts']} facts were given up: see `ergon boundary gaps`")
    expiry = view["certificate_expires_unix_ms"]
    if expiry is not None and expiry / 1000 - now < EXPIRY_ALERT:
        days = max(0, int((expiry / 1000 - now) / DAY))
        yield _alert("certificate", f"the certificate ends in {days} days")


def _store_alerts(view: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if view["append_trouble"] is not None:
        yield _alert("appends", f"the last append failed: {view['append_trouble']}")
    if view["damage"] is not None:
        yield _alert("damage", view["damage"])
    if view["little_room"] is not None:
        yield _alert("disk", view["little_room"])
    if not view["is_synced"]:
        yield _alert("unsynced", view["acknowledgement"])
    if view["new_epoch"] is not None:
        text = f"the store began a new epoch: {view['new_epoch']}"
        yield _alert("new_epoch", f"{text}; peers pull again when they accept it")


def _move_alerts(view: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if view["is_half_moved"]:
        yield _alert("move", "a move into it has not ended: run the same `ergon move` again")
    if view["moved_to"] is not None:
        text = f"what it held was moved to {view['moved_to']}: nothing more is taken in here"
        yield _alert("moved", text, place=view["moved_to"])


def _link_alerts(link: dict[str, Any]) -> Iterator[dict[str, Any]]:
    peer = link["peer"] or "every peer"
    if link["sealed"]:
        yield _alert("sealed", f"sealed for {peer}: {link.get('reason', '')}", peer=link["peer"])
    if link.get("epoch_changed"):
        yield _alert(
            "epoch",
            f"the store of {peer} is another one or went back in time: nothing is pulled until"
            " an operator accepts it",
            peer=link["peer"],
        )
    elif link.get("mode") == "autonomous" and not link["sealed"]:
        said = _TROUBLES.get(link.get("trouble", ""), _TROUBLES["refused"]).format(peer=peer)
        yield _alert("link", f"{said}: {link.get('error', '')}", peer=link["peer"])


def _alert(kind: str, text: str, **about: Any) -> dict[str, Any]:
    return {"kind": kind, "text": text, **about}


def _notes() -> Iterator[str]:
    if sqlite3.sqlite_version_info < _FIXED_SQLITE:
        yield (
            f"SQLite {sqlite3.sqlite_version} has a defect that only two writing processes meet;"
            " this node is the only one that writes its file"
        )
