"""Records of queues' settings and of schedules, which every job store gives and takes alike."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, cast

from ergon_framework.ports.jobstore import JobAdmin, Queue, ScheduleStore
from ergon_framework.ports.transfer import C, QueueRecord, ScheduleRecord, TransferRecord

FROZEN_TABLES = (
    *("ergon_jobs", "ergon_schedules", "ergon_queues"),
    *("ergon_flows", "ergon_flow_joins", "ergon_flow_work"),
)
"""Tables that are frozen in a store that was moved."""
_FIELDS = (
    *("is_paused", "max_active", "rate", "burst"),
    *("key_max_active", "key_rate", "key_burst", "pinned_version"),
)
_NONE = {name: getattr(Queue(name=""), name) for name in _FIELDS}


KeyBuckets = Mapping[str, dict[str, float]]
"""By queue and limit key."""


class SettingsStore(JobAdmin, ScheduleStore, Protocol):
    """The two ports that settings are kept behind."""


class Buckets(Protocol):
    """The tokens of queues with a rate."""

    def buckets(self) -> Mapping[str, float]:
        """When the bucket of each queue with a rate will be full."""

    def fill_buckets(self, full_at: Mapping[str, float]) -> None:
        """Set when buckets will be full. Queues without a rate are skipped."""

    def key_buckets(self) -> KeyBuckets:
        """When the bucket of each limit key of which tokens were taken will be full, by queue."""

    def fill_key_buckets(self, full_at: KeyBuckets) -> None:
        """Set when the buckets of limit keys will be full."""


def dump_settings(
    store: SettingsStore, tokens: Buckets, kind: type[C], after: str | None, limit: int
) -> list[C]:
    """Queues' settings or schedules after a name, in order."""
    found: list[QueueRecord] | list[ScheduleRecord]
    if kind is QueueRecord:
        full_at, keys = tokens.buckets(), tokens.key_buckets()
        records = (
            _settings_of(queue, full_at.get(queue.name, 0.0), keys.get(queue.name, {}))
            for queue in store.queues()
        )
        found = [copy for copy in records if copy is not None]
    else:
        found = [ScheduleRecord(schedule) for schedule in store.schedules()]
    ordered = sorted(found, key=lambda copy: copy.sort_key)
    return cast("list[C]", [copy for copy in ordered if copy.sort_key > (after or "")][:limit])


def load_settings(store: SettingsStore, tokens: Buckets, records: Sequence[TransferRecord]) -> None:
    """Put queues' settings and schedules in, whatever was there."""
    for copy in records:
        if isinstance(copy, QueueRecord):
            store.set_queue(copy.queue, **{name: getattr(copy, name) for name in _FIELDS})
        elif isinstance(copy, ScheduleRecord):
            store.put_schedule(copy.schedule)
    queues = [copy for copy in records if isinstance(copy, QueueRecord) and copy.rate is not None]
    if queues:
        tokens.fill_buckets({copy.queue: copy.full_at for copy in queues})
    keys = {
        copy.queue: copy.key_full_at
        for copy in records
        if isinstance(copy, QueueRecord) and copy.key_rate is not None
    }
    if keys:
        tokens.fill_key_buckets(keys)


def discard_settings(store: SettingsStore, records: Sequence[TransferRecord]) -> None:
    """Take queues' settings and schedules away."""
    for copy in records:
        if isinstance(copy, QueueRecord):
            store.set_queue(copy.queue, **_NONE)
        elif isinstance(copy, ScheduleRecord):
            store.drop_schedule(copy.schedule.name)


def _settings_of(queue: Queue, full_at: float, keys: dict[str, float]) -> QueueRecord | None:
    """The settings of a queue, if it has any."""
    found = {name: getattr(queue, name) for name in _FIELDS}
    if found == _NONE:
        return None
    taken = keys if queue.key_rate is not None else {}
    return QueueRecord(queue.name, **found, full_at=full_at, key_full_at=taken)


def by_queue(rows: Iterable[tuple[str, str, float]]) -> KeyBuckets:
    """Buckets of limit keys, of rows that have queue, key and instant."""
    found: dict[str, dict[str, float]] = {}
    for queue, key, full_at in rows:
        found.setdefault(queue, {})[key] = full_at
    return found
