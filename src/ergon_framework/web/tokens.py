"""The tokens that callers of the server must show: where they come from, and what their holders may
do.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import logging
import os
import stat
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from ergon_framework.app.settings.tokens import (
    HASHED,
    MAX_TOKEN,
    MAX_TOKENS,
    parsed,
    token_lines,
    wrong_token,
)
from ergon_framework.errors import ConfigurationError

logger = logging.getLogger("ergon.web")

VARIABLE = "ERGON_SERVER_TOKEN"
SETTLE_TIME = 5.0
"""Seconds after which an empty file counts as complete, and not as being written."""
_OTHERS_MODE = 0o027
"""File permissions: write for the group, or anything for everybody else."""

# No error here shows the value, because it may be a token.


class Tokens(Protocol):
    """The tokens that callers may show."""

    def caller(self, token: bytes) -> str | None:
        """The name that belongs to a token. None when there is no such token."""

    def mark_of(self, name: str) -> bytes | None:
        """The hash of the token of that name. None when it does not exist any more."""


class FixedTokens:
    """Tokens, or their hashes, that do not change. Only digests are kept."""

    def __init__(self, named: Mapping[str, str]) -> None:
        self._digests = {name: _kept(token) for name, token in named.items()}

    def caller(self, token: bytes) -> str | None:
        """The name that belongs to a token, found in a time that does not depend on the token."""
        given, found = _digest(token), None
        for name, digest in self._digests.items():
            if hmac.compare_digest(given, digest):
                found = name  # No break: the time of the answer would show which token matched.
        return found

    def mark_of(self, name: str) -> bytes | None:
        """The hash of the token of that name. None when it does not exist any more."""
        return self._digests.get(name)


class FileTokens:
    """The tokens of a file, read again when it changes. A file that cannot be read changes nothing.

    A file without a line revokes all tokens, unless it is so new that it may still be written.
    Removing the file revokes them, too.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._mark: tuple[int, ...] | None = _mark(file)
        self._tokens = FixedTokens(parsed(_read(file), str(file)))
        _warn_of_access(file)

    def caller(self, token: bytes) -> str | None:
        """The name that belongs to a token in the file as it is now."""
        return self._current().caller(token)

    def mark_of(self, name: str) -> bytes | None:
        """The hash of the token of that name in the file as it is now."""
        return self._current().mark_of(name)

    def expire(self) -> None:
        """Read the file again with the next request, whether or not it seems changed."""
        self._mark = None

    def _current(self) -> FixedTokens:
        mark = _mark(self._file)
        if mark != self._mark:
            # Before it is read: a file that cannot be read is tried again when it changes, and not
            # with every request.
            self._mark = mark
            self._reload()
        return self._tokens

    def _reload(self) -> None:
        if self._is_removed():
            logger.warning("%s was removed: nobody is let in until it is back", self._file)
            self._tokens = FixedTokens({})
            return
        try:
            text = _read(self._file)
            if not token_lines(text) and self._is_settled():
                logger.warning("%s has no token any more: nobody is let in", self._file)
                self._tokens = FixedTokens({})
                return
            self._tokens = FixedTokens(parsed(text, str(self._file)))
        except ConfigurationError as error:
            logger.warning("the tokens from before stay: %s", error)
        else:
            logger.info("the tokens in %s were read again", self._file)

    def _is_removed(self) -> bool:
        try:
            self._file.stat()
        except (FileNotFoundError, NotADirectoryError):
            return True
        except OSError:  # The file may exist: a temporary error revokes nothing.
            return False
        return False

    def _is_settled(self) -> bool:
        """Whether an empty file is meant to be empty. If it is too new for that, it is
        read again.
        """
        try:
            age = time.time() - self._file.stat().st_mtime
        except OSError:
            age = 0.0
        if 0 <= age < SETTLE_TIME:
            self._mark = None
            return False
        return True


def tokens_from(
    file: Path | None, environ: Mapping[str, str], setting: str | None = None
) -> Tokens | None:
    """The tokens of a file, else of the environment, else of the settings. None without any."""
    if file is not None:
        return FileTokens(file)
    if environ.get(VARIABLE) is not None:
        return FixedTokens(parsed(environ[VARIABLE], VARIABLE))
    return None if setting is None else FixedTokens(parsed(setting, "[server] token"))


def _read(file: Path) -> str:
    try:
        # Links are followed, because containers are given secrets that way.
        with open(file, encoding="ascii") as opened:
            if os.fstat(opened.fileno()).st_mode & stat.S_IWOTH:
                raise ConfigurationError(
                    f"everybody may write to the token file {file}, and let himself in",
                    remedy=f"chmod 600 {file}, and make new tokens",
                )
            # Bounded, because the path may be that of a device or of a log by mistake.
            return opened.read(MAX_TOKENS * (MAX_TOKEN + 100))
    except OSError as error:
        raise ConfigurationError(
            f"the token file {file} cannot be read: {error.strerror}",
            remedy="give --token-file a file that holds a token, or one in each line",
        ) from error
    except UnicodeDecodeError:
        raise wrong_token(str(file), "has characters other than ASCII") from None


def _warn_of_access(file: Path) -> None:
    with contextlib.suppress(OSError):
        mode = stat.S_IMODE(file.stat().st_mode)
        if mode & _OTHERS_MODE:
            logger.warning(
                "the token file %s is open to other users (mode %04o): chmod 600 %s",
                file,
                mode,
                file,
            )


def _mark(file: Path) -> tuple[int, ...]:
    """A value that changes when the file does; empty while it cannot be found."""
    try:
        found = file.stat()
    except OSError:
        return ()
    return found.st_mtime_ns, found.st_size, found.st_ino, found.st_mode


def _kept(token: str) -> bytes:
    """The digest of a token. A token that is written as a hash is that hash."""
    hashed = HASHED.fullmatch(token)
    return _digest(token.encode()) if hashed is None else bytes.fromhex(hashed[1])


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()


class CallerRole(StrEnum):
    """What a caller may do."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"

    @property
    def may_act(self) -> bool:
        """Whether the caller may change anything, or only read."""
        return self is not CallerRole.VIEWER


@dataclass(frozen=True, slots=True)
class CallerRoles:
    """Which token names have which role. All others only read."""

    operators: Collection[str] = ()
    admins: Collection[str] = ()

    def of(self, name: str) -> CallerRole:
        """The role of a name."""
        if name in self.admins:
            return CallerRole.ADMIN
        return CallerRole.OPERATOR if name in self.operators else CallerRole.VIEWER
