"""How far the logs of a zone had grown, kept outside of its store.

A store can go back in time without noticing it: an operator removes the write-ahead log of a file,
or restores an older copy of it. Offsets would then be given out a second time. So a zone that has a
folder keeps an anchor there: the epoch, and the highest offset of each log that was acknowledged.
The anchor is written before each acknowledgement, so that it survives the end of the process, and
synced afterwards, within :data:`SYNC_INTERVAL` seconds. A store whose head lies below its anchor
begins a new epoch.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import zlib
from collections.abc import Mapping
from pathlib import Path

import msgspec

from ergon_framework.errors import ConfigurationError
from ergon_framework.storage.fsync import sync_file
from ergon_framework.storage.secure_files import give_to, open_file

logger = logging.getLogger("ergon_framework.boundary")

FILE = "heads.anchor"
SYNC_INTERVAL = 0.25
"""Seconds between two syncs: after a power cut an anchor may be that much older than its store."""
_SLOT = 8192


class Heads(msgspec.Struct, frozen=True):
    """What an anchor says."""

    epoch: str = ""
    heads: dict[str, int] = {}
    count: int = 0
    """How often it was written: of two slots the later one counts."""

    def lost(self, epoch: str, heads: Mapping[str, int]) -> str:
        """What a store of that epoch has lost, in words; empty when it has lost nothing."""
        if self.epoch != epoch:
            return ""  # it is another store, or has begun a new epoch since
        return self.shortened_logs(heads)

    def shortened_logs(self, heads: Mapping[str, int]) -> str:
        """Which logs end before they did, in words."""
        told = (
            f"{log} ends at {heads.get(log, 0)} and ended at {was}"
            for log, was in self.heads.items()
            if heads.get(log, 0) < was
        )
        return ", ".join(told)


_decode = msgspec.json.Decoder(Heads).decode
_encode = msgspec.json.Encoder().encode


class Anchor:
    """The anchor of one zone. Any thread may call it; the folder belongs to this process."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        try:
            self._file = open_file(self.path, os.O_RDWR | os.O_CREAT)
            give_to(self._file, folder)
            # Both slots are read: the later one may have been torn by a power cut.
            found = [_read(os.pread(self._file, _SLOT, at)) for at in (0, _SLOT)]
        except OSError as error:
            raise ConfigurationError(
                f"{self.path} cannot be used: {error.strerror}",
                remedy="let this user, or a group of his, read and write it; do not remove it:"
                " without it nobody notices a store that went back in time",
            ) from error
        self._lock = threading.Lock()
        self._now = max(found, key=lambda each: each.count)
        self._is_written = threading.Event()
        self._is_closed = threading.Event()
        self._thread: threading.Thread | None = None
        self._has_failed = False

    @property
    def now(self) -> Heads:
        """The heads that the anchor holds."""
        return self._now

    def lost(self, epoch: str, heads: Mapping[str, int]) -> str:
        """What a store of that epoch has lost, in words; empty when it has lost nothing."""
        return self._now.lost(epoch, heads)

    def begin(self, epoch: str, heads: Mapping[str, int]) -> None:
        """Make this the anchor of another store, or of a new epoch."""
        with self._lock:
            self._write(epoch, dict(heads))
            # Synced at once: without an epoch on disk, nothing that follows could be recognised.
            sync_file(self._file)

    def reached(self, log: str, offset: int) -> None:
        """Note that a log has grown; called before the append is acknowledged."""
        with self._lock:
            # Only upwards: two callers may come in another order than their offsets.
            if offset > self._now.heads.get(log, 0) and not self._is_closed.is_set():
                self._write(self._now.epoch, {**self._now.heads, log: offset})
                self._sync_soon()

    def close(self) -> None:
        """Sync it and let go of it. Closing twice is fine."""
        # In this order: the thread wakes by ``_is_written``, and must see then that it is to end.
        self._is_closed.set()
        self._is_written.set()
        if self._thread is not None:
            self._thread.join()
        with self._lock:
            file, self._file = self._file, -1
            if file >= 0:
                with contextlib.suppress(OSError):
                    sync_file(file)
                os.close(file)

    def _write(self, epoch: str, heads: dict[str, int]) -> None:
        self._now = Heads(epoch, heads, self._now.count + 1)
        text = _encode(self._now)
        slot = b"%08x %b\n" % (zlib.crc32(text), text)
        if len(slot) > _SLOT:
            # More logs than a zone has in practice: the anchor that was written last still holds.
            return
        try:
            # Into each slot in turn: a write that a power cut tears leaves the one before whole.
            os.pwrite(self._file, slot, _SLOT * (self._now.count % 2))
        except OSError as error:  # a full disk: the store will say so, too
            self._failed(error)

    def _sync_soon(self) -> None:
        self._is_written.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._sync, name="ergon-anchor", daemon=True)
            self._thread.start()

    def _sync(self) -> None:
        while not self._is_closed.is_set():
            self._is_written.wait()
            # Before the sync: a write that comes during it is synced in the next round.
            self._is_written.clear()
            try:
                sync_file(self._file)
            except OSError as error:
                self._failed(error)
            self._is_closed.wait(SYNC_INTERVAL)

    def _failed(self, error: OSError) -> None:
        if not self._has_failed:
            self._has_failed = True
            logger.warning("%s cannot be written: %s", self.path, error.strerror)


def read_anchor(folder: Path) -> Heads:
    """What the anchor in a folder says, only read; nothing when there is none."""
    try:
        data = (folder / FILE).read_bytes()
    except OSError:
        return Heads()
    slots = (_read(data[at : at + _SLOT]) for at in (0, _SLOT))
    return max(slots, key=lambda each: each.count)


def _read(slot: bytes) -> Heads:
    """What a slot says; nothing when it was never written, or not to its end."""
    line = slot.partition(b"\n")[0]
    try:
        if int(line[:8], 16) == zlib.crc32(line[9:]):
            return _decode(line[9:])
    except (ValueError, msgspec.DecodeError):
        pass
    return Heads()
