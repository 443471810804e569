"""Job stores that keep the pins of queues to versions wrongly, in one way each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from ergon_framework.core.claim import ClaimRequest
from ergon_framework.jobs.stores.memory.job_table import JobTable
from ergon_framework.jobs.stores.memory.records import MemoryJobRecords
from ergon_framework.ports.jobstore import ClaimResult, Queue, Settlement
from ergon_framework.ports.transfer import Fence, QueueRecord, TransferRecord
from tests.jobs.planted_stores import Honest

change = msgspec.structs.replace


def _any_version(store: Honest) -> str:
    return next(iter(store.pinned_queues().values()), "")


class IgnoresPins(Honest):
    """Keeps the version of a queue, and never looks at it."""

    def settle_and_claim(
        self, settlements: Sequence[Settlement], ask: ClaimRequest | None
    ) -> tuple[list[bool], ClaimResult]:
        ask = None if ask is None else change(ask, version=_any_version(self))
        return super().settle_and_claim(settlements, ask)


class PinsForTheVersioned(Honest):
    """Takes a worker without a version for one of every version."""

    def settle_and_claim(
        self, settlements: Sequence[Settlement], ask: ClaimRequest | None
    ) -> tuple[list[bool], ClaimResult]:
        if ask is not None and not ask.version:
            ask = change(ask, version=_any_version(self))
        return super().settle_and_claim(settlements, ask)


class LimitsLiftThePin(Honest):
    """Writes all settings of a queue anew with each change."""

    def set_queue(self, name: str, **changes: Any) -> Queue:
        return super().set_queue(name, **({"pinned_version": None} | changes))


class PausesForAll(Honest):
    """Writes down that a queue is paused, after a worker of another version has found it so."""

    def settle_and_claim(
        self, settlements: Sequence[Settlement], ask: ClaimRequest | None
    ) -> tuple[list[bool], ClaimResult]:
        answer = super().settle_and_claim(settlements, ask)
        for queue, version in self.pinned_queues().items():
            if ask is not None and ask.version != version:
                self.set_queue(queue, is_paused=True)
        return answer


class RefusesOtherVersions(Honest):
    """Takes no report of a job whose queue was pinned to another version since."""

    class PlantedJobTable(JobTable):
        def settle(self, settlement: Settlement, now: float) -> bool:
            record = self.records.get(settlement.key)
            queue = None if record is None else self.queues.get(record.new.queue)
            is_pinned = queue is not None and queue.settings.pinned_version is not None
            return not is_pinned and super().settle(settlement, now)


class ListsEveryQueue(Honest):
    """Names queues with any settings among those that are pinned."""

    def pinned_queues(self) -> dict[str, str]:
        return {each.name: each.pinned_version or "" for each in self.queues()}


class MovesNoPins(Honest):
    """Leaves the pins of queues behind in a move."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__(clock)
        self.records = _MovesNoPins(self.step, self)


class _MovesNoPins(MemoryJobRecords):
    def load(self, records: Sequence[TransferRecord], fence: Fence | None = None) -> None:
        bare = [
            change(each, pinned_version=None) if isinstance(each, QueueRecord) else each
            for each in records
        ]
        super().load(bare, fence)


class DiscardsNoPins(Honest):
    """Leaves the pin of a queue where its other settings are taken away."""

    def set_queue(self, name: str, **changes: Any) -> Queue:
        if len(changes) > 1:  # all at once, as a discarded record does
            changes.pop("pinned_version", None)
        return super().set_queue(name, **changes)
