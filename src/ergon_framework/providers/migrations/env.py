"""What Alembic runs, on the connection or for the dialect that ``running`` sets."""

from __future__ import annotations

from alembic import context

from ergon_framework.providers.migrations import VERSION_TABLE
from ergon_framework.providers.models import metadata

given = context.config.attributes

if context.is_offline_mode():
    context.configure(
        dialect_name=given["dialect"],
        literal_binds=True,
        transactional_ddl=True,
        version_table=VERSION_TABLE,
    )
else:
    context.configure(
        connection=given["connection"],
        target_metadata=metadata,
        transactional_ddl=True,  # on SQLite too, where Alembic expects a driver that cannot
        version_table=VERSION_TABLE,
    )
with context.begin_transaction():
    context.run_migrations()
    if given.get("is_last"):  # nothing of ours is left; most versions of Alembic leave their table
        context.execute(f"DROP TABLE IF EXISTS {VERSION_TABLE}")
