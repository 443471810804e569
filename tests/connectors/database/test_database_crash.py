"""A reader of rows is killed in the middle of its transactions: each order has one effect."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
import sqlalchemy as sa

from tests import fork_server
from tests.connectors.database import reader_child
from tests.connectors.database.tables import ORDERS as ORDERS_TABLE
from tests.connectors.database.tables import effects, engine_of, insert

ORDERS = 60


@pytest.mark.slow
@pytest.mark.parametrize("statuses", [[], ["new, working, done, failed"]])
@pytest.mark.parametrize("server", ["sqlite", "postgresql"])
def test_kills_leave_one_effect_each(
    server: str, statuses: list[str], request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Killed three times at other places, then left to end: nothing is lost or done twice."""
    is_file = server == "sqlite"
    url = f"sqlite:///{tmp_path}/shop.db" if is_file else request.getfixturevalue("postgres_url")
    engine = engine_of(url)
    with engine.begin() as connection:
        insert(connection, *range(1, ORDERS + 1))
    command = [sys.executable, reader_child.__file__, url, *statuses]
    for lines in (1, 7, 12):
        with fork_server.start(command, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            for _ in range(lines):
                assert child.stdout.readline() == "x\n"
            child.send_signal(signal.SIGKILL)
        done = effects(engine)
        assert done == sorted(set(done))
        assert len(done) < ORDERS
    assert fork_server.run(command, capture_output=True, text=True, timeout=60).returncode == 0
    assert effects(engine) == list(range(1, ORDERS + 1))
    if statuses:
        with engine.connect() as connection:
            found = connection.execute(sa.select(ORDERS_TABLE.c.status).distinct())
            assert found.scalars().all() == ["done"]
    engine.dispose()
