"""Reads and writes everything in a Redis job store as records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any, cast

from ergon_framework.errors import StoreError
from ergon_framework.jobs.stores.records import (
    KeyBuckets,
    SettingsStore,
    by_queue,
    discard_settings,
    dump_settings,
    load_settings,
)
from ergon_framework.jobs.stores.redis.flows import RedisFlows
from ergon_framework.jobs.stores.redis.rows import (
    Blobs,
    key_of_queue,
    name_of_key,
    pairs,
    read_settings,
    settings_blob,
    wire_copy,
)
from ergon_framework.jobs.stores.redis.scripts import JOBS, KEY_BUCKETS, MARK, script
from ergon_framework.jobs.stores.redis.transactions import BIRTH, SCHEMA, RedisTransactions
from ergon_framework.jobs.stores.redis.transitions import Transitions
from ergon_framework.jobs.stores.unreadable import cannot_move
from ergon_framework.ports.transfer import (
    PAGE_BYTES,
    C,
    Fence,
    FlowRecord,
    JobRecord,
    OvertakenMoveError,
    TransferRecord,
)
from ergon_framework.storage.redis.client import RedisScript

_LOAD = script(*JOBS, "delete", "load")
_DISCARD = script(*JOBS, "delete", "discard")
_SET_STATE = script("rows", "move_state")
_FREEZE = script("rows", "freeze")
_LEASE = "moving"
# A renewal that finds no holder came too late: another move may have had the lease since.
_TAKE_LEASE = """
local holder = redis.call("GET", KEYS[1])
if holder and holder ~= ARGV[1] or not holder and ARGV[3] == "1" then return 0 end
if tonumber(ARGV[2]) > 0 then redis.call("SET", KEYS[1], ARGV[1], "PX", ARGV[2])
else redis.call("DEL", KEYS[1]) end
return 1
"""

# One script: a store that somebody makes at this moment is there before it, or finds the mark.
_MARK_FIRST = """
if redis.call("EXISTS", unpack(KEYS)) == 0 then redis.call("SET", KEYS[1], ARGV[1]) end
return 1
"""


def make_marked(url: str, state: bytes) -> None:
    """Write a move state where there is no store yet: whoever makes one there finds it."""
    with closing(RedisTransactions(url, read_only=True)) as found:
        keys = [found.key(name) for name in (MARK, BIRTH, SCHEMA)]
        if not found.is_made:
            found.client.call("EVAL", _MARK_FIRST, len(keys), *keys, state)


class RedisJobRecords:
    """The records of one store: its jobs and flows, the limits of its queues, its schedules."""

    def __init__(
        self,
        transactions: RedisTransactions,
        transitions: Transitions,
        store: SettingsStore,
        flows: RedisFlows,
    ) -> None:
        self._transactions = transactions
        self._transitions = transitions
        self._store = store
        self._flows = flows

    def dump(self, kind: type[C], after: Any, limit: int) -> list[C]:
        """The records of a kind after a place, in order."""
        if kind is FlowRecord:
            return cast("list[C]", self._flows.dump(after, limit))
        if kind is not JobRecord:
            return dump_settings(self._store, self, kind, after, limit)
        found, unreadable, _ = self._transitions.look("after", after or 0, limit, (PAGE_BYTES,))
        if unreadable:
            raise cannot_move(unreadable[0])
        return cast("list[C]", [JobRecord(job, row.changed_at) for row, job in found])

    def load(self, records: Sequence[TransferRecord], fence: Fence | None = None) -> None:
        """Write records of one kind, in order."""
        flows = [each for each in records if isinstance(each, FlowRecord)]
        with self._transactions.fenced(fence):
            self._load_jobs([each for each in records if isinstance(each, JobRecord)])
            if flows:
                self._flows.load(flows)
            load_settings(self._store, self, records)

    def _load_jobs(self, jobs: Sequence[JobRecord]) -> None:
        if jobs:
            blobs = Blobs()
            wire = [wire_copy(each.job, each.changed_at, blobs) for each in jobs]
            refused = self._transactions.write(_LOAD, "move", wire, blobs=blobs)
            if refused:
                raise StoreError(
                    f"the job {jobs[refused - 1].identity} cannot be put beside the others: another"
                    " holds its unique key",
                    remedy="see that nobody else writes to the store, then move again",
                )

    def discard(self, records: Sequence[TransferRecord], fence: Fence | None = None) -> None:
        """Delete records of one kind. Records that do not exist are skipped."""
        ids = [each.identity for each in records if isinstance(each, JobRecord)]
        flows = [each for each in records if isinstance(each, FlowRecord)]
        with self._transactions.fenced(fence):
            if ids:
                self._transactions.write(_DISCARD, "move", ids)
            if flows:
                self._flows.discard(flows)
            discard_settings(self._store, records)

    def buckets(self) -> Mapping[str, float]:
        """When the bucket of each queue with a rate will be full."""
        found = self._transactions.call("HGETALL", "queues")
        settings = {name: read_settings(blob) for name, blob in pairs(found)}
        return {name: each.full_at for name, each in settings.items() if each.rate is not None}

    def fill_buckets(self, full_at: Mapping[str, float]) -> None:
        """Set when the buckets of queues will be full."""
        for name, instant in full_at.items():
            blob = self._transactions.call("HGET", "queues", name)
            if blob is not None:
                filled = replace(read_settings(blob), full_at=instant)
                self._transitions.swap_settings(name, blob, settings_blob(filled))

    def key_buckets(self) -> KeyBuckets:
        """When the bucket of each limit key of which tokens were taken will be full."""
        found = self._transactions.call("ZRANGE", KEY_BUCKETS, 0, -1, "WITHSCORES")
        names = (key_of_queue(name) for name in found[::2])
        return by_queue(
            (*name, float(full_at)) for name, full_at in zip(names, found[1::2], strict=True)
        )

    def fill_key_buckets(self, full_at: KeyBuckets) -> None:
        """Set when the buckets of limit keys will be full."""
        for queue, keys in full_at.items():
            for key, instant in keys.items():
                member = name_of_key(queue, key)
                self._transactions.call("ZADD", KEY_BUCKETS, repr(instant), member)

    def move_state(self) -> bytes | None:
        """The recorded state of a move into this store."""
        found: bytes | None = self._transactions.call("GET", MARK)
        return found

    def set_move_state(self, state: bytes | None, fence: Fence | None = None) -> None:
        """Record the state of a move into this store, or delete the record."""
        try:
            with self._transactions.fenced(fence):
                self._put(_SET_STATE, state)
        except OvertakenMoveError:
            # The script is sent again when its answer was lost, and finds what it wrote.
            if state is None or self.move_state() != state:
                raise

    def store_id(self) -> str:
        """A random word; stores of earlier versions have none."""
        found: bytes | None = self._transactions.call("GET", BIRTH)
        return "" if found is None else found.decode()

    def lease_move(self, token: str, seconds: float, *, renews: bool = False) -> bool:
        """Take, renew or give back the lease of the one move that may shut or open the store."""
        self._transactions.refuse_to_write()
        key, client = self._transactions.key(_LEASE), self._transactions.client
        arguments = (key, token, round(seconds * 1000), int(renews))
        return bool(client.call("EVAL", _TAKE_LEASE, 1, *arguments))

    def freeze(self, place: str | None, fence: Fence | None = None) -> None:
        """Refuse changes of jobs, flows, schedules and queues, or allow them again."""
        with self._transactions.fenced(fence):
            self._put(_FREEZE, None if place is None else place.encode())

    def _put(self, what: RedisScript, value: bytes | None) -> None:
        """Run a script that writes one word, or takes it away."""
        blobs = Blobs()
        self._transactions.write(what, "move", blobs.add(value), blobs=blobs)
