"""PostgreSQL's errors, those of connecting with TLS included, translated into errors of our own."""

from __future__ import annotations

import shlex

import psycopg

from ergon_framework.errors import (
    ConfigurationError,
    ErgonError,
    StoreBrokenError,
    StoreError,
    StoreFullError,
    StoreReadOnlyError,
    StoreSchemaError,
    StoreUnavailableError,
)
from ergon_framework.storage import connection_errors
from ergon_framework.storage.freeze import POSTGRES_STATE
from ergon_framework.storage.postgres.address import unknown_option

OPTIONS = connection_errors.Options(
    "?sslmode=verify-full&sslrootcert=FILE", "?sslcert=FILE&sslkey=FILE", "?sslmode=disable"
)
_NO_AUTHORITY = "root certificate file"
_NO_FILE = ("private key file", "certificate file", "weak sslmode")
_NO_TLS = "server does not support SSL"
_ENCRYPTED = "no encryption"  # what the server found missing


def fault_of(name: str, text: str) -> ConfigurationError | None:
    """The error for it; None when it is about something else."""
    said = text.splitlines()[0] if text else ""
    if _NO_AUTHORITY in said and "does not exist" in said:
        return ConfigurationError(
            f"nobody is named here whom the certificate of {name} could be checked against",
            remedy=f"name the file of the authority that signed it: {OPTIONS.authority}; with"
            " sslrootcert=system, those count that this machine trusts",
        )
    if any(each in said for each in _NO_FILE):
        reason = said.rpartition(" failed: ")[2][:300]
        return ConfigurationError(
            f"a file that the URL of {name} names for TLS cannot be used: {reason}",
            remedy=f"correct it ({OPTIONS.authority}, {OPTIONS.own}); a key may be readable for"
            " this user only (chmod 600)",
        )
    if _NO_TLS in text:
        return ConfigurationError(
            f"{name} does not speak TLS, and the connection must be encrypted: nothing was sent",
            remedy="turn TLS on in the server (ssl = on) or, on a network where nobody reads along,"
            f" write {OPTIONS.plain} in the URL",
        )
    if _ENCRYPTED in text:
        return ConfigurationError(
            f"{name} lets this user in with TLS only, or not at all",
            remedy=f"write {OPTIONS.authority} in the URL, or correct the user and the database",
        )
    return connection_errors.refused(name, text, OPTIONS)


_MAX_ATTEMPTS = {"40001": 5, "40P01": 5, "55P03": 2, "26000": 3, "42P05": 3, "0A000": 3}
"""How often to begin a transaction that the server undid because of others: a conflict or a
deadlock passes at once, a lock that was waited for in vain hardly ever. The last three: what was
prepared on the connection is gone, or does not fit the tables any more."""
_NOT_PREPARED = frozenset({"26000", "42P05"})
_FULL = "53100"
_READ_ONLY = "25006"
_NO_RIGHT = "42501"
MISSING = frozenset({"42P01", "42703", "3F000"})
"""A table, a column, a schema."""
_DAMAGED = frozenset({"58030", "XX001", "XX002"})
_AWAY = ("08", "53", "55", "57", "40", "28", "3D", "58")
"""Classes of trouble that an operator can end without changing the program or its data."""
_REMEDY = "see that the server runs, can be reached and lets this user in"
_BEGIN_AGAIN = "nothing of it was done: begin the transaction again"
_REMEDIES = {
    "40001": _BEGIN_AGAIN,
    "40P01": _BEGIN_AGAIN,
    "55P03": "somebody holds what is wanted: see who keeps a transaction open, then try again",
}
_UNDONE = frozenset({"40001", "40P01", "55P03", "57014"})
"""The server has answered: it undid this one transaction, because of another one or of somebody who
cancelled it."""
_REFUSED = ("22", "23", "54")
"""Classes of values that are taken for impossible, however often they are sent."""
_STRANGER = ("password authentication failed", "no password supplied", "no pg_hba.conf entry")
_IN_PIPELINE = "pipeline mode"
_NO_ROLE = ("role ", "does not exist")
_NO_DATABASE = ("database ", "does not exist")


def turns_for(error: BaseException) -> int:
    """How often a transaction that ended like this is begun in all; nothing of it was done."""
    return _MAX_ATTEMPTS.get(getattr(error, "sqlstate", None) or "", 1)


def refused(error: BaseException, name: str) -> ErgonError | None:
    """The error of a server that refuses this connection however often it is tried.

    Errors while connecting carry no code: the text is all there is. It comes from the server, and
    in another language it is not known, which :func:`translate` then calls unavailable.
    """
    text = str(error)
    about_url = fault_of(name, text) or unknown_option(text)
    if about_url is not None:
        return about_url
    if any(each in text for each in _STRANGER) or all(each in text for each in _NO_ROLE):
        return ConfigurationError(
            f"{name} does not let this user in",
            remedy="correct the user and the password in the URL, or in PGPASSWORD or ~/.pgpass",
        )
    if all(each in text for each in _NO_DATABASE):
        return ConfigurationError(
            f"the server has no database of that name: {name}",
            remedy="create it (createdb NAME), or correct the URL",
        )
    return None


def translate_any(error: BaseException, name: str) -> ErgonError:
    """The error of a connection or of a statement, where both may have raised ``error``.

    Errors of connecting have no SQLSTATE.
    """
    has_state = bool(getattr(error, "sqlstate", None))
    refusal = None if has_state else refused(error, name)
    return refusal or translate(error, name)


def translate(error: BaseException, name: str) -> StoreError:
    """The store's error for it. A message's first line alone: what follows may show values."""
    state: str = getattr(error, "sqlstate", None) or ""
    text = first_line(error)
    if not state and _IN_PIPELINE in text:  # what the driver meets when it leaves a dead one
        text = "the connection was lost"
    if state == POSTGRES_STATE:
        from ergon_framework.ports.transfer import moved_away

        # All of the text: what is behind the first 300 characters may be the way back.
        message = getattr(getattr(error, "diag", None), "message_primary", None) or text
        return moved_away(name, message, shlex.quote(name))
    if state == _FULL:
        return StoreFullError(
            f"there is no room left on the disk of {name}", remedy="free some disk space there"
        )
    if state == _READ_ONLY:
        return StoreReadOnlyError(
            f"{name} may not be written: {text}",
            remedy="connect to a server that is no standby, and whose default_transaction_read_only"
            " is off",
        )
    if state == _NO_RIGHT:
        return StoreReadOnlyError(
            f"{name} does not let this user do that: {text}",
            remedy="give the user the right (GRANT SELECT, INSERT, UPDATE, DELETE ON TABLE … TO"
            " …), or name another user in the URL",
        )
    if state in MISSING:
        return StoreSchemaError(f"{name} lacks a table: {text}", remedy="run `ergon db upgrade`")
    if state in _DAMAGED:
        return StoreBrokenError(
            f"{name} cannot read or write its own files: {text}",
            remedy="check the server's disk, and restore a backup if it is damaged",
        )
    if state.startswith(_AWAY) or (not state and not isinstance(error, psycopg.DataError)):
        # Without a state the connection broke; 08 and 57P say the same. Only then may a commit have
        # happened.
        about = {"is_lost": not state or state.startswith(("08", "57P"))}
        if state in _UNDONE:
            about["is_undone"] = True
        return StoreUnavailableError(
            f"{name} cannot be used for now: {text}",
            remedy=_REMEDIES.get(state, _REMEDY),
            details=about,
        )
    if state in _NOT_PREPARED:
        return StoreUnavailableError(
            f"{name} does not know what was prepared there a moment ago: {text}",
            remedy="if a pooler in transaction mode stands before the server, write"
            " ?pooler=transaction in the URL",
            details={"is_lost": False},
        )
    is_refused = state.startswith(_REFUSED) or (not state and isinstance(error, psycopg.DataError))
    return StoreError(
        f"{name} refused a statement: {text}",
        remedy="nothing of it was written",
        details={"is_refused": is_refused},
    )


def first_line(error: BaseException) -> str:
    """What the server says, without the values that it may show further down."""
    primary = getattr(getattr(error, "diag", None), "message_primary", None)
    text = primary or str(error)
    return (text.strip().splitlines() or [type(error).__name__])[0][:300]
