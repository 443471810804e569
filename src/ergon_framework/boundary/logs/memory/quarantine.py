"""What was set aside for consumers, in memory."""

from __future__ import annotations

from dataclasses import replace

from ergon_framework.boundary.logs import cursors
from ergon_framework.boundary.logs.memory.state import Steps
from ergon_framework.boundary.logs.refusing import not_next, refuse_late
from ergon_framework.boundary.logs.settling import ACTIONS, not_there, refuse_wrong_state, said_of
from ergon_framework.ports.factstore import Quarantined


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
            ahead = next(state.shelf(one.log).after(one.cursor, one.to_zone), None)
            following = None if ahead is None else ahead.fact.offset
            is_next = offset == following
            if not is_released and not is_next:
                raise not_next(one, offset, following)
            if is_next:
                cursors.pass_by(one, offset)
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
                raise not_there(quarantine_id)
            if item.state == state:
                return item
            refuse_wrong_state(quarantine_id, item.state, state)
            books.journal.append((self._clock(), ACTIONS[state], said_of(item, reason)))
            books.items[quarantine_id] = replace(item, state=state)
            books.served.discard(quarantine_id)
            return books.items[quarantine_id]
