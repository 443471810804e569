"""Notifications between processes that share an SQLite file.

Every subscriber has a named pipe in the folder ``<file>-bells``. A process that commits writes one
byte into each pipe of the topic.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import itertools
import logging
import os
import re
import secrets
import select
import signal
import threading
import time
import weakref
from pathlib import Path

from ergon_framework.errors import StoreUnavailableError
from ergon_framework.storage.secure_files import Folder, UnsafeFileError, give_to
from ergon_framework.storage.sqlite.connections import real_path

logger = logging.getLogger("ergon.storage")

MAX_TOPICS = 256
"""Topics whose pipes a notifier keeps open."""
MAX_OPEN_PIPES = 128
"""Pipes of one topic that are kept open; further ones are opened for each notification."""
TIMESTAMP_RESOLUTION = 2.0
"""Seconds. The time stamp of a folder can be this coarse: until it is older than that, a pipe may
have come without changing it."""

_FILE_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_FOLDER_SUFFIX = "-bells"
_HIDDEN_PREFIX = ".new-"
_MAX_LOOKS = 16  # pipes of others that a new subscriber checks for a reader
_HIDDEN_TIMEOUT = 60.0  # seconds after which a hidden pipe is abandoned: naming one takes micros
_NO_DESCRIPTORS = frozenset({errno.EMFILE, errno.ENFILE})

_lock = threading.Lock()
_subscriptions: set[FifoSubscription] = set()
_local_only: set[Path] = set()  # folders without named pipes: no other process can wake us
_notifiers: weakref.WeakSet[FifoNotifier] = weakref.WeakSet()


class FifoSubscription:
    """A subscriber with its own named pipe. Any thread may call any method."""

    def __init__(self, folder: Path, topic: str) -> None:
        self._folder = folder
        self._topic = topic
        self._lock = threading.RLock()  # a signal handler may wake while its thread begins to wait
        self._waiters = 0
        self._is_closed = False
        self._path, self._read, self._write = _make_pipe(folder, topic)
        with _lock:
            _subscriptions.add(self)

    def wait(self, seconds: float | None) -> bool:
        """Wait for a notification; returns whether one came. Many notifications count as one."""
        with self._lock:
            if self._is_closed:
                return False
            self._waiters += 1
        try:
            poll = select.poll()
            poll.register(self._read, select.POLLIN)
            limit = None if seconds is None else max(0.0, seconds) * 1000
            return bool(poll.poll(limit)) and self._consume()
        finally:
            with self._lock:
                self._waiters -= 1
                self._close_when_unused()

    def wake(self) -> None:
        """Wake the waiter of this subscription, from inside this process."""
        with self._lock:
            if not self._is_closed:
                write_byte(self._write)

    @property
    def waiters(self) -> int:
        """How many threads wait at this moment."""
        return self._waiters

    def fileno(self) -> int:
        """The descriptor that an event loop can watch; call ``wait(0)`` when it is readable."""
        return self._read

    def close(self) -> None:
        """Unsubscribe: remove the pipe and wake the threads that wait. Closing twice is fine."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            if self._path is not None:
                with contextlib.suppress(OSError):
                    self._path.unlink()
            # Threads in ``poll`` wake up by this byte, and see that it is closed.
            write_byte(self._write)
            self._close_when_unused()
        with _lock:
            _subscriptions.discard(self)

    def is_local_to(self, folder: Path, topic: str) -> bool:
        """Whether only this process can wake it, because its pipe has no name in the folder."""
        return self._path is None and self._topic == topic and self._folder == folder

    def leave_to_parent(self) -> None:
        """Called in a forked child: close the pipe, so that it has no reader once the parent is
        gone.
        """
        self._lock = threading.RLock()
        self._waiters = 0
        self._is_closed = True
        self._close_when_unused()

    def _consume(self) -> bool:
        try:
            return bool(os.read(self._read, 1 << 16)) and not self._is_closed
        except BlockingIOError:  # another thread was faster
            return False

    def _close_when_unused(self) -> None:
        # The last waiter closes: a descriptor that is closed under ``poll`` may be another file a
        # moment later.
        if self._is_closed and not self._waiters and self._read >= 0:
            os.close(self._read)
            os.close(self._write)
            self._read = -1


class FifoNotifier:
    """Notifies the subscribers beside one database file. Any thread may call any method."""

    def __init__(
        self,
        path: str | Path,
        *,
        max_topics: int = MAX_TOPICS,
        max_open_pipes: int = MAX_OPEN_PIPES,
        timestamp_resolution: float = TIMESTAMP_RESOLUTION,
    ) -> None:
        self._max_topics = max_topics
        self._max_open_pipes = max_open_pipes
        self._timestamp_resolution = timestamp_resolution
        resolved = real_path(Path(path).absolute())
        self._folder = resolved.with_name(f"{resolved.name}{_FOLDER_SUFFIX}")
        self._lock = threading.Lock()
        self._topics: dict[str, FifoWriters] = {}
        _notifiers.add(self)

    def subscribe(self, topic: str) -> FifoSubscription:
        """A new subscription to this topic."""
        _remove_abandoned(self._folder)
        _remove_unread(self._folder, _file_name(topic))
        return FifoSubscription(self._folder, _file_name(topic))

    def notify(self, topic: str) -> None:
        """Wake every subscriber of this topic, in any process; never blocks and never fails."""
        with self._lock:
            writers = self._topics.get(topic)
            if writers is None:
                writers = self._new_writers(topic)
            writers.write_all()
        if self._folder in _local_only:
            self._notify_local(_file_name(topic))

    def close(self) -> None:
        """Close the pipes kept open for writing; they are opened again when needed."""
        with self._lock:
            self._close_writers()

    def renew_lock(self) -> None:
        """Called in a forked child: a thread of the parent may hold the lock."""
        self._lock = threading.Lock()

    def _new_writers(self, topic: str) -> FifoWriters:
        if len(self._topics) >= self._max_topics:
            self._close_writers()
        writers = self._topics[topic] = FifoWriters(
            self._folder,
            _file_name(topic),
            max_open_pipes=self._max_open_pipes,
            timestamp_resolution=self._timestamp_resolution,
        )
        return writers

    def _close_writers(self) -> None:
        for writers in self._topics.values():
            writers.close()
        self._topics.clear()

    def _notify_local(self, topic: str) -> None:
        with _lock:
            subscriptions = [
                each for each in _subscriptions if each.is_local_to(self._folder, topic)
            ]
        for subscription in subscriptions:
            subscription.wake()


def _make_pipe(folder: Path, topic: str) -> tuple[Path | None, int, int]:
    """A pipe with a name in the folder or, where that cannot be, one without."""
    try:
        return _make_named_pipe(folder, topic)
    except OSError as error:
        if error.errno in _NO_DESCRIPTORS:
            raise _no_descriptors(folder, error) from error
        _warn_once(folder, error)
    try:
        read, write = os.pipe()
    except OSError as error:
        raise _no_descriptors(folder, error) from error
    os.set_blocking(read, False)
    os.set_blocking(write, False)
    return None, read, write


def _no_descriptors(folder: Path, error: OSError) -> StoreUnavailableError:
    """The error for a process without free descriptors: it may pass, and says nothing about the
    folder.
    """
    return StoreUnavailableError(
        f"no notifier can be opened in {folder}: {error.strerror}",
        remedy="let this process have more open files (ulimit -n), or wait for less at once",
    )


def _make_named_pipe(folder: Path, topic: str) -> tuple[Path, int, int]:
    name = f"{topic}.{os.getpid()}.{secrets.token_hex(8)}"
    hidden = f"{_HIDDEN_PREFIX}{name}"
    with Folder.ensure(folder) as opened, contextlib.ExitStack() as undo:
        # Under a hidden name until it has a reader: other processes remove a pipe without one.
        opened.make_pipe(hidden)
        undo.callback(_forget, opened, hidden)
        read = opened.open_pipe(hidden, os.O_RDONLY)
        undo.callback(os.close, read)
        database = folder.with_name(folder.name.removesuffix(_FOLDER_SUFFIX))
        opened.give_to(database)
        # Made by root for a database of another user, it could not be opened by that user.
        give_to(read, database)
        # We write too: a pipe that has lost its last writer stays readable, and no wait would wait.
        write = opened.open_pipe(hidden, os.O_WRONLY)
        undo.callback(os.close, write)
        opened.replace(hidden, name)
        undo.pop_all()
    return folder / name, read, write


def _forget(folder: Folder, name: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        folder.unlink(name)


def _warn_once(folder: Path, error: OSError) -> None:
    with _lock:
        is_known = folder in _local_only
        _local_only.add(folder)
    if is_known:
        return
    if isinstance(error, UnsafeFileError):
        logger.warning(
            "%s is not used: %s. Until then no other process can wake this one, which notices their"
            " work later, by looking",
            folder,
            error.strerror,
        )
    else:
        logger.warning(
            "%s takes no named pipes (%s): no other process can wake this one, which notices"
            " their work later, by looking",
            folder,
            error.strerror,
        )


def _file_name(topic: str) -> str:
    """The topic as part of a file's name, whatever characters it has and however long it is."""
    if _FILE_NAME.fullmatch(topic):
        return topic
    return hashlib.blake2b(topic.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _remove_abandoned(folder: Path) -> None:
    """Remove hidden pipes of subscribers that died before they gave them a name."""
    with contextlib.suppress(OSError):
        for hidden in folder.glob(f"{_HIDDEN_PREFIX}*"):
            if time.time() - hidden.lstat().st_mtime > _HIDDEN_TIMEOUT:
                hidden.unlink()


def _remove_unread(folder: Path, topic: str) -> None:
    """Remove pipes whose subscribers were killed.

    A process that notifies does so as well, but a topic may have no commits for years. A pipe with
    a name has a reader for as long as its process lives. Few are looked at, for subscribers may be
    many.
    """
    with contextlib.suppress(OSError), Folder.trusted(folder) as opened:
        names = (each for each in opened.names() if each.startswith(f"{topic}."))
        for name in itertools.islice(names, _MAX_LOOKS):
            # Opening for writing fails with ENXIO when the pipe has no reader; then it is removed.
            pipe = _reach(opened, name)
            if pipe >= 0:
                os.close(pipe)


def _after_fork_in_child() -> None:
    global _lock  # noqa: PLW0603 - a thread that only the parent has may hold it
    _lock = threading.Lock()
    for subscription in _subscriptions:
        subscription.leave_to_parent()
    _subscriptions.clear()
    for notifier in list(_notifiers):
        notifier.renew_lock()


os.register_at_fork(after_in_child=_after_fork_in_child)


def write_byte(pipe: int) -> bool:
    """Wake the reader of a pipe; False when it has none any more. A full pipe wakes it already."""
    try:
        os.write(pipe, b"!")
    except BlockingIOError:
        return True
    except OSError:
        return False
    return True


class FifoWriters:
    """The writing ends of every pipe of one topic. Used by one thread at a time."""

    def __init__(
        self,
        folder: Path,
        topic: str,
        *,
        max_open_pipes: int = MAX_OPEN_PIPES,
        timestamp_resolution: float = TIMESTAMP_RESOLUTION,
    ) -> None:
        self._folder = str(folder)
        self._prefix = f"{topic}."
        self._max_open_pipes = max_open_pipes
        self._resolution_ns = int(timestamp_resolution * 1e9)
        self._seen = 0
        self._open: dict[str, int] = {}
        self._further: list[str] = []

    def write_all(self) -> None:
        """Wake the reader of each pipe."""
        if not self._seen and not os.access(self._folder, os.F_OK):
            return  # no process has ever subscribed
        try:
            changed = os.stat(self._folder).st_mtime_ns  # noqa: PTH116 - a third of Path's time
        except OSError:
            self.close()
            return
        if changed != self._seen:
            self._list_folder(changed)
        stale = [name for name, pipe in self._open.items() if not write_byte(pipe)]
        if not stale and not self._further:
            return
        try:
            with Folder.open(Path(self._folder)) as folder:
                self._drop(folder, stale)
                self._write_further(folder)
        except OSError:
            self.close()

    def _drop(self, folder: Folder, stale: list[str]) -> None:
        for name in stale:
            os.close(self._open.pop(name))
            _remove(folder, name)

    def _write_further(self, folder: Folder) -> None:
        for name in self._further:
            pipe = _reach(folder, name)
            if pipe >= 0:
                write_byte(pipe)
                os.close(pipe)

    def close(self) -> None:
        """Close all pipes and know nothing of the folder."""
        for pipe in self._open.values():
            os.close(pipe)
        self._open.clear()
        self._further.clear()
        self._seen = 0

    def _list_folder(self, changed: int) -> None:
        # Writing to a pipe whose reader has gone kills a process that left SIGPIPE to the system;
        # opening it tells the same without harm. So such a process keeps no pipe open.
        is_fragile = signal.getsignal(signal.SIGPIPE) == signal.SIG_DFL
        if is_fragile:
            self.close()
        try:
            with Folder.trusted(Path(self._folder)) as folder:
                self._find(folder)
        except OSError:  # gone, or of another user: subscribers have been warned
            self.close()
            return
        is_settled = time.time_ns() - changed > self._resolution_ns
        self._seen = changed if is_settled and not is_fragile else 0

    def _find(self, folder: Folder) -> None:
        names = {each for each in folder.names() if each.startswith(self._prefix)}
        for name in self._open.keys() - names:
            os.close(self._open.pop(name))
        fresh = sorted(names - self._open.keys())
        room = self._max_open_pipes - len(self._open)
        self._further = fresh[room:]
        for name in fresh[:room]:
            pipe = _reach(folder, name)
            if pipe >= 0:
                self._open[name] = pipe
            else:
                self._further.append(name)  # gone, or there were no descriptors: tried again


def _reach(folder: Folder, name: str) -> int:
    try:
        return folder.open_pipe(name, os.O_WRONLY)
    except OSError as error:
        if error.errno == errno.ENXIO:
            _remove(folder, name)
        return -1


def _remove(folder: Folder, name: str) -> None:
    """Remove a pipe without a reader: names are never used twice, so its subscriber is gone."""
    with contextlib.suppress(OSError):
        folder.unlink(name)
