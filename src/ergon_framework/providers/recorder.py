"""Write-behind between calls and their store: rows are queued at once and written by a thread.

A call never waits for the store, and never fails because of it. Rows that say how an execution
ended are kept on disk while the store is away; rows of retries and refusals are dropped when room
is short. Every row ends in one count: written, spilled and later replayed, dropped, or lost. There
is one ``Recorder`` per store, with one thread; that of a store in memory has one only while there
are listeners for calls. It also samples the rows of refused calls, of which an open circuit makes
thousands a second, and lets ``retention`` delete what is old.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ergon_framework.errors import StoreError
from ergon_framework.ports.notice import Emit
from ergon_framework.ports.providerstore import (
    AttemptRow,
    DefersWrites,
    HasCloseHooks,
    HasFile,
    HasName,
    HasUrl,
    KeyEnding,
    ProviderStore,
    RecordBatch,
)
from ergon_framework.providers.retention import Retention
from ergon_framework.providers.spill import (
    MAX_BYTES,
    Spill,
    default_spill,
    find_ending,
    spill_beside,
)
from ergon_framework.providers.stores.memory import MemoryProviderStore
from ergon_framework.providers.telemetry import are_calls_told, emit
from ergon_framework.providers.write_behind import SCAN_INTERVAL, FlushMarker, WriteBehindQueue

_MAX_LANES = 10_000

_Second = list[int]
"""The current second of a lane, its refusals, and the rows allowed in it. A list, as refusing must
be cheap.
"""


class RefusalSampler:
    """Counts every refusal, and lets some of them have a row. Any thread may call any method.

    A lane may have ``rate`` rows within a second. One that wanted more goes on with a single row
    in each second, until it wants no more than ``rate`` again.
    """

    def __init__(
        self,
        rate: int,
        clock: Callable[[], float] = time.monotonic,
        *,
        max_lanes: int = _MAX_LANES,
    ) -> None:
        self._rate = rate
        self._clock = clock
        self._max_lanes = max_lanes
        self.renew()

    def renew(self) -> None:
        """Start empty: at first, and in a forked child."""
        self._lock = threading.RLock()  # counting may be interrupted by a finalizer that calls
        self.totals: dict[str, int] = {}
        """Refusals so far, by reason."""
        self._rows = 0
        self._lanes: dict[tuple[str, str, str], _Second] = {}

    @property
    def lane_count(self) -> int:
        """Lanes whose refusals of the last seconds are remembered."""
        return len(self._lanes)

    @property
    def coalesced(self) -> int:
        """Refusals that have no row."""
        with self._lock:
            return sum(self.totals.values()) - self._rows

    def admits(self, row: AttemptRow) -> bool:
        """Count a refused call; whether its row is to be written."""
        with self._lock:
            # Counted there if it is skipped; here only if it gets a row.
            if self.skips_row(row):
                return False
            self._lanes[row.tenant_id, row.provider_name, row.capability][1] += 1
            reason = row.reason_code or ""
            self.totals[reason] = self.totals.get(reason, 0) + 1
            self._rows += 1
            return True

    def skips(self, key: tuple[str, str, str], reason_code: str) -> bool:
        """Whether a row would be left out now; if so the refusal is counted, and needs none."""
        now = int(self._clock())
        with self._lock:
            lane = self._lanes.get(key)
            if lane is None or lane[0] != now:
                lane = self._begin(key, lane, now)
            if lane[1] < lane[2]:
                return False
            lane[1] += 1
            self.totals[reason_code] = self.totals.get(reason_code, 0) + 1
            return True

    def skips_row(self, row: AttemptRow) -> bool:
        """Like ``skips``, for a row that is built already."""
        return self.skips((row.tenant_id, row.provider_name, row.capability), row.reason_code or "")

    def _begin(self, key: tuple[str, str, str], lane: _Second | None, now: int) -> _Second:
        if lane is None and len(self._lanes) >= self._max_lanes:
            self._lanes.clear()  # the counts of a lane are of no use a second later
        was_flooded = lane is not None and lane[0] == now - 1 and lane[1] > self._rate
        begun = self._lanes[key] = [now, 0, 1 if was_flooded else self._rate]
        return begun


CLOSE_TIMEOUT = 5.0
"""Seconds a process that ends gives its store to take the last rows."""


@dataclass(frozen=True, slots=True)
class RecorderStats:
    """What one process's recorder has done with its rows so far."""

    queued_rows: int
    written_rows: int
    dropped_rows: int
    """Retries and refusals that there was no room for."""
    lost_rows: int
    """Final rows that neither the store nor the disk took."""
    spilled_rows: int
    replayed_rows: int
    refused_total: dict[str, int]
    """Every refused call, by reason, whether it has a row or not."""
    coalesced_rows: int
    """Refused calls that have no row because there were too many at once."""
    spill_full: int
    """How often the spill had reached its limit."""
    last_error: str | None


class Recorder:
    """The recorder of one store in this process. Any thread may call any method."""

    def __init__(
        self,
        store: ProviderStore,
        *,
        spill: Path | None,
        capacity: int = 50_000,
        batch: int = 500,
        linger: float = 0.05,
        refusal_rate: int = 10,
        max_spill_bytes: int = MAX_BYTES,
        is_threaded: bool = True,
        clock: Callable[[], float] = time.monotonic,
        emit: Emit = emit,
    ) -> None:
        folder = None if spill is None else Spill(spill, max_bytes=max_spill_bytes, clock=clock)
        self.writer = WriteBehindQueue(
            store, folder, capacity=capacity, batch=batch, linger=linger, clock=clock, emit=emit
        )
        """What writes its rows, and knows whether the store was moved."""
        self._queue = self.writer.queue
        self._calm = self.writer.calm if is_threaded else capacity
        self.retention = Retention(store, clock)
        self._refusals = RefusalSampler(refusal_rate, clock)
        self.skips_refusal = self._refusals.skips
        """Whether a refused call needs no row, as there are many like it: it is counted then."""
        self._is_threaded = is_threaded
        self._starting = threading.Lock()
        self._wakeup = threading.Event()
        self._thread: threading.Thread | None = None
        self._is_asleep = True
        self._is_closing = False
        with _lock:
            _live.add(self)

    @property
    def is_running(self) -> bool:
        """Whether the thread that writes rows runs; it begins with the first row."""
        return self._thread is not None

    @property
    def spill_folder(self) -> Path | None:
        """Where final rows are kept while the store is away; None when nowhere."""
        return None if self.writer.spill is None else self.writer.spill.folder

    @property
    def moved(self) -> StoreError | None:
        """The refusal of a store that was moved elsewhere; None for one that may be worked with.

        It is known when rows could not be written, which is a moment after a call. Once the store
        takes rows again, it is None again.
        """
        return self.writer.moved

    # -- rows in -------------------------------------------------------------------------------

    def add(self, attempts: Sequence[AttemptRow]) -> None:
        """Hand over the rows of one execution. Never waits for the store and never raises."""
        if not attempts:
            return
        # Number 0 is a refused call, of which an open circuit makes thousands a second.
        if not attempts[0].attempt_number and not self._refusals.admits(attempts[0]):
            return
        queue = self._queue
        # Without a lock: ``deque.extend`` is atomic, and a few rows above the mark do no harm.
        if len(queue) < self._calm:
            queue.extend(attempts)
        else:
            self._add_when_full(attempts)
        if self._is_asleep:
            self._wake()

    def add_attempt(self, row: AttemptRow) -> None:
        """Like ``add``, for a call that succeeded with its only attempt."""
        queue = self._queue
        if len(queue) < self._calm:
            queue.append(row)
        else:
            self._add_when_full((row,))
        # A store in memory is read through the recorder: only listeners need its rows before.
        if self._is_asleep and (self._is_threaded or are_calls_told()):
            self._wake()

    def write_now(self, batch: RecordBatch) -> bool:
        """Write before returning, to the store or to disk; whether it is safe in either."""
        first = batch.attempts[0] if batch.attempts else None
        refused = None if first is None or first.attempt_number else first
        # With a letter it is written in any case: the letter must not be lost with its row.
        if refused and not batch.letters and self._refusals.skips_row(refused):
            return True  # counted, which is all that is kept of it
        is_safe = self.writer.write_now(batch)
        if refused and is_safe:
            self._refusals.admits(refused)  # otherwise the caller adds the row, which counts it
        if self.writer.has_spilled:
            self._wake()
        return is_safe

    def write_later(self, batch: RecordBatch) -> bool:
        """Keep on disk what the store did not take just now; whether it is safe there.

        It is written when the store answers again, by another process if this one is dead.
        """
        is_safe = self.writer.keep(batch)
        if is_safe:
            self._wake()
        return is_safe

    def find_ending(self, tenant_id: str, key: str) -> KeyEnding | None:
        """The end of a call that waits on the disk of this machine, if there is one.

        A delivery that wants the key writes this end to the store first: after an outage longer
        than the lease of the key, the call would otherwise be made again.
        """
        folder = self.spill_folder
        return None if folder is None else find_ending(folder, tenant_id, key)

    # -- rows out ------------------------------------------------------------------------------

    def flush(self, timeout: float = CLOSE_TIMEOUT) -> bool:
        """Wait until every row added so far is in the store; whether that was so in time."""
        if not self._is_threaded:
            return self.drain()
        marker = FlushMarker()
        self._queue.append(marker)
        self._wake()
        # A marker whose caller has given up must not stop the writer, nor be taken for a later
        # flush.
        if not marker.wait(timeout):
            self._give_up(marker)
        if marker.is_set():
            self._settle()
        return marker.is_set()

    def drain(self) -> bool:
        """Write from this thread what was added so far; whether all of it is in the store.

        A store in memory is read through this: nothing else writes its rows. What dead processes
        left on disk is written too.
        """
        marker = FlushMarker()
        self._queue.append(marker)
        while not marker.is_set() or self.writer.has_left:
            self.writer.step()
            # The store does not answer: to go on would keep the caller for as long as the outage
            # lasts.
            if self.writer.is_paused:
                self._give_up(marker)
                return marker.is_set()
        return True

    def stats(self) -> RecorderStats:
        """The counts as they are now."""
        writer, counts = self.writer, self.writer.counter.counts()
        return RecorderStats(
            queued_rows=writer.queued,
            written_rows=counts.written,
            dropped_rows=counts.dropped,
            lost_rows=counts.lost,
            spilled_rows=counts.spilled,
            replayed_rows=counts.replayed,
            refused_total=dict(self._refusals.totals),
            coalesced_rows=self._refusals.coalesced,
            spill_full=0 if writer.spill is None else writer.spill.full_count,
            last_error=writer.counter.last_error,
        )

    def close(self, timeout: float = CLOSE_TIMEOUT) -> None:
        """Write what is there, keep the rest on disk, and end the thread.

        Closing twice is fine, and so is adding afterwards: it all begins again.
        """
        until = time.monotonic() + timeout
        thread = self._thread
        if thread is not None and thread.is_alive():
            self._is_closing = True
            self._wakeup.set()
            thread.join(timeout)
            self._is_closing = False
        elif not self.writer.is_settled:
            self.drain()
        # Asked before the rest is spilled: rates are settled only if all rows are in the store.
        is_idle = self.writer.is_idle and not self.writer.is_paused
        self.writer.spill_rest(until - time.monotonic())
        if is_idle:
            self._settle()

    def leave_to_parent(self) -> None:
        """Called in a forked child: start empty, as the parent writes its own rows."""
        self._starting = threading.Lock()
        self._wakeup = threading.Event()
        self._thread = None
        self._is_asleep = True
        self._is_closing = False
        self._refusals.renew()
        self.writer.renew()
        self.retention.renew()

    def _settle(self) -> None:
        """Let the store do its deferred writes. The rows are stored even if that fails."""
        store = self.writer.store
        if not isinstance(store, DefersWrites):
            return
        try:
            store.settle()
        except Exception as error:
            self.writer.counter.note(error)

    # -- the thread ----------------------------------------------------------------------------

    def _give_up(self, marker: FlushMarker) -> None:
        marker.is_abandoned = True
        with contextlib.suppress(ValueError, IndexError):  # the writer took it, or moves others
            self._queue.remove(marker)

    def _add_when_full(self, attempts: Sequence[AttemptRow]) -> None:
        if self._is_threaded:
            self.writer.add_when_full(attempts)
            if self.writer.can_make_room:
                self._wakeup.set()
        else:
            # A store in memory has no thread that writes, and was not read for a long time. The
            # caller that finds the queue full writes a batch, so that the memory stays bounded.
            self._queue.extend(attempts)
            self.writer.step()

    def _wake(self) -> None:
        if not self._is_threaded:
            # Rows in memory are written when they are read. Only listeners for calls need them now:
            # a thread writes them, and ends when it has.
            if self._thread is None and are_calls_told():
                self._start()
            return
        self._is_asleep = False
        self._wakeup.set()
        if self._thread is None:
            self._start()

    def _start(self) -> None:
        if _is_ending:  # the interpreter would not wait for a daemon thread
            self._is_asleep = True
            self.close()
            return
        with self._starting:
            if self._thread is not None:
                return
            self._thread = threading.Thread(target=self._run, name="ergon-recorder", daemon=True)
            try:
                self._thread.start()
            except RuntimeError:  # too many threads: the rows wait until the next call adds some
                self._thread = None
                self._is_asleep = True
                return
        _hook_multiprocessing()

    def _run(self) -> None:
        try:
            while True:
                wait = self.writer.step()
                if self._is_closing and (self.writer.is_settled or self.writer.is_paused):
                    return
                # Old rows are deleted only while no new ones wait.
                if wait is None or wait > 0.0:
                    self.retention.prune_when_due()
                if not self._is_threaded and (wait is None or self.writer.is_paused):
                    return
                if wait is None:
                    self._sleep()
                elif wait > 0.0 and not self._is_closing:
                    self._wakeup.wait(wait)
                self._wakeup.clear()
        finally:
            # Whatever ended it, the next row starts another one.
            self._thread = None
            self._is_asleep = True
            # One that came after the last look and before the end found a thread, and started none.
            if not self._is_threaded and self._queue and not self.writer.is_paused:
                self._wake()

    def _sleep(self) -> None:
        # add() puts the row into the queue and then reads the flag; this sets the flag and then
        # looks into the queue. In whatever order they run, one of the two sees what the other did.
        self._is_asleep = True
        if not self._queue and not self._is_closing and not self._wakeup.wait(SCAN_INTERVAL):
            self._settle()
        self._is_asleep = False


_live: weakref.WeakSet[Recorder] = weakref.WeakSet()
_recorders: weakref.WeakValueDictionary[int, Recorder] = weakref.WeakValueDictionary()
_lock = threading.RLock()
_hooked: set[int] = set()
_is_ending = False


def recorder_of(store: ProviderStore, *, spill: str | Path | None = None) -> Recorder:
    """The one recorder of a store in this process; the first caller says where it spills.

    By default beside an SQLite file, or under the user's state folder.
    """
    with _lock:
        known = _recorders.get(id(store))  # a recorder keeps its store, so the number stays its own
        if known is None:
            known = _recorders[id(store)] = _new_recorder(store, spill)
            if isinstance(store, HasCloseHooks):
                store.at_close.append(partial(_close, weakref.ref(known)))
        return known


def known_recorder(store: ProviderStore) -> Recorder | None:
    """The recorder of a store, if this process has one: a reader does not make it."""
    with _lock:
        return _recorders.get(id(store))


def close_recorders(timeout: float = CLOSE_TIMEOUT) -> None:
    """Close every recorder of this process: for processes that end without exit hooks."""
    until = time.monotonic() + timeout
    with _lock:
        recorders = list(_live)
    for recorder in recorders:
        recorder.close(max(0.0, until - time.monotonic()))


def _close(recorder: weakref.ref[Recorder]) -> None:
    """Close a recorder whose store closes."""
    found = recorder()
    if found is not None:
        found.close()


def _new_recorder(store: ProviderStore, spill: str | Path | None) -> Recorder:
    if isinstance(store, MemoryProviderStore):
        return Recorder(store, spill=None, is_threaded=False)
    return Recorder(store, spill=Path(spill) if spill else _spill_of(store))


def _spill_of(store: ProviderStore) -> Path | None:
    """The folder of a store's spill: beside its file, or by its address.

    None for a store that does not say which database it is: two databases that shared a folder
    would get each other's rows.
    """
    if isinstance(store, HasFile) and store.path is not None:
        return spill_beside(store.path)
    url = (isinstance(store, HasUrl) and store.url) or (isinstance(store, HasName) and store.name)
    return default_spill(url) if isinstance(url, str) else None


def _hook_multiprocessing() -> None:
    """A child of multiprocessing ends without exit hooks, but runs its own finalizers."""
    util = sys.modules.get("multiprocessing.util")
    if util is not None and os.getpid() not in _hooked:
        _hooked.add(os.getpid())
        util.Finalize(None, close_recorders, exitpriority=0)


def _at_exit() -> None:
    global _is_ending  # noqa: PLW0603 - it is true of the whole process
    _is_ending = True
    close_recorders()


def _after_fork_in_child() -> None:
    global _lock  # noqa: PLW0603 - a thread that only the parent has may hold it
    _lock = threading.RLock()
    for recorder in list(_live):
        recorder.leave_to_parent()


os.register_at_fork(after_in_child=_after_fork_in_child)
atexit.register(_at_exit)
