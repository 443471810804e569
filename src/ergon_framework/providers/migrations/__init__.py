"""Numbered changes of the tables of provider calls, run by Alembic.

They have a version table of their own, so that a host's Alembic neither sees them nor is seen.
``running`` runs them on a connection, ``database`` opens one; ``ergon db`` does both. Each revision
only adds: a host's own tables are never touched.
"""

from __future__ import annotations

from ergon_framework.storage.urls import store_operand

VERSION_TABLE = "ergon_provider_alembic_version"
REVISIONS = ("0001",)
"""Every revision this program knows, the oldest first."""
HEAD = REVISIONS[-1]


def upgrade_remedy(found: str | None, url: str = "") -> str:
    """What helps where the tables are of revision ``found``, which is not the latest."""
    if found is not None and found not in REVISIONS:
        return "upgrade ergon-framework here, or name another store"
    return f"this brings them up to date:  ergon db upgrade --store {store_operand(url)}"
