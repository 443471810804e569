"""Copies of jobs, out of Redis and into it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from ergon_framework.errors import StoreError
from ergon_framework.jobs.stores.moving import discard_settings, dump_settings, load_settings
from ergon_framework.jobs.stores.redis import rows
from ergon_framework.jobs.stores.redis.desk import (
    RedisDesk,
    pairs,
    read_settings,
    settings_blob,
)
from ergon_framework.jobs.stores.redis.ground import BIRTH
from ergon_framework.jobs.stores.redis.names import script
from ergon_framework.jobs.stores.unreadable import cannot_move
from ergon_framework.ports.copies import Copy, JobCopy
from ergon_framework.ports.moving import PAGE_BYTES, C

_LOAD = script("rows", "moves", "removing", "load")
_DISCARD = script("rows", "moves", "removing", "discard")
_MARK = "mark"


class RedisMoving(RedisDesk):
    """What a move needs."""

    def dump(self, kind: type[C], after: Any, limit: int) -> list[C]:
        """The copies of a kind after a place, in order."""
        if kind is not JobCopy:
            return dump_settings(self, self, kind, after, limit)
        found, odd, _ = self._look("after", after or 0, limit, (PAGE_BYTES,))
        if odd:
            raise cannot_move(odd[0])
        return cast("list[C]", [JobCopy(job, row.changed_at) for row, job in found])

    def load(self, copies: Sequence[Copy]) -> None:
        """Put copies of one kind in, in order."""
        jobs = [each for each in copies if isinstance(each, JobCopy)]
        if jobs:
            blobs = rows.Blobs()
            wire = [rows.wire_copy(each.job, each.changed_at, blobs) for each in jobs]
            refused = self._write(_LOAD, "move", wire, blobs=blobs)
            if refused:
                raise StoreError(
                    f"the job {jobs[refused - 1].name} cannot be put beside the others: another"
                    " holds its unique key",
                    remedy="see that nobody else writes to the store, then move again",
                )
        load_settings(self, self, copies)

    def discard(self, copies: Sequence[Copy]) -> None:
        """Take copies of one kind out; those that are not there are fine."""
        ids = [each.name for each in copies if isinstance(each, JobCopy)]
        if ids:
            self._write(_DISCARD, "move", ids)
        discard_settings(self, copies)

    def buckets(self) -> Mapping[str, float]:
        """When the bucket of each queue with a rate will be full."""
        found = self._link.call("HGETALL", self._key("queues"))
        settings = {name: read_settings(blob) for name, blob in pairs(found)}
        return {name: each.full_at for name, each in settings.items() if each.rate is not None}

    def fill_buckets(self, full_at: Mapping[str, float]) -> None:
        """Say when buckets will be full."""
        for name, instant in full_at.items():
            blob = self._link.call("HGET", self._key("queues"), name)
            if blob is not None:
                filled = replace(read_settings(blob), full_at=instant)
                self._swap("queue", name, blob, settings_blob(filled))

    def mark(self) -> bytes | None:
        """What was written down about a move into this store."""
        found: bytes | None = self._link.call("GET", self._key(_MARK))
        return found

    def set_mark(self, mark: bytes | None) -> None:
        """Write something down about a move into this store, or forget it."""
        self._refuse_to_write()
        if mark is None:
            self._link.call("DEL", self._key(_MARK))
        else:
            self._link.call("SET", self._key(_MARK), mark)

    def birth(self) -> str:
        """A random word; stores of earlier versions have none."""
        found: bytes | None = self._link.call("GET", self._key(BIRTH))
        return "" if found is None else found.decode()

    def bar(self, place: str | None) -> None:
        """Refuse changes of jobs, schedules and queues, or let them in again."""
        self._refuse_to_write()
        if place is None:
            self._link.call("DEL", self._key("bar"))
        else:
            self._link.call("SET", self._key("bar"), place)
