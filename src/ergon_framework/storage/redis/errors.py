"""Redis errors, translated into errors of our own."""

from __future__ import annotations

from redis import exceptions

from ergon_framework.errors import (
    ConfigurationError,
    ErgonError,
    StoreError,
    StoreFullError,
    StoreReadOnlyError,
    StoreSchemaError,
    StoreUnavailableError,
)

_STRANGER = ("NOAUTH", "WRONGPASS", "invalid username-password", "AUTH ", "Authentication required")
_AWAY = (
    *("LOADING", "BUSY", "CLUSTERDOWN", "MASTERDOWN", "TRYAGAIN", "ASK ", "MOVED", "NOREPLICAS"),
    *("MISCONF", "UNBLOCKED", "max number of clients"),
)
"""How errors begin that an operator can end without changing the program or its data."""
_PASSING = (exceptions.ClusterDownError, exceptions.TryAgainError, exceptions.AskError)
_MOVED = "ERGONMOVED "
_NO_SPACE = "No space left"
_DEPOSED = ("READONLY", "MASTERDOWN")
# The error code of a command inside of a script stands somewhere in the text.


def is_replica_error(error: exceptions.ResponseError) -> bool:
    """Whether the server that answered is a replica."""
    text = first_line(error)
    return isinstance(error, exceptions.ReadOnlyError) or any(each in text for each in _DEPOSED)


def away(name: str, error: BaseException) -> StoreUnavailableError:
    """The error of a server that cannot be reached; nothing was sent yet."""
    return StoreUnavailableError(
        f"{name} cannot be reached: {first_line(error)}",
        remedy="see that the server runs and can be reached (redis-cli -u URL ping)",
    )


def lost(name: str, error: BaseException) -> StoreUnavailableError:
    """The answer did not come; the question may have been carried out."""
    return StoreUnavailableError(
        f"the connection to {name} was lost before the answer came, and whether the call was"
        f" carried out is not known: {first_line(error)}",
        remedy="see that the server runs; then look what is there before repeating the call",
        details={"outcome": "unknown"},
    )


def silent(name: str, error: BaseException) -> StoreUnavailableError:
    """The error for callers during the reconnect delay; nothing of theirs was sent."""
    return StoreUnavailableError(
        f"{name} did not answer: {first_line(error)}",
        remedy="see that the server runs and can be reached (redis-cli -u URL ping)",
    )


def closed(name: str) -> StoreUnavailableError:
    """The client was closed before anything was asked."""
    return StoreUnavailableError(f"{name} is closed", remedy="open it again")


def closed_meanwhile(name: str) -> StoreUnavailableError:
    """The client was closed while an answer was waited for."""
    return StoreUnavailableError(
        f"{name} is closed, and whether the call under way was carried out is not known",
        remedy="open it again; then look what is there before repeating the call",
        details={"outcome": "unknown"},
    )


def translate(error: exceptions.ResponseError, name: str) -> ErgonError:
    """The error for what the server refused."""
    text = first_line(error)
    if isinstance(error, exceptions.AuthenticationError) or text.startswith(_STRANGER):
        return ConfigurationError(
            f"{name} does not let this user in",
            remedy="correct the user and the password in the URL",
        )
    if isinstance(error, exceptions.NoPermissionError) or text.startswith("NOPERM"):
        return ConfigurationError(
            f"{name} forbids something to this user: {text}",
            remedy="let the user run scripts and use the keys and channels of the store (ACL)",
        )
    if "DB index is out of range" in text or "SELECT is not allowed" in text:
        return ConfigurationError(
            f"the server has no database of that number: {name}",
            remedy="write another number at the end of the URL; a Redis Cluster has only 0",
        )
    return _of_the_store(error, text, name)


def _of_the_store(error: exceptions.ResponseError, text: str, name: str) -> StoreError:
    if _MOVED in text:
        from ergon_framework.ports.transfer import moved_away

        # All of the text: what is behind the first 300 characters may be the way back.
        return moved_away(name, str(error).partition(_MOVED)[2].strip())
    if isinstance(error, exceptions.OutOfMemoryError) or "OOM command" in text:
        return StoreFullError(
            f"{name} has no memory left for another job",
            remedy="raise maxmemory of the server, or let jobs be purged sooner",
        )
    if _NO_SPACE in text:
        return StoreFullError(
            f"there is no room left on the disk of {name}", remedy="free some disk space there"
        )
    if isinstance(error, exceptions.ReadOnlyError) or "READONLY" in text:
        return StoreReadOnlyError(
            f"{name} is a replica, which may only be read",
            remedy="write the address of the primary in the URL",
        )
    if "WRONGTYPE" in text:
        return StoreSchemaError(
            f"{name} has keys of the store's names that are not of this jobs store",
            remedy="give the store a prefix of its own: redis://host/0?prefix=NAME",
        )
    if isinstance(error, _PASSING) or any(each in text for each in _AWAY):
        return StoreUnavailableError(
            f"{name} cannot be used for now: {text}",
            remedy="wait until the server is ready, or look into its log",
        )
    return StoreError(f"{name} refused a call: {text}", remedy="look into the server's log")


def first_line(error: BaseException) -> str:
    """What to show of it."""
    return (str(error).splitlines() or [type(error).__name__])[0][:300]
