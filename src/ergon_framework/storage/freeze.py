"""Triggers that refuse every write to the tables of a store that was moved away.

They refuse for every process. A store that is open for work has no triggers and pays nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ergon_framework.errors import StoreError

SQLITE_WORD = "ergon: moved to "
"""How the message of a trigger in a file begins."""
POSTGRES_STATE = "ERG01"
"""The SQLSTATE of a trigger on a server; its message is the place."""
_FUNCTION = "ergon_moved_away"
_CHANGES = ("INSERT", "UPDATE", "DELETE")


def sqlite_bars(tables: Sequence[str], place: str | None) -> Iterator[str]:
    """Statements that put triggers up, or take them down when there is no place to name."""
    for table in tables:
        for change in _CHANGES:
            name = f"{table}_moved_{change.lower()}"
            yield f"DROP TRIGGER IF EXISTS {name}"
            if place is not None:
                yield (
                    f"CREATE TRIGGER {name} BEFORE {change} ON {table}"
                    f" BEGIN SELECT RAISE(ABORT, {_literal(SQLITE_WORD + place)}); END"
                )


def postgres_bars(tables: Sequence[str], place: str | None, schema: str = "") -> Iterator[str]:
    """The same for PostgreSQL; ``schema`` is quoted already, and empty for the search path.

    When a trigger is there, no change is under way: making it waits for transactions that are.
    """
    within = f"{schema}." if schema else ""
    if place is not None:
        yield (
            f"CREATE OR REPLACE FUNCTION {within}{_FUNCTION}() RETURNS trigger LANGUAGE plpgsql AS"
            f" $$ BEGIN RAISE EXCEPTION '%', TG_ARGV[0] USING ERRCODE = '{POSTGRES_STATE}'; END $$"
        )
    for table in tables:
        yield f"DROP TRIGGER IF EXISTS {_FUNCTION} ON {within}{table}"
        if place is not None:
            yield (
                f"CREATE TRIGGER {_FUNCTION} BEFORE {' OR '.join(_CHANGES)} ON {within}{table}"
                f" FOR EACH STATEMENT EXECUTE FUNCTION {within}{_FUNCTION}({_literal(place)})"
            )


def refuse_moved(error: StoreError) -> None:
    """Raise the error of a store that was moved: to wait for it, or to go on without, is wrong."""
    if error.details.get("moved_to"):
        raise error


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
