"""A real PgBouncer in transaction mode before a PostgreSQL server of the tests."""

from __future__ import annotations

import shutil
import socket
from pathlib import Path
from typing import Any

import pytest

from benchmarks.server_programs import server_folder, server_user
from tests.servers.postgres import name_of
from tests.servers.server import Server, free_port

PLACES = "/usr/sbin:/usr/local/sbin:/opt/homebrew/bin:/usr/local/bin"
"""Where packages put it that PATH may not name."""


def pgbouncer_program() -> str:
    """The program; without it the test is skipped, also where all other servers must be there.

    No wheel has it, only packages of systems do.
    """
    found = shutil.which("pgbouncer") or shutil.which("pgbouncer", path=PLACES)
    if found is None:
        pytest.skip("PgBouncer is not installed; on Debian: apt-get install pgbouncer")
    return found


class PgBouncer(Server):
    """It lends few connections of the server out, each for one transaction."""

    NAME = "pgbouncer"

    def __init__(self, behind: Path, *, pool_size: int = 3) -> None:
        self._program = pgbouncer_program()
        super().__init__(server_folder())
        self.port = free_port()
        users = self.folder / "users.txt"
        users.write_text('"ergon" ""\n', encoding="utf-8")
        self._settings = self.folder / "pgbouncer.ini"
        self._settings.write_text(
            f"""
[databases]
* = host={behind} port=5432

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {self.port}
unix_socket_dir =
auth_type = trust
auth_file = {users}
pool_mode = transaction
default_pool_size = {pool_size}
max_client_conn = 100
server_round_robin = 1
""",
            encoding="utf-8",
        )

    def _options(self) -> dict[str, Any]:
        return server_user()

    def _words(self) -> list[str]:
        return [self._program, str(self._settings)]

    def _answers(self) -> bool:
        with socket.socket() as asked:
            return asked.connect_ex(("127.0.0.1", self.port)) == 0

    def url(self, behind: str) -> str:
        """How to reach a database of the server through it."""
        return f"postgresql://ergon@127.0.0.1:{self.port}/{name_of(behind)}"
