"""What was set aside for consumers, in memory."""

from __future__ import annotations

from dataclasses import replace

from ergon_framework.boundary.logs.memory.state import OPEN, Steps
from ergon_framework.boundary.logs.refusing import refuse_late
from ergon_framework.errors import BoundaryError, BoundaryNotFoundError
from ergon_framework.ports.factstore import Quarantined

ACTIONS = {
    "quarantined": "put_back",
    "released": "release",
    "discarded": "discard",
    "settled": "settle",
}


class MemoryQuarantine(Steps):
    """The part of the store that keeps what failed."""

    def set_aside(
        self,
        name: str,
        offset: int,
        *,
        reason: str,
        message: str,
        attempts: int,
        holder: str | None = None,
    ) -> Quarantined:
        """Quarantine the next fact of the view and move the cursor past it, in one step."""
        with self._step() as state:
            now = self._clock()
            one = state.consumer(name)
            refuse_late(one, holder, now)
            is_released = any(item.offset == offset for item in state.released_to(name))
            following = next(state.shelf(one.log).after(one.cursor, one.to_zone), None)
            is_next = following is not None and following.fact.offset == offset
            if not is_released and not is_next:
                raise BoundaryError(
                    f"{offset} is not the next fact of consumer {name!r}",
                    code="failed_precondition",
                    reason="not_next",
                    remedy="confirm what precedes it first",
                    details={"offset": offset, "cursor": one.cursor},
                )
            if is_next:
                one.cursor, one.deliveries = offset, 0
                one.served = max(one.served, offset)
            item = Quarantined(0, name, one.log, offset, reason, message, attempts, now)
            return state.set_aside(item)

    def quarantine(
        self, consumer: str | None = None, state: str | None = "quarantined"
    ) -> list[Quarantined]:
        """What was set aside, oldest first; ``state=None`` for all."""
        with self._step() as books:
            return [
                books.items[number]
                for number in sorted(books.items)
                if consumer in {None, books.items[number].consumer}
                and state in {None, books.items[number].state}
            ]

    def settle(self, quarantine_id: int, state: str, *, reason: str = "") -> Quarantined:
        """Release, discard or settle an item; ``BoundaryNotFoundError`` when there is none."""
        with self._step() as books:
            item = books.items.get(quarantine_id)
            if item is None:
                raise BoundaryNotFoundError(
                    f"nothing in quarantine has the number {quarantine_id}",
                    remedy="list the quarantine",
                    details={"quarantine_id": quarantine_id},
                )
            if item.state == state:
                return item
            allowed = {
                "quarantined": OPEN[1:],
                "released": OPEN[:1],
                "discarded": OPEN,
                "settled": OPEN,
            }
            if item.state not in allowed.get(state, ()):
                raise BoundaryError(
                    f"item {quarantine_id} is {item.state} and cannot become {state}",
                    code="failed_precondition",
                    reason="wrong_state",
                    remedy="list the quarantine to see how things stand",
                    details={"quarantine_id": quarantine_id, "state": item.state},
                )
            text = f"{quarantine_id} of {item.consumer} at {item.offset}: {reason}"
            books.journal.append((self._clock(), ACTIONS[state], text))
            books.items[quarantine_id] = replace(item, state=state)
            books.served.discard(quarantine_id)
            return books.items[quarantine_id]
