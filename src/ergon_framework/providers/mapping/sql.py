"""What a database's error codes mean for a provider call."""

from __future__ import annotations

from collections.abc import Callable

from ergon_framework.errors import describe
from ergon_framework.providers.mapping.findings import (
    BROKEN,
    DEFECT,
    DENIED,
    DOWN,
    REFUSED,
    TIMEOUT,
    UNREACHED,
    Finding,
    attribute,
)

SQLSTATES: dict[str, Finding] = {
    # Five characters name a condition, two its class; the condition is asked first.
    "08": BROKEN,
    "0A": REFUSED,  # a feature it does not have
    "21": REFUSED,
    "22": REFUSED,  # data
    "23": REFUSED,  # a constraint
    "25006": DOWN,  # read-only: a standby that is about to take over
    "28": DENIED,
    "3D": REFUSED,
    "3F": REFUSED,
    "40": DOWN,  # rolled back for somebody else's sake: may be tried again
    "40003": BROKEN,  # nobody knows whether it was done
    "42": REFUSED,  # a wrong statement
    "42501": DENIED,
    "44": REFUSED,
    "53": DOWN,  # out of memory, disk or connections
    "54": REFUSED,  # larger than it can be
    "55P03": DOWN,  # somebody holds the lock
    "57": DOWN,  # shutting down or starting up
    "57014": TIMEOUT,  # cancelled, which is what a statement timeout does
    "58": DOWN,  # its disk
}

SQLITE_CODES: dict[str, Finding] = {
    "SQLITE_BUSY": DOWN,
    "SQLITE_LOCKED": DOWN,
    "SQLITE_FULL": DOWN,
    "SQLITE_IOERR": DOWN,
    "SQLITE_CANTOPEN": DOWN,
    "SQLITE_PROTOCOL": DOWN,
    "SQLITE_READONLY": DOWN,
    "SQLITE_INTERRUPT": TIMEOUT,
    "SQLITE_AUTH": DENIED,
    "SQLITE_PERM": DENIED,
    "SQLITE_INTERNAL": DEFECT,
    "SQLITE_CORRUPT": DEFECT,
    "SQLITE_NOTADB": DEFECT,
    "SQLITE_NOMEM": DEFECT,
}

DBAPI_CLASSES: dict[str, Finding] = {
    # The names that PEP 249 gives to every driver.
    "OperationalError": DOWN,
    "InterfaceError": BROKEN,
    "DataError": REFUSED,
    "IntegrityError": REFUSED,
    "ProgrammingError": REFUSED,
    "NotSupportedError": REFUSED,
    "InternalError": DEFECT,
}


def by_sqlstate(code: str) -> Finding:
    """What an SQLSTATE says."""
    return SQLSTATES.get(code) or SQLSTATES.get(code[:2]) or DEFECT


def by_psycopg(error: Exception, _now: Callable[[], float]) -> Finding | None:
    """PostgreSQL: the code, if the server got as far as sending one."""
    code = attribute(error, "sqlstate")
    if isinstance(code, str) and code:
        return by_sqlstate(code)
    if attribute(error, "pgconn") is not None:  # it failed to connect
        is_denied = "authentication failed" in describe(error)
        return DENIED._replace(never_sent=True) if is_denied else UNREACHED
    found = by_dbapi_class(error)
    return BROKEN if found is DOWN else found  # without a code, the connection is what failed


def by_sqlite(error: Exception, _now: Callable[[], float]) -> Finding | None:
    """SQLite: its code, where the extended ones begin with the plain one."""
    name = attribute(error, "sqlite_errorname")
    if isinstance(name, str):
        plain = "_".join(name.split("_")[:2])
        # Anything else, such as a table that is not there, is a wrong statement.
        return SQLITE_CODES.get(plain, REFUSED)
    return by_dbapi_class(error)


def by_sqlalchemy(error: Exception, _now: Callable[[], float]) -> Finding | None:
    """A driver's error that says nothing by itself, in SQLAlchemy's wrapping."""
    if attribute(error, "connection_invalidated") is True:
        return BROKEN
    code = attribute(attribute(error, "orig"), "sqlstate")
    return by_sqlstate(code) if isinstance(code, str) and code else by_dbapi_class(error)


def by_dbapi_class(error: Exception) -> Finding | None:
    """What the name of its class says, as every driver uses it."""
    names = (kind.__name__ for kind in type(error).__mro__)
    return next((DBAPI_CLASSES[name] for name in names if name in DBAPI_CLASSES), None)
