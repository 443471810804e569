"""Locks against a second move of the same store at the same time.

A move that fails opens the stores again that it had shut, and so does the way back. A second one of
the same store would undo what the first one has done. So each takes a lock on every source that it
shuts or opens again, wherever the source is, and a process that is killed lets go of it:

- an SQLite file has a file beside it, which the kernel unlocks;
- PostgreSQL has an advisory lock, which ends with its connection;
- Redis and NATS keep a lease, which runs out when nobody renews it.

A lease, or a connection, may be lost while the move itself goes on: after the process was stopped
for a while, say. :meth:`MoveLock.refuse_lost` asks before a store is shut or opened.
"""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from ergon_framework.app.move.endpoints import Asked, zone_meant
from ergon_framework.boundary import data_folder
from ergon_framework.boundary.store_urls import open_fact_store
from ergon_framework.engine.clocks import SYSTEM_CLOCK
from ergon_framework.errors import StoreError, StoreUnavailableError
from ergon_framework.jobs.store_urls import open_store
from ergon_framework.ports.transfer import MoveLease, MoveState, records_of
from ergon_framework.storage.incoming import Announcement

MOVING = ".moving"
"""What the name of a file is followed by while a move, or the way back from one, changes it."""
LEASE_TIME = 15.0
"""Seconds after which a server takes a move for dead that has not renewed its lease."""


@dataclass
class MoveLock:
    """The locks of one move."""

    _checks: list[Callable[[], None]] = field(default_factory=list)

    def add(self, check: Callable[[], None]) -> None:
        """Add a lock, by the function that raises if it was lost."""
        self._checks.append(check)

    def refuse_lost(self) -> None:
        """Raise ``StoreError`` if another move may have begun meanwhile."""
        for check in self._checks:
            check()


@contextmanager
def alone(several: Iterable[Asked]) -> Iterator[MoveLock]:
    """Lock the sources of moves that shut them or open them again; refused while another has one.

    In one order, whatever the order of the moves is: of two commands that want the same stores, one
    gets all of them.
    """
    lock = MoveLock()
    with ExitStack() as held:
        # Several moves may have the same source, which is locked once.
        wanted = {_key(asked): asked for asked in several}
        for _, asked in sorted(wanted.items(), key=lambda each: each[0]):
            if asked.source.file is not None:
                _lock_file(asked.source.file, held)
            elif asked.source.is_database:
                _lock_database(asked, lock, held)
            else:
                _take_lease(asked, lock, held)
        yield lock


def _key(asked: Asked) -> tuple[str, str]:
    """What is locked at once: a file, or of a server the work or one zone."""
    name = asked.source.name if asked.source.file is None else str(asked.source.file.resolve())
    return name, (asked.zone or "") if asked.source.file is None else ""


def _under_way(name: str, others: str = "") -> StoreError:
    return StoreError(
        f"another move of {name}, or the way back from one, is under way{others}",
        remedy="wait until it has ended, and see what it says",
    )


def _lock_file(file: Path, held: ExitStack) -> None:
    real = file.resolve()  # by whatever link it was named, it has one lock
    path = real.with_name(f"{real.name}{MOVING}")
    try:
        descriptor = data_folder.take_lock(path)
    except OSError as error:
        raise StoreError(
            f"{path} cannot be written: {error.strerror or error}",
            remedy="see that this user may write to the folder of FROM",
        ) from error
    if descriptor is None:
        raise _under_way(str(file))
    held.callback(os.close, descriptor)
    # Callbacks run last first, so it is removed while it is locked: removed after that, it might be
    # the lock file of the next move.
    held.callback(path.unlink, missing_ok=True)


# ---- PostgreSQL ---------------------------------------------------------------------------------


def _lock_database(asked: Asked, lock: MoveLock, held: ExitStack) -> None:
    """Take an advisory lock on a connection of its own."""
    from ergon_framework.storage.postgres.database import SessionLock

    name = asked.source.name
    taken = SessionLock(asked.source.url, f"move {asked.zone or ''}")
    held.callback(taken.close)
    if not taken.acquire():
        raise _under_way(name)
    lock.add(taken.refuse_lost)


# ---- Redis and NATS -----------------------------------------------------------------------------


def _take_lease(asked: Asked, lock: MoveLock, held: ExitStack) -> None:
    """Hold a lease in the store itself, and renew it until the move has ended."""
    store = _lease_of(asked, held)
    if store is None:
        return
    token, name = secrets.token_hex(8), asked.source.name
    if not store.lease_move(token, LEASE_TIME):
        raise _under_way(name, f", or was killed within the last {LEASE_TIME:.0f} seconds")
    ended = threading.Event()

    def renew() -> None:
        while not ended.wait(LEASE_TIME / 3):
            # A third of the lease between two: it survives a renewal that fails.
            with suppress(StoreError):  # the next one may come through, and the check will tell
                store.lease_move(token, LEASE_TIME, renews=True)

    def check() -> None:
        if not store.lease_move(token, LEASE_TIME, renews=True):
            raise StoreUnavailableError(
                f"this move was stopped, or cut off from {name}, for so long that another one may"
                " have begun",
                remedy="see that no other one is under way",
            )

    thread = SYSTEM_CLOCK.spawn("ergon-move-lease", renew)

    def give_back() -> None:
        ended.set()
        # First: a renewal after the lease was given back would take it again.
        thread.join()
        with suppress(StoreError):  # it runs out by itself
            store.lease_move(token, 0.0, renews=True)

    held.callback(give_back)
    lock.add(check)


def _lease_of(asked: Asked, held: ExitStack) -> MoveLease | None:
    """The source, opened for its lease alone; None where there is nothing to be moved."""
    if asked.is_zone:
        zone = zone_meant(asked.zone, asked.source)
        records = records_of(
            held.enter_context(closing(open_fact_store(asked.source.url, zone=zone)))
        )
    else:
        # Only read at first: opened for writing, an empty store would get its tables.
        with closing(open_store(asked.source.url, read_only=True)) as looked:
            if not getattr(looked, "is_made", True):
                return None
        store = open_store(asked.source.url, half_moved=True)
        records = records_of(held.enter_context(closing(store)))
    return records if isinstance(records, MoveLease) else None


@contextmanager
def announced_files(several: Sequence[Asked], source: str = "") -> Iterator[Announcement]:
    """Announce the files that the moves are going to make; withdrawn if the moves are refused.

    Every other program refuses an announced file, from before it exists. A file that exists may be
    in use, and is announced later, when nothing stands against the moves. ``source`` is what the
    stores become a copy of, where that is not what the moves name as FROM.
    """
    # The last first, as when they are marked.
    meant = [each for each in reversed(several) if not each.is_trial and each.target.file]
    announced = Announcement(_expected(meant[0], source) if meant else MoveState())
    made: list[Path] = []
    try:
        for each in meant:
            made += _made_for(each)
        announced.announce_new(
            list(dict.fromkeys(file for each in meant if (file := each.target.file)))
        )
        yield announced
    except BaseException:
        announced.cancel()
        for folder in reversed(made):
            with suppress(OSError):  # something is in it by now
                folder.rmdir()
        raise


def _made_for(asked: Asked) -> list[Path]:
    """Make the folder of a zone that is to be filled; the folders that were not there, outer first.

    Without its folder nothing can be said beside its file.
    """
    if asked.target.file is None or not asked.is_zone:
        return []
    folder = asked.target.file.parent
    data_folder.refuse_half_restored(folder, data_folder.FILE)
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    with suppress(OSError):  # whoever locks the folder says so
        data_folder.make(folder)
    return missing[::-1]


def _expected(asked: Asked, source: str) -> MoveState:
    """What a file is refused with before its part is known: which command fills it."""
    what = "facts" if asked.is_zone else "jobs"
    return MoveState(
        source or f"{what} of {asked.source.name}",
        token=secrets.token_hex(8),
        program=asked.program,
    )
