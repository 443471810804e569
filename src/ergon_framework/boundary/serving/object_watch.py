"""Whether a zone's objects can be had: their store is asked, and not waited for long."""

from __future__ import annotations

from concurrent.futures import Future
from threading import Thread
from typing import TYPE_CHECKING

from ergon_framework.errors import BoundaryError, StoreError
from ergon_framework.ports.objectstore import Blob

if TYPE_CHECKING:
    from ergon_framework.boundary.zone import Zone

PATIENCE = 2.0
"""Seconds. A bucket's client goes on trying for much longer."""
_NOBODYS = bytes(32)


def objects_trouble(zone: Zone) -> str | None:
    """Why objects cannot be had, or None; the first name stands for all of them."""
    first = next(iter(zone.store.objects(limit=1)), None)
    try:
        found = _asked(zone, _NOBODYS if first is None else first.digest).result(PATIENCE)
    except TimeoutError:
        return f"their store does not answer within {PATIENCE:g} seconds"
    except (StoreError, BoundaryError) as error:
        return error.message
    if first is None or found is not None:
        return None
    return f"the bytes of {first.bucket}/{first.key} are missing, and others may be"


def _asked(zone: Zone, digest: bytes) -> Future[Blob | None]:
    answer: Future[Blob | None] = Future()

    def ask() -> None:
        try:
            answer.set_result(zone.objects.stat(digest))
        except BaseException as error:
            answer.set_exception(error)

    Thread(target=ask, name="ergon-objects", daemon=True).start()
    return answer
