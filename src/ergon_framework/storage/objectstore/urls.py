"""Opens the store of objects that a URL or a folder names."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ergon_framework.errors import ConfigurationError
from ergon_framework.storage.objectstore.filesystem import FilesystemObjectStore
from ergon_framework.storage.objectstore.s3 import S3ObjectStore
from ergon_framework.storage.objectstore.s3_client import KINDS as BUCKETS
from ergon_framework.storage.objectstore.s3_client import bucket_of, check_extra
from ergon_framework.storage.urls import taken_apart

if TYPE_CHECKING:
    from ergon_framework.ports.objectstore import ObjectStore

Clock = Callable[[], float]

OBJECT_FORMS = "write a folder, or s3://bucket/prefix?region=eu-central-1"


def open_object_store(
    place: str | Path,
    *,
    clock: Clock = time.time,
    zone: str | None = None,
    read_only: bool = False,
    may_be_away: bool = False,
) -> ObjectStore:
    """Open the store of objects that a URL or a folder names; the caller closes it.

    A bucket or folder belongs to one zone: with ``zone``, that of another is refused. A caller that
    only reads does not take possession of one without an owner. With ``may_be_away`` a bucket that
    does not answer now is asked again when it is used.
    """
    kind, rest = _object_parts(str(place))
    if kind in BUCKETS:
        return S3ObjectStore(
            str(place), clock=clock, zone=zone, read_only=read_only, may_be_away=may_be_away
        )
    if kind == "memory":
        from ergon_framework.storage.objectstore.memory import MemoryObjectStore

        return MemoryObjectStore(clock=clock)
    return FilesystemObjectStore(rest, clock=clock, zone=None if read_only else zone)


def check_object_place(place: str) -> None:
    """Refuse what names no store of objects, or one whose driver is missing; nothing is opened."""
    _object_parts(place)


def check_object_form(place: str) -> None:
    """Refuse what names no store of objects; its driver may be missing."""
    _object_parts(place, needs_driver=False)


def is_folder(place: str) -> bool:
    """Whether objects at that place are files of this machine."""
    return "://" not in place


def _object_parts(place: str, *, needs_driver: bool = True) -> tuple[str, str]:
    """The kind of store, and what follows it; a folder has no kind."""
    if is_folder(place):
        if not place or "\0" in place:
            raise ConfigurationError("that names no folder of objects", remedy=OBJECT_FORMS)
        return "", place
    kind, rest = taken_apart(place, (*BUCKETS, "memory"), OBJECT_FORMS, "objects")
    if kind in BUCKETS:
        bucket_of(place)
        if needs_driver:
            check_extra()
    return kind, rest
