"""Which column of a user's table plays which role, as the settings say; nothing is connected."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches

from ergon_framework.connector.broker.dead_letters import refuse_own_dead_letters
from ergon_framework.errors import ConfigurationError

ROLES = {
    "id": "identifies a row: an integer, a uuid or text, with a unique index of its own",
    "payload": "jsonb, json, text or bytea; * is the whole row",
    "headers": "jsonb, json or text: ids, trace and metadata of a transaction",
    "status": "text: whether a row waits, is done, or failed for good",
    "attempts": "an integer: how often a row was delivered",
    "lease": "text or uuid: who has a row",
    "visible_at": "timestamptz: from when on a row may be delivered, NULL is at once",
    "error": "text: why a row failed for good",
    "order": "in which order rows are delivered; the id, if it is not named",
}
"""The roles, and what a column needs for each."""
WHOLE_ROW = "*"
_FORM = 'write the roles that columns play, such as columns="headers, status=state, error"'


@dataclass(frozen=True, slots=True)
class TableOptions:
    """What the settings say about a table."""

    table: str
    columns: Mapping[str, str]
    """The column of each role that one plays."""
    pending: str
    done: str
    dead: str
    keeps_done: bool
    dead_letters: str | None
    """The table that rows are moved to which failed for good."""
    seconds: float
    """How long a lease lasts."""

    @property
    def is_leased(self) -> bool:
        """Whether rows are held by leases in the table; otherwise one reader has all of them."""
        return "lease" in self.columns


def options_of(
    table: object,
    columns: str,
    statuses: str,
    keep: bool,
    dead_letters: str | None,
    lease: float,
) -> TableOptions:
    """The options, checked as far as that is possible without the table."""
    if not isinstance(table, str) or not table.strip("."):
        raise ConfigurationError(
            "a PostgresConnector needs a table", remedy='table="orders", or "shop.orders"'
        )
    refuse_own_dead_letters(table=table, dead_letters=dead_letters)
    found = _columns(columns)
    _refuse_half_a_lease(table, found)
    words = tuple(each.strip() for each in statuses.split(","))
    if len(words) != 3 or len({*words, ""}) != 4:
        raise ConfigurationError(
            f"statuses is {statuses!r}", remedy='write three words: "pending, done, dead"'
        )
    if keep and "status" not in found:
        raise ConfigurationError(
            "keep leaves rows that are done in the table, and no column says that they are",
            remedy='name the column: columns="status"; without keep they are deleted',
        )
    pending, done, dead = words
    return TableOptions(table, found, pending, done, dead, keep, dead_letters, float(lease))


def _columns(text: str) -> dict[str, str]:
    found = {"id": "id", "payload": "payload"}
    for part in (each.strip() for each in text.split(",")):
        if not part:
            continue
        role, mark, column = (each.strip() for each in part.partition("="))
        if role not in ROLES:
            close = get_close_matches(role, ROLES, n=1)
            meant = f"did you mean {close[0]}? " if close else ""
            raise ConfigurationError(
                f"columns has no role {role!r}",
                remedy=f"{meant}The roles are {', '.join(ROLES)}; {_FORM}",
            )
        if mark and not column:
            raise ConfigurationError(f"columns names no column for {role!r}", remedy=_FORM)
        found[role] = column or role
    return found


def _refuse_half_a_lease(table: str, found: Mapping[str, str]) -> None:
    if ("lease" in found) != ("visible_at" in found):
        raise ConfigurationError(
            "a row is held by two columns, lease and visible_at, and columns names one of them",
            remedy=f"name both; if the table lacks them: ALTER TABLE {table}"
            " ADD COLUMN lease text, ADD COLUMN visible_at timestamptz",
        )
    if "attempts" in found and "lease" not in found:
        raise ConfigurationError(
            "attempts are counted when a row is leased, and columns names no lease",
            remedy="name lease and visible_at, too, or leave attempts out",
        )
