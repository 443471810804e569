"""The write-behind queue: rows go to the store in batches, to the spill while it is down.

Nothing here has a thread or waits: the recorder's thread calls ``WriteBehindQueue.step``, which
says when the next step is due. Rows leave memory only when they are written, kept on disk, or
counted as gone.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from ergon_framework.core.retry import Backoff
from ergon_framework.errors import ErgonError, StoreError
from ergon_framework.ports.dice import roll
from ergon_framework.ports.notice import Emit
from ergon_framework.ports.providerstore import (
    AttemptOutcome,
    AttemptRow,
    ProviderStore,
    RecordBatch,
)
from ergon_framework.providers.spill import Spill
from ergon_framework.providers.telemetry import emit, emit_calls


def is_final(row: AttemptRow) -> bool:
    """Whether the row says how an execution ended; others may be done without."""
    return row.attempt_number > 0 and row.outcome != AttemptOutcome.RETRY


def is_store_down(error: Exception) -> bool:
    """Whether the error is about the store itself, and not about the rows."""
    return isinstance(error, StoreError) and type(error) is not StoreError


def merged_batch(units: Sequence[RecordBatch]) -> RecordBatch:
    """One batch with the content of all."""
    whole = RecordBatch()
    for unit in units:
        whole.attempts += unit.attempts
        whole.letters += unit.letters
        whole.keys += unit.keys
    return whole


def row_count(batches: Sequence[RecordBatch]) -> int:
    """The number of rows, letters and endings of keys in the batches."""
    return sum(len(each.attempts) + len(each.letters) + len(each.keys) for each in batches)


_REPORT_INTERVAL = 1.0  # seconds between two tellings
COUNTED_AS = ("dropped", "lost", "spilled", "replayed")


@dataclass(slots=True)
class RowCounts:
    """The numbers of rows by what happened to them."""

    written: int = 0
    dropped: int = 0
    lost: int = 0
    spilled: int = 0
    replayed: int = 0


class RowCounter:
    """The counts of one recorder. Any thread may call any method."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self.renew()

    def renew(self) -> None:
        """Start at zero: at first, and in a forked child."""
        self._lock = threading.RLock()  # counting may be interrupted by a finalizer that counts
        self._counts = RowCounts()
        self._reported = RowCounts()
        self._reported_at = float("-inf")
        self.last_error: str | None = None

    def count(
        self,
        *,
        written: int = 0,
        dropped: int = 0,
        lost: int = 0,
        spilled: int = 0,
        replayed: int = 0,
    ) -> None:
        """Add to the counts."""
        with self._lock:
            counts = self._counts
            counts.written += written
            counts.dropped += dropped
            counts.lost += lost
            counts.spilled += spilled
            counts.replayed += replayed

    def counts(self) -> RowCounts:
        """The counts as they are now."""
        with self._lock:
            return replace(self._counts)

    def note(self, error: Exception) -> None:
        """Remember the last error. Our own say what is wrong; others may quote a payload."""
        name = type(error).__name__
        self.last_error = f"{name}: {error.message}" if isinstance(error, ErgonError) else name

    def report(self, now: float, *, is_last: bool = False) -> None:
        """Report which counts have grown, at most once a second, except at the end."""
        if not is_last and now - self._reported_at < _REPORT_INTERVAL:
            return
        counts, before = self.counts(), self._reported
        self._reported, self._reported_at = counts, now
        for name in COUNTED_AS:
            grown = getattr(counts, name) - getattr(before, name)
            if grown:
                self.emit(f"records.{name}", rows=grown)

    def emit(self, name: str, **fields: object) -> None:
        """Emit a notice; an error of a listener does not reach the rows."""
        try:
            self._emit(name, **fields)
        except Exception as error:
            self.note(error)


_RETRY_BACKOFF = Backoff(base=0.1, factor=2.0, cap=5.0, low=0.8, high=1.2)
SPILL_AFTER = 1.0
"""Seconds that a store may be away before final rows go to disk, and between two looks then."""
SCAN_INTERVAL = 30.0
"""Seconds between looks for files that dead processes left."""


class FlushMarker(threading.Event):
    """Follows in the queue the rows that a caller of ``flush`` waits for."""

    is_abandoned = False


class WriteBehindQueue:
    """The queue of one store. Any thread may call any method."""

    def __init__(
        self,
        store: ProviderStore,
        spill: Spill | None,
        *,
        capacity: int,
        batch: int,
        linger: float,
        clock: Callable[[], float] = time.monotonic,
        emit: Emit = emit,
    ) -> None:
        self.store = store
        self.spill = spill
        self.queue: deque[AttemptRow | FlushMarker] = deque()
        self.capacity = capacity
        # The last quarter is for rows that end a call: without those, a call would look as if it
        # still ran.
        self.calm = capacity - capacity // 4
        """The number of queued rows from which only final rows are accepted."""
        self._batch = batch
        self._linger = linger
        self._clock = clock
        self.counter = RowCounter(emit)
        self.renew()

    def renew(self) -> None:
        """Start empty: at first, and in a forked child, as the parent writes its own rows."""
        # Held by the thread that takes a step. Callers that only add rows need no lock: appending
        # to the queue is atomic. ``write_now`` takes none either, and may pause the queue while
        # another thread takes a step: hence the second lock, around the pause alone.
        self._turn = threading.Lock()
        self._pausing = threading.RLock()
        self.queue.clear()
        self.counter.renew()
        self._scanned_at = float("-inf")
        self._in_progress: list[AttemptRow] = []
        self._reached: list[FlushMarker] = []
        self._failures = 0
        self._retry_at = float("-inf")
        self._away_since = float("inf")
        self.moved: StoreError | None = None
        """The error of the store when it was moved; None while it takes rows."""
        if self.spill is not None:
            self.spill.leave_to_parent()

    # -- for callers ---------------------------------------------------------------------------

    @property
    def pending_flushes(self) -> int:
        """Callers that wait for rows which were taken from the queue and are not in the store."""
        return len(self._reached)

    @property
    def queued(self) -> int:
        """Rows that wait in memory."""
        return len(self.queue) + len(self._in_progress)

    @property
    def has_spilled(self) -> bool:
        """Whether rows of this process wait on disk."""
        return self.spill is not None and self.spill.has_own

    @property
    def has_left(self) -> bool:
        """Whether files that dead processes left are known and not yet written."""
        return self.spill is not None and self.spill.has_left

    @property
    def is_settled(self) -> bool:
        """Whether no row waits in memory."""
        return not self.queue and not self._in_progress

    @property
    def can_make_room(self) -> bool:
        """Whether a step would bring the queue forward."""
        return not self.is_paused or (self.spill is not None and self.spill.is_usable)

    @property
    def is_idle(self) -> bool:
        """Whether every row so far is in the store."""
        return self.is_settled and not self.has_spilled

    @property
    def is_paused(self) -> bool:
        """Whether the store failed a moment ago, and is left alone for now."""
        return self._clock() < self._retry_at

    def add_when_full(self, rows: Sequence[AttemptRow]) -> None:
        """Take rows although there is little room: only final ones, and on disk if need be.

        Never waits for the store, and for the disk only until the system has taken the bytes.
        """
        finals = [row for row in rows if is_final(row)]
        self.counter.count(dropped=len(rows) - len(finals))
        if len(self.queue) < self.capacity:
            self.queue.extend(finals)
        # Memory is full. These rows go to disk past the queue, so they may overtake older ones.
        elif finals:
            self._keep_or_lose(finals, is_synced=False)

    def write_now(self, batch: RecordBatch) -> bool:
        """Write to the store or, failing that, to disk; whether it is safe in either."""
        if not self.is_paused:
            try:
                self.store.record(batch)
            except Exception as error:
                self.counter.note(error)
                # Any other error is about this batch alone, and no reason to leave the store in
                # peace.
                if is_store_down(error):
                    self._pause(error)
            else:
                self.counter.count(written=len(batch.attempts))
                emit_calls(batch.attempts)
                return True
        return self._keep([batch], is_synced=True)

    def keep(self, batch: RecordBatch) -> bool:
        """Keep on disk what the store did not take, for the next step; whether it is there."""
        return self._keep([batch], is_synced=True)

    # -- for the driver --------------------------------------------------------------------------

    def step(self) -> float | None:
        """Write a batch, and replay one; the seconds until the next step, None: when rows come."""
        with self._turn:
            try:
                wait = self._step()
            except Exception as error:  # a bug of ours must not end the thread: rows would pile up
                self._pause(error)
                wait = _RETRY_BACKOFF.cap
            self.counter.report(self._clock(), is_last=wait is None)
            return wait

    def spill_rest(self, timeout: float) -> None:
        """Write what is still in memory to disk, because the process ends or the store closes."""
        # A thread that hangs in a call to the store holds the lock, and its rows are taken without
        # it. Rows that are written twice are harmless: the store knows their ids.
        # Bounded, because a call into a store that hangs may hold it for minutes, and a process
        # that ends has to save its rows now.
        is_mine = self._turn.acquire(timeout=max(0.0, timeout))
        try:
            rows = [*self._in_progress, *self._take(len(self.queue))]
            if is_mine:
                self._in_progress = []
            self._spill_or_drop(rows)
            self.counter.report(self._clock(), is_last=True)
            if self.spill is not None and is_mine:
                self.spill.close()
        finally:
            if is_mine:
                self._turn.release()

    # -- steps, under the lock -------------------------------------------------------------------

    def _step(self) -> float | None:
        now = self._clock()
        if now < self._retry_at:
            return self._while_down(now)
        # What a failed write left comes first: rows reach the store in the order of their calls.
        self._in_progress += self._take(self._batch - len(self._in_progress))
        has_written = bool(self._in_progress)
        try:
            self._write_batch()
            has_replayed = self._replay(now, is_alive=has_written)
        except Exception as error:
            self._pause(error)
            return self._while_down(now)
        # Only here, after the rows before the marker have been written: a flush promises exactly
        # that.
        self._answer()
        if has_replayed or len(self.queue) >= self._batch:
            return 0.0
        return self._linger if has_written else None

    def _take(self, most: int) -> list[AttemptRow]:
        rows: list[AttemptRow] = []
        take, add = self.queue.popleft, rows.append
        with suppress(IndexError):  # it is empty, or ``spill_rest`` of another thread has the rows
            while len(rows) < most:
                item = take()
                if isinstance(item, FlushMarker):
                    self._reached.append(item)
                else:
                    add(item)
        return rows

    def _write_batch(self) -> None:
        rows = self._in_progress
        if not rows:
            return
        # If the process dies in here, its rows are lost as far as they are not in the store: only
        # rows that waited for longer than SPILL_AFTER, or did not fit, are on disk.
        refused = self._record(
            RecordBatch(rows), lambda: [RecordBatch([row]) for row in rows], is_alive=False
        )
        self._in_progress = []
        self.counter.count(written=len(rows) - len(refused), lost=len(refused))
        emit_calls(rows)
        self._set_aside(refused)
        self._recover()

    def _replay(self, now: float, *, is_alive: bool) -> bool:
        spill = self.spill
        if spill is None:
            return False
        if now - self._scanned_at >= SCAN_INTERVAL:
            self._scanned_at = now
            spill.scan()
        damaged = spill.damaged_count
        units = spill.chunk(self._batch)
        self.counter.count(lost=spill.damaged_count - damaged)
        if not units:
            return False
        refused = self._record(merged_batch(units), lambda: list(units), is_alive=is_alive)
        lost = row_count(refused)
        self.counter.count(replayed=row_count(units) - lost, lost=lost)
        # After the write: a process that dies in between writes the chunk once more, which the ids
        # of the rows make harmless.
        spill.advance(len(refused))
        self._recover()
        return True

    def _record(
        self, whole: RecordBatch, pieces_of: Callable[[], list[RecordBatch]], *, is_alive: bool
    ) -> list[RecordBatch]:
        """Write a batch; returns the pieces that the store refuses. Raises when the store is away.

        A row that no store could ever take must not hold up all others. To distinguish such a row
        from a store that is down, another piece is written alone, a different one at each failure:
        when that works, the rest is written piece by piece. ``is_alive`` says that a write just
        worked.
        """
        try:
            self._write(whole)
        except Exception as error:
            pieces = pieces_of()
            if is_store_down(error) or (len(pieces) < 2 and not is_alive):
                raise
            if len(pieces) < 2:
                self.counter.note(error)
                return pieces
        else:
            return []
        # Another piece each time: if the first one happened to be the bad row, it would prove the
        # store away for ever.
        self._write(pieces.pop(self._failures % len(pieces)))
        return [piece for piece in pieces if not self._is_taken(piece)]

    def _write(self, batch: RecordBatch) -> None:
        if batch.attempts or batch.letters:
            self.store.record(batch)
        for ending in batch.keys:  # one that another owner has by now is left as it is
            ending.write_to(self.store)

    def _is_taken(self, piece: RecordBatch) -> bool:
        try:
            self._write(piece)
        except Exception as error:
            if is_store_down(error):
                raise
            self.counter.note(error)
            return False
        return True

    def _while_down(self, now: float) -> float:
        """Bring rows to disk while the store is away; the seconds until the next step."""
        if now - self._away_since >= SPILL_AFTER:
            self._spill_final_rows()
        self._make_room()
        return min(max(0.0, self._retry_at - now), SPILL_AFTER)

    def _spill_final_rows(self) -> None:
        """Bring final rows to disk: if this process is killed, they are not lost with it.

        The others stay in memory, in their order and behind their markers.
        """
        spill = self.spill
        if spill is None or not spill.is_usable:
            return
        finals: list[AttemptRow] = []
        others: list[AttemptRow | FlushMarker] = []
        for item in [*self._in_progress, *self._emptied()]:
            if isinstance(item, FlushMarker) or not is_final(item):
                others.append(item)
            else:
                finals.append(item)
        self._in_progress = finals  # ``spill_rest`` finds them here if the disk hangs
        self.queue.extendleft(reversed(others))
        while self._in_progress:
            some = self._in_progress[: self._batch]
            if not self._keep([RecordBatch([row]) for row in some], is_synced=True):
                break
            del self._in_progress[: len(some)]
        self.queue.extendleft(reversed(self._in_progress[self._batch :]))
        del self._in_progress[self._batch :]

    def _emptied(self) -> Iterator[AttemptRow | FlushMarker]:
        for _ in range(len(self.queue)):
            try:
                yield self.queue.popleft()
            except IndexError:  # ``spill_rest`` of another thread has taken the rows
                return

    def _set_aside(self, refused: list[RecordBatch]) -> None:
        """Write rows that the store refuses to a file for operators. If that fails, only the file
        is lost.
        """
        if refused and self.spill is not None:
            try:
                self.spill.set_aside(refused)
            except Exception as error:
                self.counter.note(error)

    def _make_room(self) -> None:
        """Bring final rows to disk while the store is away, so that new ones have room."""
        spill = self.spill
        while len(self.queue) >= self.calm:
            if spill is None or not spill.is_usable:
                return  # the rows stay: the store may be back before the queue is full
            reached = len(self._reached)
            rows = self._take(self._batch)
            finals = [row for row in rows if is_final(row)]
            self.counter.count(dropped=len(rows) - len(finals))
            if finals and not self._keep([RecordBatch([row]) for row in finals], is_synced=True):
                self.queue.extendleft(reversed([*finals, *self._reached[reached:]]))
                del self._reached[reached:]
                return
        if spill is not None and spill.is_usable:
            spill.sync()

    def _answer(self) -> None:
        """Wake the callers of ``flush`` whose rows are all written."""
        if self._reached and not self.has_spilled:
            for marker in self._reached:
                marker.set()
            self._reached = []
        elif self._reached:
            self._reached = [each for each in self._reached if not each.is_abandoned]

    # -- keeping and counting --------------------------------------------------------------------

    def _spill_or_drop(self, rows: Sequence[AttemptRow]) -> None:
        finals = [row for row in rows if is_final(row)]
        self.counter.count(dropped=len(rows) - len(finals))
        for at in range(0, len(finals), self._batch):
            self._keep_or_lose(finals[at : at + self._batch], is_synced=True)

    def _keep_or_lose(self, finals: list[AttemptRow], *, is_synced: bool) -> None:
        if not self._keep([RecordBatch([row]) for row in finals], is_synced=is_synced):
            self.counter.count(lost=len(finals))

    def _keep(self, batches: list[RecordBatch], *, is_synced: bool) -> bool:
        spill = self.spill
        if spill is None or (not is_synced and not spill.is_usable):
            return False
        try:
            spill.keep(batches, is_synced=is_synced)
        except Exception as error:
            self.counter.note(error)
            return False
        self.counter.count(spilled=row_count(batches))
        return True

    def _pause(self, error: Exception) -> None:
        with self._pausing:
            is_news = not self._failures
            self._away_since = self._since(error)
            self.moved = None
            if isinstance(error, StoreError) and error.details.get("moved_to"):
                self.moved = error
            self._failures += 1
            dice = roll()
            self._retry_at = self._clock() + _RETRY_BACKOFF.delay(self._failures - 1, dice)
        self.counter.note(error)
        if is_news:
            self.counter.emit("store.lost", error=self.counter.last_error)

    def _since(self, error: Exception) -> float:
        """Since when the store is away; infinity when the error is about a row, not the store."""
        if not is_store_down(error):
            return float("inf")
        return min(self._away_since, self._clock())

    def _recover(self) -> None:
        with self._pausing:
            self._away_since, self.moved = float("inf"), None
            was_away, self._failures = self._failures, 0
            self._retry_at = float("-inf")
        if was_away:
            self.counter.emit("store.back")
