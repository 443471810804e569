"""The folder that a zone lives in: its lock, where its node listens, and the mark of a restore.

Between the moment in which the old folder is moved aside and the one in which the restored one gets
its name, there is nothing in its place. A node that was started then would begin an empty log, and
acknowledge facts that the restored log does not have. The mark prevents that, also after the
restore was killed, and says to the next restore what was left behind.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from ergon_framework.engine.atfork import renew_after_fork
from ergon_framework.errors import ConfigurationError, StoreUnavailableError
from ergon_framework.storage.objectstore.disk import is_at, is_locked, sync_file, sync_folder
from ergon_framework.storage.secure_files import UnsafeFileError, make_folder, open_file

SUFFIX = ".restoring"


class Unfinished(msgspec.Struct, frozen=True):
    """How far a restore has come."""

    draft: str = ""
    """Where the copy is made."""
    aside: str = ""
    """Where the folder that was there before is, or will be."""
    is_armed: bool = False
    """Whether no node may start with the folder as it is now."""


class RestoreMark:
    """The mark that a restore puts on a data folder while it works there."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor
        self.earlier = _read(os.pread(descriptor, 1 << 16, 0))
        """The mark of an earlier restore that was interrupted."""

    def say(self, unfinished: Unfinished) -> None:
        """Write the mark so that it survives a power cut."""
        text = msgspec.json.encode(unfinished)
        os.pwrite(self._descriptor, text, 0)
        # Between the two, a reader finds old bytes behind the new text and takes it for torn, which
        # keeps a node away.
        os.ftruncate(self._descriptor, len(text))
        sync_file(self._descriptor)
        # The name of the mark has to survive, too.
        sync_folder(self.path.parent)

    def remove(self) -> None:
        """Remove the mark: the restore has ended, or has changed nothing."""
        self.path.unlink(missing_ok=True)
        sync_folder(self.path.parent)


def mark_of(folder: Path) -> Path:
    """Where the mark of a folder is."""
    return folder.with_name(folder.name + SUFFIX)


@contextlib.contextmanager
def held(folder: Path) -> Iterator[RestoreMark]:
    """The mark of a folder for one restore at a time."""
    path = mark_of(folder)
    try:
        descriptor = take_lock(path)
    except OSError as error:
        raise StoreUnavailableError(
            f"{path} cannot be written: {error.strerror or error}",
            remedy="see that the folder above the zone's may be written",
        ) from error
    if descriptor is None:
        raise ConfigurationError(
            f"another restore of {folder} is under way", remedy="wait until it has ended"
        )
    try:
        yield RestoreMark(path, descriptor)
    finally:
        os.close(descriptor)


def refuse_half_restored(folder: Path, file: str) -> None:
    """Refuse a folder whose restore has not ended; ``file`` is what a whole one has."""
    path = mark_of(folder)
    try:
        found = _read(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return
    # The restore had come to its end, and only its mark was not removed.
    has_its_name = (folder / file).is_file() and not os.path.lexists(found.draft)
    if not found.is_armed or has_its_name:
        return
    back = _way_back(folder, found)
    raise ConfigurationError(
        f"a restore of {folder} has not ended",
        remedy="run the same `ergon boundary restore` again"
        + (f"; or {back}, and remove {path}" if back else ""),
    )


def _way_back(folder: Path, found: Unfinished) -> str:
    """How to have again what was there before, or nothing: the restore may have moved it or not."""
    if not found.aside:
        return ""
    if os.path.lexists(found.aside):
        return f"move {found.aside} back to {folder}"
    return f"keep {folder} as it was: remove {found.draft}"


def take_lock(path: Path) -> int | None:
    """A file that was opened, or made, and locked; None when another process has it."""
    # Again until the file that is locked is the one at the path: a mark is removed by its holder.
    while True:
        descriptor = open_file(path, os.O_RDWR | os.O_CREAT)
        if is_locked(descriptor):
            os.close(descriptor)
            return None
        if is_at(path, descriptor):
            return descriptor
        os.close(descriptor)  # it was removed between opening and locking


def _read(text: bytes) -> Unfinished:
    try:
        return msgspec.json.decode(text, type=Unfinished) if text else Unfinished()
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return Unfinished(is_armed=True)  # it was torn when it was written


FILE, OBJECTS, LOCK = "facts.db", "objects", "node.lock"
ADDRESS, REQUEST = "node.address", "node.next"


class FolderInUseError(ConfigurationError):
    """Another process has the folder of a zone."""


class DataFolder:
    """A zone's folder, locked for this process."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor
        renew_after_fork(self)

    @classmethod
    def lock(cls, path: str | Path, *, is_restored: bool = False) -> DataFolder:
        """Take the folder for this process, or say who has it.

        A restore that was cut off is refused to everybody but the one who restores it again.
        """
        folder = Path(path).absolute()
        if not is_restored:
            refuse_half_restored(folder, FILE)
        try:
            make(folder)
            descriptor = open_file(folder / LOCK, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            where = error.filename if isinstance(error, UnsafeFileError) else folder
            raise ConfigurationError(
                f"{where} cannot be used: {error.strerror}",
                remedy="name a folder that this user may write to, and nobody else",
            ) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            # Read from the file that is locked: its holder writes its process id into it.
            holder = os.read(descriptor, 32).decode("ascii", "replace").strip()
            os.close(descriptor)
            raise FolderInUseError(
                f"{folder} is in use by another node"
                + (f", process {holder}" if holder.isdigit() else ""),
                remedy="stop that one first, or name another folder",
            ) from None
        # For people who are refused; the lock itself is what counts.
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        return cls(folder, descriptor)

    def renew(self) -> None:
        """In a process that was just forked: the lock is the parent's, and ends with it."""
        self._leave()

    def close(self) -> None:
        """Release the folder. May be called twice."""
        if self._descriptor >= 0:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)  # also for children that have it too
        self._leave()

    def _leave(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def make(folder: Path) -> None:
    """Create the folder so that its name survives a power cut, like everything in it."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    make_folder(folder, parents=True)
    for each in missing:
        # Each folder that was made is a name in the one above it.
        sync_folder(each.parent)


# ---- the node that has the folder, and the one that waits for it ---------------------------------


class ListeningNode(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where the node that has a folder answers, for the processes of this machine."""

    url: str
    token: str = ""
    """The token that callers must send; empty if the node asks for certificates, or for nothing."""
    is_guest: bool = False
    """Whether the node stops as soon as another node waits for the folder."""
    zone: str = ""
    """Whose facts it takes; empty when an earlier version wrote it without this field."""


def announce(folder: Path, node: ListeningNode) -> None:
    """Leave word where the node of a folder answers; only its holder does that.

    The file need not survive a power cut: it says something about a process that runs.
    """
    draft = folder / f"{ADDRESS}.new"
    descriptor = open_file(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        os.write(descriptor, msgspec.json.encode(node))
    finally:
        os.close(descriptor)
    # Replaced as a whole: readers look at any time.
    draft.replace(folder / ADDRESS)


def withdraw(folder: Path) -> None:
    """Withdraw the announcement, if there is one."""
    with contextlib.suppress(OSError):
        (folder / ADDRESS).unlink()


def listening_node(folder: Path, zone: str) -> ListeningNode | None:
    """The node that announced itself last. It may have died since: only the lock shows that.

    ``ConfigurationError`` when the folder is that of another zone, as if it were opened: the node
    cannot know what its callers meant, and would take their facts into its own log.
    """
    try:
        found = msgspec.json.decode((folder / ADDRESS).read_bytes(), type=ListeningNode)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None
    if found.zone not in ("", zone):
        raise ConfigurationError(
            f"{folder} belongs to the zone {found.zone!r}, not to {zone!r}",
            remedy="name that zone, or another place",
        )
    return found


class FolderRequest:
    """Held by a node that waits for a folder: a guest that has it leaves. A death lets go of it."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        renew_after_fork(self)

    def renew(self) -> None:
        """In a process that was just forked: the parent waits, not its child."""
        self.close()

    @classmethod
    def hold(cls, folder: Path) -> FolderRequest | None:
        """Ask for the folder; None when another one waits already."""
        make(folder)
        descriptor = open_file(folder / REQUEST, os.O_RDWR | os.O_CREAT)
        if is_locked(descriptor):
            os.close(descriptor)
            return None
        return cls(descriptor)

    def close(self) -> None:
        """Wait no more. Closing twice is fine."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def is_requested(folder: Path) -> bool:
    """Whether a node waits for the folder."""
    return _is_held(folder / REQUEST)


def is_in_use(folder: Path) -> bool:
    """Whether a process has the folder, for callers that wait for it: the check opens nothing
    else.
    """
    return _is_held(folder / LOCK)


def _is_held(path: Path) -> bool:
    try:
        descriptor = open_file(path, os.O_RDWR)
    except OSError:
        return False
    try:
        # Shared: two who look at once must not take each other for the holder.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False
