"""The command ``ergon`` as a later version of the package might be: its tables have more columns.

python -m tests.fleet.programs.newer ARGUMENT...
"""

from __future__ import annotations

import importlib.metadata

from ergon_framework.cli import main

VERSION = "99.0"
LATER = "-- compatible: 1\nALTER TABLE ergon_jobs ADD COLUMN later text"

_version = importlib.metadata.version


def _is_newer(distribution_name: str) -> str:
    is_ours = distribution_name == "ergon-framework"
    return VERSION if is_ours else _version(distribution_name)


def _add_a_column() -> None:
    """The schema of jobs on PostgreSQL, one file longer."""
    from ergon_framework.jobs.stores.postgres.transactions import SCHEMA

    number = len(SCHEMA.files) + 1
    SCHEMA.__dict__["files"] = (*SCHEMA.files, (f"{number:04d}_later.sql", LATER))


if __name__ == "__main__":
    importlib.metadata.version = _is_newer
    _add_a_column()
    main()
