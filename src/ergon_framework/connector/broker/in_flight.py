"""How much of a broker is in memory at once: a bound on messages, and one on their bytes.

A fetch that finds no room waits for a settlement. It does not answer with an empty batch, which
would mean that the broker has nothing.
"""

from __future__ import annotations

import threading

from ergon_framework.connector.broker.wakeup import Wakeup
from ergon_framework.engine.atfork import renew_after_fork
from ergon_framework.errors import ConfigurationError

MAX_IN_FLIGHT = 1000
MAX_IN_FLIGHT_BYTES = 64 * 1024 * 1024


class InFlight:
    """What was delivered and not settled yet, in messages and bytes. Any thread may call.

    The size of a message is known only when it is there. So a fetch asks for as many as would fit
    if they were as large as those before, and the bound on bytes may be passed by one batch. While
    nothing is in flight there is always room for one, however large.
    """

    def __init__(
        self,
        wakeup: Wakeup,
        max_in_flight: int = MAX_IN_FLIGHT,
        max_in_flight_bytes: int = MAX_IN_FLIGHT_BYTES,
    ) -> None:
        for name, value in (
            ("max_in_flight", max_in_flight),
            ("max_in_flight_bytes", max_in_flight_bytes),
        ):
            if value < 1:
                raise ConfigurationError(f"{name} must be at least 1, not {value!r}")
        self._wakeup = wakeup
        self._max_count = max_in_flight
        self._max_bytes = max_in_flight_bytes
        self._average = 0.0
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Forget what is in flight in a forked child, because the parent has it."""
        self._lock = threading.Lock()
        self.count = 0
        self.bytes = 0

    def room(self, wanted: int) -> int:
        """How many more messages may be requested, at most ``wanted``; 0 when it is full."""
        with self._lock:
            if self.count == 0:
                fitting = self._max_bytes
            else:
                fitting = self._max_bytes - self.bytes
                if fitting <= 0:
                    return 0
            by_bytes = int(fitting // self._average) if self._average else wanted
            return max(0, min(wanted, self._max_count - self.count, max(1, by_bytes)))

    def add(self, size: int) -> None:
        """Count a delivered message of so many bytes."""
        with self._lock:
            self.count += 1
            self.bytes += size
            # Of the last few: a broker's messages may become larger as time goes by.
            self._average += (max(1, size) - self._average) / (8 if self._average else 1)

    def remove(self, size: int) -> None:
        """Count a message that was settled or lost."""
        with self._lock:
            was_full = self.count >= self._max_count or self.bytes >= self._max_bytes
            self.count -= 1
            self.bytes -= size
        if was_full:
            self._wakeup.notify()

    def wait_for_room(self, wanted: int) -> int:
        """Wait until there is room, and return it like :meth:`room`. 0 when the fetch is to end."""
        if room := self.room(wanted):
            return room
        self._wakeup.wait(None, lambda: self.room(1) > 0)
        return 0 if self._wakeup.is_stopped else self.room(wanted)

    async def wait_for_room_async(self, wanted: int) -> int:
        """The async version of :meth:`wait_for_room`."""
        if room := self.room(wanted):
            return room
        await self._wakeup.wait_async(None, lambda: self.room(1) > 0)
        return 0 if self._wakeup.is_stopped else self.room(wanted)
