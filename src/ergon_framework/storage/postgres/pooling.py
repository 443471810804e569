"""Whether a pooler stands before the server, and whether it leaves a connection to its owner.

In session mode it does. In transaction mode each transaction may run on another connection of the
server: settings that we made for ourselves would be somebody else's, what was prepared would be
missing, and what is announced would be heard by nobody.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from enum import Enum

import psycopg

from ergon_framework.errors import ConfigurationError
from ergon_framework.storage.patience import Patience

_TRIES = 3
_ANSWERED = 2.0  # seconds for a question that costs the server nothing
_ASK = b"SELECT pg_backend_pid()"

Line = psycopg.Connection[tuple[object, ...]]


class Pooling(Enum):
    """Who answers on a connection."""

    NONE = "the server itself"
    SESSION = "a pooler in session mode"
    TRANSACTION = "a pooler in transaction mode"


def pooling_of(line: Line, connect: Callable[[], Line], patience: Patience) -> Pooling:
    """Find out.

    A pooler makes up the number of the process that it says serves us. Two connections that are
    open at once never share a process of the server, unless they have it for a transaction each.
    """
    if line.info.backend_pid == _process(line, patience):
        return Pooling.NONE
    try:
        with closing(connect()) as other:
            is_shared = any(_share(line, other, patience) for _ in range(_TRIES))
    except psycopg.Error:
        if line.closed:
            raise
        return Pooling.SESSION  # there is no second one to be had: who has the first one keeps it
    return Pooling.TRANSACTION if is_shared else Pooling.SESSION


def refuse_shared(found: Pooling, name: str) -> None:
    """Refuse a pooler that gives our connection to others in between."""
    if found is Pooling.TRANSACTION:
        raise ConfigurationError(
            f"{name} is a pooler in transaction mode: settings, prepared statements and LISTEN of a"
            " connection would be somebody else's",
            remedy="let the pooler have session mode for this user or database (pool_mode = session"
            " in PgBouncer), or write the address of the server itself",
        )


def _share(line: Line, other: Line, patience: Patience) -> bool:
    """Whether two connections were seen on one process, or one of them on two.

    It is asked twice in a row, for a pooler that lends in turn; and once while another is lent.
    """
    seen = {_process(line, patience), _process(line, patience)}
    with patience.at_most(_ANSWERED, other), other.transaction():
        taken = _process(other, patience)
        return len(seen) > 1 or taken in seen or _process(line, patience) not in seen


def _process(line: Line, patience: Patience) -> object:
    with patience.at_most(_ANSWERED, line):
        found = psycopg.Cursor(line).execute(_ASK, prepare=False).fetchone()
    return None if found is None else found[0]
