"""The one way to open files and folders that belong to the product, safe beside other local users.

- **No link is followed** in the last part of a path. In a folder that others may write to, a file
  with several hard links is refused as well.
- **Kind and owner are checked on the open file**, not before: it cannot be exchanged in between. A
  file in a folder that everybody may write to must belong to this process's user, to root or to the
  folder's owner; in any other folder, the operator has decided who may write.
- **Private whatever the umask**: 0600 and 0700. A folder that its group may write to, and others
  may not, is meant for that group: what is made in it is 0660 and 0770, provided that it gets the
  folder's group (setgid sees to that). The folder is the setting: all processes see the same.
- **Older files are tightened** when their owner opens them, and a warning says so.

Refusals are an :class:`UnsafeFileError`, an ``OSError`` whose text says what is wrong and what to
do. An SQLite file is never opened here: closing it would drop the locks SQLite holds on it.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import stat
import sys
from pathlib import Path
from typing import Self

logger = logging.getLogger("ergon.storage")

PRIVATE_FILE, PRIVATE_FOLDER = 0o600, 0o700
_GROUP_FILE, _GROUP_FOLDER = 0o660, 0o770
# Not blocking: opening a named pipe that another user put there would wait for its other end.
_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_LINK = frozenset({errno.ELOOP, errno.EMLINK})  # what systems answer to O_NOFOLLOW
_ALLOWED_NOT = frozenset({errno.EPERM, errno.EACCES, errno.EROFS, errno.ENOTSUP, errno.EINVAL})
_SIDE_FILES = ("-wal", "-shm", "-journal")
_MAX_TRIES = 10


class UnsafeFileError(PermissionError):
    """A file or folder that another user may have put there; it was not used."""

    def __init__(self, path: str | Path, reason: str) -> None:
        super().__init__(errno.EPERM, reason, str(path))


class Folder:
    """An open folder: what is in it is reached through it, whatever its name leads to later.

    Any thread may call any method; close it after the last call.
    """

    def __init__(self, path: Path, fd: int) -> None:
        self.path = path
        self.is_new = False
        """Whether :meth:`ensure` made it."""
        self.is_ours = False
        """Whether no other user has a reason to put anything into it."""
        self._fd = fd

    @property
    def is_in_place(self) -> bool:
        """Whether its name still leads to it: it was not deleted, and nothing mounted there."""
        try:
            there, here = self.path.stat(), self.stat()
        except OSError:
            return False
        return (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino)

    @classmethod
    def open(cls, path: Path, *, follow: bool = False) -> Folder:
        """A folder that is there. With ``follow`` it may be a link: one that the operator named."""
        flags = _FOLDER_FLAGS if follow else _FOLDER_FLAGS | os.O_NOFOLLOW
        try:
            return cls(path, os.open(path, flags))
        except OSError as error:
            # Linux says ENOTDIR of a link that must be a folder and must not be followed.
            if not follow and (error.errno in _LINK or _is_link(path)):
                raise _linked(path) from error
            raise

    @classmethod
    def ensure(cls, path: Path, *, parents: bool = False) -> Folder:
        """A folder of ours in a folder of the operator's: made if missing, else checked."""
        is_new = make_folder(path, parents=parents)
        folder = cls._checked(path, is_private=False)
        folder.is_new = is_new
        return folder

    @classmethod
    def ensure_private(cls, path: Path) -> Folder:
        """Like ``ensure``, for a folder inside one that others may write to: private to us."""
        make_folder(path)
        return cls._checked(path, is_private=True)

    @classmethod
    def trusted(cls, path: Path) -> Folder:
        """Open an existing folder of ours; checks its owner and mode, and changes neither."""
        folder = cls.open(path)
        try:
            found = folder.stat()
            _refuse_foreign(found, path.parent.stat(), path)
            _refuse_open_to_all(found, path)
        except BaseException:
            folder.close()
            raise
        folder.is_ours = True
        return folder

    @classmethod
    def _checked(cls, path: Path, *, is_private: bool) -> Folder:
        folder = cls.open(path)
        try:
            found, parent = folder.stat(), path.parent.stat()
            if is_private:
                _refuse_other_owner(found, path)
                wanted = PRIVATE_FOLDER
            else:
                _refuse_foreign(found, parent, path)
                wanted = _folder_mode(found, parent)
            _tighten(folder._fd, found, wanted, path)  # noqa: SLF001 - of this very class
            # One of ours that stays open lies in a file system that has no modes.
            _refuse_open_to_all(folder.stat(), path)
        except BaseException:
            folder.close()
            raise
        folder.is_ours = True
        return folder

    def stat(self) -> os.stat_result:
        """What the system knows about it."""
        return os.fstat(self._fd)

    def names(self) -> list[str]:
        """The names in it."""
        return os.listdir(self._fd)  # noqa: PTH208 - by descriptor

    def open_file(
        self, name: str, flags: int, *, may_be_linked: bool = False, is_public: bool = False
    ) -> int:
        """Open a regular file in it; made, if the flags say so, with the folder's access.

        With ``is_public`` the umask says who may read it: for what is handed to other programs.
        """
        path = self.path / name
        fd, is_new = _create_or_open(self._fd, name, flags | _FLAGS, path, is_public)
        try:
            found, folder = os.fstat(fd), self.stat()
            _refuse(found, folder, path)
            if self.is_ours:
                _refuse_planted(found, folder, path)
            if not may_be_linked:
                _refuse_linked_often(found, folder, path)
            if is_new and not is_public:
                _settle(fd, found, _file_mode(found, folder))
            elif not is_public and flags & (os.O_WRONLY | os.O_RDWR):
                _tighten(fd, found, _file_mode(found, folder), path)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def open_delivered(self, name: str) -> int:
        """Open, for reading, a regular file that another user may have put into it.

        Where others may write, one with several names is refused: it may be a second name of a file
        that they cannot read.
        """
        path = self.path / name
        fd = _opened(self._fd, name, os.O_RDONLY | _FLAGS, path)
        try:
            _refuse_delivered(os.fstat(fd), self.stat(), path)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def is_deliverable(self, name: str) -> bool:
        """Whether :meth:`open_delivered` would take it; ``UnsafeFileError`` says why not."""
        _refuse_delivered(self.look(name), self.stat(), self.path / name)
        return True

    def look(self, name: str) -> os.stat_result:
        """What is there under a name; a link is not followed."""
        return os.stat(name, dir_fd=self._fd, follow_symlinks=False)

    def replace(self, name: str, target: str) -> None:
        """Rename a file in the folder, replacing a file of the new name."""
        os.replace(name, target, src_dir_fd=self._fd, dst_dir_fd=self._fd)

    def unlink(self, name: str) -> None:
        """Remove a name."""
        os.unlink(name, dir_fd=self._fd)

    def sync(self) -> None:
        """Answer when its names are on the medium."""
        os.fsync(self._fd)

    def make_pipe(self, name: str) -> None:
        """Make a named pipe in it, with the permissions of the folder."""
        # Some versions of macOS cannot make one relative to an open folder.
        if os.mkfifo in os.supports_dir_fd:
            os.mkfifo(name, PRIVATE_FILE, dir_fd=self._fd)
        else:
            os.mkfifo(self.path / name, PRIVATE_FILE)

    def open_pipe(self, name: str, flags: int) -> int:
        """Open a named pipe in it, and nothing else."""
        path = self.path / name
        fd = _opened(self._fd, name, flags | _FLAGS, path)
        try:
            found, folder = os.fstat(fd), self.stat()
            _refuse_all_but_pipes(found, path)
            _refuse_foreign(found, folder, path)
            if self.is_ours:
                _refuse_planted(found, folder, path)
            # Only the owner may change the mode. A pipe of another user was accepted as it is.
            if found.st_uid == os.geteuid():
                _settle(fd, found, _file_mode(found, folder))
        except BaseException:
            os.close(fd)
            raise
        return fd

    def give_to(self, path: Path) -> None:
        """Change the owner of a folder that root created to the owner of ``path``."""
        give_to(self._fd, path)

    def close(self) -> None:
        """Close the folder. May be called twice."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def open_file(path: Path, flags: int, *, may_be_linked: bool = False) -> int:
    """Open a regular file of ours; made, if the flags say so, with its folder's access.

    With ``may_be_linked`` it may have several hard links: for content that is known by its digest.
    """
    with Folder.open(path.parent, follow=True) as folder:
        return folder.open_file(path.name, flags, may_be_linked=may_be_linked)


def make_folder(path: Path, *, parents: bool = False) -> bool:
    """Make a folder for its owner, or for the group its parent is for; whether it was made."""
    if parents and not path.parent.is_dir():
        make_folder(path.parent, parents=True)
    try:
        path.mkdir(PRIVATE_FOLDER)
    except FileExistsError:
        return False
    # If somebody has exchanged it in between, it is refused when it is opened for use.
    with contextlib.suppress(FileNotFoundError, UnsafeFileError), Folder.open(path) as folder:
        found = folder.stat()
        if found.st_uid == os.geteuid():
            _settle(folder._fd, found, _folder_mode(found, path.parent.stat()))  # noqa: SLF001
    return True


def refuse_foreign_link(path: Path) -> None:
    """Refuse a symbolic link that another user could have made. An operator's own link is fine."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        found = path.lstat()
        if stat.S_ISLNK(found.st_mode):
            _refuse_foreign(found, path.parent.stat(), path)


def check_database(path: Path) -> None:
    """Refuse an SQLite file, or a log beside it, that another user may have put there."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        folder = path.parent.stat()
        if path.is_dir():
            return  # SQLite refuses it, and says so better
        for suffix in ("", *_SIDE_FILES):
            with contextlib.suppress(FileNotFoundError):
                side = Path(f"{path}{suffix}")
                found = side.lstat()
                _refuse(found, folder, side)
                _refuse_linked_often(found, folder, side)


def prepare_database(path: Path, *, may_create: bool) -> None:
    """Check an SQLite file; make it, empty and private, if it is missing and that is asked for.

    SQLite gives the files beside it the mode of the file itself.
    """
    check_database(path)
    if may_create and not path.exists():
        # SQLite would make it with the umask's mode. If that fails, SQLite reports why.
        with contextlib.suppress(OSError):
            os.close(open_file(path, os.O_RDWR | os.O_CREAT | os.O_EXCL))


def tighten_database(path: Path) -> None:
    """Close a database that an older version made to other users, and the logs beside it.

    To be called when SQLite has taken it for a database: a mistyped path may lead to any file.
    """
    with contextlib.suppress(FileNotFoundError):
        folder = path.parent.stat()
        for suffix in ("", *_SIDE_FILES):
            with contextlib.suppress(FileNotFoundError):
                _tighten_in_place(Path(f"{path}{suffix}"), folder)


def give_to(fd: int, path: Path) -> None:
    """Change the owner of a file that root created to the owner of ``path``, as SQLite does."""
    if os.geteuid() == 0:
        with contextlib.suppress(OSError):
            owner = path.stat()
            os.fchown(fd, owner.st_uid, owner.st_gid)


def is_ours_alone(folder: os.stat_result) -> bool:
    """Whether only this user and root can put anything into a folder."""
    others = folder.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return not others and folder.st_uid in (os.geteuid(), 0)


# ---- opening ------------------------------------------------------------------------------------


def _create_or_open(
    folder_fd: int, name: str, flags: int, path: Path, is_public: bool
) -> tuple[int, bool]:
    """Create a file or open it; returns whether it was created. Not in one step: a file that was
    there already must not pass for a new one.
    """
    if not flags & os.O_CREAT:
        return _opened(folder_fd, name, flags, path), False
    for _ in range(_MAX_TRIES):
        try:
            mode = 0o666 if is_public else PRIVATE_FILE
            return _opened(folder_fd, name, flags | os.O_EXCL, path, mode), True
        except FileExistsError:
            if flags & os.O_EXCL:
                raise
        with contextlib.suppress(FileNotFoundError):  # removed in between: make it, then
            return _opened(folder_fd, name, flags & ~os.O_CREAT, path), False
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))


def _opened(folder_fd: int, name: str, flags: int, path: Path, mode: int = PRIVATE_FILE) -> int:
    try:
        return os.open(name, flags, mode, dir_fd=folder_fd)
    except OSError as error:
        if error.errno in _LINK:
            raise _linked(path) from error
        error.filename = str(path)
        raise


# ---- whom to trust ------------------------------------------------------------------------------


def _refuse(found: os.stat_result, folder: os.stat_result, path: Path) -> None:
    if stat.S_ISLNK(found.st_mode):
        raise _linked(path)
    if not stat.S_ISREG(found.st_mode):
        raise UnsafeFileError(path, f"it is {_kind(found)} and not a regular file: remove it")
    _refuse_foreign(found, folder, path)


def _refuse_delivered(found: os.stat_result, folder: os.stat_result, path: Path) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise UnsafeFileError(path, f"it is {_kind(found)} and not a regular file")
    if found.st_nlink > 1 and not is_ours_alone(folder):
        raise UnsafeFileError(path, "it has several hard links, in a folder others may write to")


def _refuse_linked_often(found: os.stat_result, folder: os.stat_result, path: Path) -> None:
    is_doubtful = folder.st_mode & stat.S_IWOTH or folder.st_uid not in (os.geteuid(), 0)
    if is_doubtful and found.st_nlink > 1:
        raise UnsafeFileError(
            path, "it has several hard links, in a folder that others may write to: remove it"
        )


def _refuse_all_but_pipes(found: os.stat_result, path: Path) -> None:
    if not stat.S_ISFIFO(found.st_mode):
        raise UnsafeFileError(path, f"it is {_kind(found)} and not a named pipe: remove it")


def _refuse_foreign(found: os.stat_result, folder: os.stat_result, path: Path) -> None:
    if not folder.st_mode & stat.S_IWOTH:
        return
    if found.st_uid not in (os.geteuid(), 0, folder.st_uid):
        raise UnsafeFileError(
            path,
            f"it belongs to {_user(found.st_uid)}, in a folder that everybody may write to:"
            f" remove it, or name a folder of your own",
        )


def _refuse_planted(found: os.stat_result, folder: os.stat_result, path: Path) -> None:
    """Refuse a file of another user in a folder of ours: the folder may have been open to everybody
    once.
    """
    is_known = found.st_uid in (os.geteuid(), 0, folder.st_uid)
    if not is_known and not _is_for_group(found, folder):
        raise UnsafeFileError(
            path, f"it belongs to {_user(found.st_uid)}, who has no business there: remove it"
        )


def _refuse_other_owner(found: os.stat_result, path: Path) -> None:
    if found.st_uid not in (os.geteuid(), 0):
        raise UnsafeFileError(
            path,
            f"it belongs to {_user(found.st_uid)} and not to this process's user: see what is in"
            f" it, then `chown -R {os.geteuid()} {path}`, or remove it",
        )


def _refuse_open_to_all(found: os.stat_result, path: Path) -> None:
    if found.st_uid != os.geteuid() and found.st_mode & stat.S_IWOTH:
        raise UnsafeFileError(path, f"everybody may write to it: chmod o-w {path}")


def _linked(path: Path) -> UnsafeFileError:
    return UnsafeFileError(path, "it is a symbolic link, and none is followed: remove it")


def _is_link(path: Path) -> bool:
    try:
        return stat.S_ISLNK(path.lstat().st_mode)
    except OSError:
        return False


def _user(uid: int) -> str:
    import pwd

    try:
        return f"user {pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"user {uid}"


_KINDS = (
    (stat.S_ISLNK, "a symbolic link"),
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISREG, "a regular file"),
)


def _kind(found: os.stat_result) -> str:
    return next((name for test, name in _KINDS if test(found.st_mode)), "a device")


# ---- modes --------------------------------------------------------------------------------------


def _is_for_group(found: os.stat_result, folder: os.stat_result) -> bool:
    """Whether what lies in a folder is to be shared with its group."""
    is_shared = folder.st_mode & stat.S_IWGRP and not folder.st_mode & stat.S_IWOTH
    return bool(is_shared) and found.st_gid == folder.st_gid


def _file_mode(found: os.stat_result, folder: os.stat_result) -> int:
    return _GROUP_FILE if _is_for_group(found, folder) else PRIVATE_FILE


def _folder_mode(found: os.stat_result, parent: os.stat_result) -> int:
    is_shared = _is_for_group(found, parent) or _is_for_group(found, found)
    return _GROUP_FOLDER if is_shared else PRIVATE_FOLDER


def _mode_for(found: os.stat_result, wanted: int) -> int:
    """The group gets what the owner has, if it is to get anything; others get nothing."""
    owner = found.st_mode & 0o700
    kept = stat.S_IMODE(found.st_mode) & ~0o777  # setgid of a folder, for one
    return kept | owner | ((owner >> 3) & wanted)


def _settle(fd: int, found: os.stat_result, wanted: int) -> None:
    """What we have just made gets its mode, whatever the umask left of it."""
    mode = (stat.S_IMODE(found.st_mode) & ~0o777) | wanted
    if stat.S_IMODE(found.st_mode) != mode:
        _change(fd, mode)


def _tighten(fd: int, found: os.stat_result, wanted: int, path: Path) -> None:
    mode = _mode_for(found, wanted)
    if _may_change(found, mode):
        _change(fd, mode)
        _tell(path, found, mode)


def _tighten_in_place(path: Path, folder: os.stat_result) -> None:
    found = path.lstat()
    mode = _mode_for(found, _file_mode(found, folder))
    if not stat.S_ISREG(found.st_mode) or not _may_change(found, mode):
        return
    try:
        _change_unopened(path, found, mode)
    except OSError as error:
        if error.errno not in _ALLOWED_NOT:
            raise
        return
    _tell(path, found, mode)


def _may_change(found: os.stat_result, mode: int) -> bool:
    return stat.S_IMODE(found.st_mode) != mode and os.geteuid() in (found.st_uid, 0)


def _change(fd: int, mode: int) -> None:
    """Some file systems have no modes of their own: they are as private as their mount."""
    try:
        os.fchmod(fd, mode)
    except OSError as error:
        if error.errno not in _ALLOWED_NOT:
            raise


def _change_unopened(path: Path, found: os.stat_result, mode: int) -> None:
    """Change the mode of the very file that was looked at, without opening it for reading."""
    if sys.platform != "linux":
        # Elsewhere there is no descriptor without opening; the link is at least not followed.
        os.chmod(path, mode, follow_symlinks=False)  # noqa: PTH101 - the same, said as here
        return
    fd = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)  # drops no lock when closed
    try:
        # The name may lead to another file by now.
        if os.path.samestat(os.fstat(fd), found):
            os.chmod(f"/proc/self/fd/{fd}", mode)  # noqa: PTH101 - no path of ours
    finally:
        os.close(fd)


def _tell(path: Path, found: os.stat_result, mode: int) -> None:
    before = stat.S_IMODE(found.st_mode)
    if before & ~mode:
        logger.warning(
            "%s was open to other users (mode %04o) and is not any more (%04o); to share it, put it"
            " into a folder that its group may write to (chmod g+ws)",
            path,
            before,
            mode,
        )
